"""Where trials' newest states are: in slots' memories or the object store; which become durable."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, cycle
from typing import Any

from ray.exceptions import RayError, RayTaskError

from shoal.backend.node.messages import Trained
from shoal.backend.positions import GangRun, Position, Positions
from shoal.backend.ray.cluster import GIB
from shoal.backend.ray.fleet import Fleet
from shoal.backend.ray.setup import RaySetup
from shoal.backend.ray.slot_process import Call, Events, SlotProcess
from shoal.backend.ray.slots import Slots
from shoal.core.cluster import SlotId
from shoal.core.event import Kept
from shoal.core.trial import Samples, Seconds, TrialId, Visit
from shoal.train.recipe.unit import Done


@dataclass(frozen=True, slots=True)
class Stored:
    """A trial's newest state lies in the object store."""

    ref: Any
    size: int  # bytes
    slot: SlotId  # where it was made
    number: int  # counts up: the smallest was stored longest ago


@dataclass(frozen=True, slots=True)
class Resident:
    """A trial's newest state is only in these processes' memory; in the first's for certain."""

    processes: tuple[SlotProcess, ...]

    def without(self, process: SlotProcess) -> "Resident":
        """The state as it is in the memory of the other processes."""
        return Resident(tuple(each for each in self.processes if each is not process))


class States:
    """Where the trials' newest states are, as `Position.carried` says.

    It is `Stored`, `Resident`, or None if the newest state is durable or there is none.
    """

    def __init__(self, course: Positions, fleet: Fleet, slots: Slots, setup: RaySetup) -> None:
        self._course = course
        self._fleet = fleet
        self._slots = slots
        self._room_gb = setup.resting_gb()
        self._patience = setup.options.hang_after
        self.active: set[TrialId] = set()  # trials at work
        self._store = fleet.store_room
        self._numbers = count()
        self.saving: set[TrialId] = set()
        self.moved = 0  # bytes of states that went from slot to slot

    def store(self, trial: TrialId, ref: Any, size: int, slot: SlotId) -> Stored:
        """Note a state that a unit made at the slot returned."""
        stored = Stored(ref, size, slot, next(self._numbers))
        self._course.positions[trial].carried = stored
        return stored

    def source(self, trial: TrialId, process: SlotProcess, void: bool) -> Stored | None:
        """What a unit at that process goes on from.

        None: from what is there, or durable, or from nothing. A state that is resident elsewhere,
        or that is needed again should the unit be `void`, is put into the object store.
        """
        carried = self._course.positions[trial].carried
        if isinstance(carried, Stored):
            return carried
        if not isinstance(carried, Resident):
            return None
        if process in carried.processes and not void:
            return None

        holder = carried.processes[0]
        ref = holder.give(trial, forget=holder is not process)
        return self.store(trial, ref, 0, holder.id)

    # -- units that were made -----------------------------------------------------------------

    def trained(self, process: SlotProcess, call: Call, trial: TrialId, outcome: Trained) -> Events:
        """The events of a unit that was made."""
        moved = 0
        if call.origins.get(trial) != process.id:
            moved = outcome.fetched
        self.moved += moved
        done = with_way(outcome.done, call.way * bool(moved))
        unit = call.units[trial]
        memory = process.ready_slot.memory
        return self._course.done(unit, done, outcome.values, moved, memory)

    def settle(
        self, holders: tuple[SlotProcess, ...], call: Call, trial: TrialId, outcome: Trained
    ) -> None:
        """Note where the trial's state is now. `holders`: whoever made the unit, first of all."""
        position = self._course.positions[trial]
        if self._course.met(trial) and outcome.done.kept is not None:
            position.carried = None
        elif call.units[trial].carry:
            self.store(trial, call.states[trial], outcome.size, holders[0].id)
        else:
            position.carried = Resident(holders)

    def release(self, trial: TrialId) -> None:
        """Free what a trial takes of slots' memories that was taken out of the study."""
        position = self._course.positions[trial]
        for process in getattr(position.carried, "processes", ()):
            process.forget(trial)

    # -- slots that go -------------------------------------------------------------------------

    def lose(self, process: SlotProcess, at_work: Collection[TrialId]) -> Events:
        """The events of a process that is gone.

        The trials at work there lost their units, those resident there what is not durable.
        """
        events: Events = []
        for trial, position in self._course.positions.items():
            lost = self._lost(position, process)
            if lost and not is_durable(position):
                events.append(self._course.fall(trial))
            elif trial in at_work:
                events.append(self._course.abandon(trial))
            if lost or _is_doubtful(position, process):
                position.carried = None

        return events

    def _lost(self, position: Position, process: SlotProcess) -> bool:
        """Whether no other process has the state that was in the memory of this one."""
        carried = position.carried
        if not isinstance(carried, Resident) or process not in carried.processes:
            return False
        if len(carried.processes) == 1:
            return True
        position.carried = carried.without(process)
        return False

    def secure(self, process: SlotProcess) -> Events:
        """Make durable what is only at this process, which first gives what others asked it for.

        If it is the last one, what lies in the object store becomes durable, too; and what it
        stored there, if it leaves because its node will.

        Raises:
            RayError: its process died meanwhile.
            OSError: the storage failed.
        """
        if process.handover is not None:
            with suppress(LookupError):  # it was given up here: whoever wants it is told so, too
                self._fleet.answer(process, process.handover, self._patience)
        events: Events = []
        for trial in self._only_at(process):
            try:
                ref = process.call("train", "keep", trial)
                name = self._fleet.answer(process, ref, self._patience)
                events.append(self._course.keep(trial, name))
            except LookupError:  # it was given up here, for another slot had it, too
                events.append(self._course.fall(trial))

        last = self._slots.ready == [process]
        for trial, position in self._course.positions.items():
            if not isinstance(position.carried, Stored) or is_durable(position):
                continue
            if last or (process.ends and position.carried.slot == process.id):
                ref = self._save(trial, position, process)
                name = self._fleet.answer(process, ref, self._patience)
                events.append(self._course.keep(trial, name))

        return events

    def _only_at(self, process: SlotProcess) -> list[TrialId]:
        """The trials whose newest states are in this process's memory alone."""
        trials: list[TrialId] = []
        for trial, position in self._course.positions.items():
            if is_durable(position) or not isinstance(position.carried, Resident):
                continue
            if position.carried.processes == (process,):
                trials.append(trial)
        return trials

    # -- the object store ----------------------------------------------------------------------

    def spill(self) -> None:
        """Make states durable that lie idle in the object store, until the rest has room.

        Those stored longest ago come first.
        """
        stored: list[tuple[Stored, TrialId]] = []
        for trial, position in self._course.positions.items():
            if isinstance(position.carried, Stored):
                stored.append((position.carried, trial))
        room = min(self._store, self._room_gb * GIB * len(self._slots.ready))
        excess = sum(state.size for state, _ in stored) - room
        if excess <= 0 or not self._slots.ready:
            return

        stored.sort(key=lambda item: item[0].number)
        for state, trial in stored:
            if excess <= 0:
                return
            if trial not in self.active:
                excess -= state.size
                self._put_away(trial)

    def _put_away(self, trial: TrialId) -> None:
        """Let the object store forget the state, once it is durable."""
        position = self._course.positions[trial]
        if is_durable(position):
            position.carried = None
        elif trial not in self.saving:
            self.saving.add(trial)
            ready = self._slots.ready  # best the one that stored it
            maker = next((each for each in ready if each.id == position.carried.slot), ready[0])
            saved = self._save(trial, position, maker)
            then = partial(self._saved, trial, position.visits, position.samples)
            self._fleet.follow(saved, then)

    def _save(self, trial: TrialId, position: Position, process: SlotProcess) -> Any:
        """Have the process make a stored state durable."""
        parcel = [position.carried.ref]
        return process.call("control", "save", trial, len(position.visits), parcel)

    def _saved(
        self, trial: TrialId, visits: tuple[Visit, ...], samples: Samples, future: Any
    ) -> Events:
        """The event of a state that is durable, after these visits, unless that failed."""
        self.saving.discard(trial)
        error = future.exception()
        if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
            raise error.cause
        if error is not None:
            return []  # its slot died: if need be, another one is asked

        position = self._course.positions[trial]
        newer = position.kept is not None and position.kept.visits >= len(visits)
        if newer or position.visits[: len(visits)] != visits:
            return []

        kept = Kept(trial, len(visits), samples, future.result())
        position.keep(kept)
        if len(position.visits) == len(visits):
            position.age = 0.0
            if trial not in self.active:
                position.carried = None

        return [kept]

    # -- the end -------------------------------------------------------------------------------

    def flush(self) -> Events:
        """Make durable what is only in memory, as nothing runs any more."""
        events: Events = []
        for trial, (process, ref) in self._keeping().items():
            try:
                name = self._fleet.answer(process, ref, self._patience)
                events.append(self._course.keep(trial, name))
            except (RayError, LookupError):
                continue  # its slot died: what was not durable is trained again
        return events

    def _keeping(self) -> dict[TrialId, tuple[SlotProcess, Any]]:
        """The trials whose states slots now make durable: which slot, and the name to come."""
        refs: dict[TrialId, tuple[SlotProcess, Any]] = {}
        processes = self._slots.ready
        turns = cycle(processes)
        for trial, position in self._course.positions.items():
            if not position.visits or is_durable(position):
                continue
            if isinstance(position.carried, Resident):
                process = position.carried.processes[0]
                refs[trial] = process, process.call("train", "keep", trial)
            elif isinstance(position.carried, Stored) and processes:
                process = next(turns)
                refs[trial] = process, self._save(trial, position, process)

        return refs


