"""Trying a recipe before the first trial starts, to find what is wrong beforehand."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from shoal.train.lane.batch_size_search import is_open
from shoal.train.lane.optimization import Optimization, check_steps
from shoal.train.lane.ownership import Ownership, SharedError
from shoal.train.lane.tensors import UnshapedError, check_shaped
from shoal.train.private import delay_compiler
from shoal.train.recipe.adapter import Adapted
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_code import (
    NotInSpaceError,
    Watched,
    functions_of,
    names_in,
    names_read,
    near,
    own_classes,
)
from shoal.train.recipe.settings import FOLD, Settings, data_key, seed_of, settings
from shoal.train.recipe.shard import refuse_settings
from shoal.train.rng import Rng


def check_names(recipe: Recipe, dimensions: Collection[str]) -> None:
    """Raise ValueError if a name looks like a misspelt name of one of Shoal's attributes.

    Looked at are attributes that the recipe sets and no code of it reads, and the search space's
    `dimensions`.
    """
    read = names_read(recipe)
    kind = type(recipe).__name__
    known = [name for name in vars(Recipe) if not name.startswith("_")]
    for name in _own_attributes(recipe).difference(read):
        meant = near(name, known)
        if meant is not None:
            raise ValueError(
                f"{kind} has an attribute {name!r}, which Shoal does not know: did you mean "
                f"{meant!r}? If the attribute is your own, read it in a method, or rename it"
            )
    known = [field.name for field in fields(Settings)]
    for name in set(dimensions) - read:
        meant = near(name, known)
        if meant is not None:
            raise ValueError(
                f"the search space has a dimension {name!r}, which {kind} does not read: "
                f"did you mean {meant!r}?"
            )


def _own_attributes(recipe: Recipe) -> set[str]:
    """Public attributes of plain values that the recipe and its classes set."""
    attributes = dict(vars(recipe))
    for kind in own_classes(recipe):
        attributes |= vars(kind)
    kinds = (bool, int, float, str, tuple, list, dict, type(None))
    plain = {name for name, value in attributes.items() if isinstance(value, kinds)}
    return {name for name in plain if not name.startswith("_")}


def check_values(
    recipe: Recipe,
    config: Mapping[str, Any],
    values: Mapping[str, Collection[Any]],
    optimizers: Sequence[Optimizer] = (),
) -> None:
    """Raise ValueError if a setting of the recipe is out of range, or a value that it may get.

    `config`: one configuration. `values`: what the search may choose, by name of the dimension.
    `optimizers`: those that the recipe configures.
    """
    refuse_settings(recipe, config)
    for fold in values.get(FOLD, ()):
        data_key(recipe, {**config, FOLD: fold})
    usual = dict(config)
    if isinstance(recipe, Adapted):
        recipe.check_config(config)
    if is_open(recipe, config):
        usual["batch_size"] = 1
    check_steps(recipe, settings(recipe, usual), optimizers)
    for field in fields(Settings):
        for value in values.get(field.name, ()):
            if value != "max":
                check_steps(recipe, settings(recipe, {**usual, field.name: value}))


def check_configured(
    recipe: Recipe, config: Mapping[str, Any], seed: int, watched: Watched | None = None
) -> int:
    """Build a model and its optimizer of this configuration, and throw them away.

    `watched`: the configuration, which notes what is read of it. No random state changes. Other
    errors of the recipe are left to the trial, for they may be those of this configuration only.
    Returns the number of the model's parameters; 0 where no model could be made.

    Raises:
        ValueError: the recipe reads a key that the configuration lacks, the model has a lazy layer
            without a shape, or what `configure_optimizers` returns is no optimizer, or one of
            another model's parameters.
    """
    delay_compiler()  # making an optimizer imports it
    states = Rng(seed_of(config, seed), torch.device("cpu"))
    with states, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model, configured = _optimizer(copy(recipe), watched or Watched(config))
        except NotInSpaceError as error:
            raise ValueError(lacking(recipe, config, error)) from error
        except (UnshapedError, SharedError):
            raise
        except Exception:  # noqa: BLE001 - the trial will say so
            return 0
        try:
            optimization = Optimization(configured)
            check_values(recipe, config, {}, optimization.optimizers)
        except (TypeError, ValueError) as error:
            raise ValueError(str(error)) from error
    if not isinstance(model, nn.Module):  # the trial will say so
        return 0
    _check_own(model, optimization.parameters)
    return sum(parameter.numel() for parameter in model.parameters())


def lacking(recipe: Recipe, config: Mapping[str, Any], error: NotInSpaceError) -> str:
    """What to tell a user whose recipe reads a key that configurations lack."""
    listed = ", ".join(config) or "nothing"
    return (
        f"{type(recipe).__name__} reads config[{error.args[0]!r}], and a configuration of "
        f"the search has {listed}: add a dimension to search_space (a plain value is the "
        "same for all trials), or read it with config.get"
    )


def _check_own(model: nn.Module, stepped: Collection[nn.Parameter]) -> None:
    """Raise ValueError if the optimizers step parameters that are not the model's."""
    model_ids = {id(parameter) for parameter in model.parameters()}
    foreign = [parameter for parameter in stepped if id(parameter) not in model_ids]
    if foreign:
        raise ValueError(
            f"configure_optimizers gives {len(stepped)} parameters to optimizers, {len(foreign)} "
            "of which are not the model's: give them those of the model that it gets, "
            "model.parameters()"
        )


