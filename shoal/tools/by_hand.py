"""Driving a pack by hand: several models on one device, over one stream of data, without a study.

The primitives are those of Liu et al., "Understanding and Optimizing Packed Neural Network
Training for Hyper-Parameter Tuning", 2020, section 2.2: load, pack, free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from math import inf
from typing import TYPE_CHECKING, Any

from shoal.core.trial import Trial, TrialId
from shoal.options import Options
from shoal.study.code.arguments import check_recipe_type
from shoal.study.folder import StudyError
from shoal.study.setup import data_of
from shoal.tools.hand_models import HandModel, HandModels, HandTurns
from shoal.train.lane.device import device_of
from shoal.train.recipe.unit import Tree, TrialError
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.tools.verify import model_from

if TYPE_CHECKING:
    from torch import nn

    from shoal.train.recipe.recipe import Recipe

# Samples that a model is to train on, as long as nobody says how many.
UNTOLD = 1e12


class HandPack:
    """Models of one recipe that train together on one device.

    Each model learns what it would learn alone, in a study as here.

    `fuse`: models of one graph may train in one step where that is measured to be faster (equal to
    rounding); otherwise each model is equal to the last bit. `metric`: of the validation that ends
    each epoch, as in a study, where a recipe's scheduler is ReduceLROnPlateau (default: the
    recipe's). Models that have no room together are trained in smaller packs, one after the other.

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
        self,
        config: Mapping[str, Any],
        state: Tree | None = None,
        name: str | None = None,
    ) -> str:
        """Add a model of this configuration, and return its name.

        `state`: what `free` or `state` returned; by default the model is new. `name`: by default
        "m0", "m1" …

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
        """Train all models so many epochs more.

        Returns the means of each model's training values over its last epoch, by name.
        A model that raises or diverges is freed, and noted in `failed`. If training ends early, as
        by Ctrl-C or data that cannot be read, the other models are as before the call.
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

        Raises:
            StudyError: no such model.
        """
        config = self._known(name).trial.config
        state = self.state(name)
        model: nn.Module = model_from(self._recipe, config, self._seed, state, self._device)
        return model

    def free(self, name: str) -> Tree:
        """Take the model out, and give its memory back. `load` goes on with the state returned.

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
            raise self._unknown(name)
        return model

    def _unknown(self, name: str) -> StudyError:
        """No model of this name is loaded: why, if it failed, and which ones are."""
        why = ""
        if name in self.failed:
            why = f"; it failed: {self.failed[name]}"
        loaded = ", ".join(self.names) or "none"
        return StudyError(f"no model named {name} is loaded{why}; loaded: {loaded}")


def pack(recipe: Recipe, configs: Iterable[Mapping[str, Any]], **options: Any) -> HandPack:
    """A `HandPack` with a model of each configuration loaded; `options`: its own.

    >>> models = shoal.pack(MyRecipe(), [{"lr": 0.1}, {"lr": 0.01}])
    >>> models.train(epochs=3)
    >>> models.evaluate()
    """
    made = HandPack(recipe, **options)
    for config in configs:
        made.load(config)
    return made
