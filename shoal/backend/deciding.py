"""How long the engine decides between two moments of a backend that lives in real time."""

from collections.abc import Iterable, Iterator
from time import monotonic

from shoal.core.event import Decided, Event
from shoal.core.ports import Moment
from shoal.core.trial import Seconds

TELL: Seconds = 30.0  # between two reports, for those who look while the study runs


class DecidingTime:
    """The seconds in which the engine had the last moment and did not ask for the next one."""

    def __init__(self) -> None:
        self._seconds: Seconds = 0.0
        self._moments = 0
        # How many moments there were when the seconds were told; -1: they never were.
        self._told = -1
        self._tell_at = monotonic() + TELL

    def handed(self, moment: Moment) -> Iterator[Moment]:
        """Hand the engine the moment; what passes until it asks again counts.

        Now and then the moment also says how long the engine decided so far.
        """
        time, events = moment
        if monotonic() >= self._tell_at:
            events = (*events, self._tell())
        begin = monotonic()
        yield time, events
        self._seconds += monotonic() - begin
        self._moments += 1

    def last(self, others: Iterable[Event]) -> list[Event]:
        """What to tell at the end of a run: these, or else how long the engine decided.

        Returns nothing if the engine had only one moment since: the one that told it.
        """
        events = list(others)
        if not events and self._moments > self._told + 1:
            events.append(self._tell())
        return events

    def _tell(self) -> Decided:
        self._told = self._moments
        self._tell_at = monotonic() + TELL
        return Decided(self._seconds)
