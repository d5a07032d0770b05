"""Which trials exist, and how long they train: one pure searcher a file.

A searcher is a frozen value; its memory is JSON-able and journalled; configuration i is a function of
(seed, i). `describe` and `rebuild` turn one into plain data and back.
"""

from shoal.search.grid import Grid as Grid
from shoal.search.halving import Halving as Halving
from shoal.search.halving import Hyperband as Hyperband
from shoal.search.named import describe as describe
from shoal.search.named import rebuild as rebuild
from shoal.search.random import Random as Random
from shoal.search.trace import Trace as Trace
