"""Doubling for trials whose speeds are not known: each is first run at every width for a while.

Capes et al. 2019, section 7, the exploratory strategy: a new trial is given 8 slots for ten minutes, and runs for 2.5
minutes at each of 1, 2, 4 and 8. What it does there is training, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.ask import Ask, asks, powers_of_two, room
from shoal.policy.doubling import climb
from shoal.policy.place import place

Stamp = Sequence[float]  # (time, samples done) when a width was begun, and when the last one was over
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Explore:
    """New trials go first, in the order in which they came, and hold the slots of their greatest width all the while.

    The others share what is left by `doubling.climb`, at the rates seen. `seconds`: for all widths together. `most`:
    greatest width to explore. Its memory are the times and samples at which each trial began each width.

    Raises:
        ValueError: seconds not positive, or most below 1.
    """

    seconds: Seconds = 600.0
    most: int = 8

    def __post_init__(self) -> None:
        if not self.seconds > 0 or self.most < 1:
            raise ValueError(f"exploring needs seconds > 0 and most >= 1; got {self.seconds!r}, {self.most!r}")

    def start(self) -> dict[TrialId, Any]:
        return {}

    def decide(self, view: View, memory: Mapping[TrialId, Any]) -> tuple[Plan, dict[TrialId, Any]]:
        wanting = asks(view, lambda fewest, most: powers_of_two(fewest, max(fewest, min(most, self.most))))
        stamps: dict[TrialId, list[Stamp]] = {t: list(s) for t, s in memory.items() if t in view.trials}
        free, known = room(view), []
        widths: dict[TrialId, int] = {}
        wakes: list[Seconds] = []
        for ask in wanting:
            seen = self._look(view, ask, stamps.get(ask.trial, []))
            if len(seen) > len(ask.widths):
                known.append(replace(ask, rates=_rates(ask, seen)))
            elif ask.widths[-1] <= free:
                seen = seen or [[view.now, view.done[ask.trial]]]
                free -= ask.widths[-1]
                widths[ask.trial] = ask.widths[len(seen) - 1]
                wakes.append(seen[-1][0] + self._share(ask))
            else:
                seen = []  # cut short by a loss of slots: from the beginning
            stamps[ask.trial] = seen
        widths |= climb(known, free)
        return Plan(place(view, widths).gangs, min(wakes, default=None)), {t: s for t, s in stamps.items() if s}

    def _share(self, ask: Ask) -> Seconds:
        return self.seconds / len(ask.widths)

    def _look(self, view: View, ask: Ask, seen: list[Stamp]) -> list[Stamp]:
        """With a further stamp if its time at a width is over."""
        if seen and len(seen) <= len(ask.widths) and view.now >= seen[-1][0] + self._share(ask) - EPS:
            return [*seen, [view.now, view.done[ask.trial]]]
        return seen


def _rates(ask: Ask, seen: list[Stamp]) -> tuple[float, ...]:
    """Samples/s at each width as explored; as believed where nothing was trained."""
    made = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(seen)]
    return tuple(m if m > 0 else r for m, r in zip(made, ask.rates, strict=False))
