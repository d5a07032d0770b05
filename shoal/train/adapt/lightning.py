"""LightningModules as recipes: the user's code as it is, without a Trainer."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

from shoal.core.install import install
from shoal.train.adapt.attributes import set_attributes
from shoal.train.adapt.kinds import (
    PACKAGES,
    is_data_module_class,
    is_module,
    is_module_class,
)
from shoal.train.adapt.module.hooks import check_hooks
from shoal.train.adapt.module.names import assigns
from shoal.train.adapt.module_recipe import LightningRecipe, ManualLightningRecipe
from shoal.train.adapt.terms import GivenData


def lightning(
    module: Any,
    *,
    datamodule: Any = None,
    train: Any = None,
    valid: Any = None,
    validation: float | None = None,
    shards: int | None = None,
    samples: int | None = None,
    max_epochs: int | None = None,
    automatic_optimization: bool | None = None,
    gradient_clip_algorithm: Literal["norm", "value"] = "norm",
    **attributes: Any,
) -> LightningRecipe:
    """A recipe of a LightningModule, whose code stays as it is.

    `module`: the class, which is built for each trial with those keys of the configuration that its
    __init__ takes; or a function that gets the configuration and returns a module.

    `datamodule`: a LightningDataModule, its class, or a function that returns one. Or `train` and
    `valid`: DataLoaders, Datasets, or functions that return them. Left out, the module's own
    train_dataloader and val_dataloader are called. `validation`: the fraction of the training data
    to validate on, where there is no other validation data. `shards`: as for `Data.dataset`.
    `samples`: of an endless IterableDataset, how many are read.

    `max_epochs`: as in the Trainer; `self.trainer.max_epochs` and `estimated_stepping_batches` tell
    it, or the study's where it is left out. No trial of a module that asks for these trains longer.
    `automatic_optimization`: as the module has it, where its class does not show that.
    `attributes`: those of a recipe, by name: batch_size, accumulate_grad_batches,
    gradient_clip_val, precision, search_space, metric, mode, and so on.

    Raises:
        TypeError, ValueError: the module is none, an attribute is unknown, or the class has a hook
            that Shoal cannot call.
    """
    check_module(module)
    recipe_class = LightningRecipe
    if automatic_optimization is None and isinstance(module, type):
        automatic_optimization = not assigns(module, "automatic_optimization")
    if automatic_optimization is False:
        recipe_class = ManualLightningRecipe
    recipe = recipe_class(module, GivenData(train, valid, datamodule, shards, validation, samples))
    recipe.terms.max_epochs = max_epochs
    if max_epochs is not None:
        attributes["max_epochs"] = max_epochs
    if gradient_clip_algorithm not in ("norm", "value"):
        raise ValueError(
            f'gradient_clip_algorithm must be "norm" or "value"; got {gradient_clip_algorithm!r}'
        )
    if gradient_clip_algorithm == "value":
        recipe.clip_by_value = attributes.pop("gradient_clip_val", None)
    set_attributes(recipe, attributes)
    return recipe


def check_module(module: Any) -> None:
    """Raise TypeError unless this is a LightningModule class, or a function that may make one."""
    if is_module(module):
        raise TypeError(
            f"give the class {type(module).__name__}, or a function config -> module: each trial "
            "builds a module of its own; got a module"
        )
    if is_data_module_class(module):
        raise TypeError(
            f"{module.__name__} is a LightningDataModule: give it as datamodule=, and a "
            "LightningModule first"
        )
    if isinstance(module, type) and not is_module_class(module):
        hint = ""
        if not any(find_spec(package.partition(".")[0]) for package in PACKAGES):
            hint = f": Lightning is not installed; {install('lightning')}"
        raise TypeError(f"{module.__name__} is no LightningModule class{hint}")
    if not callable(module):
        raise TypeError(
            "shoal.lightning takes a LightningModule class, or a function config -> module; got "
            f"{type(module).__name__}"
        )
    if is_module_class(module):
        check_hooks(module)
