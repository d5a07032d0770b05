"""The study's data: ordered training shards, and validation parts, as columns of NumPy arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from shoal.core.cluster import OF_RECIPE, ShardId, of_recipe, own_name
from shoal.engine.files import whole
from shoal.train.data import columns as cols
from shoal.train.data.arrangement import (
    Arrangement,
    By,
    Deal,
    DealtRows,
    Exchange,
    ExchangedRows,
    SampleDraws,
    Weighted,
    balancing,
    checked_weights,
    divide_folds,
)
from shoal.train.data.arrays import Arrays, from_arrays, from_idx, from_sequence
from shoal.train.data.catalogue import Catalogue
from shoal.train.data.collate import check_collate
from shoal.train.data.columns import Array, Columns, DataError, Ragged, ShardError
from shoal.train.data.formats import Reading
from shoal.train.data.items import from_dataset
from shoal.train.data.iterables import from_iterable
from shoal.train.data.loaders import check_left_out, loader_parts, scored_collate, scored_items
from shoal.train.data.node_shards import PlacedFiles, ShardsOfData
from shoal.train.data.npz import from_folder
from shoal.train.data.parts import (
    Division,
    Index,
    Order,
    Parts,
    RowSource,
    Source,
    is_sequential,
    reader,
)
from shoal.train.data.shards import ShardPlan, make_shards

if TYPE_CHECKING:
    from torch.utils.data import Dataset

__all__ = ["CHUNK_BYTES", "Columns", "Data", "DataError", "Source"]

CHUNK_BYTES = 8 * 2**20  # of a chunk of small samples
CHUNK_ROWS = 256  # samples that a chunk of large ones should have
MOST_BYTES = 32 * 2**20  # of a chunk that has several samples
LOOKED_AT = 8  # samples by which `print` tells of what shape they are
LISTED = 12  # columns or texts that `print` shows
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Data:
    """Training shards in their order, and validation parts.

    Made by one of the methods below, from `arrays` to `files`.

    Attributes:
        shards: the training shards, by name.
        sizes: samples in each.
        validation: the validation parts, perhaps none.
        chunk: samples to a chunk, a function of the data alone.
        fingerprint: changes when the data or its division does.
        serial: the data must not be read while trials train.
        names: the texts or classes behind a column's numbers, by column.

    Raises:
        DataError: no shard, or an empty one.
    """

    # Old pickles lack these.
    arrangement = Arrangement()
    form: Any = None  # what items are made of
    collate: Any = None  # what makes a batch of items
    scored_collate: Any = None  # for validation, where that is another one
    collates = False  # whether batches are made of items, by `collate` or else torch's default
    # whether items draw random numbers, so that each training pass reads them anew
    anew = False
    scored_form: Any = None  # of items to validate on, where that is another one
    _tried: Sequence[Any] = ()  # the first items
    _scored_tried: Sequence[Any] = ()  # those to validate on; none: they are like `_tried`
    # the texts or classes behind a column's numbers, by column
    names: Mapping[str, Sequence[str]] = {}
    # how a table's columns became numbers; None: the data is no table's
    table: Any = None
    # gets shards as they are dealt; None: all samples are read here
    exchange: Exchange | None = None
    # the data of each recipe, by the recipe's name, if this is that of several
    of: Mapping[str, Data] = {}
    # `Data.shards(…)` makes data of shards at nodes; `data.shards` are the training shards
    shards = ShardsOfData()

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

    # -- out of memory -----------------------------------------------------------------------------

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

        Args:
            *columns: the columns by position.
            shards: their number. None: as few as keep a shard within 256 MB.
            validation: the fraction set aside at random, the columns themselves in the same order
                (or under the same names), or None.
            stratify: the column, by place or name, whose values keep their shares in the fraction.
            seed: of the division.
            shard_weights: the sizes of the shards in proportion to each other. If they are the
                speeds of the slots at which the shards will lie, each slot takes equally long for a
                pass.
            order: "random", or "sequential": the samples keep their order, and the last ones are
                set aside.
            **named: the columns by name.

        Raises:
            DataError: no columns, unequal lengths, text, nothing left to train or validate on, more
                shards than samples, or weights that are not numbers > 0, one for each shard.
        """
        how = Division(seed, shards, shard_weights, is_sequential(order))
        return Data(from_arrays(columns, named, validation, stratify, how))

    @staticmethod
    def sequence(
        values: Any, window: int, validation: Any = 0.1, shards: int | None = None
    ) -> Data:
        """One long sequence, as of a language model; batches are (inputs, targets).

        Targets are the values that follow the inputs. With a step that takes `state`, row i of each
        batch continues row i of the batch before: the sequence is cut in as many streams as a batch
        has rows.

        Args:
            values: (n, …), the first axis steps.
            window: steps in each sample.
            validation: another sequence, the fraction at the end, or None.
            shards: as for `arrays`.

        Raises:
            DataError: not a window of values, or as `arrays`.
        """
        return Data(from_sequence(values, window, validation, shards))

    @staticmethod
    def dataset(
        dataset: Dataset[Any] | DataLoader[Any] | Sequence[Any],
        validation: Any = 0.2,
        shards: int | None = None,
        seed: int = 0,
        shard_weights: Sequence[float] | None = None,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        order: Order = "random",
        samples: int | None = None,
    ) -> Data:
        """A torch Dataset, or a list, whose items are tuples, dicts or single values.

        Items of equal shapes are kept as columns, and batches are slices of them. Items that hold
        arrays of unequal shapes, text, images or nested containers are kept as they are, and become
        a batch by `collate`.

        Items that were read are kept; those beyond `data_memory_gb` are read again. Items that draw
        random numbers are read anew in each training pass, under seeds of the pass; those to
        validate on are drawn once. An IterableDataset is read once from its beginning to its end.

        Args:
            dataset: the dataset, or a DataLoader, as for `loader`.
            validation: another such dataset, a DataLoader, the fraction set aside at random, or
                None.
            shards: as for `arrays`.
            seed: of the division.
            shard_weights: as for `arrays`.
            collate: a function of a list of items, which may draw random numbers; they depend on
                the seed and the place in the pass. None: torch's default collate.
            order: "random", or "sequential": the items keep their order, and the last ones are set
                aside.
            samples: of an IterableDataset, how many are read. None: all.

        Raises:
            DataError: no items, items of unequal forms, nothing left to train or validate on.
        """
        if isinstance(dataset, DataLoader):
            check_left_out(collate=collate, order=order, shard_weights=shard_weights)
            return Data.loader(dataset, validation, shards, seed, samples)
        how = Division(seed, shards, shard_weights, is_sequential(order))
        scored_by = None
        if isinstance(validation, DataLoader):
            scored_by = scored_collate(validation, collate)
            validation = scored_items(validation)
        if isinstance(dataset, IterableDataset):
            data = Data(from_iterable(dataset, validation, how, collate, samples))
        else:
            data = Data(from_dataset(dataset, validation, how, collate))
        return data if scored_by is None else data.scored_collated(scored_by)

    @staticmethod
    def loader(
        train: DataLoader[Any],
        valid: Any = None,
        shards: int | None = None,
        seed: int = 0,
        samples: int | None = None,
    ) -> Data:
        """A DataLoader as it is: its dataset, batch size, collate function and order.

        Batch size, `drop_last` and shuffling become the recipe's, where the recipe does not set
        them itself. shuffle=True draws a new order in each pass. A WeightedRandomSampler and a
        SubsetRandomSampler keep their meaning. The order of any other sampler or batch sampler is
        drawn in each pass, under the study's seed; the data has one shard then. `num_workers`
        becomes the study's `workers`, where that is "auto". A loader's own generator and
        `worker_init_fn` are not used.

        Args:
            train: the DataLoader to train on.
            valid: another DataLoader or dataset, a fraction, or None.
            shards: as for `arrays`.
            seed: of the division.
            samples: of an endless IterableDataset, how many are read.

        Raises:
            DataError: a loader that makes batches in another way, or as `dataset`.
        """
        loader = loader_parts(train, valid)
        how = Division(seed, loader.shards(shards), None, loader.sequential)
        if isinstance(loader.dataset, IterableDataset):
            parts = from_iterable(loader.dataset, loader.validation, how, loader.collate, samples)
        else:
            parts = from_dataset(loader.dataset, loader.validation, how, loader.collate)
        data: Data = loader.arranged(Data(parts))
        return data

    # -- out of files ------------------------------------------------------------------------------

    @staticmethod
    def folder(
        path: str | os.PathLike[str],
        pattern: str = "*.npz",
        validation: float | str | os.PathLike[str] | None = None,
        seed: int = 0,
    ) -> Data:
        """A folder of .npz files: each is a shard, in the order of their names.

        The arrays in a file are its columns. Arrays saved by name make dict batches; arrays saved
        by position (arr_0, …) make tuples.

        Args:
            path: the folder.
            pattern: which of its files.
            validation: the fraction of the files set aside at random, another folder of such files,
                or None.
            seed: of the choice of these files.

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

        Batches are (images as stored, labels as int64).

        Args:
            images: the file of images.
            labels: the file of their labels.
            shards: as for `arrays`.
            validation: (images, labels) files, the fraction set aside at random, or None.
            stratify: 1: labels keep their shares in the fraction.
            seed: of the division.
            shard_weights: as for `arrays`.

        Raises:
            DataError: not an IDX file, cut short, or as for `arrays`.
        """
        how = Division(seed, shards, shard_weights)
        return Data(from_idx(whole(images), whole(labels), validation, stratify, how))

    @staticmethod
    def csv(
        paths: Paths,
        *,
        label: str | None = None,
        columns: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        encode: Mapping[str, Any] | None = None,
        fill: float | str | Mapping[str, Any] | None = None,
        dropna: Sequence[str] = (),
        na_values: Sequence[Any] = (),
        decimal: str = ".",
        encoding: str | None = None,
        validation: Any = 0.2,
        stratify: str | None = None,
        shards: int | None = None,
        seed: int = 0,
    ) -> Data:
        """Rows of CSV files with a header line: one file, a folder, a pattern ("*.csv") or a list.

        With `label` a batch is (all other columns as float32 (n, k), the label); without it a dict
        of columns. Whole numbers are int64, others float32. What parts the values (comma,
        semicolon, tab or bar) is seen from the header line. All rows are held in memory.

        Args:
            paths: the files.
            label: the column to predict.
            columns: those to read. None: all.
            drop: columns to leave out.
            encode: {column: "onehot", "ordinal", "hash", or a function}, of text and dates; the
                texts by number are in `names`. A function gets the list of the column's values in
                the training part, and returns a function of such a list.
            fill: what takes the place of missing values: a number, "mean" or "median" (of the
                training part) for all columns of numbers but the label, or {column: value}.
            dropna: columns; rows that lack a value there are left out.
            na_values: texts that mean a missing value.
            decimal: what parts the whole from the fraction.
            encoding: of the files, such as "latin-1". None: UTF-8.
            validation: a fraction, other files, or None.
            stratify: the column whose values keep their shares in the fraction; it may be text.
            shards: as for `arrays`.
            seed: of the division.

        Raises:
            DataError: no such file or column, text without `encode`, missing values without `fill`.
        """
        tables = reader("tables", "Data.csv", "pyarrow")
        form = tables.CsvForm(encoding, na_values, decimal)
        setup = tables.TableSetup(label, columns, encode, fill, stratify, drop, dropna, form)
        how = Division(seed, shards)
        return Data(tables.from_tables(paths, "csv", setup, validation, how))

    @staticmethod
    def parquet(
        paths: Paths,
        *,
        label: str | None = None,
        columns: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        encode: Mapping[str, Any] | None = None,
        fill: float | str | Mapping[str, Any] | None = None,
        dropna: Sequence[str] = (),
        validation: Any = 0.2,
        stratify: str | None = None,
        shards: int | None = None,
        seed: int = 0,
    ) -> Data:
        """Rows of Parquet files, as `csv` reads those of CSV files.

        Args:
            paths: one file, a folder, a pattern ("*.parquet") or a list.
            label: as for `csv`, as all that follow.
            columns: those to read. None: all.
            drop: columns to leave out.
            encode: how text and dates become numbers.
            fill: what takes the place of missing values.
            dropna: columns; rows that lack a value there are left out.
            validation: a fraction, other files, or None.
            stratify: the column whose values keep their shares in the fraction.
            shards: as for `arrays`.
            seed: of the division.

        Raises:
            DataError: as for `csv`.
        """
        tables = reader("tables", "Data.parquet", "pyarrow")
        setup = tables.TableSetup(label, columns, encode, fill, stratify, drop, dropna)
        how = Division(seed, shards)
        return Data(tables.from_tables(paths, "parquet", setup, validation, how))

    @staticmethod
    def frame(
        frame: Any,
        *,
        label: str | None = None,
        columns: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        encode: Mapping[str, Any] | None = None,
        fill: float | str | Mapping[str, Any] | None = None,
        dropna: Sequence[str] = (),
        validation: Any = 0.2,
        stratify: str | None = None,
        shards: int | None = None,
        seed: int = 0,
    ) -> Data:
        """Rows of a frame: of pandas, Polars or pyarrow, or what scikit-learn loads as one.

        The index is left out; NaN is a missing value. `encode` of this data takes frames, too.

        Args:
            frame: the frame.
            label: as for `csv`, as all that follow.
            columns: those to take. None: all.
            drop: columns to leave out.
            encode: how text and dates become numbers.
            fill: what takes the place of missing values.
            dropna: columns; rows that lack a value there are left out.
            validation: a fraction, another frame, or None.
            stratify: the column whose values keep their shares in the fraction.
            shards: as for `arrays`.
            seed: of the division.

        Raises:
            DataError: no frame; or as `csv`.
        """
        tables = reader("tables", "Data.frame", "pyarrow")
        setup = tables.TableSetup(label, columns, encode, fill, stratify, drop, dropna)
        how = Division(seed, shards)
        return Data(tables.from_tables(frame, "frame", setup, validation, how))

    def encode(
        self, paths: Any, columns: Sequence[str] | None = None
    ) -> Tensor | dict[str, Tensor]:
        """New rows out of files of the same format, or a frame, as batches of this data hold them.

        Text is encoded and gaps are filled as in this data; nothing is fitted anew. Data with a
        label gives the other columns as float32 (n, k), and the files need no label. Data without
        gives {column: values}. Rows keep their order; columns that this data does not have are left
        out. A warning names texts that "onehot" does not know: their rows are all 0.

        Args:
            paths: the files, or the frame.
            columns: these columns alone, by name, the label perhaps among them. None: all.

        Raises:
            DataError: the data is no table's, a column is missing or of another kind, or "ordinal"
                does not know a text.
        """
        if self.table is None:
            raise DataError(
                "encode goes with data out of CSV and Parquet files; this data was made otherwise"
            )
        batch = self.table.encode(paths, columns)
        if isinstance(batch, dict):
            return {name: torch.from_numpy(column) for name, column in batch.items()}
        return torch.from_numpy(batch)

    @staticmethod
    def arrow(
        source: Any,
        *,
        columns: Sequence[str] | None = None,
        decode: Mapping[str, Callable[[Any], Any]] | None = None,
        validation: Any = 0.2,
        stratify: str | None = None,
        shards: int | None = None,
        seed: int = 0,
    ) -> Data:
        """A Hugging Face `datasets.Dataset`, or Arrow files; rows stay in the files until read.

        A batch is a dict of columns. Lists of equal lengths become axes. Pictures of `datasets` are
        decoded.

        Args:
            source: the dataset, or the files.
            columns: those to read. None: all.
            decode: {column: function of a value}, for all else that is no number.
            validation: a fraction, another dataset, or None.
            stratify: the column whose values keep their shares in the fraction; it may be text.
            shards: as for `arrays`.
            seed: of the division.

        Raises:
            DataError: rows that are in no file, no such column, values that are no numbers.
        """
        arrow = reader("arrow", "Data.arrow", "pyarrow", "pillow")
        how = Division(seed, shards)
        return Data(arrow.from_arrow(source, columns, decode, validation, how, stratify))

    @staticmethod
    def images(
        root: str | os.PathLike[str],
        size: int | tuple[int, int] | None = None,
        *,
        validation: Any = 0.2,
        stratify: bool = True,
        shards: int | None = None,
        seed: int = 0,
    ) -> Data:
        """A folder with a folder of pictures (jpg, png) for each class.

        A batch is (pictures uint8 (n, 3, height, width), class numbers int64); the class names are
        `data.names["1"]`.

        Args:
            root: the folder.
            size: a side or (height, width), in pixels, to which pictures are resized. None: all
                have one size.
            validation: a fraction, another such folder, or None.
            stratify: each class keeps its share in the fraction.
            shards: as for `arrays`.
            seed: of the division.

        Raises:
            DataError: no such folder, no pictures, pictures of several sizes.
        """
        images = reader("images", "Data.images", "pillow")
        how = Division(seed, shards)
        return Data(images.from_images(whole(root), size, validation, how, stratify))

    @staticmethod
    def tar(
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        decode: Mapping[str, Callable[[bytes], Any]] | None = None,
        size: int | tuple[int, int] | None = None,
        validation: Any = None,
        seed: int = 0,
    ) -> Data:
        """Tar files in webdataset's layout: each is a shard; a sample's members share a name.

        Members jpg, png, npy, cls and json (numbers) are decoded by their ending.

        Args:
            paths: one file, a folder, a pattern or a list.
            columns: the endings to read: then a batch is a tuple. None: all of the first sample's,
                and a batch is a dict.
            decode: {ending: function of the bytes}, for others, such as txt.
            size: of pictures, as for `images`.
            validation: a fraction of the files, other files, or None.
            seed: of the choice of these files.

        Raises:
            DataError: no such file, a packed tar file, a sample that lacks a member.
        """
        tar = reader("tar", "Data.tar", "pillow")
        return Data(tar.from_tars(paths, columns, decode, size, validation, seed))

    @staticmethod
    def files(
        paths: Paths, read: Callable[[Path], Any], *, validation: Any = None, seed: int = 0
    ) -> Data:
        """Files of any format: each is a shard.

        Each file is read once when the data is made, to see how many samples it has.

        Args:
            paths: one file, a folder, a pattern or a list.
            read: a function of a path, which returns the file's columns: arrays of equal length, as
                a tuple or a dict.
            validation: a fraction of the files, other files, or None.
            seed: of the choice of these files.

        Raises:
            DataError: no such file, or files whose columns differ.
        """
        files = reader("files", "Data.files")
        return Data(files.from_files(paths, read, validation, seed))

    @staticmethod
    def make_shards(
        source: Paths,
        folder: str | os.PathLike[str],
        *,
        shards: int,
        seed: int = 0,
        replicas: int = 1,
        nodes: Sequence[str] = (),
        speeds: Mapping[str, float] | None = None,
        validation: Any = None,
        label: str | None = None,
        drop: Sequence[str] = (),
        numeric_only: bool = False,
        size: int | tuple[int, int] | None = None,
        memory_gb: float = 1.0,
    ) -> dict[str, Any]:
        """Shuffle the rows of files once, write them as shards, and a catalogue of these.

        Each shard is an uncompressed .npz file, as `folder/node/s000.npz`. Equal arguments give
        equal files.

        Returns {"catalogue": the path of shards.toml, "rows": by shard, "bytes": written}.

        Args:
            source: CSV, Parquet, Arrow, .npz, .npy or tar files, a folder of such, or a folder of
                pictures by class.
            folder: a new one.
            shards: how many.
            seed: of the shuffle.
            replicas: copies of each shard.
            nodes: where they lie, in turn.
            speeds: of the nodes; shards are as large as the mean speed of the nodes that hold them.
                None: all are equal.
            validation: a fraction, other files, or None; it is divided in as many shards.
            label: of CSV and Parquet files: the column to predict; rows are (inputs float32, label)
                then.
            drop: columns of these files to leave out.
            numeric_only: leave out columns of these files that hold text or times.
            size: of pictures, as for `images`.
            memory_gb: GiB that are held in memory at most, about; the disk holds the rows twice
                meanwhile.

        Raises:
            DataError: no such files, rows that are no numbers, a folder that is not empty, more
                shards than rows, more replicas than nodes.
        """
        plan = ShardPlan(shards, seed, replicas, names_of(nodes), speeds, validation, memory_gb)
        how = Reading(label, names_of(drop), size, numeric_only)
        return make_shards(source, Path(folder), plan, how)

    # -- what it holds -----------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Training samples in all shards."""
        return sum(self.sizes.values())

    def size(self, part: ShardId) -> int:
        """Samples in a training shard or validation part."""
        return self._sizes[part]

    @property
    def row_bytes(self) -> float:
        """Bytes of a sample, as it is stored."""
        return self._row_bytes

    @property
    def in_memory(self) -> bool:
        """Whether reading is copying: all columns are arrays in memory."""
        if self.of:
            return all(data.in_memory for data in self.of.values())
        return isinstance(self._source, Arrays)

    @property
    def by_rows(self) -> bool:
        """Whether `rows` reads no more than it is asked for."""
        if self.of:
            return all(data.by_rows for data in self.of.values())
        return isinstance(self._source, RowSource)

    @property
    def is_shuffled(self) -> bool:
        """Whether rows were put in a random order before they were divided."""
        return hasattr(self._source, "index") and not self.arrangement.sequential

    def __repr__(self) -> str:
        """How many samples there are, and what each column holds, in a few lines."""
        apart = sum(self._sizes[part] for part in self.validation)
        lines = [
            f"Data: {self.samples:,} training samples in {len(self.shards)} "
            f"{'shards' if len(self.shards) > 1 else 'shard'}, {apart:,} to validate on"
        ]
        if self.by_rows and self.is_here(self.shards[0]):
            first = self.rows(self.shards[0], np.arange(min(LOOKED_AT, self.size(self.shards[0]))))
            kinds = cols.described(first)
            lines += [f"  {name}: {kind}{self._meaning(name)}" for name, kind in kinds.items()]
        if self.collates:
            lines.append("  collate makes batches of these")
        if self.anew:
            lines.append("  read anew in each pass, for they draw random numbers")
        return "\n".join(lines)

    def _meaning(self, name: Any) -> str:
        """Which columns of a table the column is made of, and the texts behind its numbers."""
        label = self.table and self.table.label
        meaning = ""
        if label is not None:  # the columns are the inputs, and the label
            if name == 0:
                return ": " + _some(self.table.inputs)
            meaning = f", the label {label}"
            name = label
        texts = self.names.get(str(name))
        if texts is not None:
            meaning += ": " + _some([f"{n} {text}" for n, text in enumerate(texts)])
        return meaning

    def read(self, part: ShardId) -> Columns:
        """All samples of a training shard or validation part.

        Args:
            part: its name, of `shards` or `validation`.

        Raises:
            DataError: it cannot be read (any more), or it has another size than before.
        """
        with _reading(part):
            columns = self._source.read(part)
            size = cols.rows(columns)
            if size != self._sizes[part]:
                raise DataError(f"it had {self._sizes[part]} samples and now has {size}")
        return columns

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of a training shard or validation part, in this order.

        Args:
            part: its name, of `shards` or `validation`.
            index: the numbers of the samples in it.

        Raises:
            DataError: they cannot be read (any more).
        """
        source = self._source
        if not isinstance(source, RowSource):
            return cols.apply(self.read(part), lambda column: column[index])
        with _reading(part):
            columns = source.rows(part, index)
            size = cols.rows(columns)
            if size != len(index):
                raise DataError(f"it should give {len(index)} samples and gives {size}")
        return columns

    def numbers(self) -> dict[ShardId, Any]:
        """By training shard, the numbers of its samples in the data as it was given."""
        index = getattr(self._source, "index", None)
        if index is not None:
            return {shard: index[shard] for shard in self.shards}
        numbers = {}
        start = 0
        for shard, size in self.sizes.items():
            numbers[shard] = np.arange(start, start + size)
            start += size
        return numbers

    def _column(self, by: str | int) -> dict[ShardId, Array]:
        """A column of each training shard.

        Raises:
            DataError: there is no such column, or it is not of numbers or text.
        """
        label = self.table and self.table.label
        if label is not None:
            if by not in (label, 1):
                raise DataError(
                    f"labels are those of the table's label, {label!r}, or by its place 1; "
                    f"got {by!r}"
                )
            by = 1
        return {shard: labels_of(self.read(shard), by) for shard in self.shards}

    # -- how passes take the samples ---------------------------------------------------------------

    def weighted(self, weights: Any) -> Data:
        """The data, whose samples are drawn with replacement in each pass, by their weights.

        A pass over a shard draws as many samples as the shard has, from (seed, shard, turn).

        Args:
            weights: one number >= 0 for each sample, in the order of the data as it was given;
                those set aside for validation have one, too.

        Raises:
            DataError: another number of weights, or one that is no such number.
        """
        apart = getattr(self._source, "apart", frozenset(self.validation))
        aside = [part for part in self.validation if part not in apart]
        count = sum(self._sizes[part] for part in [*self.shards, *aside])
        weights = checked_weights(weights, count)
        return self._with_weights({part: weights[rows] for part, rows in self.numbers().items()})

    def balanced(self, by: str | int) -> Data:
        """The data, of which each pass draws samples of all labels equally often.

        All labels are read once.

        Args:
            by: the name or place of the column of labels; of a table the label's name.

        Raises:
            DataError: there is no such column, or it has several values per sample.
        """
        labels = self._column(by)
        weights = balancing(np.concatenate(list(labels.values())))
        ends = np.cumsum([len(part) for part in labels.values()])[:-1]
        return self._with_weights(dict(zip(labels, np.split(weights, ends), strict=True)))

    def bucketed(self, by: By) -> Data:
        """The data, whose batches have samples of similar lengths.

        Each chunk is sorted by length and cut in groups of four batches of the recipe's
        `batch_size`, which come in a random order.

        Args:
            by: the name or place of a column, whose values' first axes count (of text, its bytes),
                or a function of an item that gives a number. They see items as `prepare` leaves
                them.
        """
        label = by if isinstance(by, str | int) else getattr(by, "__qualname__", "function")
        return self._arranged(f"buckets {label}", buckets=by)

    def folds(self, count: int, seed: int = 0, stratify: str | int | None = None) -> Data:
        """The training samples in folds: `config["fold"]` is the one that a trial validates on.

        Search over it with {"fold": shoal.grid(range(count)), …}. Each sample is validated on in
        one fold. Trials of one fold share their stream of data. Where folds differ by a sample, one
        is left out of training, so that shards have one size in all folds.

        Args:
            count: how many, 2 or more.
            seed: of the division.
            stratify: the column whose values keep their shares in each fold; of a table the label's
                name.

        Raises:
            DataError: fewer than two folds, more than samples, or data that has a validation part
                or that cannot be divided anew.
        """
        if self.validation:
            raise DataError(
                "folds divide all of the data: give validation=None where the data is made"
            )
        if not hasattr(self._source, "divided"):
            raise DataError(
                "folds divide samples of arrays and data sets; this data is divided by its files"
            )
        numbers = self.numbers()
        labels = None
        if stratify is not None:
            labels = np.concatenate(list(self._column(stratify).values()))
        rows = np.concatenate(list(numbers.values()))
        shards = len(self.shards)
        folds = divide_folds(count, rows, labels, seed, shards, self._row_bytes)
        return self._arranged(f"{count} folds {seed} {stratify}", folds=folds).of_fold(0)

    def reshuffle(self, how: str = "across") -> Data:
        """The data, whose samples are dealt anew between the training shards in each epoch.

        The first epoch trains on the shards as they are. Which samples a shard holds later is a
        function of the study's seed and the epoch; shards keep their sizes.

        Args:
            how: "across" shards, the only way there is.

        Raises:
            DataError: `how` is not "across", or the data cannot be dealt: in weights, folds or its
                own order, or not readable by rows.
        """
        if how != "across":
            raise DataError(f'reshuffle must be "across"; got {how!r}')
        if not isinstance(self._source, RowSource):
            raise DataError(
                "reshuffle needs data that is read by rows, and these files can only be read as a "
                "whole: make shards of them with Data.make_shards"
            )
        return self._arranged("reshuffled across", reshuffles=True)

    def drawn_by(self, draws: SampleDraws, name: str) -> Data:
        """The data, each of whose passes is in an order that `draws` gives."""
        return self._arranged(f"drawn by {name}", draws=draws)

    def with_defaults(self, workers: int = 0, **values: Any) -> Data:
        """The data, which brings attributes for recipes that do not set them.

        `workers`: how many it would like for a study that does not say.
        """
        data = copy(self)
        defaults = {**self.arrangement.defaults, **values}
        data.arrangement = replace(self.arrangement, defaults=defaults, workers=workers)
        return data

    def _with_weights(self, weights: Mapping[ShardId, Array]) -> Data:
        empty = [shard for shard, array in weights.items() if not array.sum() > 0]
        if empty:
            raise DataError(
                f"a shard needs a sample with a weight > 0; none in {', '.join(empty[:5])}"
            )
        hashed = blake2b(digest_size=8)
        for array in weights.values():
            hashed.update(array.astype("<f8").tobytes())
        return self._arranged(f"weighted {hashed.hexdigest()}", draws=Weighted(weights))

    def _arranged(self, name: str, **changes: Any) -> Data:
        """A copy with another arrangement, whose name is part of the fingerprint.

        Raises:
            DataError: its samples cannot be dealt so.
        """
        data = copy(self)
        arrangement = replace(self.arrangement, **changes)
        if arrangement.reshuffles and (
            arrangement.draws or arrangement.folds or arrangement.sequential
        ):
            raise DataError(
                "reshuffle deals samples at random, each once in an epoch: it does not go with "
                "weights, samplers, folds or data in its own order"
            )
        data.arrangement = arrangement
        data.fingerprint = f"{self.fingerprint}-{name}"
        return data

    def of_fold(self, fold: Any) -> Data:
        """The data of trials with this fold.

        Raises:
            DataError: there is no such fold.
        """
        folds = self.arrangement.folds
        assert folds is not None, "the data is divided in folds"
        if isinstance(fold, bool) or fold not in range(folds.count):
            raise DataError(
                f'config["fold"] must be a whole number from 0 to {folds.count - 1}; got {fold!r}'
            )
        index = folds.index(int(fold))
        source = self._source.divided(index)  # type: ignore[attr-defined]
        return self._of_parts(source, index)

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

    def dealt(self, seed: int, epoch: int) -> Data:
        """The data as it is dealt in that epoch of a study with that seed."""
        assert isinstance(self._source, RowSource), "reshuffle asks for it"
        deal = Deal(seed, epoch, self.sizes)
        data = copy(self)
        data._source = DealtRows(self._source, deal)
        if self.exchange is not None:
            data._source = ExchangedRows(self.exchange, deal)
        return data

    def exchanging(self, exchange: Exchange) -> Data:
        """The data as a process reads it at whose node some of the shards do not lie."""
        data = copy(self)
        data.exchange = exchange
        return data

    def bytes_dealt(self) -> int:
        """Bytes of samples that came from other nodes since this was asked last."""
        return 0 if self.exchange is None else self.exchange.taken()

    def few(self, index: Mapping[ShardId, Index]) -> Data:
        """These rows of these parts alone, as data without weights and folds, to try code with."""
        data = self._of_parts(FewRows(self, index), index)
        data.arrangement = replace(self.arrangement, draws=None, folds=None, reshuffles=False)
        data.anew = False
        return data

    def _of_parts(self, source: Source, index: Mapping[ShardId, Index]) -> Data:
        """A copy that has these rows of the source, by part."""
        data = copy(self)
        data._source = source
        data._sizes = {part: len(rows) for part, rows in index.items()}
        data.sizes = {p: n for p, n in data._sizes.items() if p in self.shards}
        data.shards = tuple(data.sizes)
        data.validation = tuple(part for part in index if part not in self.shards)
        return data

    def of_recipe(self, name: str) -> Data:
        """The data of the recipe with this name; this data, if it is that of a single one."""
        return self.of[name] if self.of else self

    # -- batches of items --------------------------------------------------------------------------

    def collated(self, collate: Callable[[list[Any]], Any]) -> Data:
        """The data, whose batches are made of items by this function, unless it has one.

        Raises:
            DataError: the data has no items, but columns.
        """
        if self.collate is not None:
            return self
        if self.form is None:
            raise DataError(
                "collate puts items together, and this data has columns; "
                "use Data.dataset(…), or leave collate out"
            )
        data = self._of_items()
        data.collate = collate
        return data

    def scored_collated(self, collate: Callable[[list[Any]], Any]) -> Data:
        """The data, whose batches of validation are made of items by this function."""
        data = self._of_items()
        data.scored_collate = collate
        return data

    def _of_items(self) -> Data:
        """A copy whose batches are made of items, which are kept as they are."""
        data = copy(self)
        if not self.collates:
            data._source = self._source.collated()  # type: ignore[attr-defined]
            data.collates = True
        return data

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

    # -- where it lies -----------------------------------------------------------------------------

    @property
    def catalogue(self) -> Catalogue | None:
        """Which nodes hold which parts; None: every process reads all of them."""
        source = self._source
        return source.catalogue if isinstance(source, PlacedFiles) else None

    def at(self, names: tuple[str, ...], alone: bool = True) -> Data:
        """The data as processes read it at the node with these names.

        `alone`: as of `PlacedFiles.at`.
        """
        data = copy(self)
        if isinstance(self._source, PlacedFiles):
            data._source = self._source.at(names, alone)
        return data

    def is_here(self, part: ShardId) -> bool:
        """Whether this process may read the part."""
        source = self._source
        return not isinstance(source, PlacedFiles) or source.is_here(part)

    @property
    def first_here(self) -> ShardId:
        """The first training shard that this process may read; the first of all if none."""
        return next(filter(self.is_here, self.shards), self.shards[0])

    def damaged(self) -> dict[ShardId, str]:
        """Why training shards that lie at this process's node are of no use there.

        They cannot be read, or no model can be validated there.
        """
        source = self._source
        if not isinstance(source, PlacedFiles):
            return {}
        reasons = source.damaged()
        for part in self.validation:
            if part in reasons:
                return dict.fromkeys(filter(self.is_here, self.shards), reasons[part])
        return reasons


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
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, DataError):
            why = str(error)
        part_error = DataError(f"{part} cannot be read ({why}); bring it back, then resume")
        part_error.part = part
        raise part_error from error


def _some(words: Sequence[str]) -> str:
    """The first words, and how many more there are."""
    listed = ", ".join(words[:LISTED])
    if len(words) > LISTED:
        listed += f" and {len(words) - LISTED} more"
    return listed


def names_of(names: Sequence[str]) -> tuple[str, ...]:
    """The names; a single one as a tuple of it."""
    return (names,) if isinstance(names, str) else tuple(names)


@dataclass(frozen=True, slots=True)
class FewRows:
    """Some rows of other data's parts."""

    data: Data
    index: Mapping[ShardId, Index]

    @property
    def serial(self) -> bool:
        """Whether the other data must not be read beside training."""
        return self.data._source.serial

    def read(self, part: ShardId) -> Columns:
        """All of the rows of the part."""
        return self.data.rows(part, self.index[part])

    def rows(self, part: ShardId, index: Index) -> Columns:
        """Some of the rows of the part."""
        return self.data.rows(part, self.index[part][index])


