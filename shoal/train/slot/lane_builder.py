"""Where lanes come from: new lanes with their batch sizes, and states that a slot saved."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from functools import partial
from time import perf_counter

from shoal.core.cluster import ShardId
from shoal.core.trial import Trial, TrialId, Value
from shoal.train.data.columns import Columns
from shoal.train.lane.batch_size_search import is_open, largest, with_size
from shoal.train.lane.blame import Spent, blaming
from shoal.train.lane.checkpoints import Damaged
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import start_up
from shoal.train.recipe.hooks import validates
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipes import own_config, own_recipe
from shoal.train.recipe.settings import data_key, seed_of
from shoal.train.recipe.unit import Tree, TrialError, Unit
from shoal.train.slot.context import SlotContext
from shoal.train.stream.stream import Stream


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
                found = self._size(trial, state)
                config = with_size(config, found)
            begin = perf_counter()
            lane = self._make(self._shards(trial), config)
            lane.found = found
            aim = at.setup.metric, at.setup.mode
            if aim[0] is None:
                aim = recipe.metric, recipe.mode
            lane.optimizing.check_metric(*aim)
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

    def _size(self, trial: Trial, state: Tree | None) -> int:
        """The batch size that the trial began with, or else the largest that fits."""
        known = None
        if state is not None:
            known = state.get("found")
        config = own_config(self._context.recipe, trial.config)
        return known or self._find(config, self._shards(trial))

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
            stream = at.streams.of(data_key(recipe, config))
            self._largest[kind] = largest(
                make,
                config,
                self._samples(stream, recipe),
                self._scored(stream, recipe),
                most,
                at.slot_room,
                at.device,
            )
        return self._largest[kind]

    def _samples(self, stream: Stream, recipe: Recipe) -> Columns:
        """Samples of the recipe's to train on."""
        first = self._context.data_of(recipe).first_here
        with closing(stream.chunks(first, 0)) as training:
            return next(training)

    def _scored(self, stream: Stream, recipe: Recipe) -> Columns | None:
        """Samples to validate on; None if nothing is validated."""
        if not validates(recipe, self._context.data_of(recipe)):
            return None
        with closing(stream.validation()) as validation:
            return next(validation, None)


class SavedStates:
    """The newest checkpoint of each trial that this slot saved.

    Some were written only to make room in memory. No other process knows of those, and they are
    deleted as soon as the trial has a newer state.
    """

    def __init__(self, context: SlotContext) -> None:
        self._vault = context.vault
        self._meter = context.meter
        # the number of visits before the checkpoint, and its name
        self._kept: dict[TrialId, tuple[int, str]] = {}
        # names of checkpoints written to make room
        self._aside: set[str] = set()
        # names of checkpoints whose trials' lanes were dropped
        self._instead: set[str] = set()

    def has(self, trial: TrialId, visits: int) -> bool:
        """Whether the trial's newest checkpoint is its state after so many visits."""
        return trial in self._kept and self._kept[trial][0] == visits

    def source(self, unit: Unit) -> Tree | None:
        """The state before the unit: the one sent with it, or a checkpoint.

        None if it is the trial's first unit.

        Raises:
            LookupError: neither is there, or there is no vault to load it from.
            StateLost: the checkpoint is damaged or missing.
        """
        source = unit.source
        if source is None and unit.visits:
            source = self._checkpoint_before(unit)
        if not isinstance(source, str):
            return source
        if self._vault is None:
            raise LookupError(f"checkpoint {source} was asked for, but this station has no vault")
        return self._vault.restore(source)

    def _checkpoint_before(self, unit: Unit) -> str:
        """The name of the checkpoint of the state before the unit.

        Raises:
            LookupError: this slot saved no such checkpoint.
        """
        trial = unit.trial.id
        visits = len(unit.visits)
        if not self.has(trial, visits):
            raise LookupError(
                f"trial {trial} after {visits} visits is not held here: its unit needs a source"
            )
        return self._kept[trial][1]

    def save(self, trial: TrialId, lane: TrainingLane, spent: Spent) -> str:
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
        self._kept[trial] = (visits, name)
        return name

    def set_aside(self, trial: TrialId, lane: TrainingLane) -> bool:
        """Save the state to make room, unless it is saved; returns whether it is saved now."""
        if self.has(trial, len(lane.visits)):
            return True
        if self._vault is None:
            return False
        try:
            name = self.save(trial, lane, Spent(False))
        except TrialError:  # the trial itself fails when its own unit saves it
            return False
        self._aside.add(name)
        return True

    def use_instead(self, trial: TrialId) -> None:
        """Note that the trial's lane is dropped; its newest checkpoint is that lane's state."""
        self._instead.add(self._kept[trial][1])

    def load_instead(self, trial: TrialId) -> Tree:
        """The state of the trial's dropped lane.

        Raises:
            LookupError: no lane of the trial was dropped, or its checkpoint was deleted.
        """
        name = self._name(trial)
        if name is not None and self._vault is not None and self._stands_for_lane(name):
            with suppress(FileNotFoundError, Damaged):
                return self._vault.load(name)
        raise LookupError(f"trial {trial} is not held here")

    def _stands_for_lane(self, name: str) -> bool:
        """Whether the checkpoint is the state of a lane that was dropped."""
        return name in self._aside or name in self._instead

    def adopt(self, trial: TrialId) -> str | None:
        """The name of the trial's checkpoint, which is no longer deleted; None if it has none."""
        name = self._name(trial)
        if name is not None:
            self._aside.discard(name)
        return name

    def _name(self, trial: TrialId) -> str | None:
        """The name of the trial's newest checkpoint."""
        _, name = self._kept.get(trial, (0, None))
        return name

    def forget_aside(self, trial: TrialId) -> None:
        """Delete the checkpoint that was written only to make room."""
        name = self._name(trial)
        if name in self._aside and self._vault is not None:
            self._aside.discard(name)
            del self._kept[trial]
            self._vault.delete(name)

    def forget(self, trial: TrialId) -> None:
        """Forget the trial's checkpoint; it stays where it is, unless it only made room."""
        self.forget_aside(trial)
        if trial in self._kept:
            self._instead.discard(self._kept.pop(trial)[1])


def state_of(lane: TrainingLane) -> Tree:
    """The lane's state.

    Raises:
        TrialError: the recipe's model or scheduler holds what cannot be kept.
    """
    with blaming():
        return lane.state()
