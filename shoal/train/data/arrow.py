"""Data out of Arrow tables that stay in their files, such as those of Hugging Face's datasets."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.engine.files import whole
from shoal.train.data.columns import Array, Columns, DataError
from shoal.train.data.files import file_fingerprint, list_files
from shoal.train.data.images import picture, stack_arrays
from shoal.train.data.parts import Division, Index, Parts, check_stratify, from_table, is_fraction
from shoal.train.data.table_files import array_of, checked_numbers, label_numbers, no_column

Decoder = Callable[[Any], Any]
Group = tuple[int, Index, Index]  # a batch, places in the result, rows of the batch
LARGE = 4096  # bytes of a value
KINDS = ("*.arrow", "*.feather", "*.ipc")


@dataclass(slots=True)
class ArrowRows:
    """Rows of a table. It travels without them, and is mapped where it arrives.

    `source`: files, or a datasets.Dataset. `chosen`: which rows of its table count; None: all.
    """

    source: Any
    names: Sequence[str]
    decoders: Mapping[str, Decoder]
    own_code: bool
    chosen: Array | None
    _batches: Any = field(default=None, repr=False)
    # columns of batches as arrays, which lie in the files
    _views: dict[tuple[int, str], Array] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> Any:
        return self.source, self.names, self.decoders, self.own_code, self.chosen

    def __setstate__(self, state: Any) -> None:
        self.source, self.names, self.decoders, self.own_code, self.chosen = state
        self._batches = None
        self._views = {}

    def __len__(self) -> int:
        if self.chosen is not None:
            return len(self.chosen)
        return int(self._opened()[1][-1])

    def take(self, numbers: Index) -> Columns:
        """These rows: a dict of columns."""
        if self.chosen is not None:
            numbers = self.chosen[numbers]
        ends = self._opened()[1]
        which = np.searchsorted(ends, numbers, side="right")
        by_batch = np.argsort(which, kind="stable")
        batches, begins = np.unique(which[by_batch], return_index=True)
        groups: list[Group] = []
        for batch, places in zip(batches.tolist(), np.split(by_batch, begins[1:]), strict=True):
            start = ends[batch - 1] if batch else 0
            groups.append((batch, places, numbers[places] - start))
        return {name: self._gathered(name, len(numbers), groups) for name in self.names}

    def _gathered(self, name: str, count: int, groups: Sequence[Group]) -> Array:
        """A column of so many rows, out of several batches."""
        values: Array | None = None
        for batch, places, rows in groups:
            if name in self.decoders:
                column = self._decoded(batch, name, rows)
                rows = np.arange(len(rows))
            else:
                column = self._view(batch, name)
            if values is None:
                values = np.empty((count, *column.shape[1:]), column.dtype)
            if column.shape[1:] != values.shape[1:]:
                raise DataError(
                    f"lists of column {name} must be equally long; got shapes {values.shape[1:]} "
                    f"and {column.shape[1:]}: for unequal ones give the rows to "
                    "Data.dataset(…, collate=…)"
                )
            _copy_rows(values, places, column, rows)
        assert values is not None, "a chunk has rows"
        return values

    def _decoded(self, batch: int, name: str, rows: Index) -> Array:
        """These rows of a batch's column, decoded.

        Raises:
            DataError: they are missing, no numbers, or of unequal shapes.
        """
        column = _whole(name, self._opened()[0][batch].column(name))
        decoder = self.decoders[name]
        values = []
        for row in rows.tolist():
            value = column[row].as_py()
            if isinstance(value, dict) and "bytes" in value:  # as datasets keeps pictures
                value = value["bytes"]
            values.append(np.asarray(decoder(value)))
        return checked_numbers(name, stack_arrays(values, name, "decode to one shape"))

    def _view(self, batch: int, name: str) -> Array:
        """A batch's column as an array of numbers that lies in the file.

        Raises:
            DataError: values are missing, no numbers, or of unequal shapes.
        """
        if (batch, name) not in self._views:
            column = _whole(name, self._opened()[0][batch].column(name))
            self._views[batch, name] = checked_numbers(name, array_of(name, column))
        return self._views[batch, name]

    def _opened(self) -> tuple[Sequence[Any], Array]:
        """The table's batches, and the row at which each ends."""
        if self._batches is None:
            batches = _batches(self.source, self.names)
            self._batches = batches, np.cumsum([batch.num_rows for batch in batches])
        opened: tuple[Sequence[Any], Array] = self._batches
        return opened


def _copy_rows(to: Array, places: Index, column: Array, rows: Index) -> None:
    """Copy these rows of a column to their places.

    Large ones are copied one by one, for NumPy copies what it gathers twice.
    """
    if column[:1].nbytes < LARGE:
        to[places] = column[rows]
        return
    for place, row in zip(places.tolist(), rows.tolist(), strict=True):
        to[place] = column[row]


