"""The lanes that stay at a slot between their units, within a limit of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from gc import collect
from math import isfinite
from time import perf_counter

from shoal.core.trial import Seconds, TrialId
from shoal.train.lane.blame import Spent, blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.trunk import Trunks, shared_bytes
from shoal.train.recipe.unit import StateLost, Tree, Unit
from shoal.train.slot.context import SlotContext
from shoal.train.slot.lane_builder import LaneBuilder, SavedStates, state_of
from shoal.train.slot.pack_loop import PackLoop
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
    whole: bool = False
    # that state is durable, or was returned
    safe: bool = False
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
        """Whether its state can be had again, or is of no use."""
        return self.safe or not self.whole


class LanesInMemory:
    """A slot's lanes by trial, the one used longest ago first, and the bytes that they take."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[TrialId, CachedLane] = OrderedDict()
        self._bytes = 0  # of all of them
        self.largest = 0  # bytes of the largest lane so far

    @property
    def trials(self) -> tuple[TrialId, ...]:
        """The trials whose lanes are here."""
        return tuple(self._lanes)

    def get(self, trial: TrialId) -> CachedLane | None:
        """The trial's lane, if it is here."""
        return self._lanes.get(trial)

    def whole(self, trial: TrialId) -> CachedLane | None:
        """The trial's lane, if it is here in the state after its visits."""
        held = self._lanes.get(trial)
        if held is None or not held.whole:
            return None
        return held

    def lane(self, trial: TrialId) -> TrainingLane | None:
        """The trial's lane itself, if it is here."""
        held = self._lanes.get(trial)
        if held is None:
            return None
        return held.lane

    def size(self, trial: TrialId) -> int:
        """Bytes of the trial's lane; 0 if it is not here."""
        held = self._lanes.get(trial)
        if held is None:
            return 0
        return held.bytes

    def resting(self, but: Collection[TrialId]) -> int:
        """Bytes of all lanes but those of the given trials: what they take beside these."""
        others = [held.lane for trial in but if (held := self.get(trial)) is not None]
        shared = shared_bytes(held.lane for held in self._lanes.values())
        shared -= shared_bytes(others)
        return self._bytes - sum(map(self.size, but)) - shared

    def put(self, trial: TrialId, held: CachedLane) -> None:
        """Hold this lane for the trial, in the place of the one that was there."""
        self._bytes += held.bytes - self.size(trial)
        self._lanes[trial] = held

    def weigh(self, held: CachedLane) -> None:
        """Learn how many bytes the lane takes: its optimizer's state is there by now."""
        if not held.bytes:
            held.bytes = held.lane.bytes
            self._bytes += held.bytes
            self.largest = max(self.largest, held.bytes)

    def use(self, trial: TrialId) -> None:
        """Note that the trial's lane is used now."""
        self._lanes.move_to_end(trial)

    def pop(self, trial: TrialId) -> CachedLane | None:
        """Hold the trial's lane no longer; returns it."""
        self._bytes -= self.size(trial)
        return self._lanes.pop(trial, None)

    def idle(self, but: Collection[TrialId]) -> list[TrialId]:
        """Trials whose lanes may be dropped, in the order to drop them.

        First come those whose states can be had again, used longest ago first. Then come the
        others, used last first: trials that take turns come back in the order of their use.
        """
        spare = []
        others = []
        for trial, held in self._lanes.items():
            if trial in but or held.connected:
                continue
            if held.spare:
                spare.append(trial)
            else:
                others.append(trial)
        return spare + others[::-1]


