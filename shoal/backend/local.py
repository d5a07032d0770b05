"""This process, on one device.

Training and deciding take turns in one thread, so that a debugger works.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic, sleep

from shoal.backend.positions import GangRun, Positions, fallen
from shoal.core.check import PlanError
from shoal.core.cluster import ShardId, Slot
from shoal.core.event import Ended, Event, Failed, Finished, Joined, Retired, Unread
from shoal.core.plan import Gang, goes_on, prune
from shoal.core.ports import Moment
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.train.data.columns import DataError
from shoal.train.function.trainer import FunctionTrainer
from shoal.train.recipe.unit import Done, PackRefused, Part, Returned, Tree, TrialError, Unit
from shoal.train.slot.trainer import SlotTrainer

News = Part | Done | Returned | TrialError


@dataclass(eq=False, slots=True)
class _PackRound:
    """One unit of each lane of a gang, under way."""

    # The units that are not yet made.
    units: dict[TrialId, Unit]
    news: Generator[tuple[TrialId, News], None, None]
    failed: dict[TrialId, TrialError] = field(default_factory=dict)


class Local:
    """One slot in this process. Its moments come at the ends of chunks and units, not by a clock.

    `since`: the time of the study at which this run begins.
    """

    def __init__(
        self,
        trainer: SlotTrainer | FunctionTrainer,
        course: Positions,
        slot: Slot,
        since: Seconds = 0.0,
    ) -> None:
        self.trainer = trainer
        self.course = course
        self.slot = slot
        self._zero = monotonic() - since
        self._run: GangRun | None = None
        self._round: _PackRound | None = None
        # The trials with work left.
        self._open: set[TrialId] = set()
        # Events of changes of the plan.
        self._events: list[Event] = []
        # Events from outside, such as stops.
        self._inbox: deque[Event] = deque()
        self._wake_at: Seconds | None = None

    def now(self) -> Seconds:
        """The time of the study."""
        return monotonic() - self._zero

    def state(self, trial: TrialId, visits: int) -> Tree | None:
        """The trial's state after so many visits, if it is here: views, valid until its next unit.

        Only between two moments.
        """
        with suppress(LookupError):
            if self.trainer.holds(trial, visits):
                return self.trainer.state(trial)
        return None

    def forget(self, trial: TrialId) -> None:
        """Free what a trial takes here that was taken out of the study."""
        self.trainer.forget(trial)

    def tell(self, event: Event) -> None:
        """Have this event, such as a stop, happen at the next moment.

        Signal handlers and other threads may call it.
        """
        self._inbox.append(event)

    # -- what the engine asks --------------------------------------------------------------------

    def submit(self, trial: Trial) -> None:
        """See `Backend.submit`."""
        self._events += self.course.submit(trial)
        position = self.course.positions[trial.id]
        if position.over:
            self._events.append(position.ending())
        else:
            self._open.add(trial.id)

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        """See `Backend.wake`. No slot comes by itself, so `until` means nothing here."""
        self._wake_at = at

    def change(self, before: Gang | None, after: Gang | None) -> None:
        """See `Backend.change`.

        Raises:
            PlanError: a lane of the gang has several slots.
        """
        if after is not None and any(len(lane.slots) > 1 for lane in after.lanes):
            raise PlanError(
                f"the local backend has one slot; got a trial on several: {after.lanes}; "
                "use another policy, or the ray backend"
            )
        run = self._run
        if before is not None and run is not None and run.gang == before:
            if after is not None and goes_on(before, after):
                run.turn_into(after)
                return
            self._leave(run)
        if after is not None:
            self._start(after)

    def _start(self, gang: Gang) -> None:
        """Begin a gang, without those of its trials that have ended meanwhile."""
        over = frozenset(trial for trial in gang.trials if trial not in self._open)
        rest = prune(gang, over)
        self._run = None
        if rest is not None:
            self._run = GangRun.of(rest)
            self._let_fall(rest)

    def _let_fall(self, gang: Gang) -> None:
        """Take trials whose newest state is nowhere any more back to what is durable."""
        for trial in gang.trials:
            position = self.course.positions[trial]
            visits = len(position.visits)
            durable, _ = position.durable()
            if visits > durable and not self.trainer.holds(trial, visits):
                self._events.append(self.course.fall(trial))

    def _leave(self, run: GangRun) -> None:
        """Stop a gang. Visits under way are completed, unless the gang has a quota."""
        while self._round is not None and run.quota is None and self._run is run:
            self._events += self._work(run)
        if self._round is not None:
            self._drop(self._round)
        self._round = None
        self._run = None

    def _drop(self, pack_round: _PackRound) -> None:
        """Void the units under way."""
        pack_round.news.close()
        for trial in pack_round.units:
            self.trainer.forget(trial)
            self._events.append(self.course.fall(trial))

    def moments(self) -> Iterator[Moment]:
        """See `Backend.moments`. They end when no gang runs and no wake is set."""
        yield self.now(), (Joined((self.slot,)),)
        while True:
            events = self._new_events()
            if events:
                yield self.now(), events
            elif self._run is not None:
                events = tuple(self._work(self._run))
                if events:
                    yield self.now(), events
            elif self._wake_at is not None:
                if self._sleep(self._wake_at):
                    yield self.now(), ()
            else:
                events = tuple(self._flush())
                if not events:
                    return
                yield self.now(), events

    def _new_events(self) -> tuple[Event, ...]:
        """The events of changes of the plan, and those from outside."""
        events = self._events
        self._events = []
        if self._inbox:
            # Whoever asks for something may need what is durable.
            self.trainer.commit()
        while self._inbox:
            events.append(self._inbox.popleft())
        return tuple(events)

    def _sleep(self, until: Seconds) -> bool:
        """Sleep for a moment; returns whether it is time to wake the engine."""
        sleep(max(0.0, min(until - self.now(), 0.2)))
        if self.now() < until and not self._inbox:
            return False
        self._wake_at = None
        return True

    # -- training --------------------------------------------------------------------------------

    def _work(self, run: GangRun) -> list[Event]:
        """Train one chunk of the gang's units under way; returns its events."""
        pack_round = self._round
        if pack_round is None:
            pack_round = self._begin(run)
            self._round = pack_round
        try:
            trial, news = next(pack_round.news)
        except StopIteration:
            return self._end(run, pack_round)
        except DataError as error:
            return self._without_shard(run, pack_round, error)
        if isinstance(news, Part):
            return self.course.part(trial, news)
        unit = pack_round.units.pop(trial)
        if isinstance(news, Returned):
            return self.course.positions[trial].returned(news)
        if not isinstance(news, TrialError):
            return self.course.done(unit, news, room=self.slot.memory)
        pack_round.failed[trial] = news
        if not isinstance(news, PackRefused) or news.begun:
            self.trainer.forget(trial)
        return []

    def _without_shard(self, run: GangRun, pack_round: _PackRound, error: DataError) -> list[Event]:
        """End the gang, whose round came to nothing, as a shard cannot be read.

        Raises:
            DataError: it is about something else.
        """
        shard = ShardId(error.part)
        units = list(pack_round.units.values())
        if all(unit.visit.shard != shard for unit in units):
            raise error
        self._round = None
        self._run = None
        events: list[Event] = [self.course.fall(trial) for trial in run.gang.trials]
        waiting = run.waiting(units, shard)
        if not waiting:
            self.slot = replace(self.slot, shards=self.slot.shards - {shard})
        unread = Unread(self.slot.id, shard, str(error), waiting)
        return [*events, unread, Ended(run.gang)]

    def _begin(self, run: GangRun) -> _PackRound:
        """Begin the next unit of each lane.

        The units advance as their news are asked for.
        """
        units = {trial: self._unit(run, trial) for trial in run.gang.trials}
        measured = self.course.measurements.rated
        news = self.trainer.train_pack(list(units.values()), run.gang.fused, measured)
        return _PackRound(units, news)

    def _unit(self, run: GangRun, trial: TrialId) -> Unit:
        """The trial's next unit. It goes on from its checkpoint if its state is not in memory."""
        position = self.course.positions[trial]
        source = None
        if position.kept is not None and not self.trainer.holds(trial, len(position.visits)):
            source = position.kept.name
        return self.course.unit(run, trial, source, carry=False)

    def _end(self, run: GangRun, pack_round: _PackRound) -> list[Event]:
        """The events of a round whose units are all made, or have failed."""
        self._round = None
        failed: dict[TrialId, TrialError] = {}
        for trial, error in pack_round.failed.items():
            if trial in run.gang.trials:
                failed[trial] = error
        lost = fallen(self.course, failed)
        if lost and run.shards_left is not None:
            # The shards of a gang may be wrong for its trial now: the policy decides anew.
            self._run = None
            return [*lost.values(), Ended(run.gang)]
        for trial in lost:
            del failed[trial]
        events = self.course.end_round(run, self.slot, failed, lost)
        self._note(events)
        if run.over:
            self._run = None
        return [*lost.values(), *events]

    def _note(self, events: Iterable[Event]) -> None:
        """Keep what the events say of the slot's memory and of trials that end."""
        for event in events:
            if isinstance(event, Joined):
                self.slot = event.slots[0]
            elif isinstance(event, (Finished, Failed, Retired)):
                self._open.discard(event.trial)

    def _flush(self) -> list[Event]:
        """Make durable what is only in memory, as nothing runs any more."""
        events: list[Event] = []
        for trial, position in self.course.positions.items():
            visits = len(position.visits)
            durable, _ = position.durable()
            if visits > durable and self.trainer.holds(trial, visits):
                with suppress(LookupError):  # a function says itself what is kept
                    name = self.trainer.keep(trial)
                    events.append(self.course.keep(trial, name))
        return events
