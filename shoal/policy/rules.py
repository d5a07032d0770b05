"""List rules for a shop: what an idle slot takes next.

Paper: Algorithm 1 of Nakandala et al., VLDB 2020 (`by_lot`). Ours: `most_left`, `by_matching`, `along`;
for shards with replicas, `scarce` and its quota and guard.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from shoal.core.trial import Seconds
from shoal.policy.shop import EPS, Flags, Floats, Floor, Pick, Rule, Schedule

Score = Callable[[Floor, int, NDArray[np.int64]], Floats]


def by_lot(seed: int = 0) -> Rule:
    """The paper's: each idle slot draws evenly from the pending units of idle trials that it can serve."""

    def rule(floor: Floor, slots: Sequence[int]) -> Iterable[Pick]:
        rng = np.random.default_rng([seed, floor.turn])
        idle = floor.idle.copy()
        for slot in slots:
            units = np.argwhere(floor.pending & floor.shop.holds[:, slot] & idle[:, None])
            if len(units):
                trial, shard = units[int(rng.integers(len(units)))]
                idle[trial] = False
                yield int(trial), int(shard), slot

    return rule


def greedy(score: Score) -> Rule:
    """For an open shop: the most loaded slot first, each takes the idle trial of the highest score (ties: the first)."""

    def rule(floor: Floor, slots: Sequence[int]) -> Iterable[Pick]:
        idle = floor.idle.copy()
        for slot in sorted(slots, key=lambda j: (-floor.load[j], j)):
            trials = np.flatnonzero(floor.pending[:, slot] & idle)
            if trials.size:
                trial = int(trials[np.argmax(score(floor, slot, trials))])
                idle[trial] = False
                yield trial, slot, slot

    return rule


most_left = greedy(lambda floor, slot, trials: floor.left[trials])  # LRW: largest remaining work, over all epochs
longest = greedy(lambda floor, slot, trials: floor.shop.seconds[trials, slot, slot])  # LPT
shortest = greedy(lambda floor, slot, trials: -floor.shop.seconds[trials, slot, slot])  # SPT


def varied(number: int, trials: int) -> Rule:
    """LRW with each trial's work off by a factor; a variation for each number."""
    factor = variation(number, trials)
    return greedy(lambda floor, slot, trials: floor.left[trials] * factor[trials])


def variation(number: int, trials: int) -> Floats:
    """A factor for each trial, near 1; of every third variation within a few per cent."""
    found: Floats = np.exp((0.02, 0.1, 0.3)[number % 3] * np.random.default_rng(number).standard_normal(trials))
    return found


def along(orders: Sequence[Sequence[int]]) -> Rule:
    """For an open shop: each slot takes the first trial of its own order that is idle."""
    place = np.full((len(orders), max(map(len, orders))), inf)
    for slot, order in enumerate(orders):
        place[slot, list(order)] = range(len(order))
    return greedy(lambda floor, slot, trials: -place[slot, trials])


def by_matching(floor: Floor, slots: Sequence[int]) -> Iterable[Pick]:
    """For an open shop: as many idle slots as can be served, the most critical slots and trials first.

    A maximum-weight matching; what is critical is the work left against the most that any trial or slot has left.
    """
    if len(slots) == 1:
        yield from most_left(floor, slots)
        return
    from scipy.optimize import linear_sum_assignment  # slow to import, and needed here only

    most = max(float(floor.left.max()), float(floor.load.max()))
    urgent = (floor.left / most) ** 4
    trials = _contenders(floor, slots, urgent)
    if not trials.size:
        return
    can = floor.pending[np.ix_(trials, np.array(slots))]
    weight = np.where(can, 1.0 + 4.0 * (urgent[trials][:, None] + (floor.load[slots] / most) ** 4), 0.0)
    for row, column in zip(*linear_sum_assignment(weight, maximize=True), strict=True):
        if can[row, column]:
            yield int(trials[row]), slots[column], slots[column]


def _contenders(floor: Floor, slots: Sequence[int], urgent: Floats) -> NDArray[np.int64]:
    """For each of k slots, the k most urgent trials that it can serve: a best matching needs no others."""
    found: set[int] = set()
    for slot in slots:
        trials = np.flatnonzero(floor.pending[:, slot] & floor.idle)
        if trials.size > len(slots):
            trials = trials[np.argsort(-urgent[trials], kind="stable")[: len(slots)]]
        found.update(map(int, trials))
    return np.array(sorted(found), int)


