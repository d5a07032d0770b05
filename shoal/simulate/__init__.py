"""Whole supercomputers in virtual time: idle-node logs, specs, and policies side by side."""

from shoal.simulate.command import simulate as simulate
from shoal.simulate.command import trace_stats as trace_stats
