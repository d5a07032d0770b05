"""Elastic water-fill for ensembles: the least time until the last trial ends, by widths alone.

Ours, after FLEET (Guan et al., MLSys 2020), whose rounds it does without: slots that come free are
used at once, and a slot that would lower a trial's rate (past the maximum of FLEET's eq. 5) is
never given.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.policy.arguments import check_interval
from shoal.policy.width.ask import (
    Ask,
    Widths,
    admitted,
    all_widths,
    change_seconds,
    left_of,
    paying,
    room,
)
from shoal.policy.width.convergence import check_foretell, left_by
from shoal.policy.width.doubling import placed

LONGER = 1.3  # at a tick, a waiting trial replaces a running one with less than 1/1.3 of its time


@lru_cache(maxsize=4096)
def rising(
    widths: tuple[int, ...], rates: tuple[float, ...]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The widths that are faster than all narrower ones, with their rates."""
    steps: list[int] = []
    best: list[float] = []
    for width, rate in zip(widths, rates, strict=True):
        if not best or rate > best[-1]:
            steps.append(width)
            best.append(rate)
    return tuple(steps), tuple(best)


def level(wanting: Sequence[Ask], capacity: int) -> dict[TrialId, int]:
    """The widths with which all trials end by the earliest time possible.

    The fewest slots of all trials must fit. Slots left over go to the trials that would end last.
    """
    ladders = _Ladders(wanting)
    rungs = ladders.earliest(capacity)
    ladders.fill(rungs, capacity)
    return {ask.trial: ladders.steps[i][rungs[i]] for i, ask in enumerate(wanting)}


class _Ladders:
    """For each trial the widths worth having, its rungs, and how long it takes at each of them.

    `steps`: a trial's widths that are faster than all narrower ones. `lasts`: the seconds to its
    end at each of these, negated so that they rise.
    """

    def __init__(self, wanting: Sequence[Ask]) -> None:
        self.steps: list[tuple[int, ...]] = []
        self.lasts: list[list[float]] = []
        for ask in wanting:
            widths, rates = rising(ask.widths, ask.rates)
            self.steps.append(widths)
            self.lasts.append([-ask.left / rate for rate in rates])

    def earliest(self, capacity: int) -> list[int]:
        """The lowest rungs with which all end by the earliest time possible, by bisection."""
        ends = {-time for lasts in self.lasts for time in lasts}
        marks = sorted(ends)  # the earliest time is one of these
        if not marks:
            return []

        low = 0
        high = len(marks) - 1
        while low < high:
            middle = (low + high) // 2
            if self._by(marks[middle], capacity) is None:
                low = middle + 1
            else:
                high = middle

        rungs = self._by(marks[low], capacity)
        assert rungs is not None  # the last mark is the longest trial's time at its fewest slots
        return rungs

    def _by(self, time: Seconds, capacity: int) -> list[int] | None:
        """The lowest rungs with which all end by this time; None if they do not fit."""
        rungs = [bisect_left(lasts, -time) for lasts in self.lasts]
        for rung, lasts in zip(rungs, self.lasts, strict=True):
            if rung == len(lasts):
                return None
        if self.used(rungs) > capacity:
            return None
        return rungs

    def used(self, rungs: Sequence[int]) -> int:
        """Slots of all trials together at these rungs."""
        return sum(widths[rung] for widths, rung in zip(self.steps, rungs, strict=True))

    def fill(self, rungs: list[int], capacity: int) -> None:
        """Give what is over to the trial that would end last, as long as that helps it."""
        free = capacity - self.used(rungs)
        still = [(self.lasts[i][rung], i) for i, rung in enumerate(rungs)]
        heapify(still)
        while still and free:
            _, i = heappop(still)
            above = rungs[i] + 1
            if above == len(self.steps[i]):
                continue
            more = self.steps[i][above] - self.steps[i][above - 1]
            if more > free:
                continue
            free -= more
            rungs[i] = above
            heappush(still, (self.lasts[i][above], i))


@dataclass(frozen=True, slots=True)
class WaterFill:
    """Widths with which the last of all trials ends as early as can be.

    More trials than slots: each trial has its fewest slots, the longest trials go first, and a
    trial makes room for another one at ticks only. Fewer trials: widths that even out their ends.

    Args:
        gain: widths change only if the last end comes earlier by more than this part of it and the
            change's cost.
        expect: samples that a trial is taken to need where its own number cannot be trusted, since
            trials stop when they converge. What is left is then `expect` minus what the trial did,
            but a quarter of it at least. None: its own number.
        every: seconds between ticks. None: no ticks.
        foretell: a metric, from whose scores so far the samples that are left are foretold, as for
            `Doubling`.

    Raises:
        ValueError: gain below 0, expect or every not positive, or both expect and foretell.
    """

    gain: float = 0.02
    expect: Samples | None = None
    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        check_foretell(self.foretell)
        if self.expect is not None and self.foretell is not None:
            values = f"expect={self.expect!r} and {self.foretell!r}"
            raise ValueError(f"what is left is either expected or foretold; got {values}")
        if not self.gain >= 0 or (self.expect is not None and not self.expect > 0):
            values = f"{self.gain!r}, {self.expect!r}"
            raise ValueError(f"gain must be >= 0, and expect > 0 samples or None; got {values}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        left = left_by(self.foretell) if self.foretell else self._left
        widths = self._widths(view, paying(view, all_widths, left))
        return placed(view, widths, self.every), memory

    def _widths(self, view: View, wanting: list[Ask]) -> Widths:
        """The fewest slots for each where they are all taken, else widths with even ends."""
        capacity = room(view)
        fewest = sum(ask.least for ask in wanting)
        if fewest >= capacity:
            # The fewest slots for each, the longest trials first, as far as the slots reach.
            ranked = sorted(wanting, key=self._rank)
            return {ask.trial: ask.least for ask in admitted(ranked, capacity)}
        # The widths with even ends; those of now where the change would gain too little.
        new = level(wanting, capacity)
        now = {ask.trial: ask.held for ask in wanting}
        if not all(ask.held in ask.widths for ask in wanting):
            return new  # a trial waits, or lost slots below its fewest
        if sum(now.values()) > capacity:
            return new

        # Seconds that the trial with the dearest change of width stands still.
        changed = [ask for ask in wanting if new[ask.trial] != ask.held]
        costs = [change_seconds(view, ask.trial, new[ask.trial]) for ask in changed]
        cost = max(costs, default=0.0)
        if _end(wanting, new) + cost < _end(wanting, now) * (1.0 - self.gain):
            return new
        return now

    def _left(self, view: View, trial: TrialId) -> Samples:
        """Samples left, as the trial or `expect` says."""
        if self.expect is None:
            return left_of(view, trial)
        return max(self.expect - view.done[trial], self.expect / 4)

    def _rank(self, ask: Ask) -> tuple[bool, float]:
        """A key to sort by: running trials first without ticks; at ticks they count as longer."""
        seconds = ask.seconds()
        if ask.held > 0:
            return False, -seconds / (1.0 if self.every is None else 1.0 / LONGER)
        return self.every is None, -seconds


def _end(wanting: Sequence[Ask], widths: Widths) -> Seconds:
    """Seconds until the last trial ends with these widths."""
    ends = [ask.seconds_at(widths[ask.trial]) for ask in wanting]
    return max(ends, default=0.0)
