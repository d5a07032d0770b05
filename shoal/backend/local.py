"""This process, one device: cooperative, so that a debugger works and nothing runs beside the loop."""

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from time import monotonic, sleep

from shoal.backend.course import Course, Run
from shoal.core.check import PlanError
from shoal.core.cluster import Slot
from shoal.core.event import Event, Failed, Finished, Joined
from shoal.core.plan import Gang, goes_on, prune
from shoal.core.ports import Moment
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.train.station import News, Station
from shoal.train.unit import Part, TrialError, Unit


@dataclass(eq=False, slots=True)
class _Round:
    """A unit of each lane of a gang, under way."""

    units: dict[TrialId, Unit]  # not yet made
    news: Generator[tuple[TrialId, News], None, None]
    failed: dict[TrialId, TrialError] = field(default_factory=dict)


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
        self._round: _Round | None = None
        self._open: set[TrialId] = set()  # trials with work left
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
        self._open.add(trial.id)

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        self._wake_at = at

    def change(self, before: Gang | None, after: Gang | None) -> None:
        if after is not None and any(len(lane.slots) > 1 for lane in after.lanes):
            raise PlanError(f"the local backend has one slot; got lanes {after.lanes}: use another policy, or the ray backend")
        run = self._run
        if before is not None and run is not None and run.gang == before:
            if after is not None and goes_on(before, after):
                run.gang = after
                return
            self._leave(run)
        if after is not None:
            rest = prune(after, frozenset(trial for trial in after.trials if trial not in self._open))
            self._run = None if rest is None else Run.of(rest)

    def _leave(self, run: Run) -> None:
        """Stop a gang: the visits under way are completed, unless nobody wants them or they are to be void."""
        while self._round is not None and run.quota is None and self._run is run:
            self._events += self._work(run)
        if self._round is not None:
            self._round.news.close()
            for trial in self._round.units:
                self.station.forget(trial)
                self._events.append(self.course.fall(trial))
            self._round = None
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
        """Train one chunk of the gang's next units; at their end, their events."""
        if self._round is None:
            units = {trial: self._unit(run, trial) for trial in run.gang.trials}
            self._round = _Round(units, self.station.together(list(units.values()), run.gang.fused))
        at = self._round
        try:
            trial, news = next(at.news)
        except StopIteration:
            return self._end(run, at)
        if isinstance(news, Part):
            return [self.course.part(trial, news)]
        unit = at.units.pop(trial)
        if isinstance(news, TrialError):
            at.failed[trial] = news
            self.station.forget(trial)
            return []
        return self.course.done(unit, news, room=self.slot.memory)

    def _unit(self, run: Run, trial: TrialId) -> Unit:
        at = self.course.positions[trial]
        here = self.station.holds(trial, len(at.visits))
        return self.course.unit(run, trial, None if here or at.kept is None else at.kept.name, carry=False)

    def _end(self, run: Run, at: "_Round") -> list[Event]:
        self._round = None
        events = self.course.end_round(run, self.slot, {t: e for t, e in at.failed.items() if t in run.gang.trials})
        for event in events:
            if isinstance(event, Joined):
                self.slot = event.slots[0]
            elif isinstance(event, (Finished, Failed)):
                self._open.discard(event.trial)
        if run.over:
            self._run = None
        return events

    def _flush(self) -> list[Event]:
        """Nothing runs any more: make durable what is only in memory."""
        events: list[Event] = []
        for trial, at in self.course.positions.items():
            count = at.kept.visits if at.kept else 0
            if len(at.visits) > count and self.station.holds(trial, len(at.visits)):
                events.append(self.course.keep(trial, self.station.keep(trial)))
        return events
