"""The study's data: ordered training shards, and validation parts, read as whole columns of NumPy arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shoal.core.cluster import ShardId
from shoal.train import columns as cols
from shoal.train.columns import Columns, DataError

if TYPE_CHECKING:
    from torch.utils.data import Dataset

__all__ = ["CHUNK_BYTES", "SHARD_BYTES", "Columns", "Data", "DataError", "Source"]

CHUNK_BYTES = 8 * 2**20
SHARD_BYTES = 256 * 2**20


class Source(Protocol):
    """Where a Data's columns come from."""

    @property
    def serial(self) -> bool:
        """Reading draws on global state, as a user's Dataset may: never do it beside training."""
        ...

    def read(self, part: ShardId) -> Columns:
        """All samples of the part. Raises DataError, or whatever reading raises."""
        ...


class Data:
    """Training shards in their order, and validation parts. Build it with `arrays`, `dataset`, `folder` or `idx`.

    `shards`: the training shards. `sizes`: samples in each. `validation`: the validation parts, perhaps none; `read` takes both.
    `chunk`: samples to a chunk, a function of the data alone. `fingerprint`: changes when the data or its division does.
    `serial`: reading must not go on beside training.

    Raises:
        DataError: no shard, or an empty one.
    """

    def __init__(
        self, source: Source, sizes: Mapping[ShardId, int], validation: Mapping[ShardId, int], row_bytes: int, fingerprint: str
    ) -> None:
        if not sizes:
            raise DataError("data needs at least one training shard; got none")
        empty = [part for part, size in {**sizes, **validation}.items() if size < 1]
        if empty:
            raise DataError(f"every shard needs a sample; empty: {', '.join(empty[:5])}; use fewer, or leave empty files out")
        self._source = source
        self._sizes = {**sizes, **validation}
        self.sizes = dict(sizes)
        self.shards = tuple(sizes)
        self.validation = tuple(validation)
        self.chunk = max(1, CHUNK_BYTES // max(1, row_bytes))
        self.fingerprint = fingerprint
        self.serial = source.serial

    @property
    def samples(self) -> int:
        """Training samples in all shards."""
        return sum(self.sizes.values())

    def read(self, part: ShardId) -> Columns:
        """All samples of a training shard or validation part.

        Raises:
            DataError: it cannot be read (any more), or its size is another than before.
        """
        try:
            columns = self._source.read(part)
            size = cols.rows(columns)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{part} cannot be read ({type(error).__name__}: {error}); bring it back, then resume") from error
        if size != self._sizes[part]:
            raise DataError(f"{part} had {self._sizes[part]} samples and now has {size}; bring the former back, then resume")
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
        **named: Any,
    ) -> Data:
        """Columns of equal length, first axis samples: arrays, tensors or lists.

        Given by position, a batch is a tuple; given by name, a dict. `shards`: how many (none: as few as keep a shard within
        256 MB). `shard_weights`: their sizes against each other, as the speeds of the slots that they will lie at, so that
        every slot takes as long for a pass. `validation`: the fraction set aside at random (`stratify`: the column whose values
        keep their shares), the columns themselves in the same order (or under the same names), or None.

        Raises:
            DataError: no columns, unequal lengths, text, nothing left to train or validate on, more shards than samples,
                weights that are not one a shard and > 0.
        """
        from shoal.train.sources import from_arrays

        return from_arrays(columns, named, shards, validation, stratify, seed, shard_weights)

    @staticmethod
    def dataset(
        dataset: Dataset[Any],
        validation: Any = 0.2,
        shards: int | None = None,
        seed: int = 0,
        shard_weights: Sequence[float] | None = None,
    ) -> Data:
        """A map-style torch Dataset whose items are tuples, dicts or single values of equal shapes.

        Its items are kept as columns once read (those beyond `data_memory_gb` are read again): random transforms belong in
        `Recipe.augment`. `validation`: another such dataset, the fraction set aside at random, or None. `shard_weights`: as for
        `arrays`.

        Raises:
            DataError: no length, no items, items that cannot be stacked, nothing left to train or validate on.
        """
        from shoal.train.dataset import from_dataset

        return from_dataset(dataset, validation, shards, seed, shard_weights)

    @staticmethod
    def folder(
        path: str | os.PathLike[str],
        pattern: str = "*.npz",
        validation: float | str | os.PathLike[str] | None = None,
        seed: int = 0,
    ) -> Data:
        """A folder of .npz files, in the order of their names: one shard each; arrays in a file are its columns.

        Arrays saved by name make dict batches; saved by position (arr_0, …), tuples. `validation`: the fraction of the files
        set aside at random, another folder of such files, or None.

        Raises:
            DataError: no files, files of unlike arrays, nothing left to train or validate on.
        """
        from shoal.train.folder import from_folder

        return from_folder(Path(path), pattern, validation, seed)

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
        """Files in the format of MNIST (IDX), gzipped or not: batches are (images as stored, labels as int64).

        `validation`: (images, labels) files, the fraction set aside at random (`stratify=1`: labels keep their shares), or None.
        `shard_weights`: as for `arrays`.

        Raises:
            DataError: not an IDX file, cut short, or as for `arrays`.
        """
        from shoal.train.idx import from_idx

        return from_idx(Path(images), Path(labels), shards, validation, stratify, seed, shard_weights)


def part_names(letter: str, count: int) -> tuple[ShardId, ...]:
    """s000, s001, … (or v000, …)."""
    return tuple(ShardId(f"{letter}{i:03d}") for i in range(count))


def as_array(column: Any, name: str) -> np.ndarray[Any, Any]:
    """The column as an array of numbers, first axis samples.

    Raises:
        DataError: it is a single value, or not numbers.
    """
    if hasattr(column, "detach"):
        column = column.detach().cpu().numpy()
    array = np.asarray(column)
    if array.ndim == 0:
        raise DataError(f"column {name} must have samples along its first axis; got the single value {column!r}")
    if array.dtype.kind not in "biufc":
        raise DataError(f"column {name} must hold numbers; got dtype {array.dtype}: encode it as numbers first")
    return array
