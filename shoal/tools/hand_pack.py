"""Driving a pack by hand: several models on one device, over one stream of data, without a study.

The primitives are those of Liu et al., "Understanding and Optimizing Packed Neural Network
Training for Hyper-Parameter Tuning", 2020, section 2.2: load, pack, free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from shoal.core.cluster import ShardId
from shoal.core.errors import StudyError
from shoal.core.trial import Trial, TrialId, Visit
from shoal.core.visits import next_visit
from shoal.options import Options
from shoal.study.arguments import check_recipe_type
from shoal.study.setup import data_of
from shoal.train.lane.device import device_of
from shoal.train.lane.training_metrics import add_sums
from shoal.train.recipe.unit import Done, OutOfMemory, Part, Tree, TrialError, Unit
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.tools.verify import model_from

if TYPE_CHECKING:
    from torch import nn

    from shoal.core.event import Sum
    from shoal.train.recipe.recipe import Recipe
    from shoal.train.slot.trainer import News


# Samples that a model is to train on: nobody says how many.
UNTOLD = 1e12


class HandPack:
    """Models of one recipe that train together on one device.

    Each model learns what it would learn alone, in a study as here. Models that have no room
    together are trained in smaller packs, one after the other.

    Args:
        recipe: what to train; its data is `shoal.Data`.
        seed: of first weights, of the order of samples and of all random choices, 0 or more.
        fuse: models of one graph may train in one step where that is measured to be faster, equal
            to rounding. False: each model is equal to the last bit.
        device: "auto", "cpu", "cuda" or "mps". "auto" takes a GPU if there is one.
        threads: CPU threads.
        metric: the score of the validation that ends each epoch, as in a study, where a recipe's
            scheduler is ReduceLROnPlateau. None: the recipe's.
        data_memory_gb: GiB of prepared shards that are kept in memory.

    Raises:
        StudyError: not a recipe, or its data is not `shoal.Data`.
        ValueError: there is no such device, or the seed is negative.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        seed: int = 0,
        fuse: bool = False,
        device: str = "auto",
        threads: int = 1,
        metric: str | None = None,
        data_memory_gb: float = 2.0,
    ) -> None:
        check_recipe_type(recipe)
        self._recipe = recipe
        self._seed = seed
        self._device = device_of(device)
        data = data_of(recipe)
        setup = TrainerSetup(
            Options(threads=threads, data_memory_gb=data_memory_gb, state_memory_gb=inf),
            seed=seed,
            device=self._device,
            metric=metric or recipe.metric,
        )
        trainer = SlotTrainer(recipe, data, None, setup)
        self._shards = tuple(data.shards)
        scored = setup.metric is not None
        self._models = HandModels(trainer, self._shards, seed, scored)
        self._turns = HandTurns(self._models, fuse)
        self._number = 0

    @property
    def failed(self) -> Mapping[str, str]:
        """Models that were freed because they raised or diverged, and why."""
        return self._turns.failed

    @property
    def names(self) -> tuple[str, ...]:
        """The models loaded, in their order."""
        return tuple(self._models.by_name)

    def load(
        self, config: Mapping[str, Any], state: Tree | None = None, name: str | None = None
    ) -> str:
        """Add a model of this configuration, and return its name.

        Args:
            config: the configuration.
            state: what `free` or `state` returned. None: the model is new.
            name: None: "m0", "m1" …

        Raises:
            StudyError: the name is in use.
        """
        chosen = TrialId(name or self._free_name())
        if chosen in self._models.by_name:
            raise StudyError(
                f"a model named {chosen} is loaded already; free it first, or choose another name"
            )
        self._number += 1
        trial = Trial(chosen, UNTOLD, dict(config), shards=frozenset(self._shards))
        self._models.add(trial, state)
        return chosen

    def _free_name(self) -> str:
        """The next of "m0", "m1" … that no model has."""
        while f"m{self._number}" in self._models.by_name:
            self._number += 1
        return f"m{self._number}"

    def train(self, epochs: int = 1) -> dict[str, dict[str, float]]:
        """Train all models; returns each one's means of training values over its last epoch.

        A model that raises or diverges is freed, and noted in `failed`. If training ends early, as
        by Ctrl-C or data that cannot be read, the other models are as before the call.

        Args:
            epochs: so many more.
        """
        before = self._models.states()
        try:
            self._turns.train(epochs, before)
        except BaseException:
            self._models.rewind_all(before)
            raise
        return {name: model.means for name, model in self._models.by_name.items()}

    def evaluate(self) -> dict[str, dict[str, float]]:
        """The means of each model's validation values, by name.

        A model has no values, {}, if there is no validation data.

        Raises:
            TrialError: a recipe raised; no model is lost by that.
        """
        return self._turns.evaluate()

    def state(self, name: str) -> Tree:
        """A copy of all that the model's further training depends on, as NumPy arrays.

        This is the model, its optimizer, its random states and so on.

        Args:
            name: the model's.

        Raises:
            StudyError: no such model.
            TrialError: it was not built yet, and its recipe raised.
        """
        trial = TrialId(name)
        source = self._known(name).source
        # A model that is not on the device stays away: there may be no room for it now.
        if source is not None:
            return deepcopy(source)
        self._models.place([trial])
        return deepcopy(self._models.trainer.state(trial))

    def model(self, name: str) -> nn.Module:
        """A copy of the model, in evaluation mode.

        Args:
            name: the model's.

        Raises:
            StudyError: no such model.
        """
        config = self._known(name).trial.config
        state = self.state(name)
        model: nn.Module = model_from(self._recipe, config, self._seed, state, self._device)
        return model

    def free(self, name: str) -> Tree:
        """Take the model out, and give its memory back. `load` goes on with the state returned.

        Args:
            name: the model's.

        Raises:
            StudyError: no such model.
            TrialError: it was not built yet, and its recipe raised; it is taken out all the same.
        """
        try:
            state = self.state(name)
        except TrialError:
            if not self._known(name).visits:
                self._turns.forget(TrialId(name))
            raise
        self._turns.forget(TrialId(name))
        return state

    def _known(self, name: str) -> HandModel:
        """The model of this name.

        Raises:
            StudyError: there is none.
        """
        model = self._models.by_name.get(TrialId(name))
        if model is None:
            why = f"; it failed: {self.failed[name]}" if name in self.failed else ""
            loaded = ", ".join(self.names) or "none"
            raise StudyError(f"no model named {name} is loaded{why}; loaded: {loaded}")
        return model


