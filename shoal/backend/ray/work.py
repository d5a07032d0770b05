"""What all gangs at work on Ray share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any

from ray.exceptions import RayTaskError

from shoal.backend.course import Positions
from shoal.backend.ends import UnitTimes
from shoal.backend.gang_run import GangRun
from shoal.backend.position import Position
from shoal.backend.ray.fleet import Fleet
from shoal.backend.ray.health.leaving import is_over
from shoal.backend.ray.node.outcomes import Broken, Unreadable
from shoal.backend.ray.slots import Call, Events, SlotProcess
from shoal.backend.ray.states import States, Stored
from shoal.core.event import Ended, Event, Failed, Finished, Joined, Retired, Unread
from shoal.core.trial import Trial, TrialId
from shoal.train.recipe.unit import Unit


@dataclass(frozen=True, slots=True)
class Work:
    """What all gangs at work share.

    Gangs on one slot and gangs over several wait, stop, lose slots and settle in ways of their own.
    They meet here: a trial is at work in one gang, and a slot works for one of them, at a time.
    """

    course: Positions
    fleet: Fleet
    states: States
    # A slot that is to leave has nothing to do any more.
    depart: Callable[[SlotProcess], Events]
    # Something came to its end: others may begin.
    settled: Callable[[], None]
    # Trials that are not through.
    unfinished: set[TrialId] = field(default_factory=set)
    # How long units took: slots of which the end is known begin none that could not end.
    times: UnitTimes = field(default_factory=UnitTimes)
    # Of what slots are given.
    numbers: Iterator[int] = field(default_factory=count)

    def at(self, trial: TrialId) -> Position:
        """Where the trial stands."""
        return self.course.positions[trial]

    def submit(self, trial: Trial, tell: Callable[[Event], None]) -> None:
        """The trial is new, extended, or goes on; one whose function is over ends at once."""
        for event in self.course.submit(trial):
            tell(event)
        if self.at(trial.id).over:
            tell(self.at(trial.id).ending())
        else:
            self.unfinished.add(trial.id)

    @property
    def active(self) -> set[TrialId]:
        """The trials at work."""
        return self.states.active

    def back(self, trial: TrialId) -> Event:
        """A unit came to nothing: back to the state that it went on from, if that is stored."""
        if isinstance(self.at(trial).carried, Stored):
            return self.course.abandon(trial)
        return self.course.fall(trial)

    def unread(
        self,
        process: SlotProcess,
        run: GangRun,
        units: Iterable[Unit],
        about: Unreadable,
    ) -> Events:
        """The process cannot read a shard for these units of the gang, which is over.

        If trials need not wait for the shard, other nodes may have it.
        """
        waiting = run.waiting(units, about.shard)
        events: Events = [Unread(process.id, about.shard, about.why, waiting)]
        if not waiting:
            self.fleet.shards.bar(process, about.shard)
            events += self.fleet.shards.again(self.fleet.ready, ())
        return [*events, Ended(run.gang)]

    def note_ends(self, events: Events) -> None:
        """Note what a round's end says: trials that are through, and slots with less memory."""
        for event in events:
            if isinstance(event, Joined):
                slot = event.slots[0]
                self.fleet.processes[slot.id].slot = slot
            elif isinstance(event, Finished | Failed | Retired):
                self.unfinished.discard(event.trial)

    def has_time(self, process: SlotProcess, trials: Sequence[TrialId]) -> bool:
        """Whether a unit of these trials can end there before the slot has to leave.

        If not, the slot leaves as soon as slots are looked at.
        """
        if process.leaving:
            return False
        if process.known.until == inf:
            return True
        return not is_over(process, self.fleet.now(), self.times.needed(trials))

    def reported(
        self,
        process: SlotProcess,
        calls: list[Call],
        call: Call,
        future: Any,
        settle: Callable[[Any], Events],
    ) -> Events:
        """A slot answered one of its calls, or died: what follows from that.

        Raises:
            Exception: disk, data or Shoal itself failed, not a trial.
        """
        if not self.fleet.is_current(process) or call not in calls:
            return []

        error = future.exception()
        if isinstance(error, RayTaskError):
            raise error.cause
        if error is not None:
            return self.fleet.died(process, error)

        process.finish(calls, call)
        outcome = future.result()
        if isinstance(outcome, Broken):
            raise outcome.error

        events = settle(outcome)
        self.times.learn(events)
        if process.leaving and not process.at_work:
            events += self.depart(process)
        self.settled()
        return events
