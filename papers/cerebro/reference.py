"""The paper's other two planners of an open shop, for comparison: vector rearrangement and the
MILP.

Nakandala et al., VLDB 2020, sections 5.1 and 5.2; Sevast'yanov 1994, Bárány and Fiala 1982.
Both are beaten by `schedules.quick4`; nothing in Shoal decides by them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np

from shoal.core.trial import Seconds
from shoal.policy.hop.schedules import Times, along, bound, most_left
from shoal.policy.hop.shop import EPS, Floats, Shop, ShopSchedule, ShopUnit, dispatch


class Rearranged(NamedTuple):
    """`optimal`: the paper's condition, largest load >= (p^2 + p - 1) longest unit, holds."""

    schedule: ShopSchedule
    optimal: bool


def vector_rearrangement(times: Times) -> Rearranged:
    """One epoch. Trials are put in an order in which all slots' loads grow alike; each slot
    begins elsewhere in it.

    Dummy work first makes the slots' loads equal; the order is run as a list, so that dummies
    take no time.
    """
    table = np.asarray(times, float)
    count, slots = table.shape
    load, most = float(table.sum(axis=0).max()), float(table.max())
    padded = _level(table, load, most)
    order = _even_order(padded[:, :-1] - padded[:, -1:])
    orders = []
    for slot in range(slots):
        before = np.concatenate([[0.0], np.cumsum(padded[order, slot])[:-1]])
        first = int(np.searchsorted(before, slot * load / slots - EPS))
        orders.append([i for i in order[first:] + order[:first] if i < count])
    return Rearranged(
        dispatch(Shop.open(times), along(orders)), load >= (slots**2 + slots - 1) * most
    )


def _level(table: Floats, load: float, most: float) -> Floats:
    """The times, raised to `most` at the longest, and rows for dummy trials, so that every
    slot's sum is `load`.
    """
    lacks = load - table.sum(axis=0)
    padded = table.copy()
    for slot, lack in enumerate(lacks):
        room = np.minimum(np.cumsum(most - table[:, slot]), lack)
        padded[:, slot] += np.diff(room, prepend=0.0)
    lacks = load - padded.sum(axis=0)
    dummies = np.zeros((ceil(float(lacks.max()) / most - EPS), table.shape[1]))
    for slot, lack in enumerate(lacks):
        dummies[:, slot] = np.diff(
            np.minimum(np.arange(1, len(dummies) + 1) * most, lack), prepend=0.0
        )
    return np.vstack([padded, dummies])


def _even_order(vectors: Floats) -> list[int]:
    """An order of vectors that sum to nothing in which no partial sum is longer than their
    dimension times the longest.

    Grinberg and Sevast'yanov: from the last place on, a corner of a polytope has a vector of
    weight 0; it goes there.
    """
    from scipy.optimize import linprog  # slow to import, and needed here only

    left, tail = list(range(len(vectors))), []
    if np.abs(vectors).max(initial=0.0) < EPS:
        return left
    size = vectors.shape[1]
    while len(left) > size + 1:
        rows = np.vstack([vectors[left].T, np.ones(len(left))])
        sums = np.concatenate([np.zeros(size), [len(left) - 1 - size]])
        found = linprog(np.zeros(len(left)), A_eq=rows, b_eq=sums, bounds=(0, 1), method="highs-ds")
        tail.append(left.pop(int(np.argmin(found.x)) if found.status == 0 else -1))
    return left + tail[::-1]


@dataclass(frozen=True, slots=True)
class Solved:
    """`schedule`: the better of the solver's and LRW's. `found`: the solver's makespan
    (infinite: none found in time).

    `bound`: what the solver proved that no schedule undercuts. `binaries`: how many decisions
    it had.
    """

    schedule: ShopSchedule
    found: Seconds
    bound: Seconds
    binaries: int