def pack(recipe: Recipe, configs: Iterable[Mapping[str, Any]], **options: Any) -> HandPack:
    """A `HandPack` with a model of each configuration loaded.

    >>> models = shoal.pack(MyRecipe(), [{"lr": 0.1}, {"lr": 0.01}])
    >>> models.train(epochs=3)
    >>> models.evaluate()

    Args:
        recipe: what to train.
        configs: the configurations.
        **options: the other arguments of `HandPack`: seed, fuse, device, threads, metric,
            data_memory_gb.

    Raises:
        StudyError: as for `HandPack`.
        ValueError: as for `HandPack`.
    """
    models = HandPack(recipe, **options)
    for config in configs:
        models.load(config)
    return models


States = Mapping[TrialId, Tree | None]  # None: of a model that is not built yet
Values = dict[str, float]
Scores = dict[TrialId, Values | TrialError]


@dataclass(slots=True)
class HandModel:
    """A model of a pack by hand."""

    trial: Trial
    visits: tuple[Visit, ...] = ()
    # Its state, while it is not on the device.
    source: Tree | None = None
    # The sums of the training values of its newest epoch.
    sums: dict[str, Sum] = field(default_factory=dict)

    @property
    def means(self) -> dict[str, float]:
        """The means of the training values of its newest epoch, by name."""
        return {name: total / count for name, (total, count) in self.sums.items() if count}


