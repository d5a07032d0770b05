"""Data out of map-style torch Datasets: their items, read once and kept as columns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.items.form import (
    ItemForm,
    columns_of,
    hash_value,
    is_plain,
    narrowed,
)
from shoal.train.data.parts import (
    Division,
    Index,
    Parts,
    as_array,
    divide,
    hash_array,
    is_fraction,
    seed_of_rows,
)
from shoal.train.rng import Rng

PROBES = 64  # items that a fingerprint looks at
TWICE = 8  # items that are read twice, to find random transforms
DRAWN_BY_ROWS = "-rows"  # ends the fingerprint of a dataset whose items are random


@dataclass(frozen=True, slots=True)
class Items:
    """Which items of which dataset make up each part.

    Reading runs the user's code: under a seed, and never beside training. `whole`: items are kept
    as they are, for collate; otherwise they are columns of equal shapes. `scored_form`: of the
    items of `validation`, where it is another than `form`.
    """

    training: Any
    validation: Any
    index: Mapping[ShardId, Index]
    apart: frozenset[ShardId]  # parts that index `validation`
    seed: int
    serial: bool = True
    form: ItemForm | None = None  # of the items read first
    whole: bool = False
    scored_form: ItemForm | None = None

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Read also what an earlier Shoal pickled, which lacks the last fields."""
        defaults = [None, False, None]  # of the last fields
        missing = len(self.__slots__) - len(state)
        values = [*state, *defaults[len(defaults) - missing :]]
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def read(self, part: ShardId) -> Columns:
        """All items of the part."""
        return self.rows(part, np.arange(len(self.index[part])))

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These items of the part, read under a seed that is theirs."""
        dataset, form = self.training, self.form
        if part in self.apart:
            dataset, form = self.validation, self.scored_form or self.form
        numbers = self.index[part][index].tolist()
        seed = seed_of_rows(self.seed, part, index)
        return read(dataset, numbers, seed, form, self.whole)

    def divided(self, index: Mapping[ShardId, Index]) -> Items:
        """The same training items, divided otherwise; nothing else is validated on."""
        return replace(self, index=index, apart=frozenset())

    def collated(self) -> Items:
        """The same source, whose items are kept as they are."""
        return replace(self, whole=True)


def from_dataset(
    dataset: Any, validation: Any, how: Division, collate: Any = None
) -> Parts:
    """See `Data.dataset`."""
    seed = how.seed
    count = _length(dataset, "the dataset")
    probed = _items(dataset, _spread(dataset, PROBES), seed)
    columns, form = columns_of(probed)
    whole = collate is not None or not is_plain(columns)
    order = how.order(count)
    train = order
    test = order[:0]
    others = dataset
    scored_form: ItemForm | None = None
    scored: list[Any] = []
    if is_fraction(validation):
        train, test = how.aside(order, float(validation), None)
    elif validation is not None:
        others = validation
        test = np.arange(_length(others, "the validation dataset"))
        scored = _items(others, _spread(others, PROBES), seed)
        scored_columns, other_form = columns_of(scored)
        whole = whole or not is_plain(scored_columns)
        if not form.fits(other_form):
            scored_form = other_form

    row_bytes = cols.nbytes(columns) / len(probed)
    rows = divide(train, test, how, row_bytes)
    # Also a validation dataset that is the training dataset itself has numbers of its own.
    apart: frozenset[ShardId] = frozenset()
    if not is_fraction(validation):
        apart = rows.validation
    items = Items(
        dataset,
        others,
        rows.index,
        apart,
        seed,
        form=form,
        whole=whole,
        scored_form=scored_form,
    )
    fingerprint = _divided_fingerprint(items)
    if _warn_of_random_items(dataset, seed):
        # A former version drew once a shard: a study of that time cannot go on with other draws.
        fingerprint += DRAWN_BY_ROWS
    return Parts(
        source=items,
        training=rows.of("s"),
        validation=rows.of("v"),
        row_bytes=max(1, int(row_bytes)),
        sequential=how.sequential,
        fingerprint=fingerprint,
        form=form,
        collate=collate,
        tried=probed[:TWICE],
        scored_form=scored_form,
        scored_tried=scored[:TWICE],
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
    if isinstance(dataset, Mapping):
        raise DataError(
            f"{name} must be one dataset; got a dict of {', '.join(map(str, dataset))}: give one "
            "of them"
        )
    usable = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not usable or isinstance(dataset, IterableDataset):
        raise DataError(
            f"{name} must be map-style, with __len__ and __getitem__; got "
            f"{type(dataset).__name__}: give list(…) of it, or make both IterableDatasets"
        )
    count = len(dataset)
    if not count:
        raise DataError(f"{name} needs at least one item; got none")
    return count


def _items(dataset: Any, numbers: Iterable[int], seed: int) -> list[Any]:
    """These items, read under the seed."""
    with Rng(seed, torch.device("cpu")):
        return [dataset[number] for number in numbers]


def read(
    dataset: Any, numbers: Iterable[int], seed: int, form: ItemForm | None, whole: bool
) -> Columns:
    """These items as columns. Single numbers become int64, or float32 (`whole`: float64).

    Raises:
        DataError: the items have unequal forms, or unequal shapes although they are not `whole`.
    """
    columns, found = columns_of(_items(dataset, numbers, seed), form)
    if whole:
        return columns
    if not is_plain(columns):
        raise DataError(
            "items of a dataset must have equal shapes, or be put together by a collate= function; "
            "some of these have other shapes or kinds (None, say) than the items read first: "
            "give collate=, or pad, resize or leave them out"
        )
    return narrowed(columns, found.kinds)


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
        for each in dataset.tensors:
            hash_array(hashed, as_array(each, "of the dataset"))
        return hashed.digest()
    items = _items(dataset, _spread(dataset, PROBES), seed)
    columns, form = columns_of(items)
    if is_plain(columns):
        for column in cols.parts(narrowed(columns, form.kinds)):
            hash_array(hashed, column)
    else:
        for item in items:
            hash_value(hashed, item)
    return hashed.digest()


def _warn_of_random_items(dataset: Any, seed: int) -> bool:
    """Warn if an item differs between two reads: what is drawn once is kept for all passes.

    Returns whether one does.
    """
    if _is_of_tensors(dataset):
        return False
    with Rng(seed, torch.device("cpu")):
        for number in _spread(dataset, TWICE):
            if _digest(dataset[number]) != _digest(dataset[number]):
                warnings.warn(
                    f"two reads of item {number} of the dataset differ, but items are read once "
                    "and kept: each epoch would see the same random transforms. Leave them out "
                    "of the dataset, and make them in Recipe.augment, which varies each pass",
                    stacklevel=4,
                )
                return True
    return False


def _digest(item: Any) -> bytes:
    hashed = blake2b(digest_size=16)
    hash_value(hashed, item)
    return hashed.digest()
