"""Data out of DataLoaders and LightningDataModules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from shoal.train.adapt.kinds import (
    is_data_module,
    is_data_module_class,
    overrides,
)
from shoal.train.data.columns import DataError
from shoal.train.data.data import Data


@dataclass(frozen=True)
class Loaded:
    """A data set, and how its loader makes batches of it; None: the loader does not say."""

    dataset: Any
    batch_size: int | None = None
    shuffles: bool | None = None
    drop_last: bool = False
    collate: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Sources:
    """Training and validation data, and the data module that made them."""

    training: Loaded
    validation: Loaded | None
    data_module: Any = None


def sources(train: Any, valid: Any, data_module: Any) -> Sources:
    """What the user gave, or what the data module's loaders give.

    Raises:
        DataError: there is no training data, or a loader that Shoal cannot follow.
    """
    if data_module is not None:
        made = opened(data_module)
        train = train or _loader_of(made, "train_dataloader")
        valid = valid or _loader_of(made, "val_dataloader")
        data_module = made
    validation = None if valid is None else loaded(called(valid), "valid")
    return Sources(loaded(called(train), "train"), validation, data_module)


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


def loaded(given: Any, name: str) -> Loaded:
    """The data set in a DataLoader, or the data set given.

    Raises:
        DataError: there is none, there are several, or the loader's way cannot be followed.
    """
    if isinstance(given, list | tuple) and given and isinstance(given[0], DataLoader):
        if len(given) > 1:
            raise DataError(
                f"{name} has {len(given)} DataLoaders; Shoal takes one: join their data sets "
                "with torch.utils.data.ConcatDataset"
            )
        given = given[0]
    if isinstance(given, DataLoader):
        return _of_loader(given, name)
    if given is None or not hasattr(given, "__getitem__"):
        raise DataError(
            f"{name} must be a DataLoader, a Dataset with __getitem__ and __len__, or a function "
            f"that returns one; got {type(given).__name__}"
        )
    return Loaded(given)


def _of_loader(loader: DataLoader[Any], name: str) -> Loaded:
    """The data set of a DataLoader, and how the loader makes batches of it."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        raise DataError(
            f"the DataLoader of {name} must have a map-style data set and a batch_size; got "
            f"{type(loader.dataset).__name__} and batch_size={loader.batch_size}"
        )
    if not isinstance(loader.sampler, RandomSampler | SequentialSampler):
        raise DataError(
            f"the DataLoader of {name} has a {type(loader.sampler).__name__}: Shoal follows "
            "shuffle=True and shuffle=False"
        )
    collate = loader.collate_fn
    return Loaded(
        dataset=loader.dataset,
        batch_size=loader.batch_size,
        shuffles=isinstance(loader.sampler, RandomSampler),
        drop_last=loader.drop_last,
        collate=None if collate is default_collate else collate,
    )


def as_data(found: Sources, shards: int | None, fraction: float | None) -> Data:
    """The data of a study.

    `fraction`: set aside for validation where no validation data is given.
    """
    validation = fraction
    if found.validation is not None:
        validation = found.validation.dataset
    training = found.training
    return Data.dataset(training.dataset, validation, shards, collate=training.collate)


def batch_form(loaded: Loaded) -> str:
    """How the DataLoader hands out batches: as a "dict", "list" or "tensor", or "as it is"."""
    if loaded.collate is not None:
        return "as it is"
    item = loaded.dataset[0]
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
