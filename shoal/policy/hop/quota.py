"""Shards with replicas: how the work on each is best divided among its holders.

Ours: a linear program over shares, solved once. Its value bounds every schedule from below:

    min C  such that  sum_w y[q, w] = 1             for each shard q, over its holders w
                      sum_q y[q, w] * T[q, w] <= C  for each slot w
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.core.trial import Seconds

Floats = NDArray[np.float64]
Row = Sequence[float]
Holders = Sequence[Sequence[int]]  # of each shard


class Shares(NamedTuple):
    """The optimum of the program.

    `bound`: C; no epoch is shorter. `share[q][w]`: y, the part of shard q's work that slot w does.
    """

    bound: Seconds
    share: tuple[tuple[float, ...], ...]


def replica_bound(speeds: Row, work: Row, holders: Holders) -> Shares:
    """The program for slots that differ in speed alone.

    Args:
        speeds: `speeds[w]`, work per second of slot w.
        work: `work[i]`, work of trial i on any one shard.
        holders: `holders[q]`, the slots that hold shard q.

    Raises:
        ValueError: a shard has no holder.
    """
    total = float(sum(work))
    seconds = [total / speed for speed in speeds]
    return shares([list(_at(slots, seconds)) for slots in holders])


def _at(slots: Sequence[int], seconds: Row) -> Iterator[Seconds]:
    """The seconds at each of these slots; infinite at the others."""
    for slot, value in enumerate(seconds):
        yield value if slot in slots else inf


def shares(seconds: Sequence[Row]) -> Shares:
    """The program where shards or slots differ at will.

    `seconds[q][w]`: T, what slot w would take for all work on shard q; infinite where it does not
    hold it.

    Raises:
        ValueError: a shard has no holder.
    """
    table = np.asarray(seconds, float)
    held = np.isfinite(table)
    _check_held(held)
    solution = _solved(table)
    share = np.zeros(table.shape)
    share[held] = solution[:-1]
    rows = tuple(tuple(map(float, row)) for row in share)
    return Shares(float(solution[-1]), rows)


def _check_held(held: NDArray[np.bool_]) -> None:
    """Raise ValueError if a shard has no holder."""
    any_holder = held.any(axis=1)
    if not any_holder.all():
        first = int(any_holder.argmin())
        raise ValueError(f"every shard needs a slot that holds it; shard {first} has none")


def _solved(table: Floats) -> Floats:
    """The program's variables at its optimum: y for each finite entry of the table, then C."""
    from scipy.optimize import linprog  # slow to import, and needed here only

    held = np.isfinite(table)
    shards, slots = np.nonzero(held)
    y = np.arange(len(shards))
    whole = np.zeros((len(table), len(y) + 1))
    whole[shards, y] = 1.0
    busy = np.zeros((table.shape[1], len(y) + 1))
    busy[slots, y] = table[held]
    busy[:, -1] = -1.0
    found = linprog(
        _unit(len(y) + 1),
        A_ub=busy,
        b_ub=np.zeros(len(busy)),
        A_eq=whole,
        b_eq=np.ones(len(whole)),
        bounds=(0, None),
        method="highs",
    )
    solution: Floats = found.x
    return solution


def _unit(size: int) -> Floats:
    """The goal: 1 for C, the last variable, and 0 for all others."""
    goal = np.zeros(size)
    goal[-1] = 1.0
    return goal
