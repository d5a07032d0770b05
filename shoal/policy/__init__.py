"""Where trials run, when, and on how many slots: one pure decider a file, each with its source.

A policy is a frozen value; what it must remember is JSON-able and journalled; its randomness is a
function of (seed, turn). `describe` and `rebuild` turn one into plain data and back.
"""

from shoal.policy.fifo import Fifo as Fifo
from shoal.policy.fixed import Fixed as Fixed
from shoal.policy.hop import Hop as Hop
from shoal.policy.named import describe as describe
from shoal.policy.named import rebuild as rebuild
from shoal.policy.pack import Pack as Pack
