"""Flotillas: trials of unlike speed advance together over one stream, at about the same pace.

Each trial has as many slots as even out the paces. Guan et al., "FLEET", MLSys 2020, algorithms
1-2; placing is algorithm 3, `place.assign`. `Rounds` is the framework that FLEET compares with
(Pittman et al., SC'18).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, Literal

import numpy as np

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.policy.arguments import check_one_of
from shoal.policy.width.ask import Ask, Rung, Widths, all_widths, asks, ends_by_itself, room
from shoal.policy.width.hysteresis import GAIN
from shoal.policy.width.place import Seats, alone, assign, held_by, place, seats, to_share
from shoal.profile.evidence import kind_of, known_widths
from shoal.profile.fleet import extrapolate, widths_to_profile

Scope = Literal["global", "local"]
Paces = Mapping[TrialId, float]  # samples/s
Memory = Mapping[str, Any]
NEAR = 20 / 176  # the paper's 20 images/s, of its fastest model's rate
NOISE = 0.3  # of a rate; what is off by more is another rate, and counts at once
NEWEST = 4  # the newest of n rates counts 1/n, but this part of the mean at least
# By trial and width: the rate reported last, the mean of all, their spread, and how many they were.
RateRecords = Mapping[str, Mapping[str, Sequence[float]]]
Form = Callable[[Sequence[Ask], int], Sequence[Widths]]
# What is measured first: each kind on its fewest slots, at all widths up to M_t, or nothing.
Measures = Literal["alone", "printed", "never"]
# Of each trial: the widths at which it was begun to be measured, and its visits by then.
Tried = Mapping[TrialId, Sequence[Sequence[int]]]
# Visits after which a width that gave no rate is given up: one of them was whole at that width.
VISITS = 2
# Batches that a gang trains to be measured, and the samples of one whose trial does not say.
BATCHES, BATCH = 48, 32


def create_flotilla(
    wanting: Sequence[Ask], capacity: int, delta: float | None = None, guard: bool = True
) -> dict[TrialId, int]:
    """Trials with about the pace of the fastest one, and their slots (FLEET, algorithm 2).

    They are in the order in which they were taken in. `delta`: samples/s by which paces may differ
    (None: the paper's share of the fastest one). Slots that are left over go to the slowest trial;
    with `guard` only where one more makes it faster, without it (as printed) in any case.
    """
    able = [ask for ask in wanting if ask.least <= capacity]
    if not able:
        return {}
    fast = max(able, key=lambda ask: ask.rates[0])
    pace = fast.rates[0]
    near = delta
    if near is None:
        near = NEAR * pace

    rungs: Rung = {fast.trial: 0}
    free = capacity - fast.least
    by_name = {ask.trial: ask for ask in able}
    nearest = {ask.trial: _Nearest.of(ask, pace) for ask in able if ask is not fast}
    while nearest and free > 0:
        gap, trial, rung = _best(nearest.values(), free)
        if trial is None or gap > near:
            break
        rungs[trial] = rung
        free -= by_name[trial].widths[rung]
        del nearest[trial]

    _left_over([by_name[trial] for trial in rungs], rungs, free, guard)
    return {trial: by_name[trial].widths[rung] for trial, rung in rungs.items()}


@dataclass(frozen=True, slots=True)
class _Nearest:
    """How near a trial can come to a pace, if its rung is limited.

    `gaps`: for each limit, the least difference to the pace up to there. `rungs`: the first rung
    that has it.
    """

    ask: Ask
    gaps: np.ndarray
    rungs: np.ndarray

    @classmethod
    def of(cls, ask: Ask, pace: float) -> "_Nearest":
        gaps = np.abs(np.asarray(ask.rates) - pace)
        least = np.minimum.accumulate(gaps)
        first = np.concatenate([[True], least[1:] < least[:-1]])
        rungs = np.where(first, np.arange(len(gaps)), 0)
        return cls(ask, least, np.maximum.accumulate(rungs))


def _best(nearest: Iterable[_Nearest], free: int) -> tuple[float, TrialId | None, int]:
    """The least gap that is to be had with so many free slots, whose it is, and at which rung."""
    best = inf
    taken = None
    rung = 0
    for one in nearest:
        limit = min(free - one.ask.least, len(one.gaps) - 1)  # widths are consecutive
        if limit >= 0 and one.gaps[limit] < best:
            best = float(one.gaps[limit])
            taken = one.ask.trial
            rung = int(one.rungs[limit])
    return best, taken, rung


def _left_over(members: Sequence[Ask], rungs: Rung, free: int, guard: bool) -> None:
    """Give the next slot to the slowest trial, until none is left (algorithm 2, lines 12-16)."""

    def may_rise(ask: Ask) -> bool:
        if guard:
            return ask.helps(rungs[ask.trial])
        return rungs[ask.trial] + 1 < len(ask.widths)

    while free > 0:
        rising = [ask for ask in members if may_rise(ask)]
        if not rising:
            return
        slowest = min(rising, key=lambda ask: ask.rates[rungs[ask.trial]])
        rungs[slowest.trial] += 1
        free -= 1


@dataclass(frozen=True, slots=True)
class Flotilla:
    """Measures how fast trials go, forms flotillas, and keeps each until its trials end.

    Slots that the guard, or the trials' widths, leave over go to further flotillas. The memory are
    the paces that the flotillas were formed by (None: none was formed since trials were measured),
    what was tried at which width, and the rates reported.

    Args:
        scope: "global": a new flotilla of all that is left whenever fewer than `alpha` of the slots
            are busy (algorithm 1), and when a pace turns out to be another than the flotillas were
            formed by and all are through sooner with new ones (see `until_through`). "local": slots
            that come free get a flotilla of the trials that wait, and nothing is stopped.
        alpha: the part of the slots that is to be busy, 0 to 1.
        delta: samples/s by which the paces of a flotilla may differ. None: the paper's share of the
            fastest one.
        guard: slots that are left over go to the slowest trial only where one more makes it faster.
            False: in any case, as printed.
        profile: what is measured of each kind of trial before the first flotilla, see `missing`.
            "alone": its rate on its fewest slots; other widths are measured as they come up.
            "printed": all widths up to the paper's M_t. "never": trials that nobody measured count
            as the mean of the others.
        together: all trials of a flotilla advance at the pace of the slowest, over one stream.
            False: each keeps its own pace, as in the paper.

    Raises:
        ValueError: no such scope or profile, alpha not in 0..1, or delta below 0.
    """

    scope: Scope = "global"
    alpha: float = 0.8
    delta: float | None = None
    guard: bool = True
    profile: Measures = "alone"
    together: bool = False

    def __post_init__(self) -> None:
        check_one_of("a flotilla's scope", Scope, self.scope)
        check_one_of("a flotilla's profile", Measures, self.profile)
        if not 0 < self.alpha <= 1 or (self.delta is not None and not self.delta >= 0):
            values = f"{self.alpha!r}, {self.delta!r}"
            raise ValueError(f"alpha must lie in 0..1 and delta be >= 0; got {values}")

    def start(self) -> Memory:
        return {}

    def decide(self, view: View, memory: Memory) -> tuple[Plan, Memory]:
        wanting = [extended(view, ask) for ask in asks(view, all_widths)]
        records = noted_rates(view, wanting, memory.get("told") or {})
        wanting = [smoothed(ask, records) for ask in wanting]
        tried = _tried(view, memory)
        needs = missing(view, wanting, tried, self.profile)
        if needs:
            widths = widths_to_try(needs, wanting, room(view))
            tried = noted(view, needs, widths, tried)
            plan = until_measured(view, place(view, widths))
            return plan, {"paces": None, "tried": tried, "told": records}
        plan, paces = self._formed(view, wanting, memory.get("paces"), records)
        return plan, {"paces": paces, "tried": tried, "told": records}

    def _formed(
        self, view: View, wanting: Sequence[Ask], before: Paces | None, records: RateRecords
    ) -> tuple[Plan, Paces]:
        """The flotillas, and the paces that they were formed by; `before`: those of before."""
        free = free_slots(view)
        if self.scope == "local":
            waiting = [ask for ask in wanting if ask.trial not in view.running]
            return Plan(view.plan.gangs.union(self._form(view, waiting, free))), {}

        shared = to_share(view)
        enough = len(shared) - len(free) >= self.alpha * len(shared)
        if enough and before is not None and not self._apart(wanting, before, records):
            return view.plan, before

        formed = self._form(view, wanting, shared)
        if before is not None and not self._repays(view, wanting, formed, enough):
            return view.plan, _paces(wanting, widths_of(view.plan.gangs))
        locked = [gang for gang in view.plan.gangs if ends_by_itself(gang)]
        return Plan(frozenset([*locked, *formed])), _paces(wanting, widths_of(formed))

    def _apart(self, wanting: Sequence[Ask], before: Paces, records: RateRecords) -> bool:
        """Whether a pace is off what the flotillas were formed by, by more than paces may differ.

        So they are formed again once trials are measured that seemed alike before. What is within
        the spread of the rates reported is noise.
        """
        now = _paces(wanting, [{ask.trial: ask.held for ask in wanting if ask.held}])
        near = self._near(now)
        return any(
            abs(now[ask.trial] - before[ask.trial]) > max(near, spread_of(ask, records))
            for ask in wanting
            if ask.trial in now and ask.trial in before
        )

    def _repays(
        self, view: View, wanting: Sequence[Ask], formed: Sequence[Gang], enough: bool
    ) -> bool:
        """Whether these flotillas, instead of what runs, are worth what the change costs.

        If not `enough` slots are busy they are, unless one more trial ends before the change is
        made. Else all must be through sooner by them.
        """
        going = [ask for ask in wanting if ask.held]
        if not all(ask.held in ask.widths for ask in going):
            return True  # it lost slots, and has fewer than its fewest
        costs = dearest_change(view, formed)
        if not enough:
            ends = [ask.seconds_at(ask.held) for ask in going]
            return min(ends, default=inf) > costs
        running = [gang for gang in view.plan.gangs if not ends_by_itself(gang)]
        capacity = room(view)
        busy = ceil(self.alpha * capacity)
        stay, new = (
            until_through(widths_of(gangs), wanting, capacity, busy, self._groups)
            for gangs in (running, formed)
        )
        return new + costs < stay * (1.0 - GAIN)

    def _groups(self, waiting: Sequence[Ask], free: int) -> list[Widths]:
        """The flotillas that `_form` would form, without saying on which slots."""
        groups: list[Widths] = []
        while waiting and free > 0:
            widths = create_flotilla(waiting, free, self.delta, self.guard)
            if not widths:
                break
            if self.together:
                groups.append(widths)
            else:
                groups += [{trial: width} for trial, width in widths.items()]
            free -= sum(widths.values())
            waiting = [ask for ask in waiting if ask.trial not in widths]
        return groups

    def _near(self, paces: Paces) -> float:
        """Samples/s by which the paces of one flotilla may differ."""
        if self.delta is not None:
            return self.delta
        return NEAR * max(paces.values(), default=0.0)

    def _form(self, view: View, waiting: Sequence[Ask], free: list[SlotId]) -> list[Gang]:
        """A flotilla, and more of them where it left trials and slots over."""
        gangs: list[Gang] = []
        while waiting and free:
            widths = create_flotilla(waiting, len(free), self.delta, self.guard)
            fresh = gangs_on(view, berths(view, widths, free), self.together)
            if not fresh:
                break
            gangs += fresh
            taken = {slot for gang in fresh for slot in gang.slots}
            seated = {trial for gang in fresh for trial in gang.trials}
            free = [slot for slot in free if slot not in taken]
            waiting = [ask for ask in waiting if ask.trial not in seated]
        return gangs


def _tried(view: View, memory: Memory) -> Tried:
    """The widths tried by now, of trials that are not through.

    Nothing, where the memory is of a journal from before trials were measured first.
    """
    tried: Tried = memory.get("tried") or {}
    return {trial: stamps for trial, stamps in tried.items() if trial in view.trials}


# -- when flotillas are formed again
#
# By smoothed rates, and only where that repays itself. Ours. FLEET (Guan et al., MLSys 2020)
# measures each rate once and believes it. Rates that slots report differ by a tenth for no reason,
# as much as the paces of one flotilla may, so a rate counts here by the mean of its reports, with a
# spread; as of round-trip times in Jacobson's "Congestion Avoidance and Control" (SIGCOMM 1988).
# And a change is made where all trials are through sooner by it, what it costs included.


def _paces(wanting: Iterable[Ask], groups: Iterable[Widths]) -> dict[TrialId, float]:
    """Samples/s of each trial that has slots there, if it were alone on so many."""
    widths = {trial: width for group in groups for trial, width in group.items()}
    return {
        ask.trial: ask.rates[ask.widths.index(widths[ask.trial])]
        for ask in wanting
        if widths.get(ask.trial) in ask.widths
    }


def free_slots(view: View) -> list[SlotId]:
    """The slots that are in no gang."""
    busy = view.busy.keys()
    return [slot for slot in view.slots if slot not in busy]


def gangs_on(view: View, seated: Seats, together: bool) -> list[Gang]:
    """The gangs of trials that have these slots; those that run already go on."""
    if not together:
        return [alone(view, trial, slots) for trial, slots in seated.items()]
    lanes = tuple(Lane(trial, at) for trial, at in seated.items())
    if not lanes:
        return []
    now = view.running.get(lanes[0].trial)
    if now is not None and set(now.lanes) == set(lanes) and not now.shards:
        return [now]
    return [Gang(lanes, since=view.turn)]


def berths(view: View, widths: Widths, slots: Sequence[SlotId]) -> Seats:
    """The slots of each trial: by algorithm 3 where nodes are several, whole, equal and roomy.

    Else by best fit, where trials keep what they can of the slots that they have.
    """
    nodes = _nodes_for(view, widths, slots)
    sizes = {len(node) for node in nodes}
    room = sum(map(len, nodes))
    if len(nodes) > 1 and len(sizes) == 1 and room >= sum(widths.values()):
        # The slots of each trial by algorithm 3, on nodes with equally many slots.
        row = [slot for node in nodes for slot in node]
        places = assign(list(widths.values()), len(nodes[0]))
        return {t: tuple(row[p.start : p.stop]) for t, p in zip(widths, places, strict=True)}
    return seats(view, widths, slots, held_by(view, widths))


def _nodes_for(view: View, widths: Widths, slots: Sequence[SlotId]) -> list[list[SlotId]]:
    """The slots of each node whose slots have the memory that any of the trials needs."""
    need = max((view.profile.cost(trial).memory for trial in widths), default=0.0)
    nodes: dict[str, list[SlotId]] = {}
    for slot in slots:
        nodes.setdefault(view.slots[slot].node, []).append(slot)
    return [
        node for node in nodes.values() if min(view.slots[slot].memory for slot in node) >= need
    ]


# -- what is measured before the first flotilla
#
# Rates are measured of each kind of trial, as it trains. Guan et al., "FLEET", MLSys 2020, appendix
# B.3. Before M_t widths of all are measured (as printed), much of the training may be over; it is
# usually enough to know each kind alone. A gang that measures has a quota of 48 batches, however
# large the data set is. A slot reports a rate by then, or sooner. Then a trial that stays where it
# is goes on with its visit. One that makes room leaves at once, and its batches are void, as in the
# paper. Widths beyond those measured follow by eq. 5.


def noted_rates(view: View, wanting: Iterable[Ask], records: RateRecords) -> RateRecords:
    """The records with the rates measured by now; none of trials whose rates are given."""
    after: dict[str, dict[str, Sequence[float]]] = {}
    for ask in wanting:
        known = known_widths(view.profile, ask.trial)
        if not known:
            continue
        before = records.get(ask.trial, {})
        for width, rate in zip(ask.widths, ask.rates, strict=True):
            if width in known:
                record = _with(before.get(str(width)), rate)
                after.setdefault(ask.trial, {})[str(width)] = record
    return after


def _with(before: Sequence[float] | None, rate: float) -> Sequence[float]:
    """The record of a rate, updated by the rate measured now; `before`: None for a new one."""
    if before is None:
        return [rate, rate, 0.0, 1]
    last, mean, spread, count = before
    if rate == last:
        return before
    off = abs(rate - mean)
    if off > NOISE * mean:
        return [rate, rate, 0.0, 1]
    weight = 1.0 / min(count + 1, NEWEST)
    return [rate, mean + weight * (rate - mean), spread + weight * (off - spread), count + 1]


def smoothed(ask: Ask, records: RateRecords) -> Ask:
    """The ask with the means of the rates in its records.

    A width without a record is off by as much as the next narrower one that has one.
    """
    by_width = records.get(ask.trial)
    if not by_width:
        return ask
    rates = []
    off = 1.0
    for width, rate in zip(ask.widths, ask.rates, strict=True):
        if str(width) in by_width:
            last, mean, _, _ = by_width[str(width)]
            off = mean / last
        rates.append(rate * off)
    return replace(ask, rates=tuple(rates))


def spread_of(ask: Ask, records: RateRecords) -> float:
    """Samples/s by which the ask's rate at its present width is uncertain."""
    by_width = records.get(ask.trial, {})
    if str(ask.held) not in by_width:
        return 0.0
    _, _, spread, _ = by_width[str(ask.held)]
    return spread


def widths_of(gangs: Iterable[Gang]) -> list[Widths]:
    """The slots of each lane, gang by gang."""
    return [{lane.trial: len(lane.slots) for lane in gang.lanes} for gang in gangs]


def until_through(
    groups: Sequence[Widths], wanting: Sequence[Ask], capacity: int, busy: int, form: Form
) -> Seconds:
    """Seconds until all trials are through, if these groups run now.

    All of a group go at the pace of its slowest. `form` says which groups run as soon as fewer
    than `busy` of the slots are taken.
    """
    asks = {ask.trial: ask for ask in wanting}
    left = {ask.trial: ask.left for ask in wanting}
    groups = [_without(group, group.keys() - asks.keys()) for group in groups]
    now = 0.0
    while left:
        if sum(sum(group.values()) for group in groups) < busy or not groups:
            rest = [replace(asks[trial], left=more) for trial, more in left.items()]
            groups = form(rest, capacity)
        # Samples/s of each trial of these groups.
        paces: dict[TrialId, float] = {}
        for group in groups:
            rates = [asks[t].left / asks[t].seconds_at(width) for t, width in group.items()]
            paces |= dict.fromkeys(group, min(rates))
        if not paces:
            break  # nobody fits
        step = min(left[trial] / pace for trial, pace in paces.items())
        now += step
        # Train for so long.
        ended = {trial for trial, pace in paces.items() if left[trial] <= pace * step * (1 + 1e-9)}
        for trial, pace in paces.items():
            left[trial] -= pace * step
        for trial in ended:
            del left[trial]
        groups = [_without(group, ended) for group in groups]
        groups = [group for group in groups if group]
    return now


def _without(group: Widths, ended: Set[TrialId]) -> Widths:
    """The trials of the group that go on."""
    return {trial: width for trial, width in group.items() if trial not in ended}


def dearest_change(view: View, gangs: Iterable[Gang]) -> Seconds:
    """Seconds that the gang with the dearest change stands still, of those that do not run yet."""
    costs = [
        view.profile.switch(view.running.get(gang.trials[0]), gang)
        for gang in gangs
        if gang not in view.plan.gangs
    ]
    return max(costs, default=0.0)


@dataclass(frozen=True, slots=True)
class Missing:
    """A trial that stands for its kind, and the widths at which that is yet to be measured."""

    ask: Ask
    widths: tuple[int, ...]

    @property
    def measuring(self) -> bool:
        """Whether it trains at one of these widths now."""
        return self.ask.held in self.widths


def per_node(view: View) -> int:
    """The slots of the largest node."""
    slots = Counter(slot.node for slot in view.slots.values())
    return max(slots.values(), default=1)


def missing(view: View, wanting: Sequence[Ask], tried: Tried, measures: Measures) -> list[Missing]:
    """The widths yet to be measured, of one trial for each kind, a running one if there is one."""
    needs: list[Missing] = []
    if measures == "never":
        return needs
    upto = 1
    if measures == "printed":
        upto = _widths_to_measure(view, wanting)
    for ask in _one_of_each_kind(view, wanting):
        known = known_widths(view.profile, ask.trial)
        if known is None:
            continue
        # Widths that gave no rate in the visits that the trial made since it was begun there.
        visits = len(view.visits.get(ask.trial, ()))
        over = {width for width, begun in tried.get(ask.trial, ()) if visits >= begun + VISITS}
        widths = tuple(
            width
            for width in ask.widths
            if width <= max(upto, ask.least) and width not in known and width not in over
        )
        if widths:
            needs.append(Missing(ask, widths))
    return needs


def _widths_to_measure(view: View, wanting: Sequence[Ask]) -> int:
    """M_t: of appendix B.3, from the rates on one slot that are known."""
    alone: list[float] = []
    for ask in wanting:
        known = known_widths(view.profile, ask.trial)
        if known is None or 1 in known:
            alone.append(view.profile.curve(ask.trial, 1)[0])
    return widths_to_profile(alone or [1.0], per_node(view))


def _one_of_each_kind(view: View, wanting: Sequence[Ask]) -> Iterable[Ask]:
    """One trial of each kind, those first that run."""
    kinds: dict[Hashable, Ask] = {}
    for ask in sorted(wanting, key=lambda ask: not ask.held):
        kinds.setdefault(kind_of(view.profile, ask.trial), ask)
    return kinds.values()


def widths_to_try(
    needs: Sequence[Missing], wanting: Sequence[Ask], capacity: int
) -> dict[TrialId, int]:
    """The slots of each trial while some kinds are measured.

    A trial that is being measured goes on. Then each kind is measured at its next width, as far as
    the slots reach. The slots left over go to the other trials, those first that run.
    """
    widths: dict[TrialId, int] = {}
    free = capacity
    for need in needs:
        if need.measuring and need.ask.held <= free:
            widths[need.ask.trial] = need.ask.held
            free -= need.ask.held
    for need in needs:
        width = need.widths[0]
        if need.ask.trial not in widths and width <= free:
            widths[need.ask.trial] = width
            free -= width
    for ask in sorted(wanting, key=lambda ask: not ask.held):
        width = max(ask.least, min(ask.held, free))
        if ask.trial not in widths and width <= free:
            widths[ask.trial] = width
            free -= width
    return widths


def until_measured(view: View, plan: Plan) -> Plan:
    """The plan, whose gangs that begin now have a quota: they are there until rates are known."""
    gangs = set()
    for gang in plan.gangs:
        now = view.running.get(gang.trials[0])
        if now is not None and now.lanes == gang.lanes:
            gang = now
        elif gang.quota is None:
            gang = replace(gang, quota=BATCHES * _batch(view.trials[gang.trials[0]]))
        gangs.add(gang)
    return Plan(frozenset(gangs), plan.wake_at)


def _batch(trial: Trial) -> int:
    """The samples of its batches, as far as its configuration says."""
    batch = trial.config.get("batch_size")
    return batch if isinstance(batch, int) and batch > 0 else BATCH


def noted(
    view: View, needs: Sequence[Missing], widths: Mapping[TrialId, int], tried: Tried
) -> dict[TrialId, list[list[int]]]:
    """The widths tried, with those that are begun by now."""
    after = {trial: [list(stamp) for stamp in stamps] for trial, stamps in tried.items()}
    for need in needs:
        trial = need.ask.trial
        width = widths.get(trial)
        stamps = after.setdefault(trial, [])
        if width in need.widths and width not in [stamp[0] for stamp in stamps]:
            stamps.append([int(width), len(view.visits.get(trial, ()))])
    return after


def extended(view: View, ask: Ask) -> Ask:
    """The ask with the rates of eq. 5 at widths beyond those that were measured.

    As it is where rates are given, or were not measured at each width on two nodes.
    """
    known = known_widths(view.profile, ask.trial)
    base = 2 * per_node(view)
    if known is None or ask.widths[-1] <= base:
        return ask
    # The greatest width up to which each one is known.
    measured = 0
    while measured + 1 in known:
        measured += 1
    if measured < base:
        return ask
    curve = view.profile.curve(ask.trial, measured)
    rates = extrapolate(curve, per_node(view), ask.widths[-1])
    return replace(ask, rates=tuple(rates[width - 1] for width in ask.widths))
