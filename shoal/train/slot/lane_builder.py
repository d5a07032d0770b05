"""Where the lanes of a slot come from: built of the recipe, with their batch sizes."""

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
        # the batch sizes found, by kind of trial: see `_find`
        self._largest: dict[str, int] = {}

    def build(self, trial: Trial, state: Tree | None = None) -> TrainingLane:
        """The trial's lane as it begins. `state`: the one that it will load, if there is one.

        Raises:
            TrialError: the recipe's code raised, or the configuration is not what it must be.
            DataError: the data cannot be read to find a batch size.
        """
        at = self._context
        at.set_threads()
        first = start_up(at.device)
        with blaming():
            config = own_config(at.recipe, trial.config)
            found = None
            recipe = own_recipe(at.recipe, config)
            if is_open(recipe, config):
                began_with = None if state is None else state.get("found")
                found = began_with or self._find(config, self._shards(trial))
                config = with_size(config, found)
            begin = perf_counter()
            lane = self._make(self._shards(trial), config)
            lane.found_size = found
            aim = at.setup.metric, at.setup.mode
            if aim[0] is None:
                aim = recipe.metric, recipe.mode
            lane.optimization.check_metric(*aim)
            signature = lane.signature  # a shard recipe's code says what is in it

        self._meter.record(signature, "build", perf_counter() - begin)
        if first is not None:
            self._meter.record(signature, "first", first)
        return lane

    def _shards(self, trial: Trial) -> Collection[ShardId]:
        """The shards that make up an epoch of the trial."""
        return trial.shards or self._context.data.shards

    def _make(self, shards: Collection[ShardId], config: Mapping[str, Value]) -> TrainingLane:
        """A lane of this configuration, whose epoch consists of these shards."""
        at = self._context
        samples = sum(at.data.size(shard) for shard in shards)
        return TrainingLane(
            own_recipe(at.recipe, config),
            config,
            seed=seed_of(config, at.setup.seed),
            device=at.device,
            epoch=float(samples),
        )

    def _find(self, config: Mapping[str, Value], shards: Collection[ShardId]) -> int:
        """The largest batch that fits.

        It is tried once for all trials whose signatures differ at most in the batch size.
        """
        at = self._context
        make = partial(self._make, shards)
        most = min(at.data.size(shard) for shard in shards)
        smallest = make(with_size(config, 1))
        kind = f"{smallest.signature} {most}"
        if kind not in self._largest:
            recipe = own_recipe(at.recipe, config)
            data = at.data_of(recipe)
            stream = at.streams.of(data_key(recipe, config))
            with closing(stream.chunks(data.first_here, 0)) as training:
                samples = next(training)
            scored = None
            if validates(recipe, data):
                with closing(stream.validation()) as validation:
                    scored = next(validation, None)
            self._largest[kind] = largest(
                make, config, samples, scored, most, at.slot_room, at.device
            )
        return self._largest[kind]
