"""Data out of map-style torch Datasets: their items, read once and stacked to columns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Array, Columns, DataError
from shoal.train.data.parts import (
    Division,
    Index,
    Parts,
    alike,
    as_array,
    divide,
    hash_array,
    is_fraction,
    seed_of_rows,
    set_aside,
)
from shoal.train.rng import Rng

PROBES = 64  # items that a fingerprint looks at
TWICE = 8  # items that are read twice, to find random transforms
DRAWN_BY_ROWS = "-rows"  # ends the fingerprint of a dataset whose items are random


@dataclass(frozen=True, slots=True)
class Items:
    """Which items of which dataset make up each part.

    Reading runs the user's code: under a seed, and never beside training.
    """

    training: Any
    validation: Any
    index: Mapping[ShardId, Index]
    apart: frozenset[ShardId]  # parts that index `validation`
    seed: int
    serial: bool = True

    def read(self, part: ShardId) -> Columns:
        """All items of the part."""
        return self.rows(part, np.arange(len(self.index[part])))

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These items of the part, read under a seed that is theirs."""
        dataset = self.training
        if part in self.apart:
            dataset = self.validation
        numbers = self.index[part][index]
        return read(dataset, numbers.tolist(), seed_of_rows(self.seed, part, index))


def from_dataset(dataset: Any, validation: Any, how: Division) -> Parts:
    """See `Data.dataset`."""
    seed = how.seed
    count = _length(dataset, "the dataset")
    first = read(dataset, [0], seed)
    order: Index = np.random.default_rng(seed).permutation(count)
    train = order
    test = order[:0]
    others = dataset
    if is_fraction(validation):
        train, test = set_aside(order, float(validation), None)
    elif validation is not None:
        others = validation
        test = np.arange(_length(others, "the validation dataset"))
        _check_alike(first, read(others, [0], seed))

    row_bytes = cols.nbytes(first)
    rows = divide(train, test, how, row_bytes)
    apart: frozenset[ShardId] = frozenset()
    if others is not dataset:
        apart = rows.validation
    items = Items(dataset, others, rows.index, apart, seed)
    fingerprint = _divided_fingerprint(items)
    if _warn_of_random_items(dataset, seed):
        # A former version drew once a shard: a study of that time cannot go on with other draws.
        fingerprint += DRAWN_BY_ROWS
    return Parts(
        source=items,
        training=rows.of("s"),
        validation=rows.of("v"),
        row_bytes=max(1, row_bytes),
        fingerprint=fingerprint,
    )


def _divided_fingerprint(items: Items) -> str:
    """A hash of the datasets and of their division."""
    seed = items.seed
    hashed = blake2b(_fingerprint(items.training, seed), digest_size=16)
    if items.validation is not items.training:
        hashed.update(_fingerprint(items.validation, seed))
    for part, chosen in items.index.items():
        hashed.update(part.encode() + chosen.astype("<i8").tobytes())
    return hashed.hexdigest()


def _length(dataset: Any, name: str) -> int:
    """How many items the dataset has.

    Raises:
        DataError: it is not map-style, or empty.
    """
    usable = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not usable or isinstance(dataset, IterableDataset):
        raise DataError(
            f"{name} must be map-style, with __len__ and __getitem__; got {type(dataset).__name__}"
        )
    count = len(dataset)
    if not count:
        raise DataError(f"{name} needs at least one item; got none")
    return count


def _check_alike(first: Columns, other: Columns) -> None:
    """Raise DataError unless both items have the same form."""
    if isinstance(first, dict) != isinstance(other, dict) or len(first) != len(other):
        raise DataError(
            "items of the validation dataset must have the form of those of the training dataset"
        )
    alike(first, other, "training", "validation")


def read(dataset: Any, numbers: Iterable[int], seed: int) -> Columns:
    """These items as columns. Single numbers become int64 or float32.

    Raises:
        DataError: the items have unequal forms or shapes.
    """
    with Rng(seed, torch.device("cpu")):
        items = [_item(dataset[number]) for number in numbers]
    try:
        return cols.combine(items, np.stack)
    except (ValueError, KeyError, IndexError) as error:
        raise DataError(
            f"items of a dataset must have equal forms and shapes ({error}); pad or resize them"
        ) from error


def _item(item: Any) -> Columns:
    """An item of a dataset as columns without a first axis."""
    return cols.apply(cols.form(item), _value)


def _value(value: Any) -> Array:
    """A value of an item as an array.

    Raises:
        DataError: it is not of numbers.
    """
    if isinstance(value, float):
        return np.float32(value)  # type: ignore[return-value]
    array = np.asarray(value)
    as_array(array.reshape(1, *array.shape), "of a dataset's items")
    return array


def _is_of_tensors(dataset: Any) -> bool:
    """Whether the dataset is a TensorDataset, or like one."""
    tensors = getattr(dataset, "tensors", None)
    if not isinstance(tensors, tuple):
        return False
    return all(isinstance(each, torch.Tensor) for each in tensors)


def _spread(dataset: Any, count: int) -> list[int]:
    """The numbers of so many items, spread over the dataset."""
    places = np.linspace(0, len(dataset) - 1, count)
    numbers: list[int] = np.unique(places.astype(int)).tolist()
    return numbers


def _fingerprint(dataset: Any, seed: int) -> bytes:
    """A hash of the dataset: of all tensors of a TensorDataset, of some items of any other."""
    name = f"{type(dataset).__qualname__}/{len(dataset)}"
    hashed = blake2b(name.encode(), digest_size=16)
    if _is_of_tensors(dataset):
        columns = [as_array(each, "of the dataset") for each in dataset.tensors]
    else:
        items = read(dataset, _spread(dataset, PROBES), seed)
        columns = list(cols.parts(items))
    for column in columns:
        hash_array(hashed, column)
    return hashed.digest()


def _warn_of_random_items(dataset: Any, seed: int) -> bool:
    """Warn if an item differs between two reads: what is drawn once is kept for all passes.

    Returns whether one does.
    """
    if _is_of_tensors(dataset):
        return False
    with Rng(seed, torch.device("cpu")):
        for number in _spread(dataset, TWICE):
            one = _item(dataset[number])
            other = _item(dataset[number])
            if not _same(one, other):
                warnings.warn(
                    f"two reads of item {number} of the dataset differ, but items are read once "
                    "and kept: each epoch would see the same random transforms. Leave them out "
                    "of the dataset, and make them in Recipe.augment, which varies each pass",
                    stacklevel=4,
                )
                return True
    return False


def _same(one: Columns, other: Columns) -> bool:
    """Whether two items are equal to the last bit."""
    for a, b in zip(cols.parts(one), cols.parts(other), strict=True):
        if a.shape != b.shape or a.tobytes() != b.tobytes():
            return False
    return True
