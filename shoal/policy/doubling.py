"""Widths of data-parallel trials, changed as trials come and go: by marginal gain, exactly, or fixed.

Capes et al. 2019, section 4: minimise the sum of the seconds left over widths that fit the cluster. `climb` over powers of
two is the paper's doubling heuristic (eq. 6), over all widths it is Optimus' greedy +1, which stops where one slot
more does not help though several would; `best_widths` is the optimum of the same objective.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal, get_args

import numpy as np

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.ask import Ask, admitted, all_widths, asks, left_of, powers_of_two, room
from shoal.policy.foretell import foretold
from shoal.policy.place import place

Rule = Literal["doubling", "plus-one", "exact"]


def climb(wanting: list[Ask], capacity: int) -> dict[TrialId, int]:
    """The fewest slots for all (the first ones, if they do not fit), then step by step to where a slot saves most seconds."""
    taken = admitted(wanting, capacity)
    free = capacity - sum(ask.least for ask in taken)
    rung = [0] * len(taken)

    def gain(i: int) -> tuple[float, int]:
        return (taken[i].seconds(rung[i] + 1) - taken[i].seconds(rung[i])) / taken[i].step(rung[i]), i

    heap = [gain(i) for i, ask in enumerate(taken) if ask.helps(0)]
    heapify(heap)
    while heap and free:
        _, i = heappop(heap)
        step = taken[i].step(rung[i])
        if step > free:
            continue
        free -= step
        rung[i] += 1
        if taken[i].helps(rung[i]):
            heappush(heap, gain(i))
    return {ask.trial: ask.widths[k] for ask, k in zip(taken, rung, strict=True)}


def best_widths(wanting: list[Ask], capacity: int) -> dict[TrialId, int]:
    """The widths with the least sum of seconds left, by a dynamic program. As in `climb`, the first ones if not all fit."""
    taken = admitted(wanting, capacity)
    best = np.zeros(capacity + 1)  # sum of seconds with so many slots at most
    chosen = []
    for ask in taken:
        total = np.full(capacity + 1, np.inf)
        rung = np.zeros(capacity + 1, int)
        for k, width in enumerate(ask.widths):
            if width <= capacity:
                value = best[: capacity + 1 - width] + ask.seconds(k)
                better = value < total[width:]
                total[width:][better] = value[better]
                rung[width:][better] = k
        best = total
        chosen.append(rung)
    left, widths = capacity, {}
    for ask, rung in zip(reversed(taken), reversed(chosen), strict=True):
        widths[ask.trial] = ask.widths[rung[left]]
        left -= widths[ask.trial]
    return {ask.trial: widths[ask.trial] for ask in taken}


@dataclass(frozen=True, slots=True)
class Doubling:
    """All trials run, the first come if there are more than slots, and widths follow what a slot more would save.

    `rule`: "doubling" (the paper's precomputed strategy), "plus-one" (Optimus) or "exact". `every`: ask again after so
    many seconds at the latest, since the gains change while trials train; None: when trials or slots come and go.
    `foretell`: a metric from whose series so far is foretold what trials have left; None: as much as they were asked to train.

    Raises:
        ValueError: no such rule, or an interval that is not positive.
    """

    rule: Rule = "doubling"
    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ValueError(f"doubling's rule is one of {', '.join(get_args(Rule))}; got {self.rule!r}")
        check_interval(self.every)

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        rungs = all_widths if self.rule == "plus-one" else powers_of_two
        wanting = asks(view, rungs, foretold(self.foretell) if self.foretell else left_of)
        widths = (best_widths if self.rule == "exact" else climb)(wanting, room(view))
        return again(view, place(view, widths), self.every), memory


@dataclass(frozen=True, slots=True)
class Width:
    """First come, first served, each trial at the same fixed width (or at the nearest that it allows).

    Raises:
        ValueError: width below 1.
    """

    slots: int = 1

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"a width must be >= 1 slot; got {self.slots!r}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        wanting = asks(view, lambda fewest, most: (min(max(self.slots, fewest), most),))
        return place(view, {ask.trial: ask.least for ask in admitted(wanting, room(view))}), memory


def check_interval(seconds: Seconds | None) -> None:
    """Raise ValueError unless it is positive, or None."""
    if seconds is not None and not seconds > 0:
        raise ValueError(f"an interval must be > 0 seconds, or None; got {seconds!r}")


def again(view: View, plan: Plan, every: Seconds | None) -> Plan:
    """The plan, to be thought over after so many seconds while there is work."""
    return plan if every is None or not view.trials else Plan(plan.gangs, view.now + every)
