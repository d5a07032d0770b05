"""The thread that harvests: it looks, decides, submits and cancels, and ends its pilots."""

import random
import threading
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from types import TracebackType

from shoal.core.trial import Seconds
from shoal.harvest.observer import SECOND, Observer
from shoal.harvest.scheduler import Scheduler, SchedulerError, Sighting

Say = Callable[[str], None]

SHARE = 0.1  # of the time that may pass in questions to the batch system
LONGEST: Seconds = 300.0  # between two looks, while the batch system does not answer
FAREWELL: Seconds = 30.0  # for the end of the pilots


class Harvester:
    """Turns idle nodes into pilots while this context is open, and ends all pilots with it.

    `command`: what each pilot runs; see `Scheduler.submit`. `tick`: seconds from one look to the
    next. It grows while the batch system fails or is slow to answer, so that nobody's questions
    add to its trouble. After a look that shows nodes newly idle, one more comes after `SECOND`.
    `say`: is given a line for each thing that was done.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        observer: Observer,
        command: Sequence[str],
        tick: Seconds,
        say: Say,
    ) -> None:
        self.scheduler = scheduler
        self.observer = observer
        self.command = command
        self.tick = tick
        self._say = say
        self._memory = observer.start()
        self._mine: set[str] = set()  # pilots that were submitted and not seen to end
        self._refused: dict[str, float] = {}  # nodes, until when by the monotonic clock
        self._running: frozenset[str] = frozenset()  # pilots that ran at the last look
        self._draw = random.Random()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-harvester", daemon=True)

    def __enter__(self) -> "Harvester":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Look no more, and end all pilots; returns when they are gone, or after 30 seconds."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        until = monotonic() + FAREWELL
        cancelled: set[str] = set()
        try:
            while True:
                self.scheduler.cancel(sorted(self._mine - cancelled))
                cancelled |= self._mine
                self._mine = {pilot.id for pilot in self.scheduler.look().pilots}
                if not self._mine or monotonic() > until:
                    break
                sleep(0.5)
        except SchedulerError as error:
            self._say(f"the pilots could not be cancelled: {error}")
        if self._mine:
            left = ", ".join(sorted(self._mine))
            self._say(f"pilot {left} did not end yet; it ends with the Ray head")

    # -- looking -------------------------------------------------------------------------------

    def _run(self) -> None:
        delay = 0.0
        soon = False
        failures = 0
        while not self._over.wait(delay):
            began = monotonic()
            try:
                again = self.look()
            except SchedulerError as error:
                # Twice as long each time, and not for all users at once.
                failures += 1
                delay = min(LONGEST, self.tick * 2.0**failures) * self._draw.uniform(0.75, 1.0)
                self._say(f"{error}; the next look is in {delay:.0f} s")
                continue
            if failures:
                self._say(f"the batch system answers again, after {failures} failures")
            failures = 0
            soon = again and not soon  # never twice in a row: that bounds the questions
            delay = min(SECOND, self.tick) if soon else self.tick
            delay = max(delay, (monotonic() - began) / SHARE)

    def look(self) -> bool:
        """Look once, and do what follows. Returns whether to look again soon.

        Raises:
            SchedulerError: the batch system did not answer, or refused.
        """
        sighting = self.scheduler.look()
        self._note(sighting)
        orders, self._memory = self.observer.decide(sighting, self._memory)
        if orders.cancel:
            self.scheduler.cancel(orders.cancel)
            self._say(f"cancelled: pilot {', '.join(orders.cancel)}")
        for node, minutes in orders.submit:
            if self._over.is_set():
                break
            if self._refused.get(node, 0.0) < monotonic():
                self._submit(node, minutes)
        return orders.again

    def _submit(self, node: str, minutes: int) -> None:
        """Submit a pilot; a node for which that is refused is left alone for a while."""
        try:
            pilot = self.scheduler.submit(node, minutes, self.command)
        except SchedulerError as error:
            self._refused[node] = monotonic() + LONGEST
            self._say(f"no pilot for {node}, again in {LONGEST:.0f} s: {error}")
            return
        self._mine.add(pilot)
        self._say(f"{node} is idle: pilot {pilot} for {minutes} min")

    def _note(self, sighting: Sighting) -> None:
        """Say which pilots began and ended since the last look."""
        known = {pilot.id for pilot in sighting.pilots}
        nodes = {pilot.id: pilot.node for pilot in sighting.pilots if pilot.running}
        for pilot in sorted(nodes.keys() - self._running):
            self._say(f"pilot {pilot} runs at {nodes[pilot]}")
        for pilot in sorted(self._mine - known):
            self._say(f"pilot {pilot} has ended")
        self._running = frozenset(nodes)
        self._mine &= known
