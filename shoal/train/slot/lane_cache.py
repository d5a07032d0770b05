"""The lanes that stay at a slot between their units, within a limit of memory.

What a lane is between two units, and who changes that (docs/architecture.md has the table):
`ready` brings a lane to the state before a unit; the unit's begin makes it stale, and `settle`
current again; `keep` and saved states make it durable; only `drop` takes it away.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from gc import collect
from math import isfinite
from time import perf_counter

from shoal.core.trial import Seconds, TrialId
from shoal.train.lane.blame import blaming
from shoal.train.lane.checkpoints import Damaged
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.trunk import Trunks, shared_bytes
from shoal.train.recipe.unit import StateLost, Tree, TrialError, Unit
from shoal.train.slot.context import SlotContext, Stopwatch
from shoal.train.slot.fusion import LaneStacks
from shoal.train.slot.lane_builder import LaneBuilder
from shoal.train.wide.lane import WideLane

# Lanes of so many trials that are over may rest here; a small one takes 100 kB.
OVER = 256
# So many hops to a slot are measured: the first ones meet memory that nobody has used yet.
HOPS = 5


@dataclass(eq=False, slots=True)
class CachedLane:
    """A lane that stays here, and whether its state can be had elsewhere."""

    lane: TrainingLane
    # it is in the state after `lane.visits`; if not, only its memory is of use
    current: bool = False
    # that state is durable, or was returned
    durable: bool = False
    # bytes that it takes; 0 before its first unit is made
    bytes: int = 0
    # if several processes trained it
    wide: WideLane | None = None

    @property
    def connected(self) -> bool:
        """Whether other processes count on this lane."""
        return self.wide is not None and self.wide.connected

    @property
    def spare(self) -> bool:
        """Whether the lane can be dropped: its state can be had again, or is of no use."""
        return self.durable or not self.current


class LaneCache:
    """The lanes of one slot, those at work and those at rest.

    A lane stays after its unit, so that the trial's next unit here goes on at once. Lanes at work
    always stay. Lanes at rest fill what those at work leave of the memory for states; where the
    slot's own memory is limited, also what they leave of that.

    A lane at rest is given up only if its state can be had again: it is durable, or was returned.
    Otherwise the state is saved first.
    """

    def __init__(self, context: SlotContext, builder: LaneBuilder, stacks: LaneStacks) -> None:
        self._context = context
        self._builder = builder
        self._stacks = stacks
        # the one used longest ago first
        self._lanes: OrderedDict[TrialId, CachedLane] = OrderedDict()
        self._bytes = 0  # of all of them
        self._largest = 0  # bytes of the largest lane so far
        self._finished: dict[TrialId, None] = {}  # trials that are over, first the longest
        self._memory_short = False  # memory ran out in the last units
        self._trunks = Trunks(context.meter.tell)
        self.saved = SavedStates(context)

    # -- the lanes that are here ---------------------------------------------------------------

    @property
    def trials(self) -> tuple[TrialId, ...]:
        """The trials whose lanes are here, used longest ago first."""
        return tuple(self._lanes)

    def get(self, trial: TrialId) -> CachedLane | None:
        """The trial's lane, if it is here."""
        return self._lanes.get(trial)

    def current(self, trial: TrialId) -> CachedLane | None:
        """The trial's lane, if it is here in the state after its visits."""
        cached = self._lanes.get(trial)
        return cached if cached is not None and cached.current else None

    def has(self, trial: TrialId, visits: int) -> bool:
        """Whether a unit of the trial after so many visits needs no source."""
        cached = self.current(trial)
        if cached is not None and len(cached.lane.visits) == visits:
            return True
        return self.saved.has(trial, visits)

    def restore(self, trial: TrialId, cached: CachedLane) -> None:
        """Hold this lane for the trial, in the place of the one that was there."""
        self._bytes += cached.bytes - self._size(trial)
        self._lanes[trial] = cached

    def _size(self, trial: TrialId) -> int:
        """Bytes of the trial's lane; 0 if it is not here."""
        cached = self._lanes.get(trial)
        return 0 if cached is None else cached.bytes

    def resting(self, staying: Collection[TrialId]) -> int:
        """Bytes that all lanes take beside those of the trials in `staying`."""
        lanes = [cached.lane for trial in staying if (cached := self.get(trial)) is not None]
        shared = shared_bytes(cached.lane for cached in self._lanes.values())
        shared -= shared_bytes(lanes)
        return self._bytes - sum(map(self._size, staying)) - shared

    def _droppable(self, staying: Collection[TrialId]) -> list[TrialId]:
        """Trials whose lanes may be dropped, in the order to drop them.

        First come those whose states can be had again, used longest ago first. Then come the
        others, used last first: trials that take turns come back in the order of their use.
        """
        spare: list[TrialId] = []
        unsaved: list[TrialId] = []
        for trial, cached in self._lanes.items():
            if trial in staying or cached.connected:
                continue
            (spare if cached.spare else unsaved).append(trial)
        return spare + unsaved[::-1]

    # -- before a unit -------------------------------------------------------------------------

    def ready(self, unit: Unit, spent: Stopwatch) -> CachedLane:
        """The trial's lane, in the state before the visit.

        Raises:
            TrialError: the recipe's code raised.
            LookupError: that state is not here, and the unit has no source for it.
        """
        trial = unit.trial.id
        self._finished.pop(trial, None)
        cached = self.current(trial)
        if cached is None or cached.lane.visits != unit.visits:
            with spent.on("switch"):
                cached = self._lanes.get(trial)
                state = self.saved.source(unit)
                if cached is None or state is None:
                    cached = self.add(trial, self._builder.build(unit.trial, state))
                if state is not None:
                    self._load(cached.lane, state, unit)
                self._trunks.share(cached.lane)
        self._lanes.move_to_end(trial)
        return cached

    def in_any_state(self, unit: Unit, spent: Stopwatch) -> CachedLane:
        """The trial's lane in whatever state: another process will send the right one."""
        trial = unit.trial.id
        self._finished.pop(trial, None)
        cached = self._lanes.get(trial)
        if cached is None:
            with spent.on("switch"):
                cached = self.add(trial, self._builder.build(unit.trial))
        self._lanes.move_to_end(trial)
        return cached

    def add(self, trial: TrialId, lane: TrainingLane) -> CachedLane:
        """Hold this lane for the trial."""
        cached = CachedLane(lane)
        self._trunks.enter(lane)
        self.restore(trial, cached)
        return cached

    def _load(self, lane: TrainingLane, state: Tree, unit: Unit) -> None:
        """Load the unit's source into the lane.

        Raises:
            TrialError: the state does not fit the lane.
            StateLost: its checkpoint is not the state before the unit.
            LookupError: what was sent with the unit is not.
        """
        begin = perf_counter()
        self._stacks.release(lane)
        with blaming():
            lane.load(state)
        if lane.visits != unit.visits:
            why = (
                f"trial {unit.trial.id}: its unit comes after {len(unit.visits)} visits, "
                f"its source is the state after {len(lane.visits)}"
            )
            if unit.source is None or isinstance(unit.source, str):
                raise StateLost(f"{why}: its checkpoint is another one's")
            raise LookupError(why)
        took = perf_counter() - begin
        self._context.meter.record(lane.signature, "switch", took, HOPS)

    # -- states --------------------------------------------------------------------------------

    def state(self, trial: TrialId) -> Tree:
        """The trial's state: views, valid until its next unit here.

        Raises:
            LookupError: it is not here.
        """
        cached = self.current(trial)
        if cached is None:
            return self.saved.load_dropped(trial)
        return state_of(cached.lane)

    def keep(self, trial: TrialId) -> str:
        """Make the trial's state durable now, between its units; returns the checkpoint's name.

        Raises:
            LookupError: it is not here, or there is no vault.
        """
        cached = self.current(trial)
        if cached is not None and self._context.vault is not None:
            cached.durable = True
            return self.saved.save(trial, cached.lane, Stopwatch(False))
        name = self.saved.adopt(trial)
        if name is None:
            raise LookupError(f"trial {trial} is not held here, or there is no vault to keep it in")
        return name

    def settle(self, trial: TrialId, cached: CachedLane, durable: bool) -> None:
        """Note that the trial's unit is made, and its lane in the state after it.

        `durable`: that state is durable, or was returned.
        """
        self.saved.forget_aside(trial)
        if not cached.bytes:  # its optimizer's state is there by now
            cached.bytes = cached.lane.bytes
            self._bytes += cached.bytes
            self._largest = max(self._largest, cached.bytes)
        self._trunks.settle(cached.lane, wide=cached.wide is not None)
        cached.current = True
        cached.durable = durable

    def finish(self, trial: TrialId) -> None:
        """Note that the trial is over and its state durable: only the last few such lanes stay.

        A search may give such a trial more samples; its unit then loads the checkpoint.
        """
        self._finished.pop(trial, None)
        self._finished[trial] = None
        while len(self._finished) > OVER:
            oldest = next(iter(self._finished))
            del self._finished[oldest]
            cached = self.current(oldest)
            if cached is not None and cached.durable and not cached.connected:
                self.saved.note_dropped(oldest)
                self.drop(oldest)

    # -- memory --------------------------------------------------------------------------------

    def make_room(self, units: Sequence[Unit]) -> Seconds:
        """Give up lanes at rest for those to be trained; returns the seconds that this took."""
        begin = perf_counter()
        if self._memory_short:
            collect()  # frees what an error's traceback held on to
            self._memory_short = False
        trials = [unit.trial.id for unit in units]
        if not self.give_up(self._room_beside(trials), trials):
            return 0.0
        return perf_counter() - begin

    def _room_beside(self, trials: Sequence[TrialId]) -> float:
        """Bytes that lanes at rest may take while these trials train."""
        sizes = [self._size(trial) or self._largest for trial in trials]
        room = self._context.state_room - sum(sizes)
        if isfinite(self._context.slot_room):
            cached_lanes = map(self._lanes.get, trials)
            lanes = [None if cached is None else cached.lane for cached in cached_lanes]
            needs = sum(map(self._context.meter.memory, lanes))
            needs -= shared_bytes(lane for lane in lanes if lane is not None)
            room = min(room, self._context.slot_room - needs)
        return max(0.0, room)

    def ran_out(self, alone: bool) -> bool:
        """Give up all lanes at rest because memory ran out; returns whether that freed any.

        `alone`: memory ran out for a single trial. If no lane was at rest, it gets the memory of
        the chunks that are kept on the GPU.
        """
        self._memory_short = True
        freed = self.give_up(0.0)
        if alone and not freed and self._context.device.type == "cuda":
            freed = self._context.streams.shrink()
        return freed

    def give_up(self, room: float, staying: Collection[TrialId] = ()) -> bool:
        """Drop lanes at rest until the others take at most `room` bytes.

        Lanes of the trials in `staying` stay. Returns whether any lane was dropped.
        """
        resting = self.resting(staying)
        if resting <= room:
            return False
        dropped = False
        for trial in self._droppable(staying):
            if resting <= room:
                break
            cached = self._lanes[trial]
            if cached.spare or self.saved.set_aside(trial, cached.lane):
                self.drop(trial)
                resting = self.resting(staying)
                dropped = True
        return dropped

    def drop(self, *trials: TrialId) -> None:
        """Free these trials' lanes."""
        dropped = []
        for trial in trials:
            self._finished.pop(trial, None)
            self._bytes -= self._size(trial)
            cached = self._lanes.pop(trial, None)
            if cached is not None:
                dropped.append(cached)
        self._stacks.forsake([cached.lane for cached in dropped])
        for cached in dropped:
            if cached.wide is not None:
                cached.wide.leave()

    def forget(self, trial: TrialId) -> None:
        """Free what is here of the trial."""
        self.drop(trial)
        self.saved.forget(trial)


