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

    All trials share the recipe: `configure_*` and steps may not set its attributes. The attributes
    are defaults: a key of the same name in a trial's config takes precedence. Methods get the
    trial's `config`. A batch is a tuple of tensors, or a dict if the data's columns have names; the
    first axis is samples.

    `configure_*` run under the trial's seed: `config["seed"]`, otherwise the study's. All methods
    of a trial run under random states of its own: draw from torch, NumPy or `random` as if the
    trial were alone.

    Attributes:
        batch_size: samples. "max": the largest power of two that fits, found out before a trial
            begins.
        shuffle: "once": a fixed random order within a shard; "each": another one in each pass;
            "sequential": that of the data.
        drop_last: leave out the smaller batch at the end of a shard's pass.
        gradient_clip_val: the largest 2-norm of the whole gradient. None: any.
        accumulate_grad_batches: batches to a step; the gradient is the mean over all their samples.
        precision: "32", or "bf16" for autocast.
        nan_patience: steps in a row whose loss may be infinite or NaN; one more and the trial
            fails. It also fails if no step of its last epoch has a finite loss.
        fuse_random: fused packs may draw other random numbers (dropout masks) than training alone:
            equal in distribution only.
        batch_per_slot: a batch is `batch_size` for each slot of a wide trial, so that it grows with
            the slots.
        lr_rule: how the learning rate grows with such a batch: "linear", "sqrt", "none", or a
            method lr_rule(self, width) that returns the factor.
        data_keys: keys of the configuration that `prepare`, `augment` and `features` get by name,
            too.
        data_folds: how many folds the data has; set by the data.
        recipe_name: the recipe's name in a study of several; set by the study.
        search_space: the dimensions to search, where `create_study` is not told.
        metric: the score to rank by, where `create_study` is not told.
        mode: "min" or "max", where `create_study` is not told.
        max_epochs: epochs of each trial, where `optimize` is not told.
        num_samples: trials in all, on the command line where it does not say.
        validate_every: epochs, or optimizer steps as "200 steps", between evaluations, where
            `optimize` is not told.
    """

    batch_size: int | Literal["max"] = 32
    shuffle: Shuffle = "once"
    drop_last: bool = False
    gradient_clip_val: float | None = None
    accumulate_grad_batches: int = 1
    precision: Precision = "32"
    nan_patience: int = 10
    fuse_random: bool = False
    batch_per_slot: bool = False
    lr_rule: LRRule = "linear"
    data_keys: tuple[str, ...] = ()
    data_folds: int = 0
    recipe_name: str = ""

    # for `create_study`, `optimize` and the command line, where they are not told
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

        Args:
            path: the file.
        """
        return read_whole(path, None, ShardId(path.name))

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        """A new model; Shoal moves it to its device.

        Args:
            config: the trial's configuration.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method configure_model(self, config) -> torch.nn.Module"
        )

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        """An optimizer, (optimizer, scheduler), or {"optimizer": …, "lr_scheduler": …}.

        Or a list of these, for a training step that names `optimizers`.

        The scheduler is an `LRSchedule` or one of torch's. Torch's are stepped at the end of each
        epoch (ReduceLROnPlateau with the study's metric); OneCycleLR and CyclicLR, and
        {"scheduler": …, "interval": "step"}, after each optimizer step.

        Args:
            model: as `configure_model` returned it, on its device.
            config: the trial's configuration.
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

        Args:
            model: in training mode.
            batch: a tuple of tensors, or a dict of them, on the model's device.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method training_step(self, model, batch) -> loss"
        )

    def validation_step(self, model: nn.Module, batch: Any) -> Tensor | Mapping[str, Any]:
        """{name: values of shape (n,), one for each of the n samples}; Shoal averages them.

        One number instead of n values is the batch's mean, and weighted by n; a tensor alone is the
        loss. Runs without gradients. Not defined: nothing is validated. For scores that are no
        means see `validation_epoch` and `configure_metrics`.

        Args:
            model: in evaluation mode.
            batch: as for `training_step`.
        """
        return {}

    def validation_epoch(self, outputs: dict[str, Tensor]) -> Mapping[str, float | Tensor]:
        """{name: score} of the whole validation set: F1, AUC, perplexity and the like.

        Where this is defined, the values of `validation_step` are not averaged: the scores are what
        this returns.

        Args:
            outputs: what `validation_step` returned, by name: tensors in main memory, whose first
                axis is all validation samples, in their order.
        """
        return {}

    def configure_metrics(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """{name: metric}: objects with update(…), compute() and reset(), as torchmetrics has them.

        For each, `validation_step` returns {name: (predictions, targets)}, the arguments of
        `update`. A metric is reset before each evaluation, and is no part of the trial's state.

        Args:
            config: the trial's configuration.
        """
        return {}

    def prepare(self, samples: Samples) -> Samples:
        """The columns as trials are to train on them.

        The result is kept, so that it must depend on the argument alone.

        Args:
            samples: columns of a chunk of samples, as NumPy arrays.
        """
        return samples

    def augment(self, samples: Samples, rng: np.random.Generator) -> Samples:
        """Prepared columns, varied at random in each pass; the result is not kept.

        Args:
            samples: as `prepare` returned them.
            rng: draw from it only.
        """
        return samples

    def features(self, samples: Any) -> Any:
        """What steps are to see instead of these columns: the output of a frozen featurizer.

        That may be a pretrained network. It runs without gradients, once for each chunk that trials
        share. The result takes the columns' place in `training_step` and `validation_step`. It must
        depend on the argument alone; if nothing is augmented, it is kept.

        Build the model at the first call, which runs under the study's seed, and keep it in the
        recipe, in evaluation mode, on the samples' device. Draw random numbers only to build it.

        Args:
            samples: tensors on the device, prepared and augmented, some hundreds of samples at a
                time.
        """
        return samples


def overrides(recipe: Recipe, method: str) -> bool:
    """Whether the recipe brings its own version of the method."""
    return getattr(getattr(recipe, method), "__func__", None) is not getattr(Recipe, method)


@dataclass(frozen=True, slots=True)
class LRSchedule:
    """The learning rate as a function of progress alone: base * factor(progress).

    It is set before every step. Progress is in epochs or samples, so a schedule holds for every
    batch size.

    Args:
        factor: the function of the progress, from 0 on.
        unit: of the progress: "epochs" (with fractions) or "samples".

    Raises:
        ValueError: a unit other than those two.
    """

    factor: Callable[[float], float]
    unit: Literal["epochs", "samples"] = "epochs"

    def __post_init__(self) -> None:
        if self.unit not in ("epochs", "samples"):
            raise ValueError(f'LRSchedule: unit must be "epochs" or "samples"; got {self.unit!r}')