def labels_of(columns: Columns, by: str | int) -> Array:
    """The values of a column, one for each sample.

    Raises:
        DataError: there is no such column.
    """
    named = cols.named(columns)
    if by not in named:
        raise DataError(
            f"there must be such a column; got {by!r}, and there are {', '.join(map(str, named))}"
        )
    column = named[by]
    if isinstance(column, Ragged):
        return np.array(list(column))
    return np.asarray(column)


# -- the data of several recipes ------------------------------------------------------------


@dataclass(frozen=True)
class DataByName:
    """Reads each part from the data that it belongs to."""

    data: Mapping[str, Data]

    @property
    def serial(self) -> bool:
        """Whether some of the data must not be read beside training."""
        return any(data.serial for data in self.data.values())

    def read(self, part: ShardId) -> Columns:
        """All samples of the part."""
        return self._owner(part).read(own_name(part))

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the part."""
        return self._owner(part).rows(own_name(part), index)

    def _owner(self, part: ShardId) -> Data:
        return self.data[part.partition(OF_RECIPE)[0]]


def join_data(by_recipe: Mapping[str, Data]) -> Data:
    """The data of several recipes in one study, each part under its recipe's name.

    `by_recipe`: the data of each, by the recipe's name.

    Raises:
        DataError: some of it lies at nodes, or is dealt anew in each epoch.
    """
    for name, data in by_recipe.items():
        if data.catalogue is not None or data.arrangement.reshuffles:
            raise DataError(
                f"recipe {name!r}: Data.shards that lie at nodes, and reshuffle, are for studies "
                "of one recipe: give the others a study of their own"
            )
    hashed = blake2b(digest_size=16)
    for name, data in by_recipe.items():
        hashed.update(f"{name}\0{data.fingerprint}\0".encode())
    joined = Data(
        Parts(
            source=DataByName(by_recipe),
            training=_sizes(by_recipe, "shards"),
            validation=_sizes(by_recipe, "validation"),
            row_bytes=int(max(data.row_bytes for data in by_recipe.values())),
            fingerprint=hashed.hexdigest(),
        )
    )
    joined.of = dict(by_recipe)
    return joined


def _sizes(by_recipe: Mapping[str, Data], kind: str) -> dict[ShardId, int]:
    """Samples in each shard, or validation part, of all the data."""
    sizes = {}
    for name, data in by_recipe.items():
        for part in getattr(data, kind):
            sizes[of_recipe(name, part)] = data.size(part)
    return sizes
