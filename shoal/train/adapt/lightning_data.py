"""The data of a LightningModule's trials, and what all of them have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from shoal.train.adapt.lightning_classes import is_data_module, is_data_module_class, overrides
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
        data_module = open_data_module(data_module)
        if train is None:
            train = _loader_of(data_module, "train_dataloader")
        if valid is None:
            valid = _loader_of(data_module, "val_dataloader")
    validation = None if valid is None else single(called(valid), "valid")
    return Sources(single(called(train), "train"), validation, data_module)


def open_data_module(data_module: Any) -> Any:
    """The data module, prepared for training.

    Raises:
        DataError: it is none.
    """
    is_class = is_data_module_class(data_module)
    if is_class or (callable(data_module) and not is_data_module(data_module)):
        data_module = data_module()
    if not is_data_module(data_module):
        raise DataError(
            "datamodule must be a LightningDataModule, its class, or a function that returns one; "
            f"got {type(data_module).__name__}"
        )
    data_module.prepare_data()
    data_module.setup("fit")
    return data_module


def _loader_of(owner: Any, method: str) -> Any:
    """What the method of a data module or module returns; None if the user's class has none."""
    if not overrides(type(owner), method):
        return None
    return getattr(owner, method)()


def loaders_of(module: Any) -> tuple[Any, Any]:
    """The loaders that a LightningModule makes itself; None for those it does not."""
    if overrides(type(module), "prepare_data"):
        module.prepare_data()
    return _loader_of(module, "train_dataloader"), _loader_of(module, "val_dataloader")


def called(data: Any) -> Any:
    """What a function returns; anything else as it is."""
    if callable(data) and not hasattr(data, "__getitem__"):
        return data()
    return data


def single(data: Any, name: str) -> Any:
    """The DataLoader or data set that was given, alone or as a list of one; None: no validation.

    Raises:
        DataError: there is none, or there are several.
    """
    loaders = list(data.values()) if isinstance(data, Mapping) else data
    if isinstance(loaders, list | tuple) and any(isinstance(each, DataLoader) for each in loaders):
        if len(loaders) > 1:
            raise DataError(
                f"{name} has {len(loaders)} DataLoaders; Shoal takes one: join their data sets "
                "with torch.utils.data.ConcatDataset"
            )
        (data,) = loaders
    if name == "valid" and (data is None or data == []):
        return None
    usable = isinstance(data, DataLoader | IterableDataset)
    if not usable and not hasattr(data, "__getitem__"):
        raise DataError(
            f"{name} must be a DataLoader, a Dataset, or a function that returns one; "
            f"got {type(data).__name__}"
        )
    return data


def as_data(
    sources: Sources, shards: int | None, fraction: float | None, samples: int | None
) -> Data:
    """The data of a study.

    `fraction`: set aside for validation where no validation data is given. `samples`: to read of an
    IterableDataset.
    """
    validation = sources.validation
    if validation is None:
        validation = fraction
    return Data.dataset(sources.training, validation, shards, samples=samples)


def batch_forms(sources: Sources) -> tuple[str, str]:
    """How DataLoaders hand out batches to train and to validate on.

    Each as a "dict", "list" or "tensor", or "as it is".
    """
    datasets = (sources.training, sources.validation)
    loaders = [each for each in datasets if isinstance(each, DataLoader)]
    if any(loader.collate_fn is not default_collate for loader in loaders):
        return "as it is", "as it is"
    training = _batch_form(sources.training)
    if sources.validation is None:
        return training, training
    return training, _batch_form(sources.validation)


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


# attributes of a DataLoader that may be the user's code
OF_LOADERS = ("dataset", "sampler", "batch_sampler", "collate_fn")


