"""The time limit of an allocation: the run stops before it, with everything durable."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from types import TracebackType

from shoal.core.event import Advanced, Commanded, Ended, Entry, Planned
from shoal.core.fold import step
from shoal.core.state import State
from shoal.core.trial import Seconds, TrialId
from shoal.engine.journal import Journal
from shoal.harvest.allocation import Allocation, AllocationOver, allocation_now
from shoal.study.allocated.place import clock

# Between two looks at the clock.
EVERY: Seconds = 0.5
# A stop comes so long before the end at least.
LEAST: Seconds = 60.0
# What is added to the time of a visit, which may take so much longer than the longest so far.
CLOSING: Seconds = 30.0
LONGER = 1.2
# So long before the end the visits under way are given up, in order to end in good order.
LAST: Seconds = 15.0
# Between two interrupts of a run that does not end.
AGAIN: Seconds = 3.0
# How the reason of such a stop begins, in the journal.
OF_SLURM = "Slurm job"


class LongestVisit:
    """How long a stop may have to wait: the longest visit, or gang with a quota, so far."""

    def __init__(self) -> None:
        self.seconds: Seconds = 0.0
        self._since: dict[TrialId, Seconds] = {}
        self._whole: set[TrialId] = set()  # in gangs with a quota, which end by themselves

    def __call__(self, now: Seconds, entries: Iterable[Entry], state: State) -> None:
        for entry in entries:
            match entry:
                case Planned(start=gangs):
                    for gang in gangs:
                        self._begin(now, gang.trials, gang.quota is not None)
                case Advanced(visits=visits):
                    made = {trial for trial, some in visits.items() if some}
                    self._made(now, made - self._whole)
                case Ended(gang=gang):
                    self._made(now, self._whole.intersection(gang.trials))

    def _begin(self, now: Seconds, trials: Iterable[TrialId], whole: bool) -> None:
        for trial in trials:
            self._since[trial] = now
            self._whole.discard(trial)
            if whole:
                self._whole.add(trial)

    def _made(self, now: Seconds, trials: Iterable[TrialId]) -> None:
        for trial in trials:
            self.seconds = max(self.seconds, now - self._since.get(trial, now))
            self._since[trial] = now


class TimeLimit:
    """Stops the run before its allocation ends, while this context is open.

    The stop lets the visits under way end. Those that take too long are given up `LAST` seconds
    before the end: the run is interrupted, as by a second Ctrl-C, and the context swallows that.

    As a watcher of the run it follows the state and how long visits take.

    `found`: the allocation; None, or one without an end: there is no limit. `margin`: how many
    seconds before the end to stop; None: a minute, or more where visits take long, but at most half
    of what was left at the start. `tell`: tells the run's backend.
    """

    def __init__(
        self,
        found: Allocation | None,
        margin: Seconds | None,
        state: State,
        tell: Callable[[Commanded], None],
    ) -> None:
        self.state = state
        self._found = found
        self._end = inf
        if found is not None and found.end is not None:
            self._end = found.end
        self._margin = margin
        self._tell = tell
        self._most = max(0.0, self._left()) / 2
        self._visits = LongestVisit()
        self._stopped: Commanded | None = None
        self._cut = False
        self._runs_in = 0  # the thread
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shoal-time-limit", daemon=True)

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        self.state = state
        self._visits(now, entries, state)

    def __enter__(self) -> "TimeLimit":
        self._runs_in = threading.get_ident()
        if self._end < inf:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._over.set()
        try:
            if self._thread.ident is not None:
                self._thread.join()
        except KeyboardInterrupt:  # one that was sent when the run had just ended
            if not self._cut:
                raise
        return self._cut and kind is KeyboardInterrupt

    def ended(self, journal: Journal, now: Seconds) -> State:
        """The last state of a run that was interrupted; the journal says why it stopped.

        `now`: the time of the study.
        """
        if self._stopped is not None and self.state.stopped is None:
            journal.append(now, self._stopped)
            journal.sync()
            self.state = step(self.state, self._stopped)
        return self.state

    def margin(self) -> Seconds:
        """How many seconds before the end the run is to stop."""
        if self._margin is not None:
            return self._margin
        return min(self._most, max(LEAST, LONGER * self._visits.seconds + CLOSING))

    def _left(self) -> Seconds:
        return self._end - time.time()

    def _watch(self) -> None:
        while not self._over.wait(EVERY):
            if self._stopped is None:
                if self._left() <= self.margin():
                    self._stop()
            elif self._left() <= min(LAST, self.margin() / 2):
                self._interrupt()
                self._over.wait(AGAIN)

    def _stop(self) -> None:
        """Stop the run, unless somebody has given its job more time meanwhile."""
        found = self._found
        with suppress(AllocationOver, ValueError):
            found = allocation_now(os.environ)
        if found is None or found.end is None:
            self._end = inf
            return
        self._end = found.end
        if self._left() <= self.margin():
            at = clock(self._end, time.time())
            self._stopped = Commanded("stop", f"{OF_SLURM} {found.job} ends at {at}")
            self._tell(self._stopped)

    def _interrupt(self) -> None:
        """Interrupt the run; it may take the first signal as another request to stop.

        A run in another thread than the main one cannot be interrupted.
        """
        main = threading.main_thread().ident
        if main is not None and main == self._runs_in:
            self._cut = True
            signal.pthread_kill(main, signal.SIGINT)
