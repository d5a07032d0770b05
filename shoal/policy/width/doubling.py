"""Widths of data-parallel trials, changed as trials come and go.

By marginal gain, exactly, or fixed.

Capes et al. 2019, section 4: minimise the sum of the seconds left over widths that fit the
cluster. `climb` over powers of two is the paper's doubling heuristic (eq. 6). Over all widths it is
Optimus' greedy +1, which stops where one slot more does not help though several would.
`best_widths` is the optimum of the same objective.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

import numpy as np

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.arguments import check_interval, check_one_of
from shoal.policy.width.ask import (
    Ask,
    Widths,
    admitted,
    all_widths,
    paying,
    powers_of_two,
    room,
)
from shoal.policy.width.convergence import check_foretell, check_scores, left_by
from shoal.policy.width.hysteresis import Decided, decided, is_due, left_with, settled
from shoal.policy.width.place import place

Rule = Literal["doubling", "plus-one", "exact"]


def climb(wanting: list[Ask], capacity: int) -> dict[TrialId, int]:
    """The fewest slots for all, then step by step to where a slot saves most seconds (eq. 6).

    If not all trials fit, the first ones get the slots.
    """
    taken = admitted(wanting, capacity)
    free = capacity - sum(ask.least for ask in taken)
    rungs = [0] * len(taken)

    heap = [(_saved(ask, 0), i) for i, ask in enumerate(taken) if ask.helps(0)]
    heapify(heap)
    while heap and free:
        _, i = heappop(heap)
        step = taken[i].step(rungs[i])
        if step > free:
            continue
        free -= step
        rungs[i] += 1
        if taken[i].helps(rungs[i]):
            heappush(heap, (_saved(taken[i], rungs[i]), i))
    return {ask.trial: ask.widths[rung] for ask, rung in zip(taken, rungs, strict=True)}


def _saved(ask: Ask, rung: int) -> float:
    """Seconds that each slot of the next step saves, negated for the heap (eq. 6)."""
    return (ask.seconds(rung + 1) - ask.seconds(rung)) / ask.step(rung)


def best_widths(wanting: list[Ask], capacity: int) -> dict[TrialId, int]:
    """The widths with the least sum of seconds left, by a dynamic program over the slots.

    If not all trials fit, the first ones get the slots, as in `climb`.
    """
    taken = admitted(wanting, capacity)
    best = np.zeros(capacity + 1)  # sum of seconds with so many slots at most
    chosen = []
    for ask in taken:
        best, rungs = _with_one_more(best, ask)
        chosen.append(rungs)

    left = capacity
    widths = {}
    for ask, rungs in zip(reversed(taken), reversed(chosen), strict=True):
        width = ask.widths[rungs[left]]
        widths[ask.trial] = width
        left -= width
    return {ask.trial: widths[ask.trial] for ask in taken}


def _with_one_more(best: np.ndarray, ask: Ask) -> tuple[np.ndarray, np.ndarray]:
    """The least sum of seconds with this trial on each number of slots, and its rung there."""
    total = np.full(len(best), np.inf)
    rungs = np.zeros(len(best), int)
    for rung, width in enumerate(ask.widths):
        if width >= len(best):
            continue
        value = best[: len(best) - width] + ask.seconds(rung)
        better = value < total[width:]
        total[width:][better] = value[better]
        rungs[width:][better] = rung
    return total, rungs


@dataclass(frozen=True, slots=True)
class Doubling:
    """All trials run, and their widths follow what one slot more would save.

    If there are more trials than slots, the first to come run. Widths change when trials or slots
    come and go, or are measured, and where that gains enough: see `hysteresis`.

    Args:
        rule: "doubling" (the paper's precomputed strategy), "plus-one" (Optimus) or "exact".
        every: decide also after so many seconds, since the gains change while trials train. None:
            only as trials or slots come, go or are measured.
        foretell: a metric, from whose scores so far what trials have left is foretold. None: as
            much as they were asked to train.

    Raises:
        ValueError: no such rule, or an interval that is not positive.
    """

    rule: Rule = "doubling"
    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_one_of("doubling's rule", Rule, self.rule)
        check_interval(self.every)
        check_foretell(self.foretell)

    def start(self) -> Decided:
        return {}

    def decide(self, view: View, memory: Decided) -> tuple[Plan, Decided]:
        check_scores(view, self.foretell)
        if not is_due(view, memory, self.every):
            return with_tick(view, view.plan, self.every, memory["at"]), memory
        plan = placed(view, self._widths(view, memory), self.every)
        return plan, decided(view, plan, memory)

    def _widths(self, view: View, last: Decided) -> Widths:
        """The widths by the rule, or those of now."""
        rungs = all_widths if self.rule == "plus-one" else powers_of_two
        wanting = paying(view, rungs, left_with(last, left_by(self.foretell)))
        rule = best_widths if self.rule == "exact" else climb
        return settled(view, wanting, room(view), rule)


def placed(view: View, widths: Widths, every: Seconds | None) -> Plan:
    """Each trial on so many slots; decided anew after so many seconds."""
    return with_tick(view, place(view, widths), every, view.now)


def with_tick(view: View, plan: Plan, every: Seconds | None, since: Seconds) -> Plan:
    """The plan; decided anew so many seconds after that time, while there is work."""
    if every is None or not view.trials:
        return plan
    return Plan(plan.gangs, since + every)
