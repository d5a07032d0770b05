"""Random allocation problems: trials with unlike curves, some of them cut below their fewest
slots.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from shoal.policy.elastic.table import FORBIDDEN, gains


@dataclass(frozen=True)
class Case:
    curve: np.ndarray
    held: np.ndarray
    up: np.ndarray
    down: np.ndarray
    horizon: float
    free: int

    @property
    def table(self) -> np.ndarray:
        return gains(self.curve, self.held, self.up, self.down, self.horizon)


def case(rng: np.random.Generator, trials: int, free: int, width: int) -> Case:
    curve = np.full((trials, width + 1), FORBIDDEN)
    curve[:, 0] = 0.0
    held = np.zeros(trials, np.int64)
    left = free
    for j in range(trials):
        low = int(rng.integers(1, min(5, width + 1)))
        high = min(width, low + int(rng.integers(0, width)))
        n = np.arange(low, high + 1)
        base = rng.uniform(500, 8000)
        rates = (
            base * n ** rng.uniform(0.6, 1.05),
            base * n / (1 + 0.02 * n),
            np.cumsum(rng.uniform(100, 5000, len(n))),
        )
        points = np.unique(np.r_[low, high, rng.integers(low, high + 1, 4)])
        curve[j, low : high + 1] = np.interp(n, points, rates[rng.integers(3)][points - low])
        held[j] = min(left, rng.integers(0, high + 1) if rng.random() > 0.25 else 0)
        left -= held[j]
    horizon = float(rng.choice([5, 10, 30, 60, 120, 300, 1000]))
    return Case(curve, held, rng.uniform(5, 40, trials), rng.uniform(3, 25, trials), horizon, free)


def brute(table: np.ndarray, free: int) -> float:
    choices = [np.flatnonzero(row > FORBIDDEN) for row in table]
    return max(
        sum(row[n] for row, n in zip(table, ns, strict=True))
        for ns in product(*choices)
        if sum(ns) <= free
    )
