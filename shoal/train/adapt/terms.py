"""What the trials of a LightningModule have in common: their data, and how long they train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.train.adapt.kinds import is_data_module, is_data_module_class
from shoal.train.adapt.loaders import Sources, batch_forms, loaders_of, opened, sources
from shoal.train.data.columns import DataError

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
            train, own = loaders_of(_made(module))
            valid = own if valid is None else valid
        if train is None and self.data_module is None:
            raise DataError(
                "there is no training data: give datamodule=, or train= (and valid=), or the "
                "module a method train_dataloader"
            )
        return sources(train, valid, self.data_module)

    def brought(self) -> tuple[Any, ...]:
        """The user's classes and functions among it."""
        every = (self.train, self.valid, self.data_module)
        found = [each for each in every if each is not None]
        inner = [getattr(each, name, None) for each in found for name in OF_LOADERS]
        return tuple(
            each if isinstance(each, type) or hasattr(each, "__code__") else type(each)
            for each in (*found, *[each for each in inner if each is not None])
        )


def _made(module: Any) -> Any:
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

    def learn(self, found: Sources, sizes: tuple[int, ...] | None = None) -> None:
        """Take over what the data tells."""
        self._data_module = found.data_module
        self._forms = batch_forms(found)
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
            self._data_module = opened(self.given.data_module)
        return self._data_module

    @property
    def data_module_class(self) -> type | None:
        """Its class; None if there is none."""
        given = self.given.data_module
        if given is None or is_data_module_class(given):
            return given  # type: ignore[no-any-return]
        if is_data_module(given):
            return type(given)
        return type(self.data_module)

    @property
    def epochs(self) -> int | None:
        """Epochs that schedules are laid out for; None: nobody said."""
        if self.max_epochs is not None:
            return self.max_epochs
        return self.planned

    def max_epochs_or_error(self) -> int:
        """The same for a module that asks.

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
