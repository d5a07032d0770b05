"""How long slots stay: BFTrainer's forward time, from the departures seen so far.

Liu et al., "BFTrainer", 2021, section 3.4.3: the time for which a decision is taken to hold, to be
estimated from a log. Here it is the mean time from one departure of slots to the next.
"""

from collections.abc import Mapping
from typing import Any

from shoal.core.state import View
from shoal.core.trial import Seconds

PRIOR: Seconds = 120.0  # the forward time before anything was seen, as in the paper's experiments
Seen = Mapping[str, Any]  # what `watched` remembers; plain data for a journal


def forward_time(elapsed: Seconds, departures: int) -> Seconds:
    """The mean time between departures, the prior counting as one more in `PRIOR` seconds."""
    return (PRIOR + elapsed) / (1 + departures)


def watched(view: View, before: Seen) -> dict[str, Any]:
    """What is to be remembered of the slots that are here, and of the departures until now.

    Slots stand in the order in which they joined. If none left, as many as before stand up to the
    one that was the last then.
    """
    slots = tuple(view.slots)
    if not before:
        return _noted(view.now, 0, slots)
    last = before["last"]
    stayed = slots.index(last) + 1 if last in view.slots else 0
    left = stayed != before["slots"]
    return _noted(before["since"], before["departures"] + left, slots)


def _noted(since: Seconds, departures: int, slots: tuple[str, ...]) -> dict[str, Any]:
    """The same as plain data."""
    last = slots[-1] if slots else None
    return {
        "since": since,
        "departures": departures,
        "slots": len(slots),
        "last": last,
    }


def learned(view: View, seen: Seen) -> Seconds:
    """The forward time at this moment."""
    return forward_time(view.now - seen["since"], seen["departures"])
