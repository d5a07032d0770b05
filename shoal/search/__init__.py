"""Which trials exist, and how long they train: one pure searcher a file.

A searcher is a frozen value. Its memory is JSON-able and journalled. Configuration i is a function
of (seed, i). `describe` and `rebuild` turn one into plain data and back.
"""

from shoal.search.asha import ASHA as ASHA
from shoal.search.grid import Grid as Grid
from shoal.search.halving import Hyperband as Hyperband
from shoal.search.halving import SuccessiveHalving as SuccessiveHalving
from shoal.search.optuna import Optuna as Optuna
from shoal.search.pbt import PBT as PBT
from shoal.search.random import Random as Random
from shoal.search.registry import compares as compares
from shoal.search.registry import completed as completed
from shoal.search.registry import describe as describe
from shoal.search.registry import is_searcher as is_searcher
from shoal.search.registry import nested as nested
from shoal.search.registry import parse as parse
from shoal.search.registry import rebuild as rebuild
from shoal.search.stopping import MedianStopping as MedianStopping
from shoal.search.stopping import Patience as Patience
from shoal.search.trace import Trace as Trace