class LaneCache:
    """The lanes of one slot, those at work and those at rest.

    A lane stays after its unit, so that the trial's next unit here goes on at once. Lanes at work
    always stay. Lanes at rest fill what those at work leave of the memory for states; where the
    slot's own memory is limited, also what they leave of that.

    A lane at rest is given up only if its state can be had again: it is durable, or was returned.
    Otherwise the state is saved first.
    """

    def __init__(self, context: SlotContext, builder: LaneBuilder, pack: PackLoop) -> None:
        self._context = context
        self._builder = builder
        self._pack = pack
        self._lanes = LanesInMemory()
        self._over: dict[TrialId, None] = {}  # trials that are over, first the longest
        self._short = False  # memory ran out in the last units
        self._trunks = Trunks(context.meter.tell)
        self.saved = SavedStates(context)

    def get(self, trial: TrialId) -> CachedLane | None:
        """The trial's lane, if it is here."""
        return self._lanes.get(trial)

    @property
    def trials(self) -> tuple[TrialId, ...]:
        """The trials whose lanes are here, used longest ago first."""
        return self._lanes.trials

    def whole(self, trial: TrialId) -> CachedLane | None:
        """The trial's lane, if it is here in the state after its visits."""
        return self._lanes.whole(trial)

    def has(self, trial: TrialId, visits: int) -> bool:
        """Whether a unit of the trial after so many visits needs no source."""
        held = self.whole(trial)
        if held is not None and len(held.lane.visits) == visits:
            return True
        return self.saved.has(trial, visits)

    # -- before a unit -------------------------------------------------------------------------

    def ready(self, unit: Unit, spent: Spent) -> CachedLane:
        """The trial's lane, in the state before the visit.

        Raises:
            TrialError: the recipe's code raised.
            LookupError: that state is not here, and the unit has no source for it.
        """
        trial = unit.trial.id
        self._over.pop(trial, None)
        held = self._lanes.whole(trial)
        if held is None or held.lane.visits != unit.visits:
            with spent.on("switch"):
                held = self._brought(unit)
        self._lanes.use(trial)
        return held

    def _brought(self, unit: Unit) -> CachedLane:
        """The trial's lane, brought into the state before the visit."""
        trial = unit.trial.id
        held = self._lanes.get(trial)
        state = self.saved.source(unit)
        if held is None or state is None:
            held = self.add(trial, self._builder.build(unit.trial, state))
        if state is not None:
            self._load(held.lane, state, unit)
        self._trunks.share(held.lane)
        return held

    def in_any_state(self, unit: Unit, spent: Spent) -> CachedLane:
        """The trial's lane in whatever state: another process will send the right one."""
        trial = unit.trial.id
        self._over.pop(trial, None)
        held = self._lanes.get(trial)
        if held is None:
            with spent.on("switch"):
                held = self.add(trial, self._builder.build(unit.trial))
        self._lanes.use(trial)
        return held

    def add(self, trial: TrialId, lane: TrainingLane) -> CachedLane:
        """Hold this lane for the trial."""
        held = CachedLane(lane)
        self._trunks.enter(lane)
        self._lanes.put(trial, held)
        return held

    def restore(self, trial: TrialId, held: CachedLane) -> None:
        """Hold the trial's lane again."""
        self._lanes.put(trial, held)

    def _load(self, lane: TrainingLane, state: Tree, unit: Unit) -> None:
        """Load the unit's source into the lane.

        Raises:
            TrialError: the state does not fit the lane.
            StateLost: its checkpoint is not the state before the unit.
            LookupError: what was sent with the unit is not.
        """
        begin = perf_counter()
        self._pack.stacks.release(lane)
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
        held = self.whole(trial)
        if held is None:
            return self.saved.load_instead(trial)
        return state_of(held.lane)

    def keep(self, trial: TrialId) -> str:
        """Make the trial's state durable now, between its units; returns the checkpoint's name.

        Raises:
            LookupError: it is not here, or there is no vault.
        """
        held = self.whole(trial)
        if held is not None and self._context.vault is not None:
            held.safe = True
            return self.saved.save(trial, held.lane, Spent(False))
        name = self.saved.adopt(trial)
        if name is None:
            raise LookupError(f"trial {trial} is not held here, or there is no vault to keep it in")
        return name

    def settle(self, trial: TrialId, held: CachedLane, safe: bool) -> None:
        """The trial's unit is made, and its lane in the state after it.

        `safe`: that state is durable, or was returned.
        """
        self.saved.forget_aside(trial)
        self._lanes.weigh(held)
        self._trunks.settle(held.lane, wide=held.wide is not None)
        held.whole = True
        held.safe = safe

    def finish(self, trial: TrialId) -> None:
        """The trial is over and its state durable: of such lanes only the last few stay.

        A search may give such a trial more samples; its unit then loads the checkpoint.
        """
        self._over.pop(trial, None)
        self._over[trial] = None
        while len(self._over) > OVER:
            oldest = next(iter(self._over))
            del self._over[oldest]
            self._drop_over(oldest)

    def _drop_over(self, trial: TrialId) -> None:
        """Drop the lane of a trial that is over, if its checkpoint can stand for it."""
        held = self.whole(trial)
        if held is not None and held.safe and not held.connected:
            self.saved.use_instead(trial)
            self.drop(trial)

    # -- memory --------------------------------------------------------------------------------

    def make_room(self, units: Sequence[Unit]) -> Seconds:
        """Give up lanes at rest for those to be trained; returns the seconds that this took."""
        begin = perf_counter()
        if self._short:
            collect()  # frees what an error's traceback held on to
            self._short = False
        trials = [unit.trial.id for unit in units]
        if not self.give_up(self._room_beside(trials), trials):
            return 0.0
        return perf_counter() - begin

    def _room_beside(self, trials: Sequence[TrialId]) -> float:
        """Bytes that lanes at rest may take while these trials train."""
        sizes = [self._lanes.size(trial) or self._lanes.largest for trial in trials]
        room = self._context.state_room - sum(sizes)
        if isfinite(self._context.slot_room):
            lanes = list(map(self._lanes.lane, trials))
            needs = sum(map(self._context.meter.memory, lanes))
            needs -= shared_bytes(lane for lane in lanes if lane is not None)
            room = min(room, self._context.slot_room - needs)
        return max(0.0, room)

    def ran_out(self, alone: bool) -> bool:
        """Give up all lanes at rest because memory ran out; returns whether that freed any.

        `alone`: memory ran out for a single trial. If no lane was at rest, it gets the memory of
        the chunks that are kept on the GPU.
        """
        self._short = True
        freed = self.give_up(0.0)
        if alone and not freed and self._context.device.type == "cuda":
            freed = self._context.streams.shrink()
        return freed

    def give_up(self, room: float, but: Collection[TrialId] = ()) -> bool:
        """Drop lanes at rest until the others take at most `room` bytes.

        Lanes of the trials in `but` stay. Returns whether any lane was dropped.
        """
        resting = self._lanes.resting(but)
        if resting <= room:
            return False
        dropped = False
        for trial in self._lanes.idle(but):
            if resting <= room:
                break
            if self._set_aside(trial):
                self.drop(trial)
                resting = self._lanes.resting(but)
                dropped = True
        return dropped

    def _set_aside(self, trial: TrialId) -> bool:
        """Save the trial's state, unless it can be had elsewhere; returns whether it can now."""
        held = self._lanes.get(trial)
        assert held is not None, "a lane at rest is here"
        return held.spare or self.saved.set_aside(trial, held.lane)

    def drop(self, *trials: TrialId) -> None:
        """Free these trials' lanes."""
        gone = []
        for trial in trials:
            self._over.pop(trial, None)
            held = self._lanes.pop(trial)
            if held is not None:
                gone.append(held)
        self._pack.stacks.forsake([held.lane for held in gone])
        for held in gone:
            if held.wide is not None:
                held.wide.leave()

    def forget(self, trial: TrialId) -> None:
        """Free what is here of the trial."""
        self.drop(trial)
        self.saved.forget(trial)
