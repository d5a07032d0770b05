"""Where the newest states of trials are, and how those that are only in memory become durable."""

from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.backend.course import Course, Position, Run
from shoal.backend.ray_cluster import GIB, store_room
from shoal.backend.ray_fleet import Berth, Call, Fleet
from shoal.backend.ray_slot import Broken
from shoal.core.cluster import GiB, SlotId
from shoal.core.event import Event, Kept
from shoal.core.trial import Samples, TrialId, Visit


@dataclass(frozen=True, slots=True)
class Stored:
    """A trial's newest state lies in the object store."""

    ref: Any
    size: int  # bytes
    slot: SlotId  # where it was made
    number: int  # counts up: the smallest was stored longest ago


@dataclass(frozen=True, slots=True)
class Resident:
    """A trial's newest state is in the memory of these slots' processes, and nowhere else; in that of the first for certain."""

    berths: tuple[Berth, ...]


class States:
    """Of each trial `Position.carried`: `Stored`, `Resident`, or None where its newest state is durable or it has none.

    `room_gb`: of the object store, for each slot, that states at rest may take up. `active`: the trials at work, as they change.
    """

    def __init__(self, course: Course, fleet: Fleet, room_gb: GiB, active: Set[TrialId]) -> None:
        self._course, self._fleet, self._room_gb, self._active = course, fleet, room_gb, active
        self._store = store_room()
        self._numbers = count()
        self.saving: set[TrialId] = set()

    def durable(self, trial: TrialId) -> bool:
        return _durable(self._course.positions[trial])

    def store(self, trial: TrialId, ref: Any, size: int, slot: SlotId) -> Stored:
        """It was returned by a unit."""
        stored = Stored(ref, size, slot, next(self._numbers))
        self._course.positions[trial].carried = stored
        return stored

    def source(self, trial: TrialId, berth: Berth, void: bool) -> Stored | None:
        """What a unit at that berth goes on from; None: from what is there, or durable, or from nothing.

        A state that is resident elsewhere, or that is needed again should the unit be `void`, is put into the object store.
        """
        at = self._course.positions[trial].carried
        if isinstance(at, Resident) and (void or berth not in at.berths):
            holder = at.berths[0]
            _, ref = holder.call("train", "give", trial, holder is not berth, results=2)
            return self.store(trial, ref, 0, holder.id)
        return at if isinstance(at, Stored) else None

    def lose(self, berth: Berth, at_work: Collection[TrialId]) -> list[Event]:
        """The berth is gone: the trials at work there lost their units, those resident there what is not durable."""
        events: list[Event] = []
        for name, at in self._course.positions.items():
            here = isinstance(at.carried, Resident) and berth in at.carried.berths
            if here and len(at.carried.berths) > 1:
                at.carried = Resident(tuple(each for each in at.carried.berths if each is not berth))
                here = False
            if here and not _durable(at):
                events.append(self._course.fall(name))
            elif name in at_work:
                events.append(self._course.abandon(name))
            if here:
                at.carried = None
        return events

    def secure(self, berth: Berth) -> list[Event]:
        """Make durable what is only at this berth; where it is the last one, also what lies in the object store.

        Raises:
            RayError: its process died meanwhile.
            OSError: the storage failed.
        """
        places = ((name, at) for name, at in self._course.positions.items() if not _durable(at))
        mine = [name for name, at in places if isinstance(at.carried, Resident) and at.carried.berths == (berth,)]
        events: list[Event] = []
        for name in mine:
            try:
                events.append(self._course.keep(name, _got(berth.call("train", "keep", name))))
            except LookupError:  # it was given up here, for another slot had it, too
                events.append(self._course.fall(name))
        for name, at in self._course.positions.items() if self._fleet.ready == [berth] else ():
            if isinstance(at.carried, Stored) and not _durable(at):
                events.append(self._course.keep(name, _got(self._save(name, at, [berth]))))
        return events

    def spill(self) -> None:
        """Make states durable that lie idle in the object store, those stored longest ago first, until the rest has room."""
        stored = [(at.carried, trial, at) for trial, at in self._course.positions.items() if isinstance(at.carried, Stored)]
        excess = sum(state.size for state, _, _ in stored) - self._room()
        if excess <= 0 or not self._fleet.ready:
            return
        for state, trial, at in sorted(stored, key=lambda item: item[0].number):
            if excess > 0 and trial not in self._active:
                excess -= state.size
                if _durable(at):
                    at.carried = None
                elif trial not in self.saving:
                    self.saving.add(trial)
                    then = partial(self._saved, trial, at.visits, at.samples)
                    self._fleet.follow(self._save(trial, at, self._fleet.ready), then)

    def _room(self) -> float:
        return min(self._store, self._room_gb * GIB * len(self._fleet.ready))

    def _save(self, trial: TrialId, at: Position, berths: Iterable[Berth]) -> Any:
        berth = next((b for b in berths if b.id == at.carried.slot), None) or next(iter(berths))
        return berth.call("control", "save", trial, len(at.visits), [at.carried.ref])

    def _saved(self, trial: TrialId, visits: tuple[Visit, ...], samples: Samples, future: Any) -> list[Event]:
        self.saving.discard(trial)
        error = future.exception()
        if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
            raise error.cause
        if error is not None:
            return []  # its slot died: if need be, another one is asked
        at = self._course.positions[trial]
        name = future.result()
        if at.visits[: len(visits)] != visits or (at.kept is not None and at.kept.visits >= len(visits)):
            return []
        at.kept = Kept(trial, len(visits), samples, name)
        if len(at.visits) == len(visits):
            at.age = 0.0
            if trial not in self._active:
                at.carried = None
        return [at.kept]

    def flush(self) -> list[Event]:
        """Nothing runs any more: make durable what is only in memory."""
        refs: dict[TrialId, Any] = {}
        berths = self._fleet.ready
        turns = cycle(berths)
        for trial, at in self._course.positions.items():
            if at.visits and not _durable(at):
                if isinstance(at.carried, Resident):
                    refs[trial] = at.carried.berths[0].call("train", "keep", trial)
                elif isinstance(at.carried, Stored) and berths:
                    refs[trial] = self._save(trial, at, [next(turns)])
        events: list[Event] = []
        for trial, ref in refs.items():
            try:
                events.append(self._course.keep(trial, _got(ref)))
            except (RayError, LookupError):
                continue  # its slot died: what was not durable is trained again
        return events


