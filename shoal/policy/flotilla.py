"""Flotillas: trials of unlike speed advance together over one stream, each on as many slots as evens out the pace.

Guan et al., "FLEET", MLSys 2020, algorithms 1-2; placing is algorithm 3, `place.assign`.
`Rounds` is the framework that FLEET compares with (Pittman et al., SC'18).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

import numpy as np

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.ask import Ask, Widths, all_widths, asks
from shoal.policy.place import assign, seats

Scope = Literal["global", "local"]
NEAR = 20 / 176  # the paper's 20 images/s, of its fastest model's rate


def create_flotilla(wanting: Sequence[Ask], capacity: int, delta: float | None = None, guard: bool = True) -> dict[TrialId, int]:
    """Trials with about the pace of the fastest one, and their slots, in the order in which they were taken in (algorithm 2).

    `delta`: samples/s by which paces may differ (None: the paper's share of the fastest one). Slots that are left over go
    to the slowest; with `guard` only where one more makes it faster, without it (as printed) in any case.
    """
    able = [ask for ask in wanting if ask.least <= capacity]
    if not able:
        return {}
    fast = max(able, key=lambda ask: ask.rates[0])
    pace = fast.rates[0]
    nearest = {ask.trial: _nearest(ask, pace) for ask in able if ask is not fast}
    near = NEAR * pace if delta is None else delta
    rung, free = {fast.trial: 0}, capacity - fast.least
    by_name = {ask.trial: ask for ask in able}
    while nearest and free > 0:
        best, taken = inf, None
        for trial, (gaps, rungs) in nearest.items():
            most = min(free - by_name[trial].least, len(gaps) - 1)  # widths are consecutive
            if most >= 0 and gaps[most] < best:
                best, taken = float(gaps[most]), (trial, int(rungs[most]))
        if taken is None or best > near:
            break
        rung[taken[0]] = taken[1]
        free -= by_name[taken[0]].widths[taken[1]]
        del nearest[taken[0]]
    _left_over([by_name[t] for t in rung], rung, free, guard)
    return {trial: by_name[trial].widths[k] for trial, k in rung.items()}


def _nearest(ask: Ask, pace: float) -> tuple[np.ndarray, np.ndarray]:
    """For each limit on the rung: the least difference to the pace up to there, and the first rung that has it."""
    gaps = np.abs(np.asarray(ask.rates) - pace)
    least = np.minimum.accumulate(gaps)
    first = np.concatenate([[True], least[1:] < least[:-1]])
    return least, np.maximum.accumulate(np.where(first, np.arange(len(gaps)), 0))


def _left_over(members: Sequence[Ask], rung: dict[TrialId, int], free: int, guard: bool) -> None:
    """The next slot to the slowest one, until none is left (algorithm 2, lines 12-16)."""
    while free > 0:
        may = [a for a in members if (a.helps(rung[a.trial]) if guard else rung[a.trial] + 1 < len(a.widths))]
        if not may:
            return
        slowest = min(may, key=lambda a: a.rates[rung[a.trial]])
        rung[slowest.trial] += 1
        free -= 1


@dataclass(frozen=True, slots=True)
class Flotilla:
    """`scope` "global": a new flotilla of all that is left whenever fewer than `alpha` of the slots are busy (algorithm 1).

    "local": slots that come free get a flotilla of the trials that wait, and nothing is stopped. `delta`, `guard`: as in
    `create_flotilla`; slots that the guard, or the trials' widths, leave over go to further flotillas.

    Raises:
        ValueError: no such scope, alpha not in 0..1, or delta below 0.
    """

    scope: Scope = "global"
    alpha: float = 0.8
    delta: float | None = None
    guard: bool = True

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise ValueError(f"a flotilla's scope is one of {', '.join(get_args(Scope))}; got {self.scope!r}")
        if not 0 < self.alpha <= 1 or (self.delta is not None and not self.delta >= 0):
            raise ValueError(f"alpha must lie in 0..1 and delta be >= 0; got {self.alpha!r}, {self.delta!r}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        free = _free(view)
        if self.scope == "local":
            waiting = [ask for ask in asks(view, all_widths) if ask.trial not in view.running]
            return Plan(view.plan.gangs.union(self._form(view, waiting, free))), memory
        busy = view.busy.keys()
        mine = [slot for slot in view.slots if slot not in busy or view.busy[slot].quota is None]
        if len(mine) - len(free) >= self.alpha * len(mine):
            return view.plan, memory
        locked = [gang for gang in view.plan.gangs if gang.quota is not None]
        return Plan(frozenset([*locked, *self._form(view, asks(view, all_widths), mine)])), memory

    def _form(self, view: View, waiting: list[Ask], free: list[SlotId]) -> list[Gang]:
        """A flotilla, and more of them where it left trials and slots over."""
        gangs: list[Gang] = []
        while waiting and free:
            gang = _sail(view, create_flotilla(waiting, len(free), self.delta, self.guard), free)
            if gang is None:
                break
            gangs.append(gang)
            free = [slot for slot in free if slot not in gang.slots]
            waiting = [ask for ask in waiting if ask.trial not in gang.trials]
        return gangs


@dataclass(frozen=True, slots=True)
class Rounds:
    """As many trials as there are slots, drawn by lot, on their fewest slots; the next ones when all of them are through."""

    seed: int = 0

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        if any(gang.quota is None for gang in view.plan.gangs):
            return view.plan, memory
        wanting, free = asks(view, lambda fewest, most: (fewest,)), _free(view)
        left, widths = len(free), {}
        for i in np.random.default_rng([self.seed, view.turn]).permutation(len(wanting)):
            if wanting[i].least <= left:
                widths[wanting[i].trial] = wanting[i].least
                left -= wanting[i].least
        gang = _sail(view, widths, free)
        return Plan(view.plan.gangs if gang is None else view.plan.gangs | {gang}), memory


def _free(view: View) -> list[SlotId]:
    busy = view.busy.keys()
    return [slot for slot in view.slots if slot not in busy]


def _sail(view: View, widths: Widths, slots: Sequence[SlotId]) -> Gang | None:
    """The gang of these lanes; None if none has room. If they are together already, that gang goes on."""
    lanes = tuple(Lane(trial, at) for trial, at in _berths(view, widths, slots).items())
    if not lanes:
        return None
    now = view.running.get(lanes[0].trial)
    same = now is not None and set(now.lanes) == set(lanes) and not now.shards
    return now if same else Gang(lanes, since=view.turn)


def _berths(view: View, widths: Widths, slots: Sequence[SlotId]) -> dict[TrialId, tuple[SlotId, ...]]:
    """By algorithm 3 where the nodes are whole and equal and memory is no matter, else by best fit."""
    nodes: dict[str, list[SlotId]] = {}
    for slot in slots:
        nodes.setdefault(view.slots[slot].node, []).append(slot)
    equal = len({len(at) for at in nodes.values()}) == 1
    if not equal or any(view.slots[slot].memory < inf for slot in slots):
        return seats(view, widths, slots, {})
    row = [slot for at in nodes.values() for slot in at]
    places = assign(list(widths.values()), len(row) // len(nodes))
    return {trial: tuple(row[p.start : p.stop]) for trial, p in zip(widths, places, strict=True)}
