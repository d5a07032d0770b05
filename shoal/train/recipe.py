"""The user's code: how to build data, a model, its optimizer, and a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from shoal.train.seat import LRRule, lr_factor

if TYPE_CHECKING:
    from shoal.train.data import Data

Shuffle = Literal["once", "each"]
Precision = Literal["32", "bf16"]
DataKey = tuple[tuple[str, Any], ...]  # (name, value) of each of `data_keys`
Samples = Any  # whole columns as NumPy arrays: a tuple, or a dict when the data's columns have names


class Recipe:
    """How to train one model, given a configuration; subclass it. It holds no trial's state.

    The attributes are defaults; a key of the same name in a trial's config goes before. What the methods get:
    `config` is the trial's, a batch is a tuple of tensors (a dict where the data's columns have names), first axis samples.
    `configure_*` run under the trial's seed (`config["seed"]`, otherwise the study's), and all of a trial's methods under
    random states of its own: draw from torch, NumPy or `random` as if the trial were alone.
    """

    batch_size: int | Literal["max"] = 32  # "max": the largest power of two that fits, found out before a trial begins
    shuffle: Shuffle = "once"  # "once": a fixed random order; "each": another one in each pass
    drop_last: bool = False  # leave out the smaller batch at the end of a shard's pass
    gradient_clip_val: float | None = None  # largest 2-norm of the whole gradient
    accumulate_grad_batches: int = 1  # batches to a step; the gradient is the mean over all their samples
    precision: Precision = "32"  # "bf16": autocast
    nan_patience: int = 10  # steps in a row whose loss may be infinite or NaN before the trial is set aside
    fuse_random: bool = False  # fused packs may draw other random numbers (dropout masks): equal in distribution only
    batch_per_slot: bool = False  # a batch is batch_size for each slot of a wide lane: it grows with the lane, and so may
    lr_rule: LRRule = "linear"  # the learning rate; or "sqrt", "none", or a method lr_rule(self, width) -> factor

    data_keys: tuple[str, ...] = ()  # keys of the configuration that `prepare`, `augment` and `features` get by name, too

    search_space: ClassVar[Mapping[str, Any] | None] = None  # these five: for the command line
    metric: ClassVar[str | None] = None
    mode: ClassVar[Literal["min", "max"] | None] = None
    max_epochs: ClassVar[int | None] = None
    num_samples: ClassVar[int | None] = None

    def data(self) -> Data:
        """The training and validation data of the study; called once per node."""
        raise NotImplementedError(f"{type(self).__name__} needs a method data(self) -> shoal.Data")

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        """A new model; Shoal moves it to its device."""
        raise NotImplementedError(f"{type(self).__name__} needs a method configure_model(self, config) -> torch.nn.Module")

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        """An optimizer, (optimizer, scheduler), or {"optimizer": …, "lr_scheduler": …}.

        The scheduler is a torch one, stepped at the end of each epoch (ReduceLROnPlateau with the study's metric), or an
        `LRSchedule`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method configure_optimizers(self, model, config) -> torch.optim.Optimizer"
        )

    def training_step(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Any]:
        """The loss, a scalar: the mean over the batch; or {"loss": loss, name: another mean over the batch, …}."""
        raise NotImplementedError(f"{type(self).__name__} needs a method training_step(self, model, batch) -> loss")

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """{name: values of shape (n,), one for each of the n samples}; Shoal averages them over the validation data.

        Runs without gradients, with the model in evaluation mode. Not defined: nothing is validated.
        """
        return {}

    def prepare(self, samples: Samples) -> Samples:
        """The columns as they are to be trained on; a function of its argument alone, for its result is kept."""
        return samples

    def augment(self, samples: Samples, rng: np.random.Generator) -> Samples:
        """Prepared columns, varied; called in each pass, its result is not kept. Draws from `rng` only."""
        return samples

    def features(self, samples: Any) -> Any:
        """What steps are to see instead of these columns: those of a frozen featurizer (a pretrained network, say).

        Gets tensors on the device, prepared and augmented, some hundreds of samples at a time; the result takes their place in
        `training_step` and `validation_step`. Runs without gradients, once for each chunk that trials share; what comes of it is
        kept as prepared data is, where nothing is augmented. A function of its argument alone: build its model at the first
        call, keep it in the recipe, in evaluation mode, on the samples' device; it draws random numbers at most to build it,
        which is done under the study's seed.
        """
        return samples


