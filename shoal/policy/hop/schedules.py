"""Planned schedules of model hopping: several epochs of an open shop, and the best of four.

Nakandala et al., VLDB 2020, section 5; the planners here are ours. The paper's own are kept for
reference in papers/cerebro.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from shoal.core.trial import Seconds
from shoal.policy.hop.rotation import Rotation, rotation
from shoal.policy.hop.shop import (
    EPS,
    Flags,
    Floats,
    Floor,
    Indices,
    Pick,
    Rule,
    Shop,
    ShopSchedule,
    ShopUnit,
    dispatch,
)

Times = Sequence[Sequence[Seconds]]  # of trial i's pass over the shard at slot j
FEW = 64  # trials: with more, list rules are as good as insertion, which takes long
BEAMS = (1, 2, 4, 8, 64)  # of insertion
TRIES = 128  # variations
UNITS = 20_000  # planned in all variations together
Score = Callable[[Floor, int, Indices], Floats]  # of these trials at a slot
Slots = Sequence[int]
Picks = Iterable[Pick]
WIDTHS = (0.02, 0.1, 0.3)  # of the variations: the standard deviation of a factor's log
NEARLY = 1e-4  # of its target: a unit may end so much later
_Visits = Mapping[int, Sequence[tuple[Seconds, int, int]]]
Busy = list[tuple[Seconds, Seconds]]  # of one slot: (end, start), sorted
Row = Sequence[Seconds]  # one trial's, at each slot
GUARDS = (1.0, 1.05, 1.15, 1.3)  # targets tried, as multiples of the bound
ENOUGH = 1.005  # of the bound
REPLICA_TRIES = 64  # variations
REPLICA_UNITS = 12_000  # planned in all variations together
Named = tuple[str, Rule]  # a rule, and how it is called
Holders = Sequence[Sequence[int]]  # of each shard


@dataclass(frozen=True, slots=True)
class PlannedOrder:
    """A schedule, and which way of planning it came from."""

    schedule: ShopSchedule
    how: str

    @property
    def makespan(self) -> Seconds:
        """When the schedule's last unit ends."""
        return self.schedule.makespan


def bound(times: Times, epochs: int = 1) -> Seconds:
    """No schedule is shorter: the longest trial's units, or the most loaded slot's.

    It is exact if units may be interrupted.
    """
    table = np.asarray(times, float)
    slots = table.sum(axis=0)
    trials = table.sum(axis=1)
    return epochs * float(max(slots.max(), trials.max()))


def quick4(times: Times, epochs: int = 1, barrier: bool = False) -> PlannedOrder:
    """The shortest of four kinds of plan: rotation, LRW, matching and beam insertion.

    Rotation is tried in closed form where that is legal, and as a list. Where trials are few and
    none of these meets the bound, variations of LRW are tried as well. Stops at the first plan that
    meets `bound`. One epoch's plan is repeated where it cannot be made for several at once.
    """
    return best(times, candidates(times, epochs, barrier), epochs)


def best(times: Times, plans: Iterator[PlannedOrder], epochs: int = 1) -> PlannedOrder:
    """The shortest of the plans, asked for until one meets the bound."""
    return first_within(bound(times, epochs) * (1 + EPS), plans)


def first_within(target: Seconds, plans: Iterator[PlannedOrder]) -> PlannedOrder:
    """The first of the plans that is no longer than the target; without one the shortest."""
    chosen = next(plans)
    while chosen.makespan > target:
        plan = next(plans, None)
        if plan is None:
            break
        if plan.makespan < chosen.makespan:
            chosen = plan
    return chosen


def candidates(times: Times, epochs: int = 1, barrier: bool = False) -> Iterator[PlannedOrder]:
    """The plans that `quick4` chooses from, each made when it is asked for; the cheapest first."""
    round_robin = rotation(times)
    if round_robin.ok:
        schedule = repeated(closed_form(round_robin), epochs)
        yield PlannedOrder(schedule, "rotation, closed form")
    shop = Shop.open(times)
    for how, rule in _list_rules(round_robin):
        yield PlannedOrder(dispatch(shop, rule, epochs, barrier), how)
    if len(times) <= FEW:
        # Beam insertion, with ever wider beams.
        for beam in BEAMS:
            schedule = repeated(insertion(times, beam), epochs)
            yield PlannedOrder(schedule, f"insertion, beam {beam}")
        for how, rule in _variations(shop):
            yield PlannedOrder(dispatch(shop, rule, epochs, barrier), how)


