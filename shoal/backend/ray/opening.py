"""What a run says while its slots open: this takes a while, and nothing trains meanwhile."""

import time
from collections.abc import Callable

from shoal.backend.opening import slots_text
from shoal.backend.ray.cluster import lends
from shoal.backend.ray.fleet import Fleet
from shoal.core.trial import Seconds

Tell = Callable[[Seconds, str], None]

# Seconds that a run waits at the start for all of its slots, if some are ready or others may come.
PATIENCE = 60.0
AGAIN = 10.0  # seconds until it is said again what is awaited


def await_node(say: Callable[[str], None]) -> None:
    """Wait until some node of the cluster lends a CPU or a GPU: nodes may have to come first.

    Only then it is known whether slots are GPUs.
    """
    said = False
    while not lends():
        if not said:
            say("no node of the cluster lends CPUs or GPUs yet: waiting for one …")
            said = True
        time.sleep(0.2)


class SlotsOpening:
    """The slots of a fleet, from the time `since` at which their processes were started."""

    def __init__(self, fleet: Fleet, tell: Tell, since: Seconds) -> None:
        self._fleet = fleet
        self._tell = tell
        self._since = since
        self._said = since

    def began(self, before: Seconds, joined: bool) -> None:
        """Ray is there, and was awaited from `before` on, if it was not `joined` already."""
        ray = "Ray is there"
        if joined:
            ray = f"Ray is there after {self._since - before:.1f} s"
        waits = f"opening {slots_text(len(self._fleet.processes))} …"
        self._tell(self._since, f"{ray}; {waits}")

    def awaited(self, now: Seconds) -> bool:
        """Whether the run waits for the others; if that was said long ago, it is said again."""
        if not self._fleet.opening:
            return False
        enough = self._fleet.ready or self._fleet.look_at is not None
        if enough and now - self._since > PATIENCE:
            return False
        if now - self._said >= AGAIN:
            self._said = now
            self._tell(now, f"{self._open()} after {now - self._since:.1f} s …")
        return True

    def over(self, now: Seconds) -> None:
        """The run begins, with the slots that are open."""
        self._tell(now, f"{self._open()} after {now - self._since:.1f} s")

    def _open(self) -> str:
        """How many slots are open."""
        ready, all_ = len(self._fleet.ready), len(self._fleet.processes)
        if ready == all_:
            return f"{slots_text(all_)} open"
        return f"{ready} of {slots_text(all_)} open"
