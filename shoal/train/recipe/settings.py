"""What a recipe's attributes and a trial's configuration say of its training."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from shoal.train.recipe.hooks import carries_state
from shoal.train.recipe.recipe import Precision, Recipe, Shuffle, overrides
from shoal.train.recipe.recipes import Recipes
from shoal.train.recipe.seat import LRRule, lr_factor
from shoal.train.recipe.shard import refuse_settings

ORDERS = ("once", "each", "sequential")
STREAMS = "streams:"  # begins an order in which each row of a batch continues the one before
FOLD = "fold"  # the key of a configuration that says which fold a trial validates on
PART = "::recipe"  # begins the key of the data of a recipe among several
DataKey = tuple[tuple[str, Any], ...]  # (name, value) of each of `data_keys`


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the recipe's attributes for one trial.

    Raises:
        ValueError: one of them out of range.
    """

    batch_size: int
    shuffle: Shuffle
    drop_last: bool
    gradient_clip_val: float | None
    accumulate_grad_batches: int
    precision: Precision
    nan_patience: int
    batch_per_slot: bool = False
    lr_rule: LRRule = "linear"
    fuse_random: bool = False
    data_key: DataKey = ()  # what the trial's data depends on
    carries: bool = False  # steps hand a state from batch to batch

    @property
    def order(self) -> str:
        """The order of the samples in a pass, as `Stream.chunks` takes it."""
        if self.carries:
            return f"{STREAMS}{self.batch_size}"
        return self.shuffle

    @property
    def scored_order(self) -> str:
        """The order of the validation samples."""
        if self.carries:
            return self.order
        return "once"

    def __post_init__(self) -> None:
        _check_whole("batch_size", self.batch_size, 1, ', or "max"')
        _check_whole("accumulate_grad_batches", self.accumulate_grad_batches, 1)
        _check_whole("nan_patience", self.nan_patience, 0)
        if self.shuffle not in ORDERS:
            raise ValueError(
                f'shuffle must be "once", "each" or "sequential"; got {self.shuffle!r}'
            )
        if self.precision not in ("32", "bf16"):
            raise ValueError(f'precision must be "32" or "bf16"; got {self.precision!r}')
        if not callable(self.lr_rule):
            lr_factor(self.lr_rule, 1)
        if self.gradient_clip_val is not None and not self.gradient_clip_val > 0:
            raise ValueError(
                "gradient_clip_val must be > 0, or None for no clipping; "
                f"got {self.gradient_clip_val!r}"
            )


def _check_whole(name: str, value: Any, least: int, also: str = "") -> None:
    """Raise ValueError unless the value is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}{also}; got {value!r}")


def settings(recipe: Recipe, config: Mapping[str, Any]) -> Settings:
    """The recipe's attributes, with the config's values in their place.

    Raises:
        ValueError: one of them out of range.
    """
    refuse_settings(recipe, config)
    derived = ("data_key", "carries")
    names = [field.name for field in fields(Settings) if field.name not in derived]
    values = {name: config.get(name, getattr(recipe, name)) for name in names}
    for name in ("batch_size", "accumulate_grad_batches", "nan_patience"):
        values[name] = _as_whole(values[name])
    for name in ("drop_last", "batch_per_slot", "fuse_random"):
        values[name] = bool(values[name])
    values["precision"] = str(values["precision"])
    return Settings(**values, data_key=data_key(recipe, config), carries=carries_state(recipe))


def _as_whole(value: Any) -> Any:
    """The value as an int if it is a whole number: a searcher may give 32.0."""
    if isinstance(value, float | np.integer) and value == int(value):
        return int(value)
    return value


def data_key(recipe: Recipe, config: Mapping[str, Any]) -> DataKey:
    """What the trial's chunks depend on, beside the data: equal for trials that see the same ones.

    Raises:
        ValueError: one of `data_keys` is neither in the configuration nor an attribute of the
            recipe.
    """
    key: list[tuple[str, Any]] = []
    missing = []
    if recipe.recipe_name:
        key.append((PART, recipe.recipe_name))
    for name in recipe.data_keys:
        if name in config:
            key.append((name, config[name]))
        elif hasattr(recipe, name):
            key.append((name, getattr(recipe, name)))
        else:
            missing.append(name)
    if recipe.data_folds:
        key.append((FOLD, _fold(config, recipe.data_folds)))
    if missing:
        raise ValueError(
            f"data_keys names {', '.join(missing)}: give it in the configuration, "
            "or the recipe an attribute for it"
        )
    return tuple(key)


def _fold(config: Mapping[str, Any], count: int) -> int:
    """The fold that the trial validates on.

    Raises:
        ValueError: the configuration has none, or it is not one of them.
    """
    fold = _as_whole(config.get(FOLD))
    if isinstance(fold, bool) or fold not in range(count):
        raise ValueError(
            f'data in folds needs config["fold"], a whole number from 0 to {count - 1}; '
            f"got {fold!r}: search over {{'fold': shoal.grid(range({count}))}}"
        )
    return int(fold)


def seen_by(recipe: Recipe, key: DataKey) -> Recipe:
    """The recipe whose `prepare`, `augment` and `features` are those of trials with this key."""
    if isinstance(recipe, Recipes):
        recipe = recipe.parts[dict(key)[PART]]
    if not key:
        return recipe
    variant = copy(recipe)
    arguments = {name: value for name, value in key if name in recipe.data_keys}
    for hook in ("prepare", "augment", "features"):
        if overrides(recipe, hook):
            setattr(variant, hook, partial(getattr(recipe, hook), **arguments))
    return variant


def seed_of(config: Mapping[str, Any], study: int) -> int:
    """The trial's seed: `config["seed"]` where it is set, otherwise the study's.

    Raises:
        ValueError: it is not a whole number.
    """
    seed = config.get("seed", study)
    if isinstance(seed, bool) or not isinstance(seed, int | float) or seed != int(seed):
        raise ValueError(f"seed must be a whole number; got {seed!r}")
    return int(seed)
