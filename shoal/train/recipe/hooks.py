"""A recipe's methods as one trial calls them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from shoal.train.data.data import Data
from shoal.train.recipe.guard import guarded
from shoal.train.recipe.recipe import Recipe, overrides

OPTIONAL = ("config", "epoch")  # arguments that a step gets if it names them


class TrialHooks:
    """The recipe's methods for one trial.

    Steps that name an argument `config` get the trial's configuration. Steps that name `epoch` get
    how many whole epochs the trial has trained so far.
    """

    def __init__(self, recipe: Recipe, config: Mapping[str, Any]) -> None:
        self._recipe = recipe
        self._config = config
        self._training = _wanted(recipe.training_step)
        self._validation = _wanted(recipe.validation_step)

    @property
    def per_trial(self) -> bool:
        """Whether a step gets what may differ between trials, beside its model and batch."""
        return bool(self._training or self._validation)

    def configure_model(self) -> nn.Module:
        """A new model."""
        with guarded("configure_model"):
            return self._recipe.configure_model(self._config)

    def configure_optimizers(self, model: nn.Module) -> Any:
        """The model's optimizer, alone or with a scheduler."""
        with guarded("configure_optimizers"):
            return self._recipe.configure_optimizers(model, self._config)

    def training_step(self, model: nn.Module, batch: Any, epoch: int) -> Any:
        """The loss on a batch, or the loss and other values by name."""
        with guarded("training_step"):
            if not self._training:
                return self._recipe.training_step(model, batch)
            more = self._arguments(self._training, epoch)
            return self._recipe.training_step(model, batch, **more)

    def validation_step(self, model: nn.Module, batch: Any, epoch: int) -> Any:
        """The values of each sample of a batch, by name."""
        with guarded("validation_step"):
            if not self._validation:
                return self._recipe.validation_step(model, batch)
            more = self._arguments(self._validation, epoch)
            return self._recipe.validation_step(model, batch, **more)

    def _arguments(self, names: tuple[str, ...], epoch: int) -> dict[str, Any]:
        """The optional arguments of these names."""
        known = {"config": self._config, "epoch": epoch}
        return {name: known[name] for name in names}


def _wanted(step: Callable[..., Any]) -> tuple[str, ...]:
    """Which of the optional arguments the step names."""
    parameters = inspect.signature(step).parameters
    return tuple(name for name in OPTIONAL if name in parameters)


def validates(recipe: Recipe, data: Data) -> bool:
    """Whether trials can be scored on validation data."""
    return bool(data.validation) and overrides(recipe, "validation_step")