class HandModels:
    """Models by name, and the trainer that trains them. `shards`: of the data, in their order.

    `scored`: whether the validation that ends an epoch has a metric, which schedules may follow.
    """

    def __init__(
        self, trainer: SlotTrainer, shards: Sequence[ShardId], seed: int, scored: bool
    ) -> None:
        self.trainer = trainer
        self.by_name: dict[TrialId, HandModel] = {}
        self._shards = shards
        self._seed = seed
        self._scored = scored

    def add(self, trial: Trial, state: Tree | None) -> None:
        """Add a new model; `state`: from which it goes on."""
        self.by_name[trial.id] = HandModel(trial, visits_of(state), state)

    def forget(self, name: TrialId) -> None:
        """Take a model out, and give its memory back."""
        self.trainer.forget(name)
        del self.by_name[name]

    def state(self, name: TrialId) -> Tree | None:
        """The model's state, which further training may change.

        Returns None if the model is new and not built yet.
        """
        model = self.by_name[name]
        if self._is_away(name):
            return model.source
        return self.trainer.state(name)

    def states(self) -> States:
        """Copies of all models' states, for `rewind_all`."""
        return {name: deepcopy(self.state(name)) for name in self.by_name}

    def rewind_all(self, states: States) -> None:
        """Put back the states of the models that are loaded still."""
        for name, state in states.items():
            if name in self.by_name:
                self._rewind(name, state)

    def keep_only(self, names: Sequence[TrialId]) -> None:
        """Take all other models off the device; they rest in copies of their states."""
        for name, model in self.by_name.items():
            if name not in names and model.source is None:
                self._rewind(name, deepcopy(self.state(name)))

    def place(self, names: Iterable[TrialId]) -> None:
        """Put these models on the device.

        Raises:
            TrialError: a recipe raised.
        """
        for name in names:
            if self._is_away(name):
                model = self.by_name[name]
                visit = Visit(0, self._shards[0], 0, 0)
                self.trainer.place(Unit(model.trial, model.visits, visit, model.source))
                model.source = None

    def next_unit(self, name: TrialId) -> Unit:
        """The visit that this model makes next."""
        model = self.by_name[name]
        visits = len(model.visits)
        if visits % len(self._shards) == 0:
            model.sums = {}
        visit = next_visit(self._seed, model.visits, frozenset(self._shards))
        ends_epoch = (visits + 1) % len(self._shards) == 0
        # Further training may depend on the scores of epochs.
        scored = ends_epoch and self._scored and self.trainer.follows_scores(name)
        return Unit(model.trial, model.visits, visit, model.source, scored)

    def visits_after(self, name: TrialId, epochs: int) -> int:
        """How many visits the model will have made in all, after so many epochs more."""
        return len(self.by_name[name].visits) + epochs * len(self._shards)

    def _is_away(self, name: TrialId) -> bool:
        """Whether the model as it is now is not on the device."""
        model = self.by_name[name]
        if model.source is not None:
            return True
        return not self.trainer.holds(name, len(model.visits))

    def _rewind(self, name: TrialId, state: Tree | None) -> None:
        """Take the model off the device, and put it back to this state."""
        self.trainer.forget(name)
        model = self.by_name[name]
        model.source = state
        model.visits = visits_of(state)


