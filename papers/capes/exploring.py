"""The exploratory strategy, in the reading under which all three of its cells come out.

Two things are inferred. A trial that explores holds as many slots as it tries; the paper's words
are that a new job gets 8 for the first ten minutes. And while there are more trials than slots,
those who run are drawn for 8 slots each, as a new trial asks for 8: so few run, and these are wide.
The paper does not say who waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workload import MINUTES

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.width.ask import Ask, asks, powers_of_two, room
from shoal.policy.width.doubling import climb
from shoal.policy.width.place import place

WIDTHS = tuple(MINUTES)  # 1, 2, 4, 8
MOST = WIDTHS[-1]
SOON: Seconds = 1e-6  # a stage that has less left is over
# Seconds explored by then, and since when it explores (-1: it does not).
Stamp = Sequence[float]
NEW: Stamp = (0.0, -1.0)


@dataclass(frozen=True)
class Tries:
    """Each trial trains for `stage` seconds at each of 1, 2, 4 and 8 slots; then it shares.

    New trials go first. What is left is shared by the doubling heuristic. `holds`: the slots that a
    trial holds while it explores are those that it tries ("tried"), or 8 ("most"). `drawn`: while
    there are more trials than slots, the first in line run on 8 slots each ("wide"); or as many
    run as there is room for ("all").
    """

    holds: str = "tried"
    drawn: str = "wide"
    stage: Seconds = 150.0

    def start(self) -> dict[TrialId, Stamp]:
        return {}

    def decide(
        self, view: View, memory: Mapping[TrialId, Stamp]
    ) -> tuple[Plan, dict[TrialId, Stamp]]:
        spent = {t: _spent(memory.get(t, NEW), view.now) for t in view.trials}
        free = room(view)
        wanting: list[Ask] = list(asks(view, powers_of_two))
        if self.drawn == "wide" and len(wanting) > free:
            wanting = wanting[: free // MOST]
        old, widths = [], {}
        for ask in wanting:
            stage = self._stage(spent[ask.trial])
            if stage == len(WIDTHS):
                old.append(ask)
                continue
            held = MOST if self.holds == "most" else WIDTHS[stage]
            if held <= free:
                free -= held
                widths[ask.trial] = WIDTHS[stage]
        ends = [view.now + self._left(spent[t]) for t in widths]
        stamps = {t: (seconds, view.now if t in widths else -1.0) for t, seconds in spent.items()}
        shared = climb(old, free)
        return Plan(place(view, widths | shared).gangs, min(ends, default=None)), stamps

    def _stage(self, spent: Seconds) -> int:
        """Which of the widths comes after so many seconds; after the last one, their number."""
        return min(int((spent + SOON) // self.stage), len(WIDTHS))

    def _left(self, spent: Seconds) -> Seconds:
        """Until the stage ends."""
        return (self._stage(spent) + 1) * self.stage - spent


def _spent(stamp: Stamp, now: Seconds) -> Seconds:
    """Seconds explored by now."""
    seconds, since = stamp
    if since >= 0:
        seconds += now - since
    return seconds


def slot_minutes() -> dict[str, Any]:
    """What a trial costs, in slot-minutes, alone, and where it explores for ten minutes."""
    epochs = 165.5
    explored = sum(2.5 / MINUTES[w] for w in WIDTHS)
    alone = {w: epochs * MINUTES[w] * w for w in WIDTHS}
    return {
        "one": alone[1],
        "eight": alone[MOST],
        "once, then one": 80.0 + (epochs - explored) * MINUTES[1],
    }
