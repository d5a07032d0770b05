"""Rows thrown into buckets on disk at random, and read back in a random order.

Each row goes to a bucket that is drawn for it, and each bucket is shuffled in memory. The buckets
one after the other are then the rows in an order of which all are equally likely.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.train.data import columns as cols
from shoal.train.data.columns import Array, Columns, DataError

SCATTER, SHUFFLE = 11, 12  # tell the two kinds of draws apart


@dataclass(frozen=True, slots=True)
class RowForm:
    """What a row holds: by column its name (None: columns have places), type and shape."""

    names: tuple[str, ...] | None
    dtypes: tuple[np.dtype[Any], ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, columns: Columns) -> RowForm:
        """The form of these rows.

        Raises:
            DataError: a column holds no numbers of one shape.
        """
        names = tuple(columns) if isinstance(columns, dict) else None
        arrays = cols.parts(columns)
        for place, column in enumerate(arrays):
            if not isinstance(column, np.ndarray) or column.dtype.kind not in "biufc":
                name = names[place] if names else place
                raise DataError(
                    f"shards hold columns of numbers of one shape; column {name} holds others: "
                    "encode or pad it first, or leave it out"
                )
        dtypes = tuple(column.dtype for column in arrays)
        return cls(names, dtypes, tuple(column.shape[1:] for column in arrays))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(
            dtype.itemsize * int(np.prod(shape))
            for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        )

    @property
    def files(self) -> tuple[str, ...]:
        """The columns' names in a file, as numpy.savez gives them."""
        if self.names is not None:
            return self.names
        return tuple(f"arr_{place}" for place in range(len(self.dtypes)))


@dataclass(slots=True)
class RowBuckets:
    """Rows in `count` buckets on disk, below `folder`. `held`: so many columns stay in memory."""

    folder: Path
    seed: int
    count: int
    held: int = 2
    form: RowForm | None = None
    counts: Array = field(init=False)  # rows of each bucket
    _read: OrderedDict[tuple[int, int], Array] = field(default_factory=OrderedDict, init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.count, np.int64)

    @property
    def rows(self) -> int:
        """Rows in all buckets."""
        return int(self.counts.sum())

    def scatter(self, batches: Iterable[Columns]) -> None:
        """Add all rows of the batches.

        Raises:
            DataError: the batches hold unlike columns, or no numbers.
        """
        drawn = np.random.default_rng([SCATTER, self.seed])
        for batch in batches:
            form = RowForm.of(batch)
            self.form = self.form or form
            if form != self.form:
                raise DataError(
                    f"all rows must hold the same columns; got {self.form} and later {form}"
                )
            to = drawn.integers(self.count, size=cols.rows(batch))
            order = np.argsort(to, kind="stable")
            counts = np.bincount(to, minlength=self.count)
            for place, column in enumerate(cols.parts(batch)):
                self._append(place, column, order, counts)
            self.counts += counts

    def _append(self, place: int, column: Array, order: Array, counts: Array) -> None:
        """Add a batch's column, whose rows in this order are bucket by bucket."""
        begin = 0
        for bucket in np.flatnonzero(counts).tolist():
            rows = order[begin : begin + counts[bucket]]
            begin += counts[bucket]
            with self._file(bucket, place).open("ab") as file:
                file.write(np.ascontiguousarray(column[rows]).reshape(-1).view(np.uint8).data)

    def _file(self, bucket: int, place: int) -> Path:
        return self.folder / f"{bucket}-{place}"

    def column(self, place: int, start: int, stop: int) -> Iterator[Array]:
        """Rows start … stop of a column, in the random order, in pieces."""
        begin = 0
        for bucket, count in enumerate(self.counts.tolist()):
            end = begin + count
            if begin < stop and start < end:
                yield self._shuffled(bucket, place)[max(start - begin, 0) : stop - begin]
            begin = end

    def _shuffled(self, bucket: int, place: int) -> Array:
        """A bucket's column in its random order. The last few stay in memory."""
        key = (bucket, place)
        if key not in self._read:
            while len(self._read) >= self.held:
                self._read.popitem(last=False)
            assert self.form is not None, "there are rows"
            flat = np.fromfile(self._file(bucket, place), self.form.dtypes[place])
            column = flat.reshape(int(self.counts[bucket]), *self.form.shapes[place])
            drawn = np.random.default_rng([SHUFFLE, self.seed, bucket])
            self._read[key] = column[drawn.permutation(len(column))]
        self._read.move_to_end(key)
        return self._read[key]
