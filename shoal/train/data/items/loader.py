"""What a DataLoader says: its dataset, batches, collate function and order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from shoal.train.data.columns import DataError
from shoal.train.data.draws import Sampled, check_sampler
from shoal.train.data.parts import is_fraction


@dataclass
class TakenLoader:
    """A DataLoader, taken apart.

    `weights`: of the items, where the loader draws by weights. `sampler`: one that Shoal does not
    know, which is asked for the order of each pass.
    """

    dataset: Any
    validation: Any
    collate: Any
    defaults: dict[str, Any]
    sequential: bool = False
    weights: Any = None
    sampler: Any = None

    def shards(self, asked: int | None) -> int | None:
        """The number of shards.

        Raises:
            DataError: several, where a sampler orders all of the data.
        """
        if self.sampler is None:
            return asked
        if asked not in (None, 1):
            raise DataError(
                f"{type(self.sampler).__name__} orders all samples, so that there is one shard; "
                f"got shards={asked!r}"
            )
        return 1

    def arranged(self, data: Any) -> Any:
        """The data, in the loader's order, with the attributes that the recipe gets."""
        if self.weights is not None:
            data = data.weighted(self.weights)
        elif self.sampler is not None:
            data = self._sampled(data)
        return data.with_defaults(**self.defaults)

    def _sampled(self, data: Any) -> Any:
        """The data in the sampler's order."""
        if data.validation and is_fraction(self.validation):
            raise DataError(
                f"{type(self.sampler).__name__} orders all samples of the data set, so that no "
                "fraction of them can be set aside: give a validation loader"
            )
        (shard,) = data.shards
        numbers = data.numbers()[shard]
        places = np.empty(len(numbers), np.int64)
        places[numbers] = np.arange(len(numbers))
        draws = Sampled(self.sampler, places)
        check_sampler(draws, shard)
        return data.drawn_by(draws, type(self.sampler).__qualname__)


def loaded(
    train: DataLoader[Any], valid: Any, samples: int | None = None
) -> TakenLoader:
    """Take a loader apart; `valid`: the loader, dataset or fraction to validate with.

    Raises:
        DataError: the loader makes its batches in another way than by size.
    """
    if train.batch_size is None:
        raise DataError(
            "a DataLoader needs a batch_size: with batch_sampler=, or with batch_size=None, it "
            "decides on batches itself, and trials have batch sizes of their own"
        )
    defaults: dict[str, Any] = {
        "batch_size": train.batch_size,
        "drop_last": train.drop_last,
    }
    collate = _collate(train)
    validation = valid
    if isinstance(valid, DataLoader):
        validation = valid.dataset
        if _collate(valid) != collate:
            raise DataError(
                "both loaders must have the same collate_fn; "
                f"got {train.collate_fn!r} and {valid.collate_fn!r}"
            )
    found = TakenLoader(train.dataset, validation, collate, defaults)
    if isinstance(train.dataset, IterableDataset):
        found.sequential = True
        return found
    _take_order(found, train)
    return found


def _collate(loader: DataLoader[Any]) -> Any:
    """The loader's collate function; None if it is torch's."""
    if loader.collate_fn is default_collate:
        return None
    return loader.collate_fn


def _take_order(found: TakenLoader, loader: DataLoader[Any]) -> None:
    """Note in which order the loader gives the items."""
    sampler = loader.sampler
    count = len(found.dataset)
    if type(loader.batch_sampler) is not BatchSampler:
        raise DataError(
            "a DataLoader needs torch's BatchSampler; give it a sampler instead"
        )
    if isinstance(sampler, SequentialSampler):
        found.sequential = True
    elif isinstance(sampler, SubsetRandomSampler):
        found.dataset = Subset(found.dataset, list(sampler.indices))
        found.defaults["shuffle"] = "each"
    elif isinstance(sampler, WeightedRandomSampler) and sampler.replacement:
        _check_count(sampler, count)
        found.weights = np.asarray(sampler.weights)
    elif isinstance(sampler, RandomSampler):
        _check_count(sampler, count)
        if sampler.replacement:
            found.weights = np.ones(count)
        found.defaults["shuffle"] = "each"
    else:
        found.sampler = sampler


def _check_count(sampler: Any, count: int) -> None:
    """Raise DataError unless a pass draws as many samples as there are."""
    if sampler.num_samples != count:
        raise DataError(
            f"a pass draws as many samples as the data set has, {count}; "
            f"{type(sampler).__name__} has num_samples={sampler.num_samples}: "
            "train for more or fewer epochs instead"
        )