def _whole(name: str, column: Any) -> Any:
    """The column, if it lacks no values.

    Raises:
        DataError: it lacks some.
    """
    if column.null_count:
        raise DataError(f"column {name} lacks values: fill them in, or leave the rows out")
    return column


def _batches(source: Any, names: Sequence[str]) -> list[Any]:
    """The batches of a datasets.Dataset or of files, with these columns."""
    if is_dataset(source):
        batches: list[Any] = source.data.table.select(list(names)).to_batches()
        return batches
    return [batch for file in source for batch in _mapped(file, names)]


def _mapped(file: Path, names: Sequence[str]) -> list[Any]:
    """The file's batches, with these columns.

    Raises:
        DataError: it is no Arrow file, or lacks a column.
    """
    table = _open(file)
    lacks = [name for name in names if name not in table.schema.names]
    if lacks:
        raise DataError(
            f"{file.name} has no column {', '.join(lacks)}; "
            f"there are {', '.join(table.schema.names)}"
        )
    batches: list[Any] = table.select(list(names)).to_batches()
    return batches


def _open(file: Path) -> Any:
    """The table, mapped: a file of either of Arrow's two formats.

    Raises:
        DataError: it is no Arrow file.
    """
    try:
        with suppress(pa.ArrowInvalid):  # it may be a stream
            return pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{file} cannot be read as Arrow ({type(error).__name__}: {error})"
        ) from error


def from_arrow(
    source: Any,
    columns: Sequence[str] | None,
    decode: Mapping[str, Decoder] | None,
    validation: Any,
    how: Division,
    stratify: str | None,
) -> Parts:
    """The data of `Data.arrow`."""
    check_stratify(stratify, validation, how)
    table = _rows(source, columns, decode)
    about = _about(table)
    labels = None
    if stratify is not None:
        labels = _labels(source, stratify)
    if validation is not None and not is_fraction(validation):
        validation = _rows(validation, table.names, decode)
        about += _about(validation)
    return from_table(table, validation, how, labels=labels, about=about)


def _labels(source: Any, name: str) -> Array:
    """The values of a column by number, for each row."""
    rows = _rows(source, [name], None)
    column = pa.chunked_array([batch.column(0) for batch in _batches(rows.source, [name])])
    numbers = label_numbers(name, column)
    return numbers if rows.chosen is None else numbers[rows.chosen]


def _rows(
    source: Any, columns: Sequence[str] | None, decode: Mapping[str, Decoder] | None
) -> ArrowRows:
    """The rows of a datasets.Dataset, or of files."""
    chosen = None
    if is_dataset(source):
        schema = source.data.table.schema
        indices = getattr(source, "_indices", None)
        if indices is not None:  # after select, shuffle or filter
            chosen = indices.column(0).to_numpy().astype(np.int64)
        names = tuple(columns or _shown(source))
    else:
        source = tuple(_arrow_files(source))
        schema = _open(source[0]).schema
        names = tuple(columns or schema.names)
    lacks = [name for name in names if name not in schema.names]
    if lacks:
        raise DataError(no_column(lacks, schema.names))
    decoders = dict(decode or {})
    for name in names:
        kind = schema.field(name).type
        if name not in decoders and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            decoders[name] = partial(picture, size=None)
    return ArrowRows(source, names, decoders, bool(decode), chosen)


def _arrow_files(source: Any) -> list[Path]:
    """The files of a path, a folder, a pattern or a list."""
    if isinstance(source, str | os.PathLike) and whole(source).is_dir():
        paths = (path for kind in KINDS for path in sorted(whole(source).glob(kind)))
        files = [path for path in paths if path.is_file()]
        if not files:
            raise DataError(f"{source} has no files {', '.join(KINDS)}")
        return files
    return list_files(source, "*.arrow")


def is_dataset(source: Any) -> bool:
    """Whether it is a datasets.Dataset."""
    return hasattr(source, "cache_files") and hasattr(source, "data")


def _shown(source: Any) -> Sequence[str]:
    """The columns that a datasets.Dataset shows: all, or those of its `set_format`.

    Raises:
        DataError: it shows what a function makes of them.
    """
    if source.format["type"] == "custom":
        raise DataError(
            "the dataset has a transform (set_transform, with_transform), and Data.arrow reads the "
            "table as it is: give decode=, take the transform off with reset_format(), or give the "
            "dataset to Data.dataset"
        )
    columns: Sequence[str] = source.format["columns"]
    return columns


def _about(table: ArrowRows) -> str:
    """What belongs into the fingerprint: the files, columns and decoders."""
    paths = table.source
    if is_dataset(paths):
        paths = [Path(file["filename"]) for file in table.source.cache_files]
    files = [file_fingerprint(file) for file in paths]
    return repr((files, table.names, sorted(table.decoders)))
