"""Data out of an IterableDataset: its items, read once, in memory or else in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Array, Columns, DataError, Kind, Ragged
from shoal.train.data.items import ItemForm, columns_of, hash_value, is_plain, narrow_floats
from shoal.train.data.parts import Division, Index, Parts, divide, is_fraction
from shoal.train.rng import Rng

AT_ONCE = 256  # items that are made columns together
SPILL_BYTES = 512 * 2**20  # of a column; what is beyond lies in a temporary file
TRIED = 8  # items that are kept to try collate with


@dataclass(frozen=True, slots=True)
class StoredItems:
    """Items that were read once, and which of them make up each part."""

    columns: Columns
    others: Columns  # of the validation dataset
    index: Mapping[ShardId, Index]
    apart: frozenset[ShardId]
    whole: bool
    serial: bool = False

    def read(self, part: ShardId) -> Columns:
        """All samples of the part."""
        return self._taken(part, self.index[part])

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the part."""
        return self._taken(part, self.index[part][index])

    def _taken(self, part: ShardId, chosen: Index) -> Columns:
        columns = self.others if part in self.apart else self.columns
        return cols.apply(columns, lambda column: column[chosen])

    def divided(self, index: Mapping[ShardId, Index]) -> StoredItems:
        """The same training items, divided otherwise; nothing else is validated on."""
        return replace(self, index=index, apart=frozenset())

    def collated(self) -> StoredItems:
        """The same source, whose items collate puts together."""
        return replace(self, whole=True)


def from_iterable(
    dataset: Any, validation: Any, how: Division, collate: Any, samples: int | None
) -> Parts:
    """See `Data.dataset`."""
    read = ReadItems(dataset, how.seed, samples)
    order = how.order(read.count)
    train = order
    test = order[:0]
    others = read
    if is_fraction(validation):
        train, test = how.aside(order, float(validation), None)
    elif validation is not None:
        others = ReadItems(validation, how.seed, None)
        test = np.arange(others.count)
    rows = divide(train, test, how, read.row_bytes)
    apart = frozenset[ShardId]() if others is read else rows.validation
    whole = collate is not None or not (read.is_plain and others.is_plain)
    hashed = blake2b(read.digest + others.digest, digest_size=16)
    for part, chosen in rows.index.items():
        hashed.update(part.encode() + chosen.astype("<i8").tobytes())
    return Parts(
        source=StoredItems(read.kept(whole), others.kept(whole), rows.index, apart, whole),
        training=rows.of("s"),
        validation=rows.of("v"),
        row_bytes=max(1, int(read.row_bytes)),
        fingerprint=hashed.hexdigest(),
        form=read.form,
        collate=collate,
        tried=read.first,
        scored_form=None if others is read else others.form,
        scored_tried=[] if others is read else others.first,
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

    def kept(self, whole: bool) -> Columns:
        """The columns; those of Python's floats as float32, unless collate puts items together."""
        columns = self._columns
        if whole or self.form is None:
            return columns
        return narrow_floats(columns, self.form.kinds)


def _items_in(dataset: Any, samples: int | None) -> Iterator[Any]:
    """The items, or the first ones.

    Raises:
        DataError: the number is none, or these are no items.
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
        self._held = 0  # bytes in memory
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
        self._held += piece.values.nbytes
        if self._held > SPILL_BYTES:
            self._spill()

    def _spill(self) -> None:
        """Write what is in memory to the file."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="shoal-items-")  # noqa: SIM115 it is mapped
        for piece in self._pieces:
            self._file.write(np.ascontiguousarray(piece).data)
        self._pieces = []
        self._held = 0

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
            return Ragged.made(values, sizes, None, kind)
        shapes = np.concatenate(self._shapes)
        if (shapes == shapes[0]).all():
            return values.reshape(len(shapes), *shapes[0].tolist())
        return Ragged.made(values, sizes, shapes, kind)
