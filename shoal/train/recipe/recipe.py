"""The user's code: how to build data, a model, its optimizer, and a loss."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from shoal.train.recipe.seat import LRRule, lr_factor

if TYPE_CHECKING:
    from shoal.train.recipe.data import Data

Shuffle = Literal["once", "each"]
Precision = Literal["32", "bf16"]
DataKey = tuple[tuple[str, Any], ...]  # (name, value) of each of `data_keys`
# Whole columns as NumPy arrays: a tuple, or a dict if the data's columns have names.
Samples = Any

_thread = threading.local()  # `hook`: the method of a trial that runs in this thread


class RecipeState(AttributeError):  # noqa: N818
    """A method that runs for one trial set an attribute of the recipe."""


class guarded:  # noqa: N801 - used like a function; a class costs a step half as much
    """While `with guarded(hook)` lasts, this thread may set no attribute of a recipe."""

    __slots__ = ("_before", "_hook")

    def __init__(self, hook: str) -> None:
        self._hook = hook

    def __enter__(self) -> None:
        self._before = getattr(_thread, "hook", None)
        _thread.hook = self._hook

    def __exit__(self, *_: object) -> None:
        _thread.hook = self._before


def refuse(recipe: object, name: str) -> None:
    """Raise if a trial's method runs in this thread.

    Raises:
        RecipeState: it does; `name` is the attribute of the recipe that it sets or deletes.
    """
    hook = getattr(_thread, "hook", None)
    if hook is None:
        return
    raise RecipeState(
        f"{hook} sets self.{name}, but trials share the recipe, so that a neighbour would get the "
        f"value of this trial. What a step needs of the configuration it gets as an argument: "
        f"training_step(self, model, batch, config). What belongs to the trial goes on its model "
        f"(model.{name} = ...). What all trials share is set in {type(recipe).__name__}.__init__ "
        "or in data()."
    )


OPTIONAL = ("config", "epoch")  # arguments that a step gets if it names them


class Recipe:
    """How to train one model, given a configuration; subclass it.

    All trials share the recipe: `configure_*` and steps may not set its attributes.
    The attributes are defaults: a key of the same name in a trial's config takes precedence.
    Methods get the trial's `config`. A batch is a tuple of tensors, or a dict if the data's columns
    have names; the first axis is samples.

    `configure_*` run under the trial's seed: `config["seed"]`, otherwise the study's. All methods
    of a trial run under random states of its own: draw from torch, NumPy or `random` as if the
    trial were alone.
    """

    # samples; "max": the largest power of two that fits, found out before a trial begins
    batch_size: int | Literal["max"] = 32
    # "once": a fixed random order; "each": another one in each pass
    shuffle: Shuffle = "once"
    # leave out the smaller batch at the end of a shard's pass
    drop_last: bool = False
    # largest 2-norm of the whole gradient
    gradient_clip_val: float | None = None
    # batches to a step; the gradient is the mean over all their samples
    accumulate_grad_batches: int = 1
    # "bf16": autocast
    precision: Precision = "32"
    # steps in a row whose loss may be infinite or NaN before the trial is set aside
    nan_patience: int = 10
    # fused packs may draw other random numbers (dropout masks): equal in distribution only
    fuse_random: bool = False
    # a batch is `batch_size` for each slot of a wide lane, so that it grows with the lane
    batch_per_slot: bool = False
    # then the learning rate grows by this rule, or by a method lr_rule(self, width) -> factor
    lr_rule: LRRule = "linear"
    # keys of the configuration that `prepare`, `augment` and `features` get by name, too
    data_keys: tuple[str, ...] = ()

    # these five are for the command line
    search_space: ClassVar[Mapping[str, Any] | None] = None
    metric: ClassVar[str | None] = None
    mode: ClassVar[Literal["min", "max"] | None] = None
    max_epochs: ClassVar[int | None] = None
    num_samples: ClassVar[int | None] = None

    def __setattr__(self, name: str, value: Any) -> None:
        refuse(self, name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        refuse(self, name)
        object.__delattr__(self, name)

    def data(self) -> Data:
        """The training and validation data of the study; called once per node."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method data(self) -> shoal.Data"
        )

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        """A new model; Shoal moves it to its device."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method configure_model(self, config) -> torch.nn.Module"
        )

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        """An optimizer, (optimizer, scheduler), or {"optimizer": …, "lr_scheduler": …}.

        The scheduler is an `LRSchedule` or one of torch's. Torch's are stepped at the end of each
        epoch (ReduceLROnPlateau with the study's metric); OneCycleLR and CyclicLR, and
        {"scheduler": …, "interval": "step"}, after each optimizer step.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method "
            "configure_optimizers(self, model, config) -> torch.optim.Optimizer"
        )

    def training_step(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Any]:
        """The loss, a scalar: the mean over the batch.

        Or {"loss": loss, name: another mean over the batch, …}. A step that names an argument
        `config` gets the trial's configuration; one that names `epoch` gets the number of whole
        epochs trained so far.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method training_step(self, model, batch) -> loss"
        )

    def validation_step(
        self, model: nn.Module, batch: Any
    ) -> Tensor | Mapping[str, Any]:
        """{name: values of shape (n,), one for each of the n samples}; Shoal averages them.

        One number instead of n values is the batch's mean, and weighted by n; a tensor alone is
        the loss. Runs without gradients, with the model in evaluation mode. Not defined: nothing
        is validated.
        """
        return {}

    def prepare(self, samples: Samples) -> Samples:
        """The columns as trials are to train on them.

        The result is kept, so that it must depend on the argument alone.
        """
        return samples

    def augment(self, samples: Samples, rng: np.random.Generator) -> Samples:
        """Prepared columns, varied at random in each pass; the result is not kept.

        Draw from `rng` only.
        """
        return samples

    def features(self, samples: Any) -> Any:
        """What steps are to see instead of these columns: the output of a frozen featurizer.

        That may be a pretrained network. `features` gets tensors on the device, prepared and
        augmented, some hundreds of samples at a time. The result takes their place in
        `training_step` and `validation_step`.

        It runs without gradients, once for each chunk that trials share. The result must depend on
        the argument alone; if nothing is augmented, it is kept. Build the model at the first call,
        which runs under the study's seed, and keep it in the recipe, in evaluation mode, on the
        samples' device. Draw random numbers only to build it.
        """
        return samples


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


def overrides(recipe: Recipe, method: str) -> bool:
    """Whether the recipe brings its own version of the method."""
    return getattr(getattr(recipe, method), "__func__", None) is not getattr(
        Recipe, method
    )


def validates(recipe: Recipe, data: Data) -> bool:
    """Whether trials can be scored on validation data."""
    return bool(data.validation) and overrides(recipe, "validation_step")


@dataclass(frozen=True, slots=True)
class LRSchedule:
    """The learning rate as a function of progress alone: base * factor(progress).

    It is set before every step. Progress is in epochs (with fractions) or in samples, so that a
    schedule holds for every batch size.

    Raises:
        ValueError: a unit other than those two.
    """

    factor: Callable[[float], float]
    unit: Literal["epochs", "samples"] = "epochs"

    def __post_init__(self) -> None:
        if self.unit not in ("epochs", "samples"):
            raise ValueError(
                f'LRSchedule: unit must be "epochs" or "samples"; got {self.unit!r}'
            )


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
