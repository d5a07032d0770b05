"""Flotillas: trials of unlike speed advance together over one stream, at about the same pace.

Each trial has as many slots as even out the paces. Guan et al., "FLEET", MLSys 2020, algorithms
1-2; placing is algorithm 3, `place.assign`. `Rounds` is the framework that FLEET compares with
(Pittman et al., SC'18).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Literal

import numpy as np

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.choice import check_one_of
from shoal.policy.width.ask import (
    Ask,
    Rung,
    Widths,
    all_widths,
    asks,
    ends_by_itself,
    room,
)
from shoal.policy.width.hysteresis import GAIN
from shoal.policy.width.place import (
    Seats,
    alone,
    assign,
    held_by,
    place,
    seats,
    to_share,
)
from shoal.policy.width.profiling import (
    Measures,
    Tried,
    extended,
    missing,
    noted,
    until_measured,
    widths_to_try,
)
from shoal.policy.width.regroup import (
    Told,
    dearest_change,
    noted_rates,
    smoothed,
    spread_of,
    until_through,
    widths_of,
)

Scope = Literal["global", "local"]
Paces = Mapping[TrialId, float]  # samples/s
Memory = Mapping[str, Any]
NEAR = 20 / 176  # the paper's 20 images/s, of its fastest model's rate


def create_flotilla(
    wanting: Sequence[Ask],
    capacity: int,
    delta: float | None = None,
    guard: bool = True,
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
    for each in nearest:
        limit = min(free - each.ask.least, len(each.gaps) - 1)  # widths are consecutive
        if limit >= 0 and each.gaps[limit] < best:
            best = float(each.gaps[limit])
            taken = each.ask.trial
            rung = int(each.rungs[limit])
    return best, taken, rung


def _left_over(members: Sequence[Ask], rungs: Rung, free: int, guard: bool) -> None:
    """The next slot to the slowest one, until none is left (algorithm 2, lines 12-16)."""

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

    `scope` "global": a new flotilla of all that is left whenever fewer than `alpha` of the slots
    are busy (algorithm 1), and when a pace turns out to be another than the flotillas were formed
    by and all are through sooner with new ones (see `regroup`). "local": slots that come free get a
    flotilla of the trials that wait, and nothing is stopped.

    `delta`, `guard`: as in `create_flotilla`. Slots that the guard, or the trials' widths, leave
    over go to further flotillas. `profile`: what is measured of each kind of trial before the first
    flotilla, see `profiling`. "alone": its rate on its fewest slots; other widths are measured as
    they come up. "printed": all widths up to the paper's M_t. "never": trials that nobody measured
    count as the mean of the others. `together`: all trials of a flotilla advance at the pace of the
    slowest, over one stream; else each keeps its own pace, as in the paper.

    Its memory are the paces that the flotillas were formed by (None: none was formed since trials
    were measured), what `profiling` tried, and the rates that were told.

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
            given = f"{self.alpha!r}, {self.delta!r}"
            raise ValueError(f"alpha must lie in 0..1 and delta be >= 0; got {given}")

    def start(self) -> Memory:
        return {}

    def decide(self, view: View, memory: Memory) -> tuple[Plan, Memory]:
        wanting = [extended(view, ask) for ask in asks(view, all_widths)]
        told = noted_rates(view, wanting, memory.get("told") or {})
        wanting = [smoothed(ask, told) for ask in wanting]
        tried = _tried(view, memory)
        needs = missing(view, wanting, tried, self.profile)
        if needs:
            widths = widths_to_try(needs, wanting, room(view))
            tried = noted(view, needs, widths, tried)
            plan = until_measured(view, place(view, widths))
            return plan, {"paces": None, "tried": tried, "told": told}
        plan, paces = self._formed(view, wanting, memory.get("paces"), told)
        return plan, {"paces": paces, "tried": tried, "told": told}

    def _formed(
        self, view: View, wanting: Sequence[Ask], before: Paces | None, told: Told
    ) -> tuple[Plan, Paces]:
        """The flotillas, and the paces that they were formed by; `before`: those of before."""
        free = _free(view)
        if self.scope == "local":
            waiting = [ask for ask in wanting if ask.trial not in view.running]
            return Plan(view.plan.gangs.union(self._form(view, waiting, free))), {}

        mine = to_share(view)
        enough = len(mine) - len(free) >= self.alpha * len(mine)
        if enough and before is not None and not self._apart(wanting, before, told):
            return view.plan, before

        formed = self._form(view, wanting, mine)
        if before is not None and not self._repays(view, wanting, formed, enough):
            return view.plan, _paces(wanting, widths_of(view.plan.gangs))
        locked = [gang for gang in view.plan.gangs if ends_by_itself(gang)]
        return Plan(frozenset([*locked, *formed])), _paces(wanting, widths_of(formed))

    def _apart(self, wanting: Sequence[Ask], before: Paces, told: Told) -> bool:
        """Whether a pace is off what the flotillas were formed by, by more than paces may differ.

        So they are formed again once trials are measured that seemed alike before. What is within
        the spread of the rates that were told is noise.
        """
        held = [{ask.trial: ask.held for ask in wanting if ask.held}]
        now = _paces(wanting, held)
        near = self._near(now)
        return any(
            abs(now[ask.trial] - before[ask.trial]) > max(near, spread_of(ask, told))
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
        """As `_form`, without saying which slots."""
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
        """By how much the paces of one flotilla may differ."""
        if self.delta is not None:
            return self.delta
        return NEAR * max(paces.values(), default=0.0)

    def _form(self, view: View, waiting: Sequence[Ask], free: list[SlotId]) -> list[Gang]:
        """A flotilla, and more of them where it left trials and slots over."""
        gangs: list[Gang] = []
        while waiting and free:
            widths = create_flotilla(waiting, len(free), self.delta, self.guard)
            fresh = _gangs(view, _berths(view, widths, free), self.together)
            if not fresh:
                break
            gangs += fresh
            taken = {slot for gang in fresh for slot in gang.slots}
            seated = {trial for gang in fresh for trial in gang.trials}
            free = [slot for slot in free if slot not in taken]
            waiting = [ask for ask in waiting if ask.trial not in seated]
        return gangs


@dataclass(frozen=True, slots=True)
class Rounds:
    """As many trials as there are slots, drawn by lot, on their fewest slots.

    The next ones start when all of them are through (Pittman et al., SC'18, as FLEET's section 6
    describes it). `together`: as in `Flotilla`.
    """

    seed: int = 0
    together: bool = False

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        if any(not ends_by_itself(gang) for gang in view.plan.gangs):
            return view.plan, memory
        wanting = asks(view, lambda fewest, most: (fewest,))
        free = _free(view)
        drawn = self._drawn(view, wanting, len(free))
        fresh = _gangs(view, _berths(view, drawn, free), self.together)
        return Plan(view.plan.gangs.union(fresh)), memory

    def _drawn(self, view: View, wanting: Sequence[Ask], free: int) -> Widths:
        """Trials drawn by lot, as far as the slots reach, and their slots."""
        lots = np.random.default_rng([self.seed, view.turn]).permutation(len(wanting))
        widths = {}
        for i in lots:
            ask = wanting[i]
            if ask.least <= free:
                widths[ask.trial] = ask.least
                free -= ask.least
        return widths


def _tried(view: View, memory: Memory) -> Tried:
    """What was tried by now, of trials that are not through.

    Nothing, where the memory is of a journal from before trials were measured first.
    """
    tried: Tried = memory.get("tried") or {}
    return {trial: stamps for trial, stamps in tried.items() if trial in view.trials}


def _paces(wanting: Iterable[Ask], groups: Iterable[Widths]) -> dict[TrialId, float]:
    """Samples/s of each trial that has slots there, if it were alone on so many."""
    widths = {trial: width for group in groups for trial, width in group.items()}
    return {
        ask.trial: ask.rates[ask.widths.index(widths[ask.trial])]
        for ask in wanting
        if widths.get(ask.trial) in ask.widths
    }


def _free(view: View) -> list[SlotId]:
    """The slots that are in no gang."""
    busy = view.busy.keys()
    return [slot for slot in view.slots if slot not in busy]


def _gangs(view: View, berths: Seats, together: bool) -> list[Gang]:
    """The gangs of trials that have these slots; those that run already go on."""
    if not together:
        return [alone(view, trial, slots) for trial, slots in berths.items()]
    lanes = tuple(Lane(trial, at) for trial, at in berths.items())
    if not lanes:
        return []
    now = view.running.get(lanes[0].trial)
    if now is not None and set(now.lanes) == set(lanes) and not now.shards:
        return [now]
    return [Gang(lanes, since=view.turn)]


def _berths(view: View, widths: Widths, slots: Sequence[SlotId]) -> Seats:
    """By algorithm 3 where there are several nodes, whole and equal, with memory for the trials.

    Else by best fit, where trials keep what they can of the slots that they have.
    """
    nodes = _nodes_for(view, widths, slots)
    sizes = {len(at) for at in nodes}
    room = sum(map(len, nodes))
    if len(nodes) > 1 and len(sizes) == 1 and room >= sum(widths.values()):
        return _in_a_row(widths, nodes)
    return seats(view, widths, slots, held_by(view, widths))


def _nodes_for(view: View, widths: Widths, slots: Sequence[SlotId]) -> list[list[SlotId]]:
    """The slots of each node whose slots have the memory that any of the trials needs."""
    need = max((view.profile.cost(trial).memory for trial in widths), default=0.0)
    nodes: dict[str, list[SlotId]] = {}
    for slot in slots:
        nodes.setdefault(view.slots[slot].node, []).append(slot)
    return [at for at in nodes.values() if min(view.slots[slot].memory for slot in at) >= need]


def _in_a_row(widths: Widths, nodes: Sequence[Sequence[SlotId]]) -> Seats:
    """The slots of each trial by algorithm 3, on nodes with equally many slots."""
    row = [slot for at in nodes for slot in at]
    places = assign(list(widths.values()), len(nodes[0]))
    return {t: tuple(row[at.start : at.stop]) for t, at in zip(widths, places, strict=True)}
