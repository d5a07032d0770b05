"""When trials come: recorded, at even intervals, or as a Poisson process."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Seconds, Trial

Arrival = tuple[Seconds, Trial]


@dataclass(frozen=True)
class Arrivals:
    """A searcher: these trials at these times, in their order. Its memory is how many came."""

    arrivals: Sequence[Arrival]

    def start(self) -> int:
        return 0

    def propose(self, view: View, came: int) -> tuple[Proposal, int]:
        first = came
        while came < len(self.arrivals) and self.arrivals[came][0] <= view.now:
            came += 1
        wake = self.arrivals[came][0] if came < len(self.arrivals) else None
        return Proposal(tuple(trial for _, trial in self.arrivals[first:came]), wake_at=wake), came


def poisson(count: int, mean: Seconds, seed: int = 0, begin: Seconds = 0.0) -> list[Seconds]:
    """So many times with exponential gaps of this mean; the first at `begin`."""
    gaps = np.random.default_rng(seed).exponential(mean, count)
    gaps[:1] = 0.0
    return [begin + float(at) for at in np.cumsum(gaps)]


def even(count: int, gap: Seconds, begin: Seconds = 0.0) -> list[Seconds]:
    """So many times, `gap` apart."""
    return [begin + k * gap for k in range(count)]