class SavedStates:
    """The newest checkpoint of each trial that this slot saved.

    Some were written only to make room in memory. No other process knows of those, and they are
    deleted as soon as the trial has a newer state.
    """

    def __init__(self, context: SlotContext) -> None:
        self._vault = context.vault
        self._meter = context.meter
        # the number of visits before the newest checkpoint, and its name
        self._newest: dict[TrialId, tuple[int, str]] = {}
        # names of checkpoints written to make room
        self._aside: set[str] = set()
        # names of checkpoints whose trials' lanes were dropped
        self._of_dropped: set[str] = set()

    def has(self, trial: TrialId, visits: int) -> bool:
        """Whether the trial's newest checkpoint is its state after so many visits."""
        return trial in self._newest and self._newest[trial][0] == visits

    def source(self, unit: Unit) -> Tree | None:
        """The state before the unit: the one sent with it, or a checkpoint.

        None if it is the trial's first unit.

        Raises:
            LookupError: neither is here, or there is no vault to load it from.
            StateLost: the checkpoint is damaged or missing.
        """
        source = unit.source
        if source is None and unit.visits:
            trial, visits = unit.trial.id, len(unit.visits)
            if not self.has(trial, visits):
                raise LookupError(
                    f"trial {trial} after {visits} visits is not held here: its unit needs a source"
                )
            source = self._newest[trial][1]
        if not isinstance(source, str):
            return source
        if self._vault is None:
            raise LookupError(f"checkpoint {source} was asked for, but this station has no vault")
        return self._vault.restore(source)

    def save(self, trial: TrialId, lane: TrainingLane, spent: Stopwatch) -> str:
        """Make the lane's state durable; returns the checkpoint's name.

        Raises:
            TrialError: the state holds what cannot be kept.
            OSError, StaleRun: the study must pause.
        """
        assert self._vault is not None, "without a vault nothing is saved"
        visits = len(lane.visits)
        name = self._vault.name(trial, visits)
        begin = perf_counter()
        with spent.on("save"):
            self._vault.save(name, state_of(lane))
        self._meter.record(lane.signature, "save", perf_counter() - begin)
        self._newest[trial] = (visits, name)
        return name

    def set_aside(self, trial: TrialId, lane: TrainingLane) -> bool:
        """Save the state to make room, unless it is saved; returns whether it is saved now."""
        if self.has(trial, len(lane.visits)):
            return True
        if self._vault is None:
            return False
        try:
            name = self.save(trial, lane, Stopwatch(False))
        except TrialError:  # the trial itself fails when its own unit saves it
            return False
        self._aside.add(name)
        return True

    def note_dropped(self, trial: TrialId) -> None:
        """Note that the trial's lane is dropped; its newest checkpoint is that lane's state."""
        self._of_dropped.add(self._newest[trial][1])

    def load_dropped(self, trial: TrialId) -> Tree:
        """The state of the trial's dropped lane.

        Raises:
            LookupError: no lane of the trial was dropped, or its checkpoint was deleted.
        """
        name = self._name(trial)
        dropped = name in self._aside or name in self._of_dropped
        if name is not None and self._vault is not None and dropped:
            with suppress(FileNotFoundError, Damaged):
                return self._vault.load(name)
        raise LookupError(f"trial {trial} is not held here")

    def adopt(self, trial: TrialId) -> str | None:
        """The name of the trial's checkpoint, which is no longer deleted; None if it has none."""
        name = self._name(trial)
        if name is not None:
            self._aside.discard(name)
        return name

    def _name(self, trial: TrialId) -> str | None:
        """The name of the trial's newest checkpoint."""
        _, name = self._newest.get(trial, (0, None))
        return name

    def forget_aside(self, trial: TrialId) -> None:
        """Delete the checkpoint that was written only to make room."""
        name = self._name(trial)
        if name in self._aside and self._vault is not None:
            self._aside.discard(name)
            del self._newest[trial]
            self._vault.delete(name)

    def forget(self, trial: TrialId) -> None:
        """Forget the trial's checkpoint; it stays where it is, unless it only made room."""
        self.forget_aside(trial)
        if trial in self._newest:
            self._of_dropped.discard(self._newest.pop(trial)[1])


def state_of(lane: TrainingLane) -> Tree:
    """The lane's state.

    Raises:
        TrialError: the recipe's model or scheduler holds what cannot be kept.
    """
    with blaming():
        return lane.state()
