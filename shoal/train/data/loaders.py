"""What a DataLoader says: its dataset, batches, collate function and order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
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

from shoal.train.data.arrangement import Sampled, check_sampler, sampler_name
from shoal.train.data.columns import DataError
from shoal.train.data.parts import is_fraction
from shoal.train.rng import Rng


@dataclass
class LoaderParts:
    """What a DataLoader is made of.

    `weights`: of the items, where the loader draws by weights. `sampler`: one that Shoal does not
    know, which is asked for the order of each pass. `scored`: makes the batches of validation;
    None: `collate` does. `workers`: the processes that the loader has.
    """

    dataset: Any
    validation: Any
    collate: Any
    defaults: dict[str, Any]
    sequential: bool = False
    weights: Any = None
    sampler: Any = None
    scored: Any = None
    workers: int = 0

    def shards(self, count: int | None) -> int | None:
        """The number of shards, of which the user asked for `count`.

        Raises:
            DataError: several, where a sampler orders all of the data.
        """
        if self.sampler is None:
            return count
        if count not in (None, 1):
            raise DataError(
                f"{sampler_name(self.sampler)} orders all samples, so that there is one shard; "
                f"got shards={count!r}"
            )
        return 1

    def arranged(self, data: Any) -> Any:
        """The data, in the loader's order, with the attributes that the recipe gets."""
        if self.scored is not None:
            data = data.scored_collated(self.scored)
        if self.weights is not None:
            data = data.weighted(self.weights)
        elif self.sampler is not None:
            if data.validation and is_fraction(self.validation):
                raise DataError(
                    f"{sampler_name(self.sampler)} orders all samples of the data set, so that no "
                    "fraction of them can be set aside: give a validation loader"
                )
            (shard,) = data.shards
            numbers = data.numbers()[shard]
            places = np.empty(len(numbers), np.int64)
            places[numbers] = np.arange(len(numbers))
            draws = Sampled(self.sampler, places)
            check_sampler(draws, shard)
            data = data.drawn_by(draws, sampler_name(self.sampler))
        return data.with_defaults(self.workers, **self.defaults)


def loader_parts(train: DataLoader[Any], valid: Any) -> LoaderParts:
    """What a loader is made of; `valid`: the loader, dataset or fraction to validate with.

    Raises:
        DataError: the loader makes its batches in another way than by number.
    """
    _check_batches(train)
    parts = LoaderParts(train.dataset, valid, _collate(train), {})
    parts.workers = train.num_workers
    if isinstance(valid, DataLoader):
        parts.validation = scored_items(valid)
        parts.workers = max(parts.workers, valid.num_workers)
        parts.scored = scored_collate(valid, parts.collate)
    if isinstance(train.dataset, IterableDataset):
        parts.sequential = True
        parts.defaults |= {"batch_size": train.batch_size, "drop_last": train.drop_last}
        return parts
    sampler = _take_batches(parts, train.batch_sampler)
    count = len(parts.dataset)
    if _is_torchs(sampler, SequentialSampler):
        parts.sequential = True
    elif _is_torchs(sampler, SubsetRandomSampler):
        parts.dataset = Subset(parts.dataset, list(sampler.indices))
        parts.defaults["shuffle"] = "each"
    elif _is_torchs(sampler, WeightedRandomSampler) and sampler.replacement:
        _check_count(sampler, count)
        parts.weights = np.asarray(sampler.weights)
    elif _is_torchs(sampler, RandomSampler):
        _check_count(sampler, count)
        if sampler.replacement:
            parts.weights = np.ones(count)
        parts.defaults["shuffle"] = "each"
    else:
        parts.sampler = sampler
    return parts


def scored_items(valid: DataLoader[Any]) -> Any:
    """The items that a validation loader gives: all of its data set, or those of its sampler.

    A sampler is asked once, so that all trials are validated on the same items.

    Raises:
        DataError: the loader's data set makes the batches.
    """
    _check_batches(valid)
    dataset = valid.dataset
    if isinstance(dataset, IterableDataset):
        return dataset
    batches: Any = valid.batch_sampler
    sampler: Any = BatchesInOrder(batches)
    if _is_torchs(batches, BatchSampler):
        sampler = batches.sampler
    if _is_torchs(sampler, SubsetRandomSampler):
        return Subset(dataset, list(sampler.indices))
    count = len(dataset)  # type: ignore[arg-type]
    with Rng(0, torch.device("cpu")):
        numbers = [int(number) for number in sampler]
    if len(numbers) == count and set(numbers) == set(range(count)):
        return dataset
    return Subset(dataset, numbers)


