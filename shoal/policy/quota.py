"""Shards with replicas: how the work on each is best divided among its holders.

Ours: a linear program over shares, solved once. Its value bounds every schedule from below.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from shoal.core.trial import Seconds


class Shares(NamedTuple):
    """`bound`: no epoch is shorter. `share[q][w]`: the part of shard q's work that slot w does at that bound."""

    bound: Seconds
    share: tuple[tuple[float, ...], ...]


def replica_bound(speeds: Sequence[float], work: Sequence[float], holders: Sequence[Sequence[int]]) -> Shares:
    """min C so that each shard's work is shared out among its holders and no slot works longer than C.

    `speeds[w]`: work per second of slot w. `work[i]`: work of trial i on any one shard. `holders[q]`: the
    slots that hold shard q.

    Raises:
        ValueError: a shard has no holder.
    """
    total = float(sum(work))
    return shares([[total / speed if w in at else inf for w, speed in enumerate(speeds)] for at in holders])


def shares(seconds: Sequence[Sequence[Seconds]]) -> Shares:
    """The same where shards or slots differ at will.

    `seconds[q][w]`: what slot w would take for all work on shard q; infinite where it does not hold it.

    Raises:
        ValueError: a shard has no holder.
    """
    from scipy.optimize import linprog  # slow to import, and needed here only

    table = np.asarray(seconds, float)
    held = np.isfinite(table)
    if not held.any(axis=1).all():
        raise ValueError(f"every shard needs a slot that holds it; shard {int(held.any(axis=1).argmin())} has none")
    shards, slots = np.nonzero(held)
    goal = np.zeros(len(shards) + 1)
    goal[-1] = 1.0  # the last variable is C
    whole = np.zeros((len(table), len(goal)))
    busy = np.zeros((table.shape[1], len(goal)))
    busy[:, -1] = -1.0
    whole[shards, np.arange(len(shards))] = 1.0
    busy[slots, np.arange(len(shards))] = table[held]
    each, once = np.zeros(len(busy)), np.ones(len(whole))
    found = linprog(goal, A_ub=busy, b_ub=each, A_eq=whole, b_eq=once, bounds=(0, None), method="highs")
    share = np.zeros(table.shape)
    share[held] = found.x[:-1]
    return Shares(float(found.x[-1]), tuple(tuple(map(float, row)) for row in share))
