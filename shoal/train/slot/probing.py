"""Steps whose results are thrown away, to learn what trials cost.

`Probing` takes them for whoever asks, as `shoal profile` does; `FirstPacks` before trials of a new
kind first train in a pack.

A pack is formed by what is believed of its trials: what they need of the memory, and how long they
take. Nothing should be formed by a guess. So a pack with a kind of trials that nobody has measured
is not begun: a step of each such kind is tried, what it took is told, and the policy decides anew.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from gc import collect
from itertools import count, islice
from math import inf, isfinite
from time import perf_counter

from shoal.core.trial import Seconds, Trial, TrialId, Visit
from shoal.train.lane.batch_size_search import batch_of, bytes_of_step
from shoal.train.lane.blame import blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import STEPS, is_compiled
from shoal.train.recipe.shard import ShardRecipe
from shoal.train.recipe.unit import OutOfMemory, PackRefused, TrialError, Unit
from shoal.train.slot.context import SlotContext, Stopwatch
from shoal.train.slot.fusion import Fusion
from shoal.train.slot.lane_builder import LaneBuilder
from shoal.train.slot.lane_cache import LaneCache, state_of
from shoal.train.slot.pack_loop import PackLoop
from shoal.train.slot.passes import Pass
from shoal.train.slot.units import Units

Probed = tuple[str, dict[str, float]]  # a signature, and its figures
HOPS = 2  # states that a probe packs and loads: the first one takes longer
# Steps that are timed, after one that may hold start-up costs: so many, or as many as begin within
# so many seconds. Their quickest counts: what else the machine does can only make a step longer.
TIMED_STEPS = 20
TIMED_SECONDS: Seconds = 0.1


@dataclass(frozen=True, slots=True)
class _Step:
    """The cost of a step of a new lane: bytes of its state, bytes beside that, and seconds."""

    state: int
    extra: int
    seconds: Seconds


class FirstPacks:
    """Learns what trials cost before they first train in a pack.

    A trial of a new signature takes a few steps for that, with a model that is thrown away. Nothing
    that the trial itself depends on changes: no weights, and no random state.
    """

    def __init__(
        self, context: SlotContext, builder: LaneBuilder, lanes: LaneCache, fusion: Fusion
    ) -> None:
        self._context = context
        self._meter = context.meter
        self._builder = builder
        self._lanes = lanes
        self._fusion = fusion

    def why_not(
        self,
        units: Sequence[Unit],
        measured: Collection[str] | None,
        spent: dict[str, Seconds],
        fuse: bool = False,
    ) -> str | None:
        """Why the pack is better formed anew, by what was learnt just now; None: it may begin.

        It is not said a second time of what was known before: whoever plans packs knows it then.
        `measured`: signatures whose rate was told already, by any slot; None: only memory counts.
        `fuse`: whether lanes of one graph may train in one step; which kinds cannot is told, too.
        The seconds that this takes are added to `spent`.

        Raises:
            DataError: the first chunk of a unit cannot be read.
            LookupError: a unit's source is not here.
        """
        if len(units) < 2 or not self._context.setup.clocked:
            return None
        if isinstance(self._context.recipe, ShardRecipe):
            return None  # it takes no steps that could be tried
        if measured is None and not isfinite(self._context.slot_room):
            return None
        begin = perf_counter()
        why = self._learn_kinds(units, measured, fuse)
        spent["switch"] = perf_counter() - begin
        return why

    def _learn_kinds(
        self, units: Sequence[Unit], measured: Collection[str] | None, fuse: bool
    ) -> str | None:
        """Try steps of kinds that are new here; why the pack is better formed anew, or None."""
        lanes: list[TrainingLane] = []
        learnt = False
        new_kinds = 0
        for unit in units:
            lane = self._lane(unit)
            if lane is None:
                continue
            if self._learn(unit, lane):
                learnt = True
                if fuse:
                    self._fusion.note_unfusable(lane)
                new_kinds += measured is not None and lane.signature not in measured
            lanes.append(lane)
            # the slot itself sees to it that no more are at work in one step than have room
            if learnt and self._meter.together(lanes) > self._context.slot_room:
                return f"{len(units)} trials have no room together"
        if new_kinds:
            return f"nobody had measured {new_kinds} of the kinds among {len(units)} trials"
        return None

    def _lane(self, unit: Unit) -> TrainingLane | None:
        """The trial's lane before the unit; None if it cannot be built: it fails when it trains."""
        try:
            cached = self._lanes.ready(unit, Stopwatch(False))
        except OutOfMemory:
            raise
        except TrialError:
            self._lanes.drop(unit.trial.id)
            return None
        cached.current = True
        return cached.lane

    def _learn(self, unit: Unit, lane: TrainingLane) -> bool:
        """Measure a step, if the lane's signature is new here; returns whether one was measured."""
        signature = lane.signature
        if self._meter.knows_memory(signature) or is_compiled(lane.model):
            return False
        try:
            step = self._step(unit, lane)
        except OutOfMemory:  # it has no room beside any other
            # where the slot's memory is not known: more than any slot has
            state, extra = int(min(self._context.slot_room, 2.0**60)), 0
        except TrialError:
            return False
        else:
            state, extra = step.state, step.extra
            rate = lane.settings.batch_size / max(step.seconds, 1e-9)
            self._meter.tell(signature, rate=rate, step=step.seconds)
        finally:
            collect()
        self._meter.learn_memory(signature, extra, state)
        figures = {"memory": (state + extra) / 2**30, "transient": extra / 2**30}
        self._meter.tell(signature, **figures)
        return True

    def _step(self, unit: Unit, lane: TrainingLane) -> _Step:
        """The cost of a step, measured on a new lane.

        Raises:
            TrialError: the recipe's code raised, or memory ran out.
        """
        settings = lane.settings
        size = settings.batch_size
        stream = self._context.streams.of(settings.data_key)
        visit = unit.visit
        coming = stream.chunks(visit.shard, visit.turn, settings.order)
        with closing(coming) as chunks, blaming():
            batch = batch_of(next(chunks), size)
        probe_lane = self._builder.build(unit.trial)
        state, extra = bytes_of_step(probe_lane, batch, size, self._context.device)
        quickest = inf
        begin = self._meter.now()
        for _ in range(TIMED_STEPS):
            probe_lane.begin(size)
            before = self._meter.now()
            with blaming(), probe_lane.rng:
                probe_lane.step(batch, size)
                probe_lane.close()
            after = self._meter.now()
            quickest = min(quickest, after - before)
            if after - begin > TIMED_SECONDS:
                break
        return _Step(state, extra, quickest)

    def refused(self, units: Sequence[Unit], why: str) -> Iterator[tuple[TrialId, PackRefused]]:
        """The answers for units that are not begun, with what was learnt.

        Trials that have not trained yet leave nothing here: some may begin elsewhere.
        """
        for unit in units:
            trial = unit.trial.id
            cached = self._lanes.get(trial)
            signature = ""
            if cached is not None:
                signature = cached.lane.signature
            if not unit.visits:
                self._lanes.drop(trial)
            yield trial, PackRefused(why, signature, self._meter.news(signature))


