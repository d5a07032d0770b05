"""The lanes of a slot are built here: of the recipe, with their batch sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from functools import partial
from time import perf_counter

from shoal.core.cluster import ShardId
from shoal.core.trial import Trial, Value
from shoal.train.lane.batch_size_search import is_open, largest, with_size
from shoal.train.lane.blame import blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import start_up
from shoal.train.recipe.hooks import validates
from shoal.train.recipe.recipes import own_config, own_recipe
from shoal.train.recipe.settings import data_key, seed_of
from shoal.train.recipe.unit import Tree
from shoal.train.slot.context import SlotContext


class LaneBuilder:
    """Builds the lanes of one slot."""

    def __init__(self, context: SlotContext) -> None:
        self._context = context
        self._meter = context.meter
        # the largest batch sizes, by kind of trial: see `_find_size`
        self._largest: dict[str, int] = {}

    def build(self, trial: Trial, state: Tree | None = None) -> TrainingLane:
        """Build the trial's lane as it begins. `state`: the one that it will load, if any.

        Raises:
            TrialError: the recipe's code raised, or the configuration is not what it must be.
            DataError: the data cannot be read to find a batch size.
        """
        context = self._context
        context.set_threads()
        start_seconds = start_up(context.device)
        with blaming():
            config = own_config(context.recipe, trial.config)
            size = None
            recipe = own_recipe(context.recipe, config)
            if is_open(recipe, config):
                saved_size = None if state is None else state.get("found")
                size = saved_size or self._find_size(config, self._shards(trial))
                config = with_size(config, size)
            begin = perf_counter()
            lane = self._make(self._shards(trial), config)
            lane.found_size = size
            aim = context.setup.metric, context.setup.mode
            if aim[0] is None:
                aim = recipe.metric, recipe.mode
            lane.optimization.check_metric(*aim)
            signature = lane.signature  # a shard recipe's code says what is in it

        self._meter.record(signature, "build", perf_counter() - begin)
        if start_seconds is not None:
            self._meter.record(signature, "first", start_seconds)
        return lane

    def _shards(self, trial: Trial) -> Collection[ShardId]:
        """The shards that make up an epoch of the trial."""
        return trial.shards or self._context.data.shards

    def _make(self, shards: Collection[ShardId], config: Mapping[str, Value]) -> TrainingLane:
        """A lane of this configuration, whose epoch consists of these shards."""
        context = self._context
        samples = sum(context.data.size(shard) for shard in shards)
        return TrainingLane(
            own_recipe(context.recipe, config),
            config,
            seed=seed_of(config, context.setup.seed),
            device=context.device,
            epoch=float(samples),
        )

    def _find_size(self, config: Mapping[str, Value], shards: Collection[ShardId]) -> int:
        """The largest batch that fits.

        It is tried once for all trials whose signatures differ at most in the batch size.
        """
        context = self._context
        make = partial(self._make, shards)
        most = min(context.data.size(shard) for shard in shards)
        smallest = make(with_size(config, 1))
        kind = f"{smallest.signature} {most}"
        if kind not in self._largest:
            recipe = own_recipe(context.recipe, config)
            data = context.data_of(recipe)
            stream = context.streams.of(data_key(recipe, config))
            with closing(stream.chunks(data.first_here, 0)) as training:
                training_chunk = next(training)
            validation_chunk = None
            if validates(recipe, data):
                with closing(stream.validation()) as validation:
                    validation_chunk = next(validation, None)
            self._largest[kind] = largest(
                make,
                config,
                training_chunk,
                validation_chunk,
                most,
                context.slot_room,
                context.device,
            )
        return self._largest[kind]