def with_way(done: Done, way: Seconds) -> Done:
    """The report of a unit whose trial came from another slot, with the seconds of its way.

    They count as part of the switch, both where the unit's seconds went and in what was measured.
    """
    if not way:
        return done
    spent = dict(done.spent)
    spent["switch"] = spent.get("switch", 0.0) + way
    figures = dict(done.figures)
    if "switch" in figures:
        figures["switch"] += way
    return replace(done, spent=spent, figures=figures)


def carries(run: GangRun) -> bool:
    """Whether the trial may go on at another slot after each unit: its state must be returned."""
    return run.shards_left is not None or run.quota is not None


def _is_doubtful(position: Position, process: SlotProcess) -> bool:
    """Whether the state that a lost process stored need not be looked for: it is durable.

    Its node may be gone, too, and until Ray knows of that, whoever wants the state waits.
    """
    carried = position.carried
    stored_there = isinstance(carried, Stored) and carried.slot == process.id
    return stored_there and is_durable(position)


def durable_name(position: Position) -> str | None:
    """The checkpoint that holds the newest state, if any does."""
    if position.kept is None or not is_durable(position):
        return None
    return position.kept.name


def is_durable(position: Position) -> bool:
    """Whether a checkpoint holds the newest state."""
    return position.kept is not None and position.kept.visits == len(position.visits)
