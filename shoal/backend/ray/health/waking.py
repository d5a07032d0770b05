"""What a backend waits for: happenings of other threads, and the time of the next moment."""

from collections.abc import Callable
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic

from shoal.core.event import Event
from shoal.core.trial import Seconds

Events = list[Event]
Happening = Callable[[], Events]  # works off what happened; returns its events


class EventQueue:
    """A queue of happenings. `put` works from any thread, `gather` from one."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Happening] = SimpleQueue()
        self._failure: Exception | None = None

    def put(self, happening: Happening) -> None:
        """Have it worked off by the next `gather`."""
        self._queue.put(happening)

    def gather(self, wait: Seconds) -> Events:
        """Work off what is there, and return the events of all of it.

        `wait`: seconds to wait for something if there is nothing.

        Raises:
            Exception: whatever a happening raised, but only after the events of those before it
                were returned.
        """
        if self._failure is not None:
            raise self._failure

        events: Events = []
        try:
            happening = self._queue.get(timeout=wait)
            while True:
                events += happening()
                happening = self._queue.get_nowait()
        except Empty:
            return events
        except Exception as failure:
            if not events:
                raise
            self._failure = failure

        return events


class Waking:
    """When the engine asks for the next moment, whatever happens until then.

    `since`: the time of the study at which this run begins.
    """

    def __init__(self, since: Seconds) -> None:
        self._zero = monotonic() - since
        self.at: Seconds | None = None
        self.awaits = True  # slots that may come are worth waiting for
        self.idle = False  # nobody wants to be asked again

    def now(self) -> Seconds:
        """The time of the study."""
        return monotonic() - self._zero

    def set(self, at: Seconds | None, until: Seconds | None, coming: bool) -> None:
        """As of `Ray.wake`. `coming`: slots may come."""
        self.awaits = until is not None
        self.idle = at is None
        self.at = at
        if coming and until is not None and until < inf:
            self.at = until
            if at is not None:
                self.at = min(until, at)

    def due(self) -> bool:
        """Whether the time has come; then it is over."""
        if self.at is None or self.now() < self.at:
            return False
        self.at = None
        return True

    def patience(self, *look_at: float | None) -> Seconds:
        """Seconds until then, or until one of these times by the monotonic clock."""
        waits = [each - monotonic() for each in look_at if each is not None]
        if self.at is not None:
            waits.append(self.at - self.now())
        return max(0.0, min(waits))