@dataclass(frozen=True, slots=True)
class Work:
    """What all gangs at work share. `active`: trials that are, `unfinished`: those that are not through."""

    course: Course
    fleet: Fleet
    states: States
    active: set[TrialId]
    unfinished: set[TrialId]
    numbers: Iterator[int]  # of what slots are given
    depart: Callable[[Berth], list[Event]]  # a slot that is to leave has nothing to do any more
    settled: Callable[[], None]  # something came to its end: others may begin
    post: Callable[[Callable[[], list[Event]]], None]  # to be done, and told, at the next moment

    def reported(
        self, berth: Berth, calls: list[Call], call: Call, future: Any, settle: Callable[[Any], list[Event]]
    ) -> list[Event]:
        """A slot answered one of its calls, or died: what follows from that.

        Raises:
            Exception: disk, data or Shoal itself failed, not a trial.
        """
        if self.fleet.berths.get(berth.id) is not berth or call not in calls:
            return []
        error = future.exception()
        if isinstance(error, RayTaskError):
            raise error.cause
        if error is not None:
            return self.fleet.died(berth, error)
        calls.remove(call)
        outcome = future.result()
        if isinstance(outcome, Broken):
            raise outcome.error
        events = settle(outcome)
        if berth.leaving and not berth.at_work:
            events += self.depart(berth)
        self.settled()
        return events


def carries(run: Run) -> bool:
    """Whether the trial may go on at another slot after each unit, so that its state must be returned."""
    return run.left is not None or run.quota is not None


def durable_name(at: Position) -> str | None:
    """The checkpoint that holds the newest state, if any does."""
    return at.kept.name if at.kept is not None and _durable(at) else None


def _durable(at: Position) -> bool:
    return at.kept is not None and at.kept.visits == len(at.visits)


def _got(ref: Any) -> Any:
    """The reference's value, or what its method raised."""
    try:
        return ray.get(ref)
    except RayTaskError as error:
        raise error.cause from None