@dataclass(frozen=True)
class GivenData:
    """What the user gave as data; where that is nothing, the module's own loaders are taken."""

    train: Any = None
    valid: Any = None
    data_module: Any = None
    shards: int | None = None
    fraction: float | None = None
    samples: int | None = None

    def sources(self, module: Any) -> Sources:
        """The training and validation data. `module`: the class, or the function that makes it.

        Raises:
            DataError: there is no training data.
        """
        train, valid = self.train, self.valid
        if train is None and self.data_module is None:
            train, own_valid = loaders_of(_data_module(module))
            valid = own_valid if valid is None else valid
        if train is None and self.data_module is None:
            raise DataError(
                "there is no training data: give datamodule=, or train= (and valid=), or the "
                "module a method train_dataloader"
            )
        return sources(train, valid, self.data_module)

    def brought(self) -> tuple[Any, ...]:
        """The user's classes and functions among the data."""
        parts = [self.train, self.valid, self.data_module]
        parts += [getattr(part, name, None) for part in parts for name in OF_LOADERS]
        return tuple(
            part if isinstance(part, type) or hasattr(part, "__code__") else type(part)
            for part in parts
            if part is not None
        )


def _data_module(module: Any) -> Any:
    """A module with the defaults of its class, to ask for its loaders.

    Raises:
        DataError: its class has no defaults.
    """
    try:
        return module() if isinstance(module, type) else module({})
    except (TypeError, KeyError) as error:
        raise DataError(
            f"to ask the module for its data it is built without a configuration, and that raised "
            f"{type(error).__name__}: {error}: give datamodule= or train= (and valid=)"
        ) from error


class Terms:
    """What the data and the arguments of `shoal.lightning` tell all trials.

    `data_module`, `forms` and `sizes` are known once the data was built in this process.

    `max_epochs`: what the recipe was given. `planned`: the study's, where the recipe has none.
    `asked`: whether a module asked for either in this process.
    """

    _forms: tuple[str, str] | None = None  # old pickles lack it

    def __init__(self, given: GivenData, module: Any) -> None:
        self.given = given
        self.module = module
        self.max_epochs: int | None = None
        self.planned: int | None = None
        self.asked = False
        self.drop_last = False
        self._data_module: Any = None
        self._sizes: tuple[int, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_data_module": None, "asked": False}

    def learn(self, sources: Sources, sizes: tuple[int, ...] | None = None) -> None:
        """Take over what the data tells."""
        self._data_module = sources.data_module
        self._forms = batch_forms(sources)
        self._sizes = sizes or self._sizes

    @property
    def forms(self) -> tuple[str, str]:
        """How torch's DataLoader hands out batches: as `batch_forms` tells."""
        if self._forms is None:
            self.learn(self.given.sources(self.module))
        assert self._forms is not None
        return self._forms

    @property
    def data_module(self) -> Any:
        """The LightningDataModule; None if there is none."""
        if self._data_module is None and self.given.data_module is not None:
            self._data_module = open_data_module(self.given.data_module)
        return self._data_module

    @property
    def data_module_class(self) -> type | None:
        """The LightningDataModule's class; None if there is none."""
        data_module = self.given.data_module
        if data_module is None or is_data_module_class(data_module):
            return data_module  # type: ignore[no-any-return]
        if is_data_module(data_module):
            return type(data_module)
        return type(self.data_module)

    @property
    def epochs(self) -> int | None:
        """Epochs that schedules are laid out for; None: nobody said."""
        if self.max_epochs is not None:
            return self.max_epochs
        return self.planned

    def max_epochs_or_error(self) -> int:
        """`epochs`, for a module that asks; that it did is noted.

        Raises:
            ValueError: nobody said how many.
        """
        self.asked = True
        if self.epochs is None:
            raise ValueError(
                "the module asks self.trainer for max_epochs, which nobody said: give "
                "optimize(max_epochs=N), or shoal.lightning(…, max_epochs=N)"
            )
        return self.epochs

    def batches_an_epoch(self, batch_size: int) -> int:
        """Batches in an epoch: each shard ends with a batch of its own."""
        return sum(self._batches(batch_size))

    def steps_an_epoch(self, batch_size: int, accumulate: int) -> int:
        """Optimizer steps in an epoch: each shard ends with a step of its own."""
        return sum(-(-count // accumulate) for count in self._batches(batch_size))

    def _batches(self, batch_size: int) -> list[int]:
        """Batches in each shard."""
        if self._sizes is None:
            raise ValueError(
                "the module asks self.trainer for the number of batches, which is known once the "
                "recipe's data() was called"
            )
        if self.drop_last:
            return [size // batch_size for size in self._sizes]
        return [-(-size // batch_size) for size in self._sizes]
