"""What a recipe's attributes and a trial's configuration say of its training."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from shoal.train.recipe.recipe import Precision, Recipe, Shuffle, overrides
from shoal.train.recipe.seat import LRRule, lr_factor
from shoal.train.recipe.shard import refuse_settings

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

    def __post_init__(self) -> None:
        _check_whole("batch_size", self.batch_size, 1, ', or "max"')
        _check_whole("accumulate_grad_batches", self.accumulate_grad_batches, 1)
        _check_whole("nan_patience", self.nan_patience, 0)
        if self.shuffle not in ("once", "each"):
            raise ValueError(f'shuffle must be "once" or "each"; got {self.shuffle!r}')
        if self.precision not in ("32", "bf16"):
            raise ValueError(
                f'precision must be "32" or "bf16"; got {self.precision!r}'
            )
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
        raise ValueError(
            f"{name} must be a whole number >= {least}{also}; got {value!r}"
        )


def settings(recipe: Recipe, config: Mapping[str, Any]) -> Settings:
    """The recipe's attributes, with the config's values in their place.

    Raises:
        ValueError: one of them out of range.
    """
    refuse_settings(recipe, config)
    names = [field.name for field in fields(Settings) if field.name != "data_key"]
    values = {name: config.get(name, getattr(recipe, name)) for name in names}
    for name in ("batch_size", "accumulate_grad_batches", "nan_patience"):
        values[name] = _as_whole(values[name])
    for name in ("drop_last", "batch_per_slot", "fuse_random"):
        values[name] = bool(values[name])
    values["precision"] = str(values["precision"])
    return Settings(**values, data_key=data_key(recipe, config))


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
    for name in recipe.data_keys:
        if name in config:
            key.append((name, config[name]))
        elif hasattr(recipe, name):
            key.append((name, getattr(recipe, name)))
        else:
            missing.append(name)
    if missing:
        raise ValueError(
            f"data_keys names {', '.join(missing)}: give it in the configuration, "
            "or the recipe an attribute for it"
        )
    return tuple(key)


def seen_by(recipe: Recipe, key: DataKey) -> Recipe:
    """The recipe whose `prepare`, `augment` and `features` are those of trials with this key."""
    if not key:
        return recipe
    made = copy(recipe)
    for hook in ("prepare", "augment", "features"):
        if overrides(recipe, hook):
            setattr(made, hook, partial(getattr(recipe, hook), **dict(key)))
    return made


def seed_of(config: Mapping[str, Any], study: int) -> int:
    """The trial's seed: `config["seed"]` where it is set, otherwise the study's.

    Raises:
        ValueError: it is not a whole number.
    """
    seed = config.get("seed", study)
    if isinstance(seed, bool) or not isinstance(seed, int | float) or seed != int(seed):
        raise ValueError(f"seed must be a whole number; got {seed!r}")
    return int(seed)
