"""What happens comes in from Ray's threads, from signal handlers and from other threads, and is worked off in one."""

from collections.abc import Callable
from queue import Empty, SimpleQueue

from shoal.core.event import Event
from shoal.core.trial import Seconds

Happening = Callable[[], list[Event]]  # works off what happened; the events that follow


class Inbox:
    """A queue of happenings. `put` from anywhere, `gather` from one thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Happening] = SimpleQueue()
        self._failure: Exception | None = None

    def put(self, happening: Happening) -> None:
        self._queue.put(happening)

    def gather(self, wait: Seconds | None) -> list[Event]:
        """Work off what is there, after waiting so long (None: without end) for something; the events of all of it.

        Raises:
            Exception: whatever working it off raised, but only after the events from before it were handed out.
        """
        if self._failure is not None:
            raise self._failure
        events: list[Event] = []
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
