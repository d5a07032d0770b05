"""The user's code: how to build data, a model, its optimizer, and a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from shoal.core.cluster import ShardId
from shoal.train.data.formats import read_whole
from shoal.train.recipe.guard import refuse
from shoal.train.recipe.seat import LRRule

if TYPE_CHECKING:
    from shoal.train.data.data import Data

Shuffle = Literal["once", "each", "sequential"]
Precision = Literal["32", "bf16"]
# Whole columns as NumPy arrays: a tuple, or a dict if the data's columns have names.
Samples = Any


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
    # "once": a fixed random order; "each": another one in each pass; "sequential": that of the data
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
    # set by data in folds: their number
    data_folds: int = 0
    # set where a study has several recipes: the name of this one
    recipe_name: str = ""

    # what `optimize` takes where it is not told; these are for the command line, too
    search_space: ClassVar[Mapping[str, Any] | None] = None
    metric: ClassVar[str | None] = None
    mode: ClassVar[Literal["min", "max"] | None] = None
    max_epochs: ClassVar[int | None] = None
    num_samples: ClassVar[int | None] = None
    validate_every: ClassVar[float | str | None] = None

    def __setattr__(self, name: str, value: Any) -> None:
        refuse(self, name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        refuse(self, name)
        object.__delattr__(self, name)

    def data(self) -> Data:
        """The training and validation data of the study; called once per node."""
        raise NotImplementedError(f"{type(self).__name__} needs a method data(self) -> shoal.Data")

    def read(self, path: Path) -> Samples:
        """The columns of one shard's file: arrays of equal length, as a tuple or a dict.

        For `Data.shards`. Without this the usual formats are read. The whole file is read whenever
        a pass over the shard begins.
        """
        return read_whole(path, None, ShardId(path.name))

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        """A new model; Shoal moves it to its device."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method configure_model(self, config) -> torch.nn.Module"
        )

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        """An optimizer, (optimizer, scheduler), or {"optimizer": …, "lr_scheduler": …}.

        Or a list of these, for a training step that names `optimizers`.

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
        epochs trained so far, one that names `step` the number of optimizer steps taken so far.

        A step that names `state` gets what it returned with the batch before (None at the start of
        a pass), and returns two things: the loss, and the state for the next batch, tensors in
        tuples, lists or dicts. A batch then continues the samples of the batch before.

        A step that names `optimizers` gets them as a tuple. It calls backward, step and zero_grad
        by itself, and returns the numbers to note.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method training_step(self, model, batch) -> loss"
        )

    def validation_step(self, model: nn.Module, batch: Any) -> Tensor | Mapping[str, Any]:
        """{name: values of shape (n,), one for each of the n samples}; Shoal averages them.

        One number instead of n values is the batch's mean, and weighted by n; a tensor alone is
        the loss. Runs without gradients, with the model in evaluation mode. Not defined: nothing
        is validated. For scores that are no means see `validation_epoch` and `configure_metrics`.
        """
        return {}

    def validation_epoch(self, outputs: dict[str, Tensor]) -> Mapping[str, float | Tensor]:
        """{name: score} of the whole validation set: F1, AUC, perplexity and the like.

        `outputs`: what `validation_step` returned, by name: tensors in main memory, whose first
        axis is all validation samples, in their order. Where this is defined, the values of
        `validation_step` are not averaged: the scores are what this returns.
        """
        return {}

    def configure_metrics(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """{name: metric}: objects with update(…), compute() and reset(), as torchmetrics has them.

        For each, `validation_step` returns {name: (predictions, targets)}, the arguments of
        `update`. A metric is reset before each evaluation, and is no part of the trial's state.
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


def overrides(recipe: Recipe, method: str) -> bool:
    """Whether the recipe brings its own version of the method."""
    return getattr(getattr(recipe, method), "__func__", None) is not getattr(Recipe, method)


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
            raise ValueError(f'LRSchedule: unit must be "epochs" or "samples"; got {self.unit!r}')
