"""Data out of map-style torch Datasets: their items, read once and stacked to columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from shoal.core.cluster import ShardId
from shoal.train import columns as cols
from shoal.train.columns import Columns, DataError
from shoal.train.data import Data, as_array
from shoal.train.rng import Rng
from shoal.train.sources import Index, alike, divide, sizes_of, split

PROBES = 64  # items that a fingerprint looks at


@dataclass(frozen=True, slots=True)
class Items:
    """Which items of which dataset make up each part. Reading runs the user's code: seeded, and never beside training."""

    training: Any
    validation: Any
    index: Mapping[ShardId, Index]
    apart: frozenset[ShardId]  # parts that index `validation`
    seed: int
    serial: bool = True

    def read(self, part: ShardId) -> Columns:
        held = self.validation if part in self.apart else self.training
        return read(held, self.index[part].tolist(), self.seed)


def from_dataset(dataset: Any, validation: Any, shards: int | None, seed: int, weights: Sequence[float] | None = None) -> Data:
    """See `Data.dataset`."""
    count, first = _probed(dataset, "the dataset", seed)
    order: Index = np.random.default_rng(seed).permutation(count)
    held = dataset
    if validation is None:
        train, test = order, order[:0]
    elif isinstance(validation, float | int) and not isinstance(validation, bool):
        train, test = split(order, float(validation), None)
    else:
        held = validation
        others, other = _probed(held, "the validation dataset", seed)
        if isinstance(first, dict) != isinstance(other, dict) or len(first) != len(other):
            raise DataError("items of the validation dataset must have the form of those of the training dataset")
        alike(first, other, "training", "validation")
        train, test = order, np.arange(others)
    index, row = divide(train, test, shards, cols.nbytes(first), weights)
    apart = frozenset(part for part in index if part.startswith("v")) if held is not dataset else frozenset()
    parts = [_fingerprint(d, seed) for d in ([dataset] if held is dataset else [dataset, held])]
    hashed = blake2b(digest_size=16)
    for piece in [*parts, *(part.encode() + rows.astype("<i8").tobytes() for part, rows in index.items())]:
        hashed.update(piece)
    return Data(Items(dataset, held, index, apart, seed), *sizes_of(index), row, hashed.hexdigest())


def read(dataset: Any, numbers: Iterable[int], seed: int) -> Columns:
    """These items as columns. Single numbers become int64 or float32."""
    with Rng(seed, torch.device("cpu")):
        items = [_item(dataset[number]) for number in numbers]
    try:
        return cols.combine(items, np.stack)
    except (ValueError, KeyError, IndexError) as error:
        raise DataError(f"items of a dataset must have equal forms and shapes ({error}); pad or resize them") from error


def _item(item: Any) -> Columns:
    return cols.apply(cols.form(item), _value)


def _value(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, float):
        return np.float32(value)  # type: ignore[return-value]
    array = np.asarray(value)
    as_array(array.reshape(1, *array.shape), "of a dataset's items")
    return array


def _probed(dataset: Any, name: str, seed: int) -> tuple[int, Columns]:
    """How many items, and the first one as columns of one sample."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(f"{name} must be map-style, with __len__ and __getitem__; got {type(dataset).__name__}")
    count = len(dataset)
    if not count:
        raise DataError(f"{name} needs at least one item; got none")
    return count, read(dataset, [0], seed)


def _fingerprint(dataset: Any, seed: int) -> bytes:
    """Of all tensors where the dataset is made of them, otherwise of its length and of items spread over it."""
    hashed = blake2b(f"{type(dataset).__qualname__}/{len(dataset)}".encode(), digest_size=16)
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        columns: Columns = tuple(as_array(tensor, "of the dataset") for tensor in tensors)
    else:
        columns = read(dataset, np.unique(np.linspace(0, len(dataset) - 1, PROBES).astype(int)).tolist(), seed)
    for column in cols.parts(columns):
        hashed.update(f"{column.dtype.str}{column.shape}".encode())
        hashed.update(np.ascontiguousarray(column).reshape(-1).view(np.uint8).data)
    return hashed.digest()