def first_unit(context: SlotContext, trial: Trial) -> Unit:
    """A unit with the trial's first visit, to the first shard."""
    shards = filter(trial.shards.__contains__, filter(context.data.is_here, context.data.shards))
    visit = Visit(0, next(shards, context.data.first_here), 0, 0)
    return Unit(trial, (), visit)


class Probing:
    """Takes steps at one slot whose results are thrown away, to learn what trials cost."""

    def __init__(
        self, context: SlotContext, pack: PackLoop, lanes: LaneCache, units: Units
    ) -> None:
        self._context = context
        self._meter = context.meter
        self._pack = pack
        self._lanes = lanes
        self._evaluation = pack.evaluation
        self._units = units

    def one(self, trial: Trial) -> Probed:
        """The trial's signature and what such trials cost, from a few steps.

        A trial whose signature is known is built, but takes no steps.

        Raises:
            TrialError, DataError: as `SlotTrainer.train`.
        """
        spent = Stopwatch(True)
        unit = first_unit(self._context, trial)
        lane = self._lanes.ready(unit, spent).lane
        if self._meter.wants(lane.signature):
            self._measure(trial.id, lane, spent)
        self._lanes.forget(trial.id)
        return lane.signature, self._meter.news(lane.signature)

    def _measure(self, trial: TrialId, lane: TrainingLane, spent: Stopwatch) -> None:
        """Time the lane's steps, its validation, a hop, and the saving of its state."""
        steps = islice(self._endless(lane), STEPS)
        with blaming(), lane.rng:
            deque(self._meter.timed(lane, steps), maxlen=0)
        self._meter.conclude(lane)

        if self._evaluation.is_possible(lane):
            self._evaluation.of(lane, spent)
        for _ in range(HOPS):  # the state leaves, in bytes, and is loaded again
            begin = perf_counter()
            state = pickle.loads(pickle.dumps(state_of(lane), protocol=5))
            with blaming():
                lane.load(state)
            del state
            self._meter.record(lane.signature, "switch", perf_counter() - begin)
        vault = self._context.vault
        if vault is not None:
            name = self._lanes.saved.save(trial, lane, spent)
            vault.delete(name)

    def pack(self, trials: Sequence[Trial]) -> dict[TrialId, Probed]:
        """The costs of fused steps of these trials; of as many as there is room for.

        Trials that cannot be built are left out: they fail when they train.

        Raises:
            DataError: as `SlotTrainer.train`.
        """
        while len(trials) > 1:
            probed = self._try(trials)
            if probed is not None:
                return probed
            self._lanes.make_room([])
            trials = trials[: len(trials) // 2]
        return {}

    def _try(self, trials: Sequence[Trial]) -> dict[TrialId, Probed] | None:
        """The costs of fused steps of these trials; None if there is no room for all of them."""
        probed: dict[TrialId, Probed] = {}
        try:
            passes: list[Pass] = []
            for trial in trials:
                try:
                    passes.append(self._units.open(first_unit(self._context, trial), {}))
                except OutOfMemory:
                    raise
                except TrialError:  # it cannot be built
                    continue
            self._pack.probe(passes)
            for each in passes:
                signature = each.lane.signature
                probed[each.trial] = (signature, self._meter.news(signature))
            return probed
        except OutOfMemory:
            self._lanes.ran_out(alone=False)
            return None
        finally:
            for trial in trials:
                self._lanes.forget(trial.id)

    def _endless(self, lane: TrainingLane) -> Iterator[int]:
        """The steps of passes over the first shard, without end."""
        data = self._context.data_of(lane.recipe)
        shard = data.first_here
        settings = lane.settings
        stream = self._context.streams.of(settings.data_key)
        for turn in count():
            lane.begin(data.size(shard))
            for chunk in stream.chunks(shard, turn, settings.order):
                yield from lane.feed(chunk)
            yield from lane.flush()
