"""Data out of DataLoaders and LightningDataModules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from shoal.train.adapt.kinds import (
    is_data_module,
    is_data_module_class,
    overrides,
)
from shoal.train.data.columns import DataError
from shoal.train.data.data import Data


@dataclass(frozen=True)
class Sources:
    """Training and validation data: DataLoaders or data sets; and the data module that made them.

    `validation`: None if there is none.
    """

    training: Any
    validation: Any
    data_module: Any = None


def sources(train: Any, valid: Any, data_module: Any) -> Sources:
    """What the user gave, or what the data module's loaders give.

    Raises:
        DataError: there is no training data, or a loader that Shoal cannot follow.
    """
    if data_module is not None:
        made = opened(data_module)
        if train is None:
            train = _loader_of(made, "train_dataloader")
        if valid is None:
            valid = _loader_of(made, "val_dataloader")
        data_module = made
    validation = None if valid is None else single(called(valid), "valid")
    return Sources(single(called(train), "train"), validation, data_module)


def opened(data_module: Any) -> Any:
    """The data module, prepared for training.

    Raises:
        DataError: it is none.
    """
    made = data_module
    if is_data_module_class(made) or (callable(made) and not is_data_module(made)):
        made = made()
    if not is_data_module(made):
        raise DataError(
            "datamodule must be a LightningDataModule, its class, or a function that returns one; "
            f"got {type(made).__name__}"
        )
    made.prepare_data()
    made.setup("fit")
    return made


def _loader_of(made: Any, method: str) -> Any:
    """What the method of a data module or module returns; None if the user's class has none."""
    if not overrides(type(made), method):
        return None
    return getattr(made, method)()


def loaders_of(module: Any) -> tuple[Any, Any]:
    """The loaders that a LightningModule makes itself; None for those it does not."""
    if overrides(type(module), "prepare_data"):
        module.prepare_data()
    return _loader_of(module, "train_dataloader"), _loader_of(module, "val_dataloader")


def called(given: Any) -> Any:
    """What a function returns; anything else as it is."""
    if callable(given) and not hasattr(given, "__getitem__"):
        return given()
    return given


def single(given: Any, name: str) -> Any:
    """The DataLoader or data set given; that of a list of one. None: validation has none.

    Raises:
        DataError: there is none, or there are several.
    """
    several = list(given.values()) if isinstance(given, Mapping) else given
    if isinstance(several, list | tuple) and any(isinstance(each, DataLoader) for each in several):
        if len(several) > 1:
            raise DataError(
                f"{name} has {len(several)} DataLoaders; Shoal takes one: join their data sets "
                "with torch.utils.data.ConcatDataset"
            )
        (given,) = several
    if name == "valid" and (given is None or given == []):
        return None
    usable = isinstance(given, DataLoader | IterableDataset)
    if not usable and not hasattr(given, "__getitem__"):
        raise DataError(
            f"{name} must be a DataLoader, a Dataset, or a function that returns one; "
            f"got {type(given).__name__}"
        )
    return given


def as_data(
    found: Sources, shards: int | None, fraction: float | None, samples: int | None
) -> Data:
    """The data of a study.

    `fraction`: set aside for validation where no validation data is given. `samples`: to read of an
    IterableDataset.
    """
    validation = found.validation
    if validation is None:
        validation = fraction
    return Data.dataset(found.training, validation, shards, samples=samples)


def batch_forms(found: Sources) -> tuple[str, str]:
    """How DataLoaders hand out batches to train and to validate on.

    Each as a "dict", "list" or "tensor", or "as it is".
    """
    given = (found.training, found.validation)
    loaders = [each for each in given if isinstance(each, DataLoader)]
    if any(loader.collate_fn is not default_collate for loader in loaders):
        return "as it is", "as it is"
    training = _batch_form(found.training)
    if found.validation is None:
        return training, training
    return training, _batch_form(found.validation)


def _batch_form(dataset: Any) -> str:
    """How torch's default collate makes batches of a data set's, or a loader's, items."""
    if isinstance(dataset, DataLoader):
        dataset = dataset.dataset
    if isinstance(dataset, IterableDataset):
        item = next(iter(dataset))
    else:
        item = dataset[0]
    if isinstance(item, Mapping):
        return "dict"
    return "list" if isinstance(item, tuple | list) else "tensor"


def in_form(batch: Any, form: str) -> Any:
    """A batch of Shoal's, as torch's DataLoader hands it out."""
    if form == "as it is" or not isinstance(batch, tuple):
        return batch
    return batch[0] if form == "tensor" else list(batch)


def samples_in(batch: Any) -> int:
    """How many samples a batch has: the length of its first tensor."""
    if isinstance(batch, torch.Tensor):
        return len(batch)
    parts = batch.values() if isinstance(batch, Mapping) else batch
    return samples_in(next(iter(parts)))
