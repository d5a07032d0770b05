"""The study's data: ordered training shards, and validation parts, as columns of NumPy arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np

from shoal.core.cluster import ShardId
from shoal.engine.files import whole
from shoal.train.data import columns as cols
from shoal.train.data.arranged import Arranged, Arrangement
from shoal.train.data.arrays import Arrays, from_arrays, from_idx
from shoal.train.data.columns import Columns, DataError, ShardError
from shoal.train.data.formats import FromFiles
from shoal.train.data.items.collate import check_collate
from shoal.train.data.items.readers import ItemReaders
from shoal.train.data.make.made import MakesShards
from shoal.train.data.npz import from_folder
from shoal.train.data.parts import (
    Division,
    Index,
    Order,
    Parts,
    RowSource,
    Source,
    is_sequential,
)

__all__ = ["CHUNK_BYTES", "Columns", "Data", "DataError", "Source"]

CHUNK_BYTES = 8 * 2**20  # of a chunk of small samples
LOOKED_AT = 8  # samples by which `print` tells of what shape they are
CHUNK_ROWS = 256  # samples that a chunk of large ones should have
MOST_BYTES = 32 * 2**20  # of a chunk that has several samples


class Data(Arranged, ItemReaders, FromFiles, MakesShards):
    """Training shards in their order, and validation parts.

    docs/data.md lists the ways to build it. `shards`: the training shards. `sizes`:
    samples in each. `validation`: the validation parts, perhaps none. `chunk`: samples to a chunk,
    a function of the data alone. `fingerprint`: changes when the data or its division does.
    `serial`: the data must not be read while trials train.

    Raises:
        DataError: no shard, or an empty one.
    """

    # What items are made of, and what makes a batch of them. Old pickles lack these.
    form: Any = None
    collate: Any = None
    scored_collate: Any = None  # for validation, where that is another one
    collates = False  # whether batches are made of items, by `collate` or else torch's default
    # whether items draw random numbers, so that each training pass reads them anew
    anew = False
    scored_form: Any = None  # of items to validate on, where that is another one
    _tried: Sequence[Any] = ()  # the first items
    _scored_tried: Sequence[Any] = ()  # those to validate on; none: they are like `_tried`

    def __init__(self, parts: Parts) -> None:
        if not parts.training:
            raise DataError("data needs at least one training shard; got none")
        self._sizes = {**parts.training, **parts.validation}
        empty = [part for part, size in self._sizes.items() if size < 1]
        if empty:
            raise DataError(
                f"every shard needs a sample; empty: {', '.join(empty[:5])}; "
                "use fewer, or leave empty files out"
            )
        self._source = parts.source
        self.sizes = dict(parts.training)
        self.shards = tuple(parts.training)
        self.validation = tuple(parts.validation)
        self.chunk = chunk_rows(max(1, parts.row_bytes))
        self.fingerprint = parts.fingerprint
        if self.chunk != max(1, CHUNK_BYTES // max(1, parts.row_bytes)):
            # A former version cut smaller chunks of large samples.
            self.fingerprint += f"-{CHUNK_ROWS}"
        self.serial = parts.source.serial
        self.form = parts.form
        self.collate = parts.collate
        self.names = parts.names
        self.table = parts.table
        self._tried = parts.tried
        self.anew = parts.anew
        self.scored_form = parts.scored_form
        self._scored_tried = parts.scored_tried
        self._row_bytes = parts.row_bytes
        if parts.sequential:
            defaults = {"shuffle": "sequential"}
            self.arrangement = Arrangement(sequential=True, defaults=defaults)
        self.collates = getattr(parts.source, "whole", False)

    def collate_with(self, collate: Callable[[list[Any]], Any]) -> None:
        """Have batches made of items by this function, unless the data has one.

        Raises:
            DataError: the data has no items, but columns.
        """
        if self.collate is not None:
            return
        if self.form is None:
            raise DataError(
                "collate puts items together, and this data has columns; "
                "use Data.dataset(…), or leave collate out"
            )
        self._source = self._source.collated()  # type: ignore[attr-defined]
        self.collate = collate
        self.collates = True

    def collate_scored_with(self, collate: Callable[[list[Any]], Any]) -> None:
        """Have the batches of validation made of items by this function."""
        if not self.collates:
            self._source = self._source.collated()  # type: ignore[attr-defined]
            self.collates = True
        self.scored_collate = collate

    def check(self) -> None:
        """Make a batch of the first items, if batches are made of items.

        Raises:
            DataError: that does not work.
        """
        if self.collates:
            check_collate(self._tried, self.collate)
            if self._scored_tried or self.scored_collate is not None:
                check_collate(
                    self._scored_tried or self._tried,
                    self.scored_collate or self.collate,
                    beside=() if self.scored_collate else self._tried,
                )

    @property
    def samples(self) -> int:
        """Training samples in all shards."""
        return sum(self.sizes.values())

    def __repr__(self) -> str:
        """How many samples there are, and what each column holds, in a few lines."""
        apart = sum(self._sizes[part] for part in self.validation)
        lines = [
            f"Data: {self.samples:,} training samples in {len(self.shards)} "
            f"{'shards' if len(self.shards) > 1 else 'shard'}, {apart:,} to validate on"
        ]
        if self.by_rows and self.is_here(self.shards[0]):
            first = self.rows(self.shards[0], np.arange(min(LOOKED_AT, self.size(self.shards[0]))))
            about = cols.described(first)
            lines += [f"  {name}: {kind}{self._meaning(name)}" for name, kind in about.items()]
        if self.collates:
            lines.append("  collate makes batches of these")
        if self.anew:
            lines.append("  read anew in each pass, for they draw random numbers")
        return "\n".join(lines)

    def read(self, part: ShardId) -> Columns:
        """All samples of a training shard or validation part.

        Raises:
            DataError: it cannot be read (any more), or it has another size than before.
        """
        with _reading(part):
            columns = self._source.read(part)
            size = cols.rows(columns)
            if size != self._sizes[part]:
                raise DataError(f"it had {self._sizes[part]} samples and now has {size}")
        return columns

    def of_pass(self, seed: int, turn: int) -> Data:
        """The data as the training passes with this number see it, in a study with this seed.

        Items that draw random numbers are read anew, and reshuffled samples are dealt to shards.
        """
        data = self
        if self.anew:
            data = copy(self)
            data._source = self._source.drawn_in(seed, turn)  # type: ignore[attr-defined]
        if self.arrangement.reshuffles and turn:
            return data.dealt(seed, turn)
        return data

    @property
    def in_memory(self) -> bool:
        """Whether reading is copying: all columns are arrays in memory."""
        return isinstance(self._source, Arrays)

    @property
    def by_rows(self) -> bool:
        """Whether `rows` reads no more than it is asked for."""
        return isinstance(self._source, RowSource)

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of a training shard or validation part, in this order.

        Raises:
            DataError: they cannot be read (any more).
        """
        source = self._source
        if not isinstance(source, RowSource):
            whole = self.read(part)
            return cols.apply(whole, lambda column: column[index])
        with _reading(part):
            columns = source.rows(part, index)
            size = cols.rows(columns)
            if size != len(index):
                raise DataError(f"it should give {len(index)} samples and gives {size}")
        return columns

    def size(self, part: ShardId) -> int:
        """Samples in a training shard or validation part."""
        return self._sizes[part]

    @staticmethod
    def arrays(
        *columns: Any,
        shards: int | None = None,
        validation: Any = 0.2,
        stratify: int | str | None = None,
        seed: int = 0,
        shard_weights: Sequence[float] | None = None,
        order: Order = "random",
        **named: Any,
    ) -> Data:
        """Columns of equal length, first axis samples: arrays, tensors or lists.

        A batch of columns given by position is a tuple; given by name, a dict.

        `shards`: their number; None: as few as keep a shard within 256 MB. `shard_weights`: the
        sizes of the shards in proportion to each other. If they are the speeds of the slots at
        which the shards will lie, each slot takes equally long for a pass.

        `validation`: the fraction set aside at random, the columns themselves in the same order (or
        under the same names), or None. `stratify`: the column whose values keep their shares in the
        fraction. `order`: "sequential" keeps the samples in their order, and sets the last ones
        aside.

        Raises:
            DataError: no columns, unequal lengths, text, nothing left to train or validate on, more
                shards than samples, or weights that are not numbers > 0, one for each shard.
        """
        how = Division(seed, shards, shard_weights, is_sequential(order))
        return Data(from_arrays(columns, named, validation, stratify, how))

    @staticmethod
    def folder(
        path: str | os.PathLike[str],
        pattern: str = "*.npz",
        validation: float | str | os.PathLike[str] | None = None,
        seed: int = 0,
    ) -> Data:
        """A folder of .npz files: each is a shard, in the order of their names.

        The arrays in a file are its columns. Arrays saved by name make dict batches; arrays saved
        by position (arr_0, …) make tuples. `validation`: the fraction of the files set aside at
        random, another folder of such files, or None.

        Raises:
            DataError: no files, files of unlike arrays, nothing left to train or validate on.
        """
        return Data(from_folder(whole(path), pattern, validation, seed))

    @staticmethod
    def idx(
        images: str | os.PathLike[str],
        labels: str | os.PathLike[str],
        shards: int | None = None,
        validation: Any = None,
        stratify: int | str | None = None,
        seed: int = 0,
        shard_weights: Sequence[float] | None = None,
    ) -> Data:
        """Files in the format of MNIST (IDX), gzipped or not.

        Batches are (images as stored, labels as int64). `validation`: (images, labels) files, the
        fraction set aside at random (with `stratify=1` labels keep their shares), or None.
        `shards`, `shard_weights`: as for `arrays`.

        Raises:
            DataError: not an IDX file, cut short, or as for `arrays`.
        """
        how = Division(seed, shards, shard_weights)
        return Data(from_idx(whole(images), whole(labels), validation, stratify, how))


def chunk_rows(row_bytes: int) -> int:
    """Samples to a chunk: some megabytes, and of large samples enough for some batches."""
    few = min(CHUNK_ROWS, MOST_BYTES // row_bytes)
    return max(1, few, CHUNK_BYTES // row_bytes)


@contextmanager
def _reading(part: ShardId) -> Iterator[None]:
    """What reading the part raises, as an error of the data that says which part it is."""
    try:
        yield
    except ShardError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, DataError):
            what = str(error)
        unread = DataError(f"{part} cannot be read ({what}); bring it back, then resume")
        unread.part = part
        raise unread from error