def _list_rules(round_robin: Rotation) -> Iterator[tuple[str, Rule]]:
    yield "largest remaining work", most_left
    yield "matching", by_matching
    yield "rotation", along(round_robin.orders)


def _variations(shop: Shop) -> Iterator[tuple[str, Rule]]:
    """Variations of LRW, fewer of them where there are many units to plan."""
    trials = len(shop.seconds)
    for number in range(min(TRIES, UNITS // shop.fastest.size)):
        yield f"largest remaining work, variation {number}", varied(number, trials)


def closed_form(plan: Rotation) -> ShopSchedule:
    """The rotation at its padded times. Trials overlap unless `plan.ok`."""
    units = [ShopUnit(start, end, trial, slot, slot) for start, end, trial, slot in plan.units]
    return ShopSchedule(tuple(sorted(units)))


def repeated(plan: ShopSchedule, epochs: int) -> ShopSchedule:
    """One epoch's schedule, run so many times, each after the end of the one before."""
    if epochs == 1:
        return plan
    length = plan.makespan
    units = []
    for epoch in range(epochs):
        units += [_in_epoch(unit, epoch, epoch * length) for unit in plan.units]
    return ShopSchedule(tuple(sorted(units)))


def _in_epoch(unit: ShopUnit, epoch: int, before: Seconds) -> ShopUnit:
    """The unit in this epoch, so many seconds later."""
    start = unit.start + before
    return unit._replace(start=start, end=unit.end + before, epoch=epoch)


def settled(times: Times, plan: PlannedOrder, epochs: int = 1) -> PlannedOrder:
    """The plan as a hop that follows it makes it: orders are kept, times are not."""
    schedule = dispatch(Shop.open(times), in_order(plan.schedule), epochs)
    return PlannedOrder(schedule, plan.how)


# -- rules by which a schedule is simulated
#
# List rules for a simulated shop: what an idle slot takes next, when the planner tries schedules.
# All are ours. For an open shop: `most_left`, `varied`, `along` and `by_matching`. For shards
# with replicas: `scarce`, with its quota and guard. Algorithm 1 of Nakandala et al., VLDB 2020,
# is in `live_rules`, for live studies.


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
    factors: Floats = np.exp(width * noise)
    return factors


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
    """A rule: as many idle slots as can be are served, the most critical slots and trials first.

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
    """The k most urgent trials that each of k slots can serve.

    A best matching needs no others.
    """
    contenders: set[int] = set()
    for slot in slots:
        trials = np.flatnonzero(floor.pending[:, slot] & floor.idle)
        if trials.size > len(slots):
            order = np.argsort(-urgent[trials], kind="stable")
            trials = trials[order[: len(slots)]]
        contenders.update(trials.tolist())
    return np.array(sorted(contenders), int)


# -- following a plan


class _Due(NamedTuple):
    """A trial's next visit in the plan; the smallest goes first."""

    epoch: int
    start: Seconds
    trial: int
    shard: int


def in_order(plan: ShopSchedule) -> Rule:
    """Each trial visits its shards in the plan's order, at the plan's slots.

    A slot takes whichever trial comes first there. A plan of one epoch serves for several. This is
    how a planned hop runs (`planned.by_order`).
    """
    # Start, shard and slot of each trial's visits, in the plan's order.
    visits: dict[int, list[tuple[Seconds, int, int]]] = {}
    for unit in plan.units:
        visit = (unit.start, unit.shard, unit.slot)
        visits.setdefault(unit.trial, []).append(visit)

    def rule(floor: Floor, slots: Slots) -> Picks:
        first = _first_due(floor, visits)
        for slot in slots:
            if slot in first:
                due = first[slot]
                yield due.trial, due.shard, slot

    return rule


def _first_due(floor: Floor, visits: _Visits) -> dict[int, _Due]:
    """The idle trial that is due first at each slot."""
    first: dict[int, _Due] = {}
    ready = floor.idle & floor.pending.any(axis=1)
    for trial in np.flatnonzero(ready).tolist():
        order = visits[trial]
        visited = len(order) - int(floor.pending[trial].sum())
        start, shard, slot = order[visited]
        due = _Due(int(floor.epoch[trial]), start, trial, shard)
        first[slot] = min(first.get(slot, due), due)
    return first


# -- for shards with replicas


class _Wish(NamedTuple):
    """The facts by which a slot chooses: who is idle, and how much work each trial has left."""

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
        for slot in sorted(slots, key=lambda w: (-floor.shop.speeds[w], w)):
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


def _owed(floor: Floor, slot: int, wish: _Wish, share: Floats) -> Pick | None:
    """The idle trial of the highest rank at a shard of which the slot has not done its share."""
    # What the slot has not done yet of its share of each shard, in epochs' worth.
    lacks = share[:, slot] * floor.epochs - floor.served[:, slot]
    owed = np.where(floor.shop.holds[:, slot], lacks, 0.0)
    short = owed > EPS
    may = wish.idle & floor.pending[:, short].any(axis=1)
    trials = np.flatnonzero(may)
    if not trials.size:
        return None
    trial = int(trials[np.argmax(wish.rank[trials])])
    here = short & floor.pending[trial]
    most_owed = np.argmax(np.where(here, owed, -inf))
    return trial, int(most_owed), slot


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
    allowed: Flags = in_time | (seconds <= fastest * (1 + EPS))
    return allowed


# -- beam insertion
#
# Ours, for an open shop: one trial after the other goes into the gaps that are left.


class Path(NamedTuple):
    """A trial's first visits.

    `waits`: seconds that it waited. `free`: when it is free again. `seen`: the slots visited, as
    bits. `places`: (slot, start) of each visit.
    """

    waits: Seconds
    free: Seconds
    seen: int
    places: tuple[tuple[int, Seconds], ...]


NOWHERE = Path(0.0, 0.0, 0, ())
NEVER = Path(inf, inf, 0, ())


def insertion(times: Sequence[Row], beam: int = 8) -> ShopSchedule:
    """One epoch, the longest trials first; `times[i][j]`: seconds of trial i at slot j.

    A trial's way through the slots is searched breadth first, keeping the `beam` partial ways that
    waited least. Each visit takes the earliest gap that is long enough. The last trials to be
    placed find small gaps for their small units.
    """
    busy: list[Busy] = [[] for _ in times[0]]
    units: list[ShopUnit] = []
    for trial in sorted(range(len(times)), key=lambda i: (-sum(times[i]), i)):
        # A short way of one trial through all slots.
        row = times[trial]
        paths = [NOWHERE]
        for _ in row:
            best = _best_by_slots(_longer(paths, row, busy))
            best.sort(key=lambda path: (path.waits, -path.free))
            paths = best[:beam]
        path = min(paths, key=lambda path: path.free)
        for slot, start in path.places:
            end = start + times[trial][slot]
            insort(busy[slot], (end, start))
            units.append(ShopUnit(start, end, trial, slot, slot))
    return ShopSchedule(tuple(sorted(units)))


def _best_by_slots(paths: Iterable[Path]) -> list[Path]:
    """The best path of each set of slots seen."""
    best: dict[int, Path] = {}
    for path in paths:
        if path < best.get(path.seen, NEVER):
            best[path.seen] = path
    return list(best.values())


def _longer(paths: Iterable[Path], row: Row, busy: Sequence[Busy]) -> Iterator[Path]:
    """The paths, each with one visit more to any slot not seen yet."""
    for path in paths:
        for slot, seconds in enumerate(row):
            if path.seen >> slot & 1:
                continue
            start = _gap(busy[slot], path.free, seconds)
            waits = path.waits + start - path.free
            seen = path.seen | 1 << slot
            places = (*path.places, (slot, start))
            yield Path(waits, start + seconds, seen, places)


def _gap(busy: Busy, after: Seconds, seconds: Seconds) -> Seconds:
    """The earliest start, not before `after`, of so many seconds in which the slot is free."""
    start = after
    first = bisect_right(busy, (after + EPS, inf))
    for end, begin in busy[first:]:
        if begin - start >= seconds - EPS:
            break
        start = max(start, end)
    return start


# -- for shards with replicas
#
# LP-quota, scarcest shard, and a guard. Ours. Section 5.5 of Nakandala et al., VLDB 2020, leaves
# replicas to chance; that costs an eighth to a third of the epoch.


def replica_shares(shop: Shop) -> tuple[Seconds, Floats]:
    """A bound: no epoch is shorter; and each slot's part of each shard's work at the LP's optimum.

    The bound is the larger of two: the LP's, where work is divided among holders at will, and the
    longest trial's at the fastest holders. The parts are a table (shards, slots).
    """
    seconds = np.where(shop.holds, shop.work, np.inf)
    optimum = shares(seconds.tolist())
    longest = float(shop.least.sum(axis=1).max())
    return max(optimum.bound, longest), np.array(optimum.share)


def quota(shop: Shop, epochs: int = 1) -> PlannedOrder:
    """The shortest of LP-quota and largest-remaining-work with the scarcest shard.

    Both are tried with and without guards; where trials are few, variations are tried as well. Each
    is simulated, and the first that nearly meets the bound is taken.
    """
    epoch, share = replica_shares(shop)
    least = epoch * epochs
    rules = _rules(shop, least, share)
    plans = (PlannedOrder(dispatch(shop, rule, epochs), how) for how, rule in rules)
    return first_within(least * ENOUGH, plans)


def _rules(shop: Shop, least: Seconds, share: Floats) -> Iterator[Named]:
    """The rules to try, each with a name, the likeliest first.

    `least`: the bound, over all epochs.
    """
    yield "quota", scarce(share)
    yield "scarcest shard", scarce()
    for guard in GUARDS:
        target = guard * least
        yield f"scarcest shard, guard {guard:g}", scarce(target=target)
        yield f"quota, guard {guard:g}", scarce(share, target)

    trials = len(shop.seconds)
    for number in range(min(REPLICA_TRIES, REPLICA_UNITS // shop.fastest.size)):
        yield _variation(number, trials, least, share)


def _variation(number: int, trials: int, least: Seconds, share: Floats) -> Named:
    """A rule with a guard and trials' work off by some factors; every other one is LP-quota."""
    factor = variation(number, trials)
    guard = GUARDS[number // 2 % len(GUARDS)]
    target = guard * least
    how = f"guard {guard:g}, variation {number}"
    if number % 2 == 0:
        return f"quota, {how}", scarce(share, target, factor)
    return f"scarcest shard, {how}", scarce(None, target, factor)


# -- the program that divides work among holders
#
# Shards with replicas: how the work on each is best divided among its holders.
# Ours: a linear program over shares, solved once. Its value bounds every schedule from below:
#     min C  such that  sum_w y[q, w] = 1             for each shard q, over its holders w
#                       sum_q y[q, w] * T[q, w] <= C  for each slot w


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
    return shares(
        [
            [total / speed if slot in slots else inf for slot, speed in enumerate(speeds)]
            for slots in holders
        ]
    )


def shares(seconds: Sequence[Row]) -> Shares:
    """The program where shards or slots differ at will.

    `seconds[q][w]`: T, what slot w would take for all work on shard q; infinite where it does not
    hold it.

    Raises:
        ValueError: a shard has no holder.
    """
    table = np.asarray(seconds, float)
    holds = np.isfinite(table)
    any_holder = holds.any(axis=1)
    if not any_holder.all():
        first = int(any_holder.argmin())
        raise ValueError(f"every shard needs a slot that holds it; shard {first} has none")
    solution = _solved(table)
    share = np.zeros(table.shape)
    share[holds] = solution[:-1]
    rows = tuple(tuple(map(float, row)) for row in share)
    return Shares(float(solution[-1]), rows)


def _solved(table: Floats) -> Floats:
    """The program's variables at its optimum: y for each finite entry of the table, then C."""
    from scipy.optimize import linprog  # slow to import, and needed here only

    holds = np.isfinite(table)
    shards, slots = np.nonzero(holds)
    y = np.arange(len(shards))
    whole = np.zeros((len(table), len(y) + 1))
    whole[shards, y] = 1.0
    busy = np.zeros((table.shape[1], len(y) + 1))
    busy[slots, y] = table[holds]
    busy[:, -1] = -1.0
    result = linprog(
        np.append(np.zeros(len(y)), 1.0),  # the goal: C, the last variable
        A_ub=busy,
        b_ub=np.zeros(len(busy)),
        A_eq=whole,
        b_eq=np.ones(len(whole)),
        bounds=(0, None),
        method="highs",
    )
    solution: Floats = result.x
    return solution
