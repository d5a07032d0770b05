"""Doubling for trials whose speeds are not known: each is first run at every width for a while.

Capes et al. 2019, section 7, the exploratory strategy: a new trial is given 8 slots for ten
minutes, and runs for 2.5 minutes at each of 1, 2, 4 and 8. What it does there is training, too.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.width.ask import Ask, asks, powers_of_two, room
from shoal.policy.width.convergence import check_foretell, check_scores, left_by
from shoal.policy.width.doubling import climb
from shoal.policy.width.hysteresis import SOON, decided, is_due, left_with, settled
from shoal.policy.width.place import place
from shoal.profile.evidence import known_widths

Stamp = Sequence[float]  # time, samples done by then, and the width begun (0: none)
Stamps = list[Stamp]


@dataclass(frozen=True, slots=True)
class Explore:
    """Each new trial explores its widths; the others share what is left.

    New trials go first, in the order in which they came. All the while a trial explores, it holds
    the slots of its greatest width. The others share what is left by `doubling.climb`, at the rates
    seen. Where slots join later, the widths that they allow are explored then. A trial for which
    there is no room to go on exploring shares at the widths that it has explored.

    A width at which trials of its kind were measured is not explored, and the time at a width ends
    once that is measured. The memory has the times and samples at which each trial began each
    width.

    Args:
        seconds: of exploring, for all widths together.
        most: the greatest width to explore, in slots.
        foretell: as for `Doubling`.

    Raises:
        ValueError: seconds not positive, or most below 1.
    """

    seconds: Seconds = 600.0
    most: int = 8
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_foretell(self.foretell)
        if not self.seconds > 0 or self.most < 1:
            values = f"{self.seconds!r}, {self.most!r}"
            raise ValueError(f"exploring needs seconds > 0 and most >= 1; got {values}")

    def start(self) -> dict[str, Any]:
        return {"decided": {}, "tried": {}, "wake": None}

    def decide(self, view: View, memory: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        if "tried" not in memory:  # an older journal's: all is tried again
            memory = self.start()
        check_scores(view, self.foretell)
        wake = memory["wake"]
        if not is_due(view, memory["decided"]) and (wake is None or view.now < wake - SOON):
            return Plan(view.plan.gangs, wake), memory

        free = room(view)
        known: list[Ask] = []
        widths: dict[TrialId, int] = {}
        wakes: list[Seconds] = []
        tried: dict[TrialId, Stamps] = {}
        left = left_with(memory["decided"], left_by(self.foretell))
        for ask in asks(view, self._rungs, left):
            stamps = self._next(view, ask, memory["tried"].get(ask.trial, []))
            begun, _, width = _last(stamps)
            if width and ask.widths[-1] <= free:
                free -= ask.widths[-1]
                widths[ask.trial] = int(width)
                wakes.append(begun + self._share(ask))
            else:
                stamps = _broken_off(stamps)  # there is no room to go on exploring
                known += _explored(view, ask, stamps)
            tried[ask.trial] = stamps
        widths |= settled(view, known, free, climb)
        plan = Plan(place(view, widths).gangs, min(wakes, default=None))
        last = decided(view, plan, memory["decided"])
        return plan, {"decided": last, "tried": tried, "wake": plan.wake_at}

    def _rungs(self, fewest: int, most: int) -> tuple[int, ...]:
        return powers_of_two(fewest, max(fewest, min(most, self.most)))

    def _share(self, ask: Ask) -> Seconds:
        return self.seconds / len(ask.widths)

    def _next(self, view: View, ask: Ask, stamps: Stamps) -> Stamps:
        """The stamps, with a further one if a width is to be begun, or its time is over."""
        begun, _, width = _last(stamps)
        now = int(width)
        measured = _measured(view, ask)
        over = now in measured or view.now >= begun + self._share(ask) - SOON
        if now in ask.widths and not over:
            return stamps
        if now and now not in ask.widths:  # it was begun with more slots than there are
            stamps = _broken_off(stamps)

        done = {*_rates(view, ask, stamps), now}
        following = next((width for width in ask.widths if width not in done), 0)
        if not following and stamps and not stamps[-1][2]:
            return stamps
        return [*stamps, [view.now, view.done[ask.trial], following]]


def _broken_off(stamps: Stamps) -> Stamps:
    """The stamps, in which the width begun last does not count."""
    time, samples, width = stamps[-1]
    if not width:
        return stamps
    return [*stamps[:-1], [time, samples, 0]]


def _last(stamps: Sequence[Stamp]) -> Stamp:
    """The last stamp; that of no width where there is none."""
    if stamps:
        return stamps[-1]
    return (0.0, 0.0, 0)


def _measured(view: View, ask: Ask) -> Set[int]:
    """The widths whose rates need no exploring: trials of this kind were measured there."""
    return known_widths(view.profile, ask.trial) or set()


def _explored(view: View, ask: Ask, stamps: Sequence[Stamp]) -> list[Ask]:
    """The trial at the widths that are known, if there are any, at the rates that it had."""
    rates = _rates(view, ask, stamps)
    if not rates:
        return []
    return [replace(ask, widths=tuple(rates), rates=tuple(rates.values()))]


def _rates(view: View, ask: Ask, stamps: Sequence[Stamp]) -> dict[int, float]:
    """Samples/s at each width explored or measured; as believed where nothing was trained."""
    explored: dict[int, float] = {}
    for begun, end in pairwise(stamps):
        if begun[2] and end[0] > begun[0]:
            explored[int(begun[2])] = (end[1] - begun[1]) / (end[0] - begun[0])

    measured = _measured(view, ask)
    rates = {}
    for width, believed in zip(ask.widths, ask.rates, strict=True):
        if width in measured:
            rates[width] = believed
        elif width in explored:
            rates[width] = explored[width] or believed
    return rates