def overrides(recipe: Recipe, method: str) -> bool:
    """Whether the recipe brings its own version of the method."""
    return getattr(getattr(recipe, method), "__func__", None) is not getattr(Recipe, method)


@dataclass(frozen=True, slots=True)
class LRSchedule:
    """The learning rate as a function of progress alone: base * factor(progress), set before every step.

    Progress is in epochs (with fractions) or in samples, so the same schedule holds for every batch size.

    Raises:
        ValueError: a unit other than those two.
    """

    factor: Callable[[float], float]
    unit: Literal["epochs", "samples"] = "epochs"

    def __post_init__(self) -> None:
        if self.unit not in ("epochs", "samples"):
            raise ValueError(f'LRSchedule: unit must be "epochs" or "samples"; got {self.unit!r}')


@dataclass(frozen=True, slots=True)
class Settings:
    """The recipe's attributes as they hold for one trial.

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
        for name, least in (("batch_size", 1), ("accumulate_grad_batches", 1), ("nan_patience", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                also = ', or "max"' if name == "batch_size" else ""
                raise ValueError(f"{name} must be a whole number >= {least}{also}; got {value!r}")
        if self.shuffle not in ("once", "each"):
            raise ValueError(f'shuffle must be "once" or "each"; got {self.shuffle!r}')
        if self.precision not in ("32", "bf16"):
            raise ValueError(f'precision must be "32" or "bf16"; got {self.precision!r}')
        if not callable(self.lr_rule):
            lr_factor(self.lr_rule, 1)
        if self.gradient_clip_val is not None and not self.gradient_clip_val > 0:
            raise ValueError(f"gradient_clip_val must be > 0, or None for no clipping; got {self.gradient_clip_val!r}")


def settings(recipe: Recipe, config: Mapping[str, Any]) -> Settings:
    """The recipe's attributes with the config's values put over them.

    Raises:
        ValueError: one of them out of range.
    """
    values = {f.name: config.get(f.name, getattr(recipe, f.name)) for f in fields(Settings) if f.name != "data_key"}
    whole = ("batch_size", "accumulate_grad_batches", "nan_patience")
    for name in whole:  # a searcher may give 32.0
        if isinstance(values[name], float | np.integer) and values[name] == int(values[name]):
            values[name] = int(values[name])
    for name in ("drop_last", "batch_per_slot", "fuse_random"):
        values[name] = bool(values[name])
    values["precision"] = str(values["precision"])
    return Settings(**values, data_key=data_key(recipe, config))


def data_key(recipe: Recipe, config: Mapping[str, Any]) -> DataKey:
    """What the trial's data depends on, beside the data itself: equal for trials that see the same chunks.

    Raises:
        ValueError: one of `data_keys` is neither in the configuration nor an attribute of the recipe.
    """
    missing = [name for name in recipe.data_keys if name not in config and not hasattr(recipe, name)]
    if missing:
        raise ValueError(f"data_keys names {', '.join(missing)}: give it in the configuration, or the recipe an attribute for it")
    return tuple((name, config[name] if name in config else getattr(recipe, name)) for name in recipe.data_keys)


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


def optimizing(made: Any) -> tuple[Optimizer, Any]:
    """The optimizer, and its scheduler or None, out of what `configure_optimizers` gave.

    Raises:
        TypeError: it is none of the forms described there.
    """
    if isinstance(made, Optimizer):
        return made, None
    if isinstance(made, Mapping) and "optimizer" in made and not set(made) - {"optimizer", "lr_scheduler"}:
        made = (made["optimizer"], made.get("lr_scheduler"))
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], Optimizer):
        scheduler = made[1]
        if scheduler is None or isinstance(scheduler, LRSchedule | LRScheduler):
            return made[0], scheduler
    raise TypeError(
        "configure_optimizers must return an optimizer, (optimizer, scheduler) or "
        f'{{"optimizer": …, "lr_scheduler": …}}; got {type(made).__name__}: {str(made)[:80]}'
    )
