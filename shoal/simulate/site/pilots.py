"""What pilots would make of idle nodes: they are seen at ticks, and take a while to start."""

from dataclasses import dataclass, replace

import numpy as np

from shoal.core.trial import Seconds
from shoal.harvest.observer import SECOND
from shoal.simulate.trace import IdleLog


@dataclass(frozen=True, slots=True)
class Pilots:
    """How a harvester takes idle nodes.

    `tick`: seconds between two looks. `min_ticks`: looks in a row at which a node must be idle; the
    second one comes soon. `start`: seconds from there until its slot is open: the queue, the start
    of Ray, imports, data.
    """

    tick: Seconds = 10.0
    min_ticks: int = 2
    start: Seconds = 20.0

    def slots_in(self, log: IdleLog) -> IdleLog:
        """When nodes of this log would be slots; they go when the nodes do.

        Idle times that are too short come to nothing.
        """
        idle = np.maximum(log.start, log.begin) - log.begin
        first = np.ceil(idle / self.tick) * self.tick
        open_ = log.begin + first + self._seen() + self.start
        some = open_ < np.minimum(log.end, log.finish)
        return replace(log, node=log.node[some], start=open_[some], end=log.end[some])

    def _seen(self) -> Seconds:
        """From the look at which a node is first seen idle to the one at which it is taken."""
        if self.min_ticks == 1:
            return 0.0
        return min(SECOND, self.tick) + (self.min_ticks - 2) * self.tick
