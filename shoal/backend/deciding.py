"""How long the engine decides between two moments of a backend that lives in real time."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from shoal.core.event import Decided, Event
from shoal.core.trial import Seconds


class DecidingTime:
    """The seconds in which the engine had the last moment and did not ask for the next one."""

    def __init__(self) -> None:
        self._seconds: Seconds = 0.0
        self._moments = 0
        self._told = -1  # of these moments, when the seconds were told

    @contextmanager
    def on(self) -> Iterator[None]:
        """The engine decides within."""
        begin = monotonic()
        yield
        self._seconds += monotonic() - begin
        self._moments += 1

    def told(self) -> list[Event]:
        """What to tell at the end of a run; nothing if only this was told since the last time."""
        if self._moments <= self._told + 1:
            return []
        self._told = self._moments
        return [Decided(self._seconds)]
