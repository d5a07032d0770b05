"""What a slot does before and after a pass, and trial steps to learn what trials cost."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from time import perf_counter

from shoal.core.trial import Seconds, Trial, TrialId, Visit
from shoal.core.visits import counted
from shoal.train.lane.blame import Spent, blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import STEPS
from shoal.train.recipe.unit import (
    Done,
    OutOfMemory,
    Tree,
    TrialError,
    Unit,
    named_apart,
)
from shoal.train.slot.context import SlotContext
from shoal.train.slot.lane_builder import state_of
from shoal.train.slot.lane_cache import CachedLane, LaneCache
from shoal.train.slot.pack_loop import PackLoop
from shoal.train.slot.passes import Pass
from shoal.train.slot.shared_state import RecipeSharing

Scores = Mapping[str, float]
Probed = tuple[str, dict[str, float]]  # a signature, and its figures
HOPS = 2  # states that a probe packs and loads: the first one takes longer


def first_unit(at: SlotContext, trial: Trial) -> Unit:
    """A unit with the trial's first visit, to the first shard."""
    own = filter(trial.shards.__contains__, filter(at.data.is_here, at.data.shards))
    visit = Visit(0, next(own, at.data.first_here), 0, 0)
    return Unit(trial, (), visit)


class UnitStart:
    """Opens the units of one slot."""

    def __init__(self, context: SlotContext, lanes: LaneCache) -> None:
        self._context = context
        self._lanes = lanes

    def open(self, unit: Unit, before: Mapping[str, Seconds]) -> Pass:
        """The unit's pass, about to begin. `before`: seconds that preparing for it took."""
        spent = self._context.stopwatch()
        for name, seconds in before.items():
            if self._context.setup.clocked and seconds:
                spent.add(name, seconds)
        self._context.turn_of(unit.trial.id)
        held = self._lanes.ready(unit, spent)
        held.whole = False
        held.safe = False

        # The lane may have trained at other widths here.
        lane = held.lane
        lane.size = lane.settings.batch_size
        lane.factor = 1.0
        size = self._context.data.size(unit.visit.shard)
        each = Pass.begun(unit, lane, spent, size)
        if unit.steps and lane.optimizing.follows_metric:
            shards = unit.trial.shards or self._context.data.shards
            each.evaluate |= (len(unit.visits) + 1) % len(shards) == 0
        return each


