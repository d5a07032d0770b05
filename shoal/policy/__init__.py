"""Where trials run, when, and on how many slots: one pure decider a file, each with its source.

A policy is a frozen value; what it must remember is JSON-able and journalled; its randomness is a
function of (seed, turn). `describe` and `rebuild` turn one into plain data and back.
"""

from shoal.policy.auto import Auto as Auto
from shoal.policy.combine import admit as admit
from shoal.policy.combine import every as every
from shoal.policy.combine import fallback as fallback
from shoal.policy.doubling import Doubling as Doubling
from shoal.policy.doubling import Width as Width
from shoal.policy.elastic import Elastic as Elastic
from shoal.policy.equi import Equi as Equi
from shoal.policy.equi import HeSrpt as HeSrpt
from shoal.policy.equi import SrptK as SrptK
from shoal.policy.equi import Wrate as Wrate
from shoal.policy.explore import Explore as Explore
from shoal.policy.fifo import Fifo as Fifo
from shoal.policy.fixed import Fixed as Fixed
from shoal.policy.flotilla import Flotilla as Flotilla
from shoal.policy.flotilla import Rounds as Rounds
from shoal.policy.hop import Hop as Hop
from shoal.policy.hybrid import Hybrid as Hybrid
from shoal.policy.killable import Killable as Killable
from shoal.policy.milp import NodeMilp as NodeMilp
from shoal.policy.named import describe as describe
from shoal.policy.named import parse as parse
from shoal.policy.named import rebuild as rebuild
from shoal.policy.pack import Pack as Pack
from shoal.policy.packed import Packed as Packed
from shoal.policy.waterfill import WaterFill as WaterFill
