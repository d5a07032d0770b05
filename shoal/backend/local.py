"""This process, one device: cooperative, so that a debugger works and nothing runs beside the loop."""

from collections import deque
from collections.abc import Generator, Iterator
from time import monotonic, sleep

from shoal.backend.course import Course, Run
from shoal.core.check import PlanError
from shoal.core.cluster import Slot
from shoal.core.event import Event, Joined
from shoal.core.plan import Gang
from shoal.core.ports import Moment
from shoal.core.trial import Seconds, Trial
from shoal.train.station import Station
from shoal.train.unit import Done, Part, TrialError, Unit


class Local:
    """One slot in this process. Moments fall at the ends of chunks and units, never by the clock.

    `since`: the time of the study at which this run begins.
    """

    def __init__(self, station: Station, course: Course, slot: Slot, since: Seconds = 0.0) -> None:
        self.station = station
        self.course = course
        self.slot = slot
        self._zero = monotonic() - since
        self._run: Run | None = None
        self._unit: tuple[Unit, Generator[Part, None, Done]] | None = None
        self._events: list[Event] = []
        self._told: deque[Event] = deque()
        self._wake_at: Seconds | None = None

    def now(self) -> Seconds:
        return monotonic() - self._zero

    def tell(self, event: Event) -> None:
        """Have this happen at the next moment (a stop, say); safe to call from a signal handler or another thread."""
        self._told.append(event)

    def submit(self, trial: Trial) -> None:
        self.course.submit(trial)

    def wake(self, at: Seconds | None) -> None:
        self._wake_at = at

    def change(self, before: Gang | None, after: Gang | None) -> None:
        if after is not None and (len(after.lanes) > 1 or len(after.slots) > 1):
            raise PlanError(f"the local backend runs one trial on its one slot; got lanes {after.lanes}: use another policy")
        if before is not None and self._run is not None and self._run.gang == before:
            self._leave(self._run)
        if after is not None:
            self._run = Run.of(after)

    def _leave(self, run: Run) -> None:
        """Stop a gang: the visit under way is completed, unless its trial is no longer wanted or the unit is to be void."""
        while self._unit is not None and run.quota is None and self._run is run:
            self._events += self._work(run)
        if self._unit is not None:
            self._unit[1].close()
            self._unit = None
            trial = run.gang.lanes[0].trial
            self.station.forget(trial)
            self._events.append(self.course.fall(trial))
        self._run = None

    def moments(self) -> Iterator[Moment]:
        yield self.now(), (Joined((self.slot,)),)
        while True:
            events = [*self._events]
            self._events = []
            while self._told:
                events.append(self._told.popleft())
            if not events and self._run is not None:
                events += self._work(self._run)
                if not events:
                    continue
            elif not events and self._wake_at is not None:
                sleep(max(0.0, min(self._wake_at - self.now(), 0.2)))
                if self.now() < self._wake_at and not self._told:
                    continue
                self._wake_at = None
            elif not events:
                events += self._flush()
                if not events:
                    return
            yield self.now(), tuple(events)

    def _work(self, run: Run) -> list[Event]:
        """Train one chunk of the gang's next unit; at the unit's end, its events."""
        trial = run.gang.lanes[0].trial
        try:
            if self._unit is None:
                at = self.course.positions[trial]
                here = self.station.holds(trial, len(at.visits))
                source = None if here or at.kept is None else at.kept.name
                unit = self.course.unit(run, source, carry=False)
                self._unit = unit, self.station.train(unit)
            return self._next(run, *self._unit)
        except TrialError as error:
            self._unit = self._run = None
            self.station.forget(trial)
            return [self.course.fail(trial, error)]

    def _next(self, run: Run, unit: Unit, generator: Generator[Part, None, Done]) -> list[Event]:
        try:
            part = next(generator)
        except StopIteration as stop:
            self._unit = None
            events = self.course.done(run, unit, stop.value)
            if run.over or self.course.positions[unit.trial.id].samples >= unit.trial.samples:
                self._run = None
            return events
        return [self.course.part(unit.trial.id, part)]

    def _flush(self) -> list[Event]:
        """Nothing runs any more: make durable what is only in memory."""
        events: list[Event] = []
        for trial, at in self.course.positions.items():
            count = at.kept.visits if at.kept else 0
            if len(at.visits) > count and self.station.holds(trial, len(at.visits)):
                events.append(self.course.keep(trial, self.station.keep(trial)))
        return events