class UnitEnd:
    """Ends the units of one slot."""

    def __init__(self, context: SlotContext, lanes: LaneCache) -> None:
        self._context = context
        self._data = context.data
        self._meter = context.meter
        self._setup = context.setup
        self._lanes = lanes
        self._shared = RecipeSharing(context.recipe)

    def conclude(self, each: Pass, held: CachedLane, scores: Scores | None) -> Done:
        """End a pass that was made: the lane is then in the state after it. Returns the report.

        Raises:
            TrialError: the scheduler raised, or the state holds what cannot be kept.
            OSError, StaleRun: the study must pause.
        """
        unit = each.unit
        lane = each.lane
        sizes = {shard: self._data.size(shard) for shard in unit.visit.shards}
        visit = unit.visit._replace(samples=sum(sizes.values()))
        visits = (*unit.visits, *counted(unit.visit, sizes))
        if unit.last:
            with blaming():
                lane.noted.check_end(self._steps_at_end(lane, unit.trial, visits))
        trained = lane.noted.epoch_means() if each.evaluate else {}
        more = self.advance(lane, unit.trial, visits, scores)
        if scores is not None:
            scores = {**scores, **more}
        self._lanes.settle(each.trial, held, safe=False)
        kept = self._kept_if_due(each)
        held.safe = kept is not None or unit.carry
        age = _age(each, kept)
        state = self._state_to_carry(unit)
        figures = self._figures(lane)
        if unit.last and kept is not None:
            self._lanes.finish(each.trial)
        return Done(
            visit=visit,
            spent=each.spent.take(),
            scores=scores,
            trained=trained,
            kept=kept,
            age=age,
            signature=lane.signature,
            figures=figures,
            state=state,
            dealt=self._data.bytes_dealt(),
            shared=self._shared.look(),
        )

    def _steps_at_end(self, lane: TrainingLane, trial: Trial, visits: tuple[Visit, ...]) -> int:
        """The steps of the epoch that the last visit is of; a wide or growing batch makes fewer."""
        shards = len(trial.shards or self._data.shards)
        count = len(visits) % shards or shards
        size = lane.settings.batch_size
        return sum(-(-visit.samples // size) for visit in visits[-count:])

    def _state_to_carry(self, unit: Unit) -> Tree | None:
        """The trial's state, if the unit asks for it."""
        if not unit.carry:
            return None
        return self._lanes.state(unit.trial.id)

    def advance(
        self,
        lane: TrainingLane,
        trial: Trial,
        visits: tuple[Visit, ...],
        scores: Scores | None,
    ) -> Mapping[str, float]:
        """Let the lane have made these visits, of which the last one may end an epoch.

        Returns scores of the epoch beside those of its validation.

        Raises:
            TrialError: the scheduler raised.
        """
        lane.visits = visits
        shards = trial.shards or self._data.shards
        if len(visits) % len(shards) != 0:
            return {}
        if not lane.steps_by_epoch:
            lane.noted.epoch = {}
            return {}
        recorded = (self._setup.recorded or {}).get(len(visits))
        with blaming(), lane.rng:
            if recorded is not None:
                return lane.end_epoch(recorded)
            name = self._setup.metric or lane.recipe.metric or ""
            return lane.end_epoch(self._metric(name, scores, lane), name)

    def _kept_if_due(self, each: Pass) -> str | None:
        """Make the state durable if that is due; the checkpoint's name, or None."""
        if self._context.vault is None:
            return None
        asked = each.unit.last or (each.evaluate and self._setup.keep_evaluated)
        if not asked and _age(each) < self._setup.options.checkpoint_every:
            return None
        return self._lanes.saved.save(each.trial, each.lane, each.spent)

    def _metric(self, name: str, scores: Scores | None, lane: TrainingLane) -> float | None:
        """The study's metric in the validation, or else in the training of the epoch."""
        found = scores or {}
        return {**named_apart(lane.noted.epoch_means(), found), **found}.get(name)

    def _figures(self, lane: TrainingLane) -> dict[str, float]:
        """What was measured of such lanes and not reported before, and the batch size found."""
        figures: dict[str, float] = {}
        if self._setup.clocked:
            self._meter.conclude(lane)
            figures |= self._meter.news(lane.signature)
        if lane.found is not None:
            figures["batch_size"] = float(lane.found)
        return figures


def _age(each: Pass, kept: str | None = None) -> Seconds:
    """Seconds of training since the trial's last durable state; `kept`: it is that of now."""
    if kept is not None:
        return 0.0
    return each.unit.age + each.spent.worked


class Probing:
    """Takes steps at one slot whose results are thrown away, to learn what trials cost."""

    def __init__(
        self,
        context: SlotContext,
        pack: PackLoop,
        lanes: LaneCache,
    ) -> None:
        self._context = context
        self._meter = context.meter
        self._pack = pack
        self._lanes = lanes
        self._evaluation = pack.evaluation
        self._start = UnitStart(context, lanes)

    def one(self, trial: Trial) -> Probed:
        """The trial's signature and what such trials cost, from a few steps.

        A trial whose signature is known is built, but takes no steps.

        Raises:
            TrialError, DataError: as `SlotTrainer.train`.
        """
        spent = Spent(True)
        unit = first_unit(self._context, trial)
        lane = self._lanes.ready(unit, spent).lane
        if self._meter.wants(lane.signature):
            self._measure(trial.id, lane, spent)
        self._lanes.forget(trial.id)
        return lane.signature, self._meter.news(lane.signature)

    def _measure(self, trial: TrialId, lane: TrainingLane, spent: Spent) -> None:
        """Time the lane's steps, its validation, a hop, and the saving of its state."""
        steps = islice(self._endless(lane), STEPS)
        with blaming(), lane.rng:
            deque(self._meter.timed(lane, steps), maxlen=0)
        self._meter.conclude(lane)

        if self._evaluation.is_possible(lane):
            self._evaluation.of(lane, spent)
        self._hop(lane)
        vault = self._context.vault
        if vault is not None:
            name = self._lanes.saved.save(trial, lane, spent)
            vault.delete(name)

    def _hop(self, lane: TrainingLane) -> None:
        """Time what the lane's state takes to leave, in bytes, and to be loaded again."""
        for _ in range(HOPS):
            begin = perf_counter()
            state = pickle.loads(pickle.dumps(state_of(lane), protocol=5))
            with blaming():
                lane.load(state)
            self._meter.record(lane.signature, "switch", perf_counter() - begin)

    def pack(self, trials: Sequence[Trial]) -> dict[TrialId, Probed]:
        """What fused steps of these trials cost; of as many trials as there is room for.

        Trials that cannot be built are left out: they fail when they train.

        Raises:
            DataError: as `SlotTrainer.train`.
        """
        while len(trials) > 1:
            found = self._try(trials)
            if found is not None:
                return found
            self._lanes.make_room([])
            trials = trials[: len(trials) // 2]
        return {}

    def _try(self, trials: Sequence[Trial]) -> dict[TrialId, Probed] | None:
        """As `pack`; None if there is no room for all of them."""
        found: dict[TrialId, Probed] = {}
        try:
            passes = list(self._opened(trials))
            self._pack.probe(passes)
            for each in passes:
                signature = each.lane.signature
                found[each.trial] = (signature, self._meter.news(signature))
            return found
        except OutOfMemory:
            self._lanes.ran_out(alone=False)
            return None
        finally:
            for trial in trials:
                self._lanes.forget(trial.id)

    def _opened(self, trials: Sequence[Trial]) -> Iterator[Pass]:
        """A pass of each trial that can be built."""
        for trial in trials:
            unit = first_unit(self._context, trial)
            try:
                yield self._start.open(unit, {})
            except OutOfMemory:
                raise
            except TrialError:
                continue

    def _endless(self, lane: TrainingLane) -> Iterator[int]:
        """Passes over the first shard, without end."""
        data = self._context.data_of(lane.recipe)
        shard = data.first_here
        settings = lane.settings
        stream = self._context.streams.of(settings.data_key)
        for turn in count():
            lane.begin(data.size(shard))
            for chunk in stream.chunks(shard, turn, settings.order):
                yield from lane.feed(chunk)
            yield from lane.flush()
