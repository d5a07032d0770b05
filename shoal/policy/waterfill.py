"""Elastic water-fill for ensembles: the least time until the last trial ends, by widths alone.

Ours, after FLEET (Guan et al., MLSys 2020), whose rounds it does without: slots that come free are
used at once, and a slot that would lower a trial's rate (past the maximum of FLEET's eq. 5) is never given.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.policy.ask import Ask, Widths, all_widths, asks, left_of, room
from shoal.policy.doubling import again, check_interval
from shoal.policy.foretell import foretold
from shoal.policy.place import place

LONGER = 1.3  # a waiting trial takes the place of a running one, at a tick, if it has so many times as long to go


@lru_cache(maxsize=4096)
def rising(widths: tuple[int, ...], rates: tuple[float, ...]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The widths that are faster than all narrower ones, with their rates."""
    steps: list[int] = []
    best: list[float] = []
    for width, rate in zip(widths, rates, strict=True):
        if not best or rate > best[-1]:
            steps.append(width)
            best.append(rate)
    return tuple(steps), tuple(best)


def level(wanting: Sequence[Ask], capacity: int) -> dict[TrialId, int]:
    """The widths with which all end by the earliest time T possible; slots left over go to those that would end last.

    Their fewest slots must fit. Found by bisection on T, over the widths that are faster than all narrower ones.
    """
    steps, lasts = [], []  # of each: widths, and the time to its end at them, negated so that it rises
    for ask in wanting:
        widths, rates = rising(ask.widths, ask.rates)
        steps.append(widths)
        lasts.append([-ask.left / rate for rate in rates])

    def needed(time: Seconds) -> list[int] | None:
        """The rung of each with which it ends by then, if they fit."""
        rungs = [bisect_left(last, -time) for last in lasts]
        if any(rung == len(last) for rung, last in zip(rungs, lasts, strict=True)):
            return None
        return rungs if sum(w[k] for w, k in zip(steps, rungs, strict=True)) <= capacity else None

    marks = sorted({-time for last in lasts for time in last})  # T is one of these
    low, high = 0, len(marks) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if needed(marks[middle]) is not None else (middle + 1, high)
    rungs = needed(marks[low]) if marks else []
    assert rungs is not None  # the last mark is the longest trial's time at its fewest slots
    _left_over(steps, lasts, rungs, capacity)
    return {ask.trial: widths[k] for ask, widths, k in zip(wanting, steps, rungs, strict=True)}


def _left_over(steps: Sequence[Sequence[int]], lasts: Sequence[Sequence[float]], rungs: list[int], capacity: int) -> None:
    """What is over goes to the one that would end last, as long as it helps that one."""
    free = capacity - sum(widths[k] for widths, k in zip(steps, rungs, strict=True))
    still = [(lasts[i][k], i) for i, k in enumerate(rungs)]
    heapify(still)
    while still and free:
        _, i = heappop(still)
        widths, k = steps[i], rungs[i]
        if k + 1 < len(widths) and widths[k + 1] - widths[k] <= free:
            free -= widths[k + 1] - widths[k]
            rungs[i] = k + 1
            heappush(still, (lasts[i][k + 1], i))


@dataclass(frozen=True, slots=True)
class WaterFill:
    """More trials than slots: each at its fewest, the longest first, and none is turned out for another but at a tick.

    Fewer: widths that even out their ends; changed only if the last end comes earlier by more than `gain` of it and what
    the change costs. `expect`: samples that a trial is taken to need where its own are not to be trusted (trials
    that stop when they converge): what is left is then `expect` minus what it did, a quarter of it at least. `foretell`:
    a metric from whose series so far that is foretold, as in `Doubling`. `every`: seconds between ticks.

    Raises:
        ValueError: gain below 0, expect or every not positive, or both expect and foretell.
    """

    gain: float = 0.02
    expect: Samples | None = None
    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        if self.expect is not None and self.foretell is not None:
            raise ValueError(f"what is left is either expected or foretold; got expect={self.expect!r} and {self.foretell!r}")
        if not self.gain >= 0 or (self.expect is not None and not self.expect > 0):
            raise ValueError(f"gain must be >= 0, and expect > 0 samples or None; got {self.gain!r}, {self.expect!r}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        left = foretold(self.foretell) if self.foretell else self._left
        wanting, capacity = asks(view, all_widths, left), room(view)
        crowded = sum(ask.least for ask in wanting) >= capacity
        widths = self._crowded(wanting, capacity) if crowded else self._level(view, wanting, capacity)
        return again(view, place(view, widths), self.every), memory

    def _left(self, view: View, trial: TrialId) -> Samples:
        return left_of(view, trial) if self.expect is None else max(self.expect - view.done[trial], self.expect / 4)

    def _crowded(self, wanting: Sequence[Ask], capacity: int) -> Widths:
        bonus = 1.0 if self.every is None else 1.0 / LONGER

        def rank(ask: Ask) -> tuple[bool, float]:
            runs = ask.held > 0
            return (not runs and self.every is None), -ask.seconds() / (bonus if runs else 1.0)

        given = {}
        for ask in sorted(wanting, key=rank):
            if ask.least <= capacity:
                given[ask.trial] = ask.least
                capacity -= ask.least
        return given

    def _level(self, view: View, wanting: Sequence[Ask], capacity: int) -> Widths:
        new = level(wanting, capacity)
        now = {ask.trial: ask.held for ask in wanting}
        if not all(held in ask.widths for ask, held in zip(wanting, now.values(), strict=True)) or sum(now.values()) > capacity:
            return new  # one waits, or lost slots below its fewest
        cost = max((_cost(view, ask, new[ask.trial]) for ask in wanting if new[ask.trial] != ask.held), default=0.0)
        return new if _end(wanting, new) + cost < _end(wanting, now) * (1.0 - self.gain) else now


def _cost(view: View, ask: Ask, width: int) -> Seconds:
    """Seconds that the trial stands still when its width changes; it keeps what slots it can."""
    before = view.running[ask.trial]
    held = before.lanes[0].slots
    more = tuple(SlotId(f"\0{k}") for k in range(width - len(held)))  # stand for any slots
    return view.profile.switch(before, Gang((Lane(ask.trial, held[:width] + more),), since=view.turn))


def _end(wanting: Sequence[Ask], widths: Widths) -> Seconds:
    return max((ask.left / ask.rates[ask.widths.index(widths[ask.trial])] for ask in wanting), default=0.0)
