"""Data out of an IterableDataset: its items, read once, in memory or else in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from shoal.train.data import columns as cols
from shoal.train.data.columns import Array, Columns, DataError, Kind, Ragged
from shoal.train.data.items import ItemForm, columns_of, hash_value, is_plain, narrow_floats
from shoal.train.data.parts import DividedSource, Division, Parts, divide, is_fraction
from shoal.train.rng import Rng

AT_ONCE = 256  # items that are made columns together
SPILL_BYTES = 512 * 2**20  # of a column; what is beyond lies in a temporary file
TRIED = 8  # items that are kept to try collate with


@dataclass(frozen=True, slots=True)
class StoredItems(DividedSource):
    """Items that were read once, as columns, and which of them make up each part.

    `whole`: collate puts the items together.
    """

    whole: bool
    serial: bool = False

    def collated(self) -> StoredItems:
        """The same source, whose items collate puts together."""
        return replace(self, whole=True)


def from_iterable(
    dataset: Any, validation: Any, how: Division, collate: Any, samples: int | None
) -> Parts:
    """The data of `Data.dataset` out of an IterableDataset."""
    items = ReadItems(dataset, how.seed, samples)
    scored: ReadItems | None = None  # items of the validation dataset
    if validation is not None and not is_fraction(validation):
        scored = ReadItems(validation, how.seed, None)
    others = scored or items
    train, test = how.split(items.count, validation, others.count)
    rows = divide(train, test, how, items.row_bytes)
    whole = collate is not None or not (items.is_plain and others.is_plain)
    return rows.parts(
        StoredItems(
            items.columns(whole), others.columns(whole), rows.index, rows.apart(validation), whole
        ),
        items.row_bytes,
        blake2b(items.digest + others.digest, digest_size=16),
        form=items.form,
        collate=collate,
        tried=items.first,
        scored_form=scored and scored.form,
        scored_tried=scored.first if scored else [],
        sequential=how.sequential,
    )


class ReadItems:
    """All items of a dataset, or its first ones, as columns.

    Raises:
        DataError: there are none, fewer than asked for, or they are of unequal forms.
    """

    def __init__(self, dataset: Any, seed: int, samples: int | None) -> None:
        self.count = 0
        self.first: list[Any] = []
        self.form: ItemForm | None = None
        self._spools: dict[Any, Spool] = {}
        self._named = False
        hashed = blake2b(type(dataset).__qualname__.encode(), digest_size=16)
        with Rng(seed, torch.device("cpu")):
            for items in _grouped(_items_in(dataset, samples)):
                self._add(items)
                for item in items:
                    hash_value(hashed, item)
        if not self.count:
            raise DataError("the dataset needs at least one item; got none")
        if samples is not None and self.count < samples:
            raise DataError(
                f"the dataset should give samples={samples} items; it gave {self.count}"
            )
        self.digest = hashed.digest()
        joined = {name: spool.column() for name, spool in self._spools.items()}
        self._columns = joined if self._named else tuple(joined.values())

    def _add(self, items: list[Any]) -> None:
        """Append some items to the columns."""
        columns, form = columns_of(items, self.form)
        if self.form is None:
            self.form = form
            self.first = items[:TRIED]
            self._named = isinstance(columns, dict)
        named = cols.named(columns)
        if self._spools and named.keys() != self._spools.keys():
            raise DataError("items of a dataset must have equal forms: the same names")
        for name, column in named.items():
            self._spools.setdefault(name, Spool(name)).add(column)
        self.count += len(items)

    @property
    def is_plain(self) -> bool:
        """Whether all columns are arrays, which need no collate."""
        return is_plain(self._columns)

    @property
    def row_bytes(self) -> float:
        """Bytes of an item, in the mean."""
        return max(1.0, cols.nbytes(self._columns) / self.count)

    def columns(self, whole: bool) -> Columns:
        """The columns; those of Python's floats as float32, unless collate puts items together."""
        columns = self._columns
        if whole or self.form is None:
            return columns
        return narrow_floats(columns, self.form.kinds)


def _items_in(dataset: Any, samples: int | None) -> Iterator[Any]:
    """The items, or the first ones.

    Raises:
        DataError: `samples` is not a whole number >= 1, or the dataset cannot be iterated over.
    """
    if samples is None:
        is_iterable = isinstance(dataset, IterableDataset)
        if not is_iterable and hasattr(dataset, "__getitem__"):
            return (dataset[number] for number in range(len(dataset)))
        if not hasattr(dataset, "__iter__"):
            raise DataError(
                f"validation must be a dataset, a fraction, or None; got {type(dataset).__name__}"
            )
        return iter(dataset)
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise DataError(f"samples must be a whole number >= 1; got {samples!r}")
    return islice(iter(dataset), samples)


def _grouped(items: Iterator[Any]) -> Iterator[list[Any]]:
    """The items, some at a time."""
    while group := list(islice(items, AT_ONCE)):
        yield group


class Spool:
    """A column that grows, in memory up to a limit, and then in a temporary file."""

    def __init__(self, name: Any) -> None:
        self._name = name
        self._pieces: list[Array] = []
        self._bytes = 0  # bytes in memory
        self._file: Any = None
        self._sizes: list[Array] = []
        self._shapes: list[Array] = []
        self._kinds: set[str] = set()
        self._dtypes: set[Any] = set()

    def add(self, column: Any) -> None:
        """Append values.

        Raises:
            DataError: they are of another kind than those before.
        """
        piece = column if isinstance(column, Ragged) else Ragged.of_array(column)
        self._kinds.add("array" if piece.shapes is not None else piece.kind)
        self._dtypes.add(piece.dtype)
        if len(self._kinds) > 1 or len(self._dtypes) > 1:
            raise DataError(
                f"column {self._name} must hold one kind of values; got "
                f"{', '.join(map(str, [*sorted(self._kinds), *self._dtypes]))}"
            )
        self._sizes.append(np.diff(piece.offsets))
        if piece.shapes is not None:
            self._shapes.append(piece.shapes)
        self._pieces.append(piece.values)
        self._bytes += piece.values.nbytes
        if self._bytes > SPILL_BYTES:
            self._spill()

    def _spill(self) -> None:
        """Write what is in memory to the file."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="shoal-items-")  # noqa: SIM115 it is mapped
        for piece in self._pieces:
            self._file.write(np.ascontiguousarray(piece).data)
        self._pieces = []
        self._bytes = 0

    def column(self) -> Any:
        """All values: an array if they have one shape."""
        if self._file is None:
            values = np.concatenate(self._pieces)
        else:
            self._spill()
            self._file.flush()
            (dtype,) = self._dtypes
            # As a plain array: a memmap would lie in the pickles that slots and workers get.
            values = np.memmap(self._file, dtype, mode="r").view(np.ndarray)
        sizes = np.concatenate(self._sizes)
        kind: Kind = self._kinds.pop()  # type: ignore[assignment]
        if not self._shapes:
            return Ragged.of_sizes(values, sizes, None, kind)
        shapes = np.concatenate(self._shapes)
        if (shapes == shapes[0]).all():
            return values.reshape(len(shapes), *shapes[0].tolist())
        return Ragged.of_sizes(values, sizes, shapes, kind)
