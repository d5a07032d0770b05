"""List rules for a simulated shop: what an idle slot takes next, when the planner tries schedules.

All are ours. For an open shop: `most_left`, `varied`, `along` and `by_matching`. For shards with
replicas: `scarce`, with its quota and guard. Algorithm 1 of Nakandala et al., VLDB 2020, is in
`choose`, for live studies.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from shoal.core.trial import Seconds
from shoal.policy.hop.shop import (
    EPS,
    Flags,
    Floats,
    Floor,
    Indices,
    Pick,
    Rule,
    ShopSchedule,
)

Score = Callable[[Floor, int, Indices], Floats]  # of these trials at a slot
Slots = Sequence[int]
Picks = Iterable[Pick]

WIDTHS = (0.02, 0.1, 0.3)  # of the variations: the standard deviation of a factor's log
NEARLY = 1e-4  # of its target: a unit may end so much later


# -- for an open shop


def greedy(score: Score) -> Rule:
    """The most loaded slot first; each takes the idle trial of the highest score.

    Of trials with equal scores the first is taken.
    """

    def rule(floor: Floor, slots: Slots) -> Picks:
        idle = floor.idle.copy()
        for slot in sorted(slots, key=lambda j: (-floor.load[j], j)):
            trials = np.flatnonzero(floor.pending[:, slot] & idle)
            if not trials.size:
                continue
            best = np.argmax(score(floor, slot, trials))
            trial = int(trials[best])
            idle[trial] = False
            yield trial, slot, slot

    return rule


def _work_left(floor: Floor, slot: int, trials: Indices) -> Floats:
    return floor.left[trials]


most_left = greedy(_work_left)  # LRW: largest remaining work, over all epochs


def varied(number: int, trials: int) -> Rule:
    """LRW with each trial's work off by a factor; a variation for each number."""
    factor = variation(number, trials)

    def score(floor: Floor, slot: int, trials: Indices) -> Floats:
        return floor.left[trials] * factor[trials]

    return greedy(score)


def variation(number: int, trials: int) -> Floats:
    """A factor for each trial, near 1; of every third variation within a few per cent."""
    width = WIDTHS[number % len(WIDTHS)]
    noise = np.random.default_rng(number).standard_normal(trials)
    found: Floats = np.exp(width * noise)
    return found


def along(orders: Sequence[Sequence[int]]) -> Rule:
    """Each slot takes the first trial of its own order that is idle."""
    longest = max(map(len, orders))
    place = np.full((len(orders), longest), inf)
    for slot, order in enumerate(orders):
        place[slot, list(order)] = range(len(order))

    def score(floor: Floor, slot: int, trials: Indices) -> Floats:
        first: Floats = -place[slot, trials]
        return first

    return greedy(score)


def by_matching(floor: Floor, slots: Slots) -> Picks:
    """As many idle slots as can be served, the most critical slots and trials first.

    A maximum-weight matching. What is critical is the work left, against the most that any trial or
    slot has left.
    """
    if len(slots) == 1:
        return most_left(floor, slots)
    most = max(float(floor.left.max()), float(floor.load.max()))
    urgent = (floor.left / most) ** 4
    trials = _contenders(floor, slots, urgent)
    if not trials.size:
        return ()
    can = floor.pending[np.ix_(trials, np.array(slots))]
    critical = urgent[trials][:, None] + (floor.load[slots] / most) ** 4
    return _matched(trials, slots, can, critical)


def _matched(trials: Indices, slots: Slots, can: Flags, critical: Floats) -> Picks:
    """The matching with the most pairs, and of those the one with the most critical pairs.

    `can`, `critical`: (trials, slots), which may be paired and how critical that is.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import, needed here only

    weight = np.where(can, 1.0 + 4.0 * critical, 0.0)
    rows, columns = linear_sum_assignment(weight, maximize=True)
    for row, column in zip(rows, columns, strict=True):
        if can[row, column]:
            slot = slots[column]
            yield int(trials[row]), slot, slot


def _contenders(floor: Floor, slots: Slots, urgent: Floats) -> Indices:
    """For each of k slots, the k most urgent trials that it can serve.

    A best matching needs no others.
    """
    found: set[int] = set()
    for slot in slots:
        trials = np.flatnonzero(floor.pending[:, slot] & floor.idle)
        if trials.size > len(slots):
            order = np.argsort(-urgent[trials], kind="stable")
            trials = trials[order[: len(slots)]]
        found.update(trials.tolist())
    return np.array(sorted(found), int)


# -- following a plan


class _Due(NamedTuple):
    """A trial's next visit in the plan; the smallest goes first."""

    epoch: int
    start: Seconds
    trial: int
    shard: int


_Visits = Mapping[int, Sequence[tuple[Seconds, int, int]]]


def in_order(plan: ShopSchedule) -> Rule:
    """Each trial visits its shards in the plan's order, at the plan's slots.

    A slot takes whichever trial comes first there. A plan of one epoch serves for several. This is
    how a planned hop runs (`planned.by_order`).
    """
    visits = _visits(plan)

    def rule(floor: Floor, slots: Slots) -> Picks:
        first = _first_due(floor, visits)
        for slot in slots:
            if slot in first:
                due = first[slot]
                yield due.trial, due.shard, slot

    return rule


