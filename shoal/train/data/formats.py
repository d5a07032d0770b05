"""Data out of files of other tools: each constructor's arguments, and which reader it needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from shoal.engine.files import whole
from shoal.train.data.columns import DataError
from shoal.train.data.parts import Division, Parts, reader

LISTED = 12  # columns or texts that `print` shows
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class FromFiles:
    """The constructors of `Data` that read files of other tools."""

    # the texts or classes behind a column's numbers, by column; old pickles lack it
    names: Mapping[str, Sequence[str]] = {}
    # how a table's columns became numbers; None: the data is no table's
    table: Any = None

    def __init__(self, parts: Parts) -> None:
        raise NotImplementedError

    @classmethod
    def csv(
        cls,
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
    ) -> Self:
        """Rows of CSV files with a header line: one file, a folder, a pattern ("*.csv") or a list.

        With `label` a batch is (all other columns as float32 (n, k), the label); without it a dict
        of columns. Whole numbers are int64, others float32. What parts the values (comma,
        semicolon, tab or bar) is seen from the header line.

        `columns`: those to read; None: all. `drop`: columns to leave out. `encode`: {column:
        "onehot", "ordinal", "hash", or a function}, of text and dates; the texts by number are in
        `names`. A function gets the list of the column's values in the training part, and returns a
        function of such a list. `fill`: what takes the place of missing values: a number, "mean" or
        "median" (of the training part) for all columns of numbers but the label, or {column:
        value}. `dropna`: columns; rows that lack a value there are left out. `na_values`: texts
        that mean a missing value. `decimal`: what parts the whole from the fraction. `encoding`: of
        the files, such as "latin-1"; None: UTF-8. `validation`: a fraction, other files, or
        None. `stratify`: the column whose values keep their shares in the fraction; it may be text.
        `shards`: as for `arrays`. All rows are held in memory.

        Raises:
            DataError: no such file or column, text without `encode`, missing values without `fill`.
        """
        tables = reader("read.tables", "Data.csv", "pyarrow")
        texts = tuple(map(str, _several(na_values)))
        setup = tables.TableSetup(
            label,
            _several(columns),
            encode or {},
            fill,
            stratify,
            _several(drop),
            _several(dropna),
            tables.CsvForm(encoding, texts, decimal),
        )
        how = Division(seed, shards)
        return cls(tables.from_tables(paths, "csv", setup, validation, how))

    @classmethod
    def parquet(
        cls,
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
    ) -> Self:
        """Rows of Parquet files; for the arguments see `csv`."""
        tables = reader("read.tables", "Data.parquet", "pyarrow")
        setup = tables.TableSetup(
            label,
            _several(columns),
            encode or {},
            fill,
            stratify,
            _several(drop),
            _several(dropna),
        )
        how = Division(seed, shards)
        return cls(tables.from_tables(paths, "parquet", setup, validation, how))

    def encode(
        self, paths: Paths, columns: Sequence[str] | None = None
    ) -> Tensor | dict[str, Tensor]:
        """New rows out of files of the same format, as batches of this data hold them.

        Text is encoded and gaps are filled as in this data; nothing is fitted anew. Data with a
        label gives the other columns as float32 (n, k), and the files need no label. Data without
        gives {column: values}. `columns`: these columns alone, by name, the label perhaps among
        them. Rows keep their order; columns that this data does not have are left out. A warning
        names texts that "onehot" does not know: their rows are all 0.

        Raises:
            DataError: the data is no table's, a column is missing or of another kind, or "ordinal"
                does not know a text.
        """
        if self.table is None:
            raise DataError(
                "encode goes with data out of CSV and Parquet files; this data was made otherwise"
            )
        made = self.table.encode(paths, columns)
        if isinstance(made, dict):
            return {name: torch.from_numpy(column) for name, column in made.items()}
        return torch.from_numpy(made)

    def _meaning(self, name: Any) -> str:
        """Which columns of a table the column is made of, and the texts behind its numbers."""
        label = self.table and self.table.label
        said = ""
        if label is not None:  # the columns are the inputs, and the label
            if name == 0:
                return ": " + _some(self.table.inputs)
            said = f", the label {label}"
            name = label
        texts = self.names.get(str(name))
        if texts is not None:
            said += ": " + _some([f"{n} {text}" for n, text in enumerate(texts)])
        return said

    @classmethod
    def arrow(
        cls,
        source: Any,
        *,
        columns: Sequence[str] | None = None,
        decode: Mapping[str, Callable[[Any], Any]] | None = None,
        validation: Any = 0.2,
        stratify: str | None = None,
        shards: int | None = None,
        seed: int = 0,
    ) -> Self:
        """A Hugging Face `datasets.Dataset`, or Arrow files; rows stay in the files until read.

        A batch is a dict of columns. Lists of equal lengths become axes. Pictures of `datasets`
        are decoded. `decode`: {column: function of a value}, for all else that is no number.
        `columns`: those to read; None: all. `validation`: a fraction, another dataset, or None.
        `stratify`: the column whose values keep their shares in the fraction; it may be text.

        Raises:
            DataError: rows that are in no file, no such column, values that are no numbers.
        """
        arrow = reader("read.arrow", "Data.arrow", "pyarrow", "pillow")
        how = Division(seed, shards)
        made = arrow.from_arrow(source, columns, decode, validation, how, stratify)
        return cls(made)

    @classmethod
    def images(
        cls,
        root: str | os.PathLike[str],
        size: int | tuple[int, int] | None = None,
        *,
        validation: Any = 0.2,
        stratify: bool = True,
        shards: int | None = None,
        seed: int = 0,
    ) -> Self:
        """A folder with a folder of pictures (jpg, png) for each class.

        A batch is (pictures uint8 (n, 3, height, width), class numbers int64); the class names are
        `data.names["1"]`. `size`: a side or (height, width) to which pictures are resized; None:
        all have one size. `validation`: a fraction (each class keeps its share, unless `stratify`
        is False), another such folder, or None.

        Raises:
            DataError: no such folder, no pictures, pictures of several sizes.
        """
        images = reader("read.images", "Data.images", "pillow")
        how = Division(seed, shards)
        made = images.from_images(whole(root), size, validation, how, stratify)
        return cls(made)

    @classmethod
    def tar(
        cls,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        decode: Mapping[str, Callable[[bytes], Any]] | None = None,
        size: int | tuple[int, int] | None = None,
        validation: Any = None,
        seed: int = 0,
    ) -> Self:
        """Tar files in webdataset's layout: each is a shard; a sample's members share a name.

        Members jpg, png, npy, cls and json (numbers) are decoded by their ending. `decode`:
        {ending: function of the bytes}, for others, such as txt. `columns`: the endings to read:
        then a batch is a tuple; None: all of the first sample's, and a batch is a dict. `size`: of
        pictures, as for `images`. `validation`: a fraction of the files, other files, or None.

        Raises:
            DataError: no such file, a packed tar file, a sample that lacks a member.
        """
        tar = reader("read.tar", "Data.tar", "pillow")
        return cls(tar.from_tars(paths, columns, decode, size, validation, seed))

    @classmethod
    def files(
        cls,
        paths: Paths,
        read: Callable[[Path], Any],
        *,
        validation: Any = None,
        seed: int = 0,
    ) -> Self:
        """Files of any format: each is a shard; `read(path)` gives its columns.

        The columns are arrays of equal length, as a tuple or a dict. Each file is read once when
        the data is made, to see how many samples it has. `validation`: a fraction of the files,
        other files, or None.

        Raises:
            DataError: no such file, or files whose columns differ.
        """
        files = reader("read.files", "Data.files")
        return cls(files.from_files(paths, read, validation, seed))


def _some(words: Sequence[str]) -> str:
    """The first ones, and how many there are more."""
    listed = ", ".join(words[:LISTED])
    if len(words) > LISTED:
        listed += f" and {len(words) - LISTED} more"
    return listed


def _several(names: Any) -> Any:
    """The names; a single one as a tuple of it."""
    return (names,) if isinstance(names, str | int | float) else names