class HandTurns:
    """Trains and evaluates the models, as many at once as have room.

    `fuse`: models of one graph may train in one step.
    """

    def __init__(self, models: HandModels, fuse: bool) -> None:
        # Models that were freed because they raised or diverged, and why.
        self.failed: dict[str, str] = {}
        self._models = models
        self._fuse = fuse
        # The most models that are known to have room together.
        self.most: float = inf
        # Whether a model was taken out since that number was found.
        self._fewer = False

    def forget(self, name: TrialId) -> None:
        """Take a model out, and give its memory back."""
        self._models.forget(name)
        self._fewer = True

    def _all(self) -> list[TrialId]:
        """All models; they are tried at once again if one is gone since they had no room."""
        if self._fewer:
            self.most = inf
            self._fewer = False
        return [*self._models.by_name]

    def _parts(self, names: Sequence[TrialId]) -> Iterator[Sequence[TrialId]]:
        """As many models at once as have room; meanwhile the others are not on the device."""
        if self.most == inf:
            if names:
                yield names
            return
        size = int(self.most)
        for first in range(0, len(names), size):
            part = names[first : first + size]
            self._models.keep_only(part)
            yield part

    def _loaded(self, names: Iterable[TrialId]) -> list[TrialId]:
        """The models among these that did not fail meanwhile."""
        return [name for name in names if name in self._models.by_name]

    # -- training ----------------------------------------------------------------------------------

    def train(self, epochs: int, before: States) -> None:
        """Train all models so many epochs more. `before`: their states now."""
        self._train(self._all(), epochs, before)

    def _train(self, names: Sequence[TrialId], epochs: int, before: States) -> None:
        """Train in packs that have room. `before`: the models' states before this training."""
        if len(names) > self.most:
            for part in self._parts(names):
                self._train(part, epochs, before)
            return
        if self._train_together(names, epochs):
            return
        # All models of this pack begin again.
        self._models.rewind_all({name: before[name] for name in names})
        self._train(self._loaded(names), epochs, before)

    def _train_together(self, names: Sequence[TrialId], epochs: int) -> bool:
        """Train these models at once. Returns whether they had room."""
        goals = {name: self._models.visits_after(name, epochs) for name in names}
        going = self._below(goals)
        while going:
            if self._visit(going):
                self.most = max(1, ceil(len(going) / 2))
                return False
            going = self._below(goals)
        return True

    def _below(self, goals: Mapping[TrialId, int]) -> list[TrialId]:
        """The models that have made fewer visits than their goals."""
        loaded = self._loaded(goals)
        models = self._models.by_name
        return [name for name in loaded if len(models[name].visits) < goals[name]]

    def _visit(self, names: Sequence[TrialId]) -> bool:
        """Each model visits one shard. Returns whether they had too little memory together."""
        units = [self._models.next_unit(name) for name in names]
        short = False
        with closing(self._models.trainer.train_pack(units, self._fuse)) as events:
            for name, event in events:
                if isinstance(event, OutOfMemory) and (len(names) > 1 or event.freed):
                    short = True
                else:
                    self._take(name, event)
        return short

    def _take(self, name: TrialId, event: News) -> None:
        """Note what a visit has come to."""
        model = self._models.by_name[name]
        if isinstance(event, Part):
            add_sums(model.sums, event.values)
        elif isinstance(event, Done):
            model.visits = (*model.visits, event.visit)
            model.source = None
        else:
            self.failed[name] = event.why
            self.forget(name)

    # -- evaluating --------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, Values]:
        """The means of each model's validation values, by name.

        Raises:
            TrialError: a recipe raised.
        """
        return self._evaluate(self._all())

    def _evaluate(self, names: Sequence[TrialId]) -> dict[str, Values]:
        means: dict[str, Values] = {}
        for part in self._parts(names):
            try:
                scores = self._scores(part)
            except OutOfMemory:
                self.most = ceil(len(part) / 2)
                left = [name for name in self._loaded(names) if name not in means]
                return means | self._evaluate(left)
            for name, values in scores.items():
                if isinstance(values, TrialError):
                    raise type(values)(f"{name}: {values.why}", values.text, values.signature)
                means[name] = values
        return means

    def _scores(self, names: Sequence[TrialId]) -> Scores:
        """The validation values of each model, or what its recipe raised.

        Raises:
            OutOfMemory: several models have no room together.
        """
        try:
            self._models.place(names)
            return {**self._models.trainer.evaluate(names)}
        except TrialError as error:
            if len(names) == 1:
                return {names[0]: error}
            if isinstance(error, OutOfMemory):
                raise
        # One of them raised: asked one by one, each answers for itself.
        scores: Scores = {}
        for name in names:
            scores |= self._scores([name])
        return scores


def visits_of(state: Tree | None) -> tuple[Visit, ...]:
    """The visits that led to this state."""
    if state is None:
        return ()
    return tuple(Visit(*visit) for visit in state["visits"])