def _visits(plan: ShopSchedule) -> _Visits:
    """Start, shard and slot of each trial's visits, in the plan's order."""
    visits: dict[int, list[tuple[Seconds, int, int]]] = {}
    for unit in plan.units:
        visit = (unit.start, unit.shard, unit.slot)
        visits.setdefault(unit.trial, []).append(visit)
    return visits


def _first_due(floor: Floor, visits: _Visits) -> dict[int, _Due]:
    """By slot, the idle trial that is due there first."""
    first: dict[int, _Due] = {}
    ready = floor.idle & floor.pending.any(axis=1)
    for trial in np.flatnonzero(ready).tolist():
        order = visits[trial]
        made = len(order) - int(floor.pending[trial].sum())
        start, shard, slot = order[made]
        due = _Due(int(floor.epoch[trial]), start, trial, shard)
        first[slot] = min(first.get(slot, due), due)
    return first


# -- for shards with replicas


class _Wish(NamedTuple):
    """What a slot chooses by: who is idle, and each trial's work left, as it is compared."""

    idle: Flags
    rank: Floats


def scarce(
    share: Floats | None = None, target: Seconds = inf, factor: Floats | None = None
) -> Rule:
    """The fastest slot first; each takes the idle trial with the most work left that it can serve.

    Of that trial's shards it takes the scarcest: the one with the most seconds of work left, were
    all its holders to serve only it.

    Args:
        share: `share[q, w]`, the part of shard q's work that slot w should do. A slot serves the
            shards first of which it has not done its share (LP-quota).
        target: a slot may take a unit that makes the trial end later only if no other holder is
            faster (the guard).
        factor: of each trial's work, when trials are compared.
    """

    def rule(floor: Floor, slots: Slots) -> Picks:
        idle = floor.idle.copy()
        for slot in _fastest_first(floor, slots):
            rank = floor.left
            if factor is not None:
                rank = floor.left * factor
            wish = _Wish(idle, rank)
            pick = None
            if share is not None:
                pick = _owed(floor, slot, wish, share)
            if pick is None:
                pick = _scarcest(floor, slot, wish, target)
            if pick is not None:
                idle[pick[0]] = False
                yield pick

    return rule


def _fastest_first(floor: Floor, slots: Slots) -> list[int]:
    """The slots, the fastest first."""
    return sorted(slots, key=lambda w: (-floor.shop.speeds[w], w))


def _owed(floor: Floor, slot: int, wish: _Wish, share: Floats) -> Pick | None:
    """The idle trial of the highest rank at a shard of which the slot has not done its share."""
    owed = _unmet(floor, slot, share)
    short = owed > EPS
    may = wish.idle & floor.pending[:, short].any(axis=1)
    trials = np.flatnonzero(may)
    if not trials.size:
        return None
    trial = int(trials[np.argmax(wish.rank[trials])])
    here = short & floor.pending[trial]
    most_owed = np.argmax(np.where(here, owed, -inf))
    return trial, int(most_owed), slot


def _unmet(floor: Floor, slot: int, share: Floats) -> Floats:
    """What the slot has not done yet of its share of each shard, in epochs' worth."""
    lacks = share[:, slot] * floor.epochs - floor.served[:, slot]
    return np.where(floor.shop.holds[:, slot], lacks, 0.0)


def _scarcest(floor: Floor, slot: int, wish: _Wish, target: Seconds) -> Pick | None:
    """The idle trial of the highest rank that the guard lets begin here, at its scarcest shard."""
    for trial in _ranked(floor, slot, wish):
        shards = np.flatnonzero(floor.pending[trial] & floor.shop.holds[:, slot])
        if target < inf:
            shards = shards[_allowed(floor, trial, shards, slot, target)]
        if shards.size:
            scarcest = np.argmax(_scarcity(floor, shards))
            return trial, int(shards[scarcest]), slot
    return None


def _ranked(floor: Floor, slot: int, wish: _Wish) -> Iterator[int]:
    """The idle trials with a pending shard at this slot, by rank."""
    here = floor.pending & floor.shop.holds[:, slot]
    trials = np.flatnonzero(wish.idle & here.any(axis=1))
    order = np.argsort(-wish.rank[trials], kind="stable")
    return map(int, trials[order])


def _scarcity(floor: Floor, shards: Indices) -> Floats:
    """Seconds of work left on each shard, were all its holders to serve only it."""
    work = np.maximum(floor.work[shards], EPS)
    speeds = np.where(floor.shop.holds[shards], 1.0 / work, 0.0)
    together: Floats = speeds.sum(axis=1)
    return 1.0 / together


def _allowed(floor: Floor, trial: int, shards: Indices, slot: int, target: Seconds) -> Flags:
    """Whether a unit leaves the trial time enough to end by the target, or nobody is faster."""
    seconds = floor.shop.seconds[trial, shards, slot]
    fastest = floor.shop.fastest[trial, shards]
    rest = floor.left[trial] - fastest
    end = floor.now + seconds
    in_time = end + rest <= target * (1 + NEARLY)
    found: Flags = in_time | (seconds <= fastest * (1 + EPS))
    return found
