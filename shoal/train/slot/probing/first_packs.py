"""What a slot learns of memory before trials of a new kind first train in a pack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from gc import collect
from math import isfinite
from time import perf_counter

from shoal.core.trial import Seconds, TrialId
from shoal.train.lane.blame import Spent, blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.largest import batch_of, bytes_of_step
from shoal.train.lane.measure import is_compiled
from shoal.train.recipe.shard import ShardRecipe
from shoal.train.recipe.unit import OutOfMemory, PackRefused, TrialError, Unit
from shoal.train.slot.build import LaneBuilder
from shoal.train.slot.held import HeldLanes
from shoal.train.slot.workplace import Workplace


class FirstPacks:
    """Learns how much memory trials need before they first train in a pack.

    A trial of a new signature takes one step for that, with a model that is thrown away. Nothing
    that the trial itself depends on changes: no weights, and no random state.
    """

    def __init__(
        self, workplace: Workplace, builder: LaneBuilder, lanes: HeldLanes
    ) -> None:
        self._at = workplace
        self._meter = workplace.meter
        self._builder = builder
        self._lanes = lanes

    def too_large(self, units: Sequence[Unit], spent: dict[str, Seconds]) -> bool:
        """Whether it was learnt just now that these trials have no room together.

        It is not said a second time of what was known before: whoever plans packs knows it then.
        The seconds that this takes are added to `spent`.

        Raises:
            DataError: the first chunk of a unit cannot be read.
            LookupError: a unit's source is not here.
        """
        if len(units) < 2 or not self._can_learn():
            return False
        begin = perf_counter()
        found = self._learnt_too_large(units)
        spent["switch"] = perf_counter() - begin
        return found

    def _learnt_too_large(self, units: Sequence[Unit]) -> bool:
        """As `too_large`, where memory is limited."""
        lanes: list[TrainingLane] = []
        learnt = False
        for unit in units:
            lane = self._lane(unit)
            if lane is None:
                continue
            learnt |= self._learn(unit, lane)
            lanes.append(lane)
            # the slot itself sees to it that no more are at work in one step than have room
            if learnt and self._meter.together(lanes) > self._at.slot_room:
                return True
        return False

    def _can_learn(self) -> bool:
        """Whether memory is limited, and can be measured by a step."""
        if not isfinite(self._at.slot_room) or not self._at.setup.clocked:
            return False
        return not isinstance(self._at.recipe, ShardRecipe)

    def _lane(self, unit: Unit) -> TrainingLane | None:
        """The trial's lane before the unit; None if it cannot be built: it fails when it trains."""
        try:
            held = self._lanes.ready(unit, Spent(False))
        except OutOfMemory:
            raise
        except TrialError:
            self._lanes.drop(unit.trial.id)
            return None
        held.whole = True
        return held.lane

    def _learn(self, unit: Unit, lane: TrainingLane) -> bool:
        """Measure a step, if the lane's signature is new; whether that told anything."""
        signature = lane.signature
        if self._meter.knows_memory(signature) or is_compiled(lane.model):
            return False
        try:
            state, extra = self._step(unit, lane)
        except OutOfMemory:  # it has no room beside any other
            state, extra = int(self._at.slot_room), 0
        except TrialError:
            return False
        finally:
            collect()
        self._meter.learn_memory(signature, extra, state)
        figures = {"memory": (state + extra) / 2**30, "transient": extra / 2**30}
        self._meter.tell(signature, **figures)
        return True

    def _step(self, unit: Unit, lane: TrainingLane) -> tuple[int, int]:
        """Bytes of a new lane's state and of its step beside that.

        Raises:
            TrialError: the recipe's code raised, or memory ran out.
        """
        settings = lane.settings
        stream = self._at.streams.of(settings.data_key)
        visit = unit.visit
        coming = stream.chunks(visit.shard, visit.turn, settings.order)
        with closing(coming) as chunks, blaming():
            batch = batch_of(next(chunks), settings.batch_size)
        made = self._builder.build(unit.trial)
        return bytes_of_step(made, batch, settings.batch_size, self._at.device)

    def refused(self, units: Sequence[Unit]) -> Iterator[tuple[TrialId, PackRefused]]:
        """The answers for units that are not begun, with what was learnt.

        Trials that have not trained yet leave nothing here: some may begin elsewhere.
        """
        why = f"{len(units)} trials have no room together"
        for unit in units:
            trial = unit.trial.id
            held = self._lanes.get(trial)
            signature = ""
            if held is not None:
                signature = held.lane.signature
            if not unit.visits:
                self._lanes.drop(trial)
            yield trial, PackRefused(why, signature, self._meter.news(signature))
