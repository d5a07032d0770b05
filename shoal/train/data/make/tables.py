"""The rows of CSV, Parquet and Arrow files, some at a time, as columns of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, ipc, parquet

from shoal.train.data.columns import Array, Columns, DataError
from shoal.train.data.read.table_files import CsvForm, delimiter
from shoal.train.data.read.values import array_of, no_column

BLOCK = 2**20  # bytes of a CSV file that are read at a time
NAMED = 5  # columns in an error
PER_CHARACTER = 4  # bytes of numbers that a byte of a CSV file becomes at most, about


@dataclass(frozen=True, slots=True)
class TableBatches:
    """The rows of all files, in their order. `size`: rows of a batch at most.

    `numeric_only`: columns of text and of times are left out, but for the label.
    """

    files: Sequence[Path]
    kind: str  # "csv", "parquet" or "arrow"
    label: str | None
    drop: Sequence[str]
    size: int = 2**16
    numeric_only: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all numbers, about; rather too many."""
        bytes_ = sum(file.stat().st_size for file in self.files)
        if self.kind != "parquet":
            return PER_CHARACTER * bytes_
        about = [parquet.read_metadata(file) for file in self.files]
        whole = sum(
            each.row_group(n).total_byte_size for each in about for n in range(each.num_row_groups)
        )
        return int(max(bytes_, 2 * whole))

    def __iter__(self) -> Iterator[Columns]:
        """Batches of rows.

        Raises:
            DataError: a file cannot be read, lacks a column, or holds what is no number.
        """
        for file in self.files:
            try:
                for batch in self._batches(file):
                    for start in range(0, batch.num_rows, self.size):
                        yield self._columns(batch.slice(start, self.size), file)
            except (OSError, pa.ArrowException) as error:
                raise DataError(
                    f"{file} cannot be read as {self.kind} ({type(error).__name__}: {error}): a "
                    "column that begins with whole numbers or numbers has to go on so; write "
                    "1.0, or leave it out with drop"
                ) from error

    def _batches(self, file: Path) -> Iterator[Any]:
        if self.kind == "parquet":
            yield from _few_at_a_time(
                # Read ahead, all that was read of the file would stay in memory.
                parquet.ParquetFile(file, buffer_size=BLOCK, pre_buffer=False).iter_batches(
                    self.size, use_threads=False
                )
            )
            return
        if self.kind == "arrow":
            yield from _arrow_batches(file)
            return
        reader = csv.open_csv(
            file,
            read_options=csv.ReadOptions(block_size=BLOCK, use_threads=False),
            parse_options=csv.ParseOptions(delimiter=delimiter(file, CsvForm())),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )
        yield from _few_at_a_time(reader)

    def _columns(self, batch: Any, file: Path) -> Columns:
        """The batch's columns; with a label (inputs, label)."""
        names = [name for name in batch.schema.names if name not in self.drop]
        wanted = [*self.drop, *([self.label] if self.label else [])]
        wrong = [name for name in wanted if name not in batch.schema.names]
        if wrong:
            raise DataError(f"{file}: " + no_column(wrong, batch.schema.names))
        if self.numeric_only:
            no_numbers = _no_numbers(batch.schema)
            names = [n for n in names if n not in no_numbers or n == self.label]
        _check_numbers(batch, names, file)
        arrays = {name: _numbers(name, batch.column(name), file) for name in names}
        if self.label is None:
            if self.kind == "arrow":
                return arrays
            return {name: _plain(array) for name, array in arrays.items()}
        label = _plain(arrays.pop(self.label))
        rows = len(label)
        inputs = [array.reshape(rows, -1) for array in arrays.values()]
        if not inputs:
            raise DataError(f"{file} must have columns beside the label {self.label}")
        return np.concatenate(inputs, axis=1, dtype=np.float32, casting="unsafe"), label


def _few_at_a_time(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches; what pyarrow held for the one before is given back."""
    for batch in batches:
        yield batch
        pa.default_memory_pool().release_unused()


def _arrow_batches(file: Path) -> Iterator[Any]:
    """The batches of a file, in Arrow's format for files or for streams."""
    with pa.memory_map(str(file)) as mapped:
        try:
            opened = ipc.open_file(mapped)
        except pa.ArrowInvalid:
            mapped.seek(0)
            yield from ipc.open_stream(mapped)
            return
        for number in range(opened.num_record_batches):
            yield opened.get_batch(number)


def _no_numbers(schema: Any) -> dict[str, Any]:
    """The columns that hold text or times, with their types."""
    found = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if is_text or pa.types.is_temporal(kind):
            found[name] = kind
    return found


def _check_numbers(batch: Any, names: Sequence[str], file: Path) -> None:
    """Raise DataError, of all columns at once, if some of these hold no numbers."""
    kinds = _no_numbers(batch.schema)
    wrong = [name for name in names if name in kinds]
    if not wrong:
        return
    said = [
        f"column {name} holds {kinds[name]}, such as {str(batch.column(name)[0])!r}"
        for name in wrong[:NAMED]
    ]
    more = f", and {len(wrong) - NAMED} others do" if len(wrong) > NAMED else ""
    raise DataError(
        f"{file}: {', '.join(said)}{more}, no numbers: encode them first, or leave them out: all "
        f"such columns with numeric_only, or those named with drop={wrong!r} (--numeric-only, or "
        f"--drop {','.join(wrong)})"
    )


def _numbers(name: str, column: Any, file: Path) -> Array:
    """A column of a batch as numbers.

    Raises:
        DataError: values are missing.
    """
    if column.null_count:
        raise DataError(
            f"{file}: column {name} lacks {column.null_count} of {len(column)} values: fill them "
            "in, leave the rows out, or leave the column out with drop"
        )
    return array_of(name, column)


def _plain(array: Array) -> Array:
    """Whole numbers as int64, others as float32, as `Data.csv` has them; truth values stay."""
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    return array