def milp(times: Times, nodes: int | None = 10_000, seconds: float | None = None) -> Solved:
    """One epoch by the paper's equations 1 and 2, with (2a) read as of one trial: X_ij >= X_ij'
    + T_ij' - V Y_ijj'.

    `nodes`: branch-and-bound nodes after which the solver gives up; `seconds`: the same by the
    clock, which makes its answer depend on the machine. V is the makespan of LRW, which no
    better schedule exceeds.
    """
    from scipy.optimize import (
        Bounds,
        LinearConstraint,
        milp,
    )  # slow to import, and needed here only

    table = np.asarray(times, float)
    count, slots = table.shape
    start = dispatch(Shop.open(times), most_left)
    most, pairs = start.makespan, list(_pairs(count, slots))
    cells, last = count * slots, count * slots
    columns = cells + 1 + len(pairs)  # starts, the makespan, and which of each pair is second
    matrix, least = _rows(table.ravel(), pairs, cells, columns, most)
    high = np.concatenate([np.full(cells, most), [most], np.ones(len(pairs))])
    low = np.zeros(columns)
    low[last] = bound(times)
    goal = np.zeros(columns)
    goal[last] = 1.0
    options = {k: v for k, v in (("node_limit", nodes), ("time_limit", seconds)) if v is not None}
    whole = np.concatenate([np.zeros(cells + 1), np.ones(len(pairs))])
    limits = LinearConstraint(matrix, least, inf)
    answer = milp(
        goal, integrality=whole, bounds=Bounds(low, high), constraints=limits, options=options
    )
    proved = float(answer.mip_dual_bound) if answer.mip_dual_bound is not None else bound(times)
    if answer.x is None:
        return Solved(start, inf, proved, len(pairs))
    schedule = _pressed(table, answer.x[:cells].reshape(table.shape))
    return Solved(
        min(schedule, start, key=lambda s: s.makespan), schedule.makespan, proved, len(pairs)
    )


def _pairs(count: int, slots: int) -> Iterator[tuple[int, int]]:
    """Units that may not overlap, as numbers of cells: those of one trial, then those of one
    slot.
    """
    for i in range(count):
        yield from combinations(range(i * slots, (i + 1) * slots), 2)
    for j in range(slots):
        yield from combinations(range(j, count * slots, slots), 2)


def _rows(
    lasts: Floats, pairs: Sequence[tuple[int, int]], cells: int, columns: int, most: float
) -> tuple[Any, Floats]:
    """matrix @ variables >= least: either unit of a pair starts after the other's end; the
    makespan is after every end.
    """
    from scipy.sparse import csr_array

    one, other = np.array(pairs, int).T
    n, cell, once = np.arange(len(pairs)), np.arange(cells), np.ones(len(pairs))
    m, end = (
        n + len(n),
        cell + 2 * len(n),
    )  # rows: one after other, other after one, the end after each
    rows = np.concatenate([n, n, n, m, m, m, end, end])
    at = np.concatenate(
        [other, one, cells + 1 + n, one, other, cells + 1 + n, np.full(cells, cells), cell]
    )
    value = np.concatenate(
        [once, -once, most * once, once, -once, -most * once, np.ones(cells), -np.ones(cells)]
    )
    least = np.concatenate([lasts[one], lasts[other] - most, lasts])
    return csr_array((value, (rows, at)), shape=(2 * len(n) + cells, columns)), least


def _pressed(table: Floats, starts: Floats) -> ShopSchedule:
    """The units in the order of their starts, each as early as its trial and slot allow: free
    of the solver's rounding.
    """
    trial_free, slot_free = [0.0] * table.shape[0], [0.0] * table.shape[1]
    units = []
    for cell in np.argsort(starts.ravel() + 1e-9 * table.ravel(), kind="stable"):
        i, j = divmod(int(cell), table.shape[1])
        start = max(trial_free[i], slot_free[j])
        trial_free[i] = slot_free[j] = start + float(table[i, j])
        units.append(ShopUnit(start, slot_free[j], i, j, j))
    return ShopSchedule(tuple(sorted(units)))