def in_order(plan: Schedule) -> Rule:
    """Each trial visits its shards in the plan's order, at the plan's slots; a slot takes whoever comes first there.

    A plan of one epoch serves for several. This is how a planned hop runs (`policy.planned`).
    """
    visits: dict[int, list[tuple[Seconds, int, int]]] = {}
    for unit in plan.units:
        visits.setdefault(unit.trial, []).append((unit.start, unit.shard, unit.slot))

    def rule(floor: Floor, slots: Sequence[int]) -> Iterable[Pick]:
        heads: dict[int, tuple[int, Seconds, int, int]] = {}
        for trial in np.flatnonzero(floor.idle & floor.pending.any(axis=1)):
            order = visits[int(trial)]
            start, shard, slot = order[len(order) - int(floor.pending[trial].sum())]
            head = (int(floor.epoch[trial]), start, int(trial), shard)
            heads[slot] = min(heads.get(slot, head), head)
        return [(heads[slot][2], heads[slot][3], slot) for slot in slots if slot in heads]

    return rule


def scarce(share: Floats | None = None, target: Seconds = inf, factor: Floats | None = None) -> Rule:
    """For replicas: the fastest slot first; each takes the idle trial with the most work left that it can serve.

    Of that trial's shards, the scarcest: most seconds of work left, were all its holders to serve only it.
    `share[q, w]`: part of shard q's work that slot w should do; a slot serves shards short of that first (LP-quota).
    `target`: a slot may end a unit later only if no other holder is faster (the guard). `factor`: of each trial's work,
    when trials are compared.
    """

    def rule(floor: Floor, slots: Sequence[int]) -> Iterable[Pick]:
        idle = floor.idle.copy()
        for slot in sorted(slots, key=lambda w: (-_speed(floor, w), w)):
            rank = floor.left if factor is None else floor.left * factor
            pick = None if share is None else _owed(floor, slot, idle, rank, share)
            pick = pick or _scarcest(floor, slot, idle, rank, target)
            if pick is not None:
                idle[pick[0]] = False
                yield pick

    return rule


def _speed(floor: Floor, slot: int) -> float:
    work = floor.shop.work[:, slot]
    return float((floor.shop.holds[:, slot]).sum() / work.sum()) if work.any() else 0.0


def _owed(floor: Floor, slot: int, idle: Flags, rank: Floats, share: Floats) -> Pick | None:
    owed = np.where(floor.shop.holds[:, slot], share[:, slot] * floor.epochs - floor.served[:, slot], 0.0)
    short = owed > EPS
    trials = np.flatnonzero(idle & floor.pending[:, short].any(axis=1))
    if not trials.size:
        return None
    trial = int(trials[np.argmax(rank[trials])])
    return trial, int(np.argmax(np.where(short & floor.pending[trial], owed, -inf))), slot


def _scarcest(floor: Floor, slot: int, idle: Flags, rank: Floats, target: Seconds) -> Pick | None:
    here = floor.shop.holds[:, slot]
    trials = np.flatnonzero(idle & (floor.pending & here).any(axis=1))
    for trial in trials[np.argsort(-rank[trials], kind="stable")]:
        shards = np.flatnonzero(floor.pending[trial] & here)
        if target < inf:
            shards = shards[_allowed(floor, int(trial), shards, slot, target)]
        if shards.size:
            return int(trial), int(shards[np.argmax(_scarcity(floor, shards))]), slot
    return None


def _scarcity(floor: Floor, shards: NDArray[np.int64]) -> Floats:
    work = floor.work[shards]
    speed: Floats = np.where(floor.shop.holds[shards], 1.0 / np.maximum(work, EPS), 0.0).sum(axis=1)
    return 1.0 / speed


def _allowed(floor: Floor, trial: int, shards: NDArray[np.int64], slot: int, target: Seconds) -> Flags:
    """Ends in time, and leaves the trial time enough for the rest; or nobody is faster."""
    seconds, fastest = floor.shop.seconds[trial, shards, slot], floor.shop.fastest[trial, shards]
    end = floor.now + seconds
    in_time = end + (floor.left[trial] - fastest) <= target * (1 + 1e-4)
    found: Flags = in_time | (seconds <= fastest * (1 + EPS))
    return found