def scored_collate(valid: DataLoader[Any], collate: Any) -> Any:
    """What makes the batches of a validation loader; None: what makes those of training does."""
    if _collate(valid) == collate:
        return None
    return valid.collate_fn


def check_left_out(collate: Any, order: str, shard_weights: Any) -> None:
    """Raise DataError if one of these is given along with a DataLoader, which has its own."""
    if collate is not None or order != "random" or shard_weights is not None:
        raise DataError(
            "a DataLoader has a collate function and an order of its own: leave out collate=, "
            "order= and shard_weights=, or give its dataset instead of it"
        )


def _check_batches(loader: DataLoader[Any]) -> None:
    """Raise DataError if the loader's data set makes the batches."""
    if loader.batch_sampler is None:
        raise DataError(
            "a DataLoader needs a batch_size: with batch_size=None its data set makes the batches, "
            "and trials have batch sizes of their own; let the data set give single items"
        )


def _collate(loader: DataLoader[Any]) -> Any:
    """The loader's collate function; None if it is torch's."""
    if loader.collate_fn is default_collate:
        return None
    return loader.collate_fn


def _is_torchs(sampler: Any, kind: Any) -> bool:
    """Whether the sampler is of that class of torch's, and gives what that class gives."""
    return isinstance(sampler, kind) and type(sampler).__iter__ is kind.__iter__


class BatchesInOrder:
    """The samples of a user's batch sampler, one after the other.

    `filled`: so many samples in all; those that the batches leave out come last.
    """

    def __init__(self, batches: Any, filled: int = 0) -> None:
        self.batches = batches
        self._filled = filled

    def set_epoch(self, number: int) -> None:
        """Tell the batch sampler the number of the pass, if it takes one."""
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(number)

    def drawn(self) -> list[list[int]]:
        """The batches of a pass."""
        return [[int(number) for number in batch] for batch in self.batches]

    def __iter__(self) -> Iterator[int]:
        numbers = [number for batch in self.drawn() for number in batch]
        rest = self._filled - len(numbers)
        if rest > 0:
            taken = set(numbers)
            left_out = (number for number in range(self._filled) if number not in taken)
            numbers += islice(left_out, rest)
        return iter(numbers)


def _take_batches(parts: LoaderParts, batches: Any) -> Any:
    """Note how large the loader's batches are; returns the sampler of their samples.

    Raises:
        DataError: batches of several sizes.
    """
    if _is_torchs(batches, BatchSampler):
        size, drops = batches.batch_size, batches.drop_last
        parts.defaults |= {"batch_size": size, "drop_last": drops}
        return batches.sampler
    count = len(parts.dataset)
    with Rng(0, torch.device("cpu")):
        sizes = [len(batch) for batch in BatchesInOrder(batches).drawn()]
    if not sizes or set(sizes[:-1]) - {sizes[0]} or sizes[-1] > sizes[0]:
        raise DataError(
            "the batches of a batch_sampler must have one size, and only the last may be smaller; "
            f"{type(batches).__name__} gives {', '.join(map(str, sizes[:5]))}…: "
            "for batches of similar lengths use Data.dataset(…).bucketed(by)"
        )
    missing = count - sum(sizes)
    drops = 0 < missing < sizes[0] == sizes[-1]
    parts.defaults |= {"batch_size": sizes[0], "drop_last": drops}
    return BatchesInOrder(batches, count * drops)


def _check_count(sampler: Any, count: int) -> None:
    """Raise DataError unless a pass draws as many samples as there are."""
    if sampler.num_samples != count:
        raise DataError(
            f"a pass draws as many samples as the data set has, {count}; "
            f"{type(sampler).__name__} has num_samples={sampler.num_samples}: "
            "train for more or fewer epochs instead"
        )