def _optimizer(recipe: Recipe, watched: Watched) -> tuple[nn.Module, Any]:
    """A new model of this configuration, and what `configure_optimizers` returns for it.

    Raises:
        NotInSpaceError: the recipe reads a key that the configuration lacks.
    """
    model = recipe.configure_model(watched)
    if isinstance(model, nn.Module):
        check_shaped(model)
        # so that it is known where another call returns the same again
        Ownership().hold(model)
        metrics = recipe.configure_metrics(watched)
        Ownership().hold_objects("configure_metrics", metrics.values())
    return model, recipe.configure_optimizers(model, watched)


# -- schedules that end ----------------------------------------------------------------------------

# Attributes of torch's schedulers that say after how many epochs, or steps, they are at their end.
ENDS = ("T_max", "total_steps", "total_iters")


@dataclass(frozen=True, slots=True)
class ScheduleEnds:
    """What in a recipe's learning rates was made for a number of epochs."""

    # The scheduler that allows no step beyond its end; empty: there is none.
    fatal: str = ""
    # What may depend on the number of epochs.
    reasons: tuple[str, ...] = ()


def schedule_ends(
    recipe: Recipe, config: Mapping[str, Any], seed: int, epochs: float
) -> ScheduleEnds:
    """What in the recipe's schedule may have been made for so many epochs.

    A warm-up that is over before is left out.
    """
    reasons = []
    if "max_epochs" in _names_in_method(recipe.configure_optimizers):
        reasons.append("a configure_optimizers that reads max_epochs")
    states = Rng(seed_of(config, seed), torch.device("cpu"))
    with states, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            schedules = Optimization(_optimizer(copy(recipe), Watched(config))[1]).schedules
        except Exception:  # noqa: BLE001 - the trial will say so
            return ScheduleEnds(reasons=tuple(reasons))
    fatal = ""
    for schedule in schedules:
        for scheduler in _schedulers(schedule.scheduler):
            kind = type(scheduler).__name__
            for name in ENDS:
                end = getattr(scheduler, name, None)
                if end is not None and (schedule.by_step or end >= epochs):
                    reasons.append(f"{kind}({name}={end})")
            if isinstance(scheduler, OneCycleLR):
                fatal = kind
    return ScheduleEnds(fatal, tuple(reasons))


def _names_in_method(method: Any) -> set[str]:
    """The names that a method's code reads."""
    names: set[str] = set()
    for function in functions_of(method):
        names |= names_in(function.__code__)
    return names


def _schedulers(scheduler: Any) -> Iterator[Any]:
    """A scheduler and those within it."""
    yield scheduler
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from _schedulers(inner)
