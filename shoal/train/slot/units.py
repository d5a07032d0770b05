"""The begin and the end of a unit: the lane is brought to its state; the unit is reported."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.core.trial import Seconds, Trial, Visit
from shoal.core.visits import counted
from shoal.train.lane.blame import blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.unit import Done, Unit, named_apart
from shoal.train.slot.context import SlotContext
from shoal.train.slot.lane_cache import CachedLane, LaneCache
from shoal.train.slot.passes import Pass
from shoal.train.slot.shared_state import RecipeSharing

Scores = Mapping[str, float]


class Units:
    """Begins and ends the units of one slot, whatever makes the passes between."""

    def __init__(self, context: SlotContext, lanes: LaneCache) -> None:
        self._context = context
        self._data = context.data
        self._meter = context.meter
        self._setup = context.setup
        self._lanes = lanes
        self._shared = RecipeSharing(context.recipe)

    def open(self, unit: Unit, before: Mapping[str, Seconds]) -> Pass:
        """The unit's pass, about to begin. `before`: seconds that preparing for it took."""
        spent = self._context.stopwatch()
        for name, seconds in before.items():
            if self._context.setup.clocked and seconds:
                spent.add(name, seconds)
        self._context.turn_of(unit.trial.id)
        cached = self._lanes.ready(unit, spent)
        cached.current = False
        cached.durable = False

        # The lane may have trained at other widths here.
        lane = cached.lane
        lane.size = lane.settings.batch_size
        lane.factor = 1.0
        size = self._context.data.size(unit.visit.shard)
        lane_pass = Pass.begun(unit, lane, spent, size)
        if unit.steps and lane.optimization.follows_metric:
            shards = unit.trial.shards or self._context.data.shards
            lane_pass.evaluate |= (len(unit.visits) + 1) % len(shards) == 0
        return lane_pass

    def conclude(self, lane_pass: Pass, cached: CachedLane, scores: Scores | None) -> Done:
        """End a pass that was made: the lane is then in the state after it. Returns the report.

        Raises:
            TrialError: the scheduler raised, or the state holds what cannot be kept.
            OSError, StaleRun: the study must pause.
        """
        unit = lane_pass.unit
        lane = lane_pass.lane
        sizes = {shard: self._data.size(shard) for shard in unit.visit.shards}
        visit = unit.visit._replace(samples=sum(sizes.values()))
        visits = (*unit.visits, *counted(unit.visit, sizes))
        if unit.last:
            with blaming():
                shards = len(unit.trial.shards or self._data.shards)
                count = len(visits) % shards or shards
                size = lane.settings.batch_size
                # of the epoch that the last visit is of; a wide or growing batch makes fewer steps
                steps = sum(-(-visit.samples // size) for visit in visits[-count:])
                lane.metrics.check_end(steps)
        trained = lane.metrics.epoch_means() if lane_pass.evaluate else {}
        epoch_scores = self.advance(lane, unit.trial, visits, scores)
        if scores is not None:
            scores = {**scores, **epoch_scores}
        self._lanes.settle(lane_pass.trial, cached, durable=False)
        checkpoint = self._save_if_due(lane_pass)
        cached.durable = checkpoint is not None or unit.carry
        age = 0.0 if checkpoint is not None else _age(lane_pass)
        state = self._lanes.state(lane_pass.trial) if unit.carry else None
        figures = self._figures(lane)
        if unit.last and checkpoint is not None:
            self._lanes.finish(lane_pass.trial)
        return Done(
            visit=visit,
            spent=lane_pass.spent.take(),
            scores=scores,
            trained=trained,
            kept=checkpoint,
            age=age,
            signature=lane.signature,
            figures=figures,
            state=state,
            dealt=self._data.bytes_dealt(),
            shared=self._shared.look(),
        )

    def advance(
        self, lane: TrainingLane, trial: Trial, visits: tuple[Visit, ...], scores: Scores | None
    ) -> Mapping[str, float]:
        """Set the lane's visits, and end the epoch if the last one does.

        Returns scores of the epoch beside those of its validation.

        Raises:
            TrialError: the scheduler raised.
        """
        lane.visits = visits
        shards = trial.shards or self._data.shards
        if len(visits) % len(shards) != 0:
            return {}
        if not lane.steps_by_epoch:
            lane.metrics.epoch = {}
            return {}
        recorded = (self._setup.recorded or {}).get(len(visits))
        with blaming(), lane.rng:
            if recorded is not None:
                return lane.end_epoch(recorded)
            name = self._setup.metric or lane.recipe.metric or ""
            # the study's metric in the validation, or else in the training of the epoch
            values = {**named_apart(lane.metrics.epoch_means(), scores or {}), **(scores or {})}
            return lane.end_epoch(values.get(name), name)

    def _save_if_due(self, lane_pass: Pass) -> str | None:
        """Make the state durable if that is due; returns the checkpoint's name, or None."""
        if self._context.vault is None:
            return None
        must_save = lane_pass.unit.last or (lane_pass.evaluate and self._setup.keep_evaluated)
        if not must_save and _age(lane_pass) < self._setup.options.checkpoint_every:
            return None
        return self._lanes.saved.save(lane_pass.trial, lane_pass.lane, lane_pass.spent)

    def _figures(self, lane: TrainingLane) -> dict[str, float]:
        """The figures measured of such lanes and not reported before, and the batch size found."""
        figures: dict[str, float] = {}
        if self._setup.clocked:
            self._meter.conclude(lane)
            figures |= self._meter.news(lane.signature)
        if lane.found_size is not None:
            figures["batch_size"] = float(lane.found_size)
        return figures


def _age(lane_pass: Pass) -> Seconds:
    """Seconds of training since the trial's last durable state."""
    return lane_pass.unit.age + lane_pass.spent.worked
