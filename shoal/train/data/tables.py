"""Data out of CSV and Parquet files, by pyarrow: numbers by column, text by encoders."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import warn
from shoal.train.data.arrays import from_arrays
from shoal.train.data.columns import Array, DataError
from shoal.train.data.parts import Division, Index, Parts, is_fraction
from shoal.train.data.table_advice import (
    FITTED,
    Encoder,
    TableSetup,
    check_columns,
    of_lists,
    of_numbers,
)
from shoal.train.data.table_files import (
    CsvForm,
    TableFiles,
    array_of,
    label_numbers,
    no_column,
    read_tables,
)

__all__ = ["CsvForm", "TableForm", "TableSetup", "from_tables"]

BUCKETS = 1024  # of "hash"
KINDS = ("onehot", "ordinal", "hash")
EXACT = 2**24  # the whole numbers below are exact in float32


def from_tables(paths: Any, kind: str, setup: TableSetup, validation: Any, how: Division) -> Parts:
    """The data of `Data.csv`, `Data.parquet` and `Data.frame`."""
    first = _used_rows(paths, kind, setup)
    tables = [first.table]
    if validation is not None and not is_fraction(validation):
        try:
            tables.append(_used_rows(validation, kind, setup, first.table).table)
        except DataError as error:
            raise DataError(f"of the validation files: {error}") from error
    labels = None
    if setup.stratify is not None:
        labels = label_numbers(setup.stratify, first.table.column(setup.stratify))
    rows, _ = how.split(len(first.table), validation, labels=labels)  # as `from_arrays` does
    fills = _fillings(first.table, rows, setup)
    floating = frozenset(
        name
        for name, filling in fills.items()
        if name not in setup.encode
        and any(table.column(name).null_count for table in tables)
        and not _stays_whole(filling)
    )
    columns, *others = [_columns(table, setup, fills, floating) for table in tables]
    encoders = {
        name: fitted(name, rule, [columns[name][row] for row in rows])
        for name, rule in setup.encode.items()
        if name in columns
    }
    named = _numbers(columns, encoders)
    shapes = {name: column.shape[1:] for name, column in named.items()}
    for validation_columns in others:
        validation = _numbers(validation_columns, encoders)
    pair: tuple[Array, ...] = ()
    if setup.label is not None:
        pair = _pair(named, setup.label)
        if isinstance(validation, dict):
            validation = _pair(validation, setup.label)
        named = {}
    parts = from_arrays(pair, named, validation, labels, how)
    types = dict(zip(first.table.schema.names, first.table.schema.types, strict=True))
    form = TableForm(kind, setup, encoders, fills, floating, types, shapes)
    texts: dict[str, Sequence[str]] = {
        name: tuple(map(str, encoder.known))
        for name, encoder in encoders.items()
        if isinstance(encoder, Categories)
    }
    return replace(parts, names=texts, table=form)


def _used_rows(paths: Any, kind: str, setup: TableSetup, like: Any | None = None) -> TableFiles:
    """The files' rows that are used.

    `like`: the table to train on, whose kinds columns without any value take.

    Raises:
        DataError: the files cannot be read, lack a column, or columns cannot become numbers.
    """
    files = read_tables(paths, kind, setup.form)
    _check_named(files.table.schema.names, setup)
    files = files.without(setup.dropna)
    if not files.table.num_rows:
        raise DataError(f"no row has a value in {', '.join(setup.dropna)}, of dropna")
    if like is not None:
        wanted, got = setup.names(like.schema.names), setup.names(files.table.schema.names)
        if wanted != got:
            raise DataError(
                f"validation must have the columns {', '.join(wanted)}; got {', '.join(got)}"
            )
        files = files.of_kinds(like)
    check_columns(files, setup)
    return files


def _check_named(names: Sequence[str], setup: TableSetup) -> None:
    """Raise DataError unless the table has all columns that the setup names."""
    fills = setup.fill if isinstance(setup.fill, Mapping) else {}
    named = [*(setup.columns or ()), *setup.encode, *fills, *setup.drop, *setup.dropna]
    named += [name for name in (setup.label, setup.stratify) if name is not None]
    wrong = [name for name in dict.fromkeys(named) if name not in names]
    if wrong:
        raise DataError(no_column(wrong, names))
    if setup.label in setup.drop:
        raise DataError(f"drop must leave the label; got {setup.label}")


def _columns(
    table: Any, setup: TableSetup, fills: Mapping[str, Any], floating: Collection[str]
) -> dict[str, Any]:
    """The columns: arrays of numbers, and lists of what has an encoder."""
    columns: dict[str, Any] = {}
    for name in setup.names(table.schema.names):
        column = table.column(name)
        filling = fills.get(name)
        if name in setup.encode:
            values = column.to_pylist()
            columns[name] = [filling if value is None else value for value in values]
            continue
        column = _filled(column, filling)
        if name in floating:
            column = column.cast(pa.float64(), safe=False)
        columns[name] = _array(name, column)
    return columns


def _fillings(table: Any, rows: Index, setup: TableSetup) -> dict[str, Any]:
    """What takes the place of missing values, by column; a fitted value is a NumPy float.

    `rows`: those to fit it on.

    Raises:
        DataError: none of these rows has a value.
    """
    fillings = {}
    for name in setup.names(table.schema.names):
        column = table.column(name)
        filling = setup.fill_of(name, column.type)
        if filling is None:
            continue
        if filling in FITTED and name not in setup.encode and of_numbers(column.type):
            values = column.take(pa.array(rows)).drop_null()
            if not len(values):
                raise DataError(
                    f"column {name} has no value in the training part, of which fill={filling!r} "
                    "could be made: give a number, or drop the column"
                )
            fit = np.mean if filling == "mean" else np.median
            filling = np.float64(fit(values.cast(pa.float64(), safe=False).to_numpy()))
        fillings[name] = filling
    return fillings


def _filled(column: Any, filling: Any) -> Any:
    """The column without missing values."""
    if not column.null_count:
        return column
    kind = pa.int64()
    whole = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    if not whole or not _stays_whole(filling):
        kind = pa.float64()
    filling = pa.scalar(filling).cast(kind, safe=False)
    return column.cast(kind, safe=False).fill_null(filling)


def _array(name: str, column: Any) -> Array:
    """The column as an array: whole numbers as int64, others as float32."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if pa.types.is_nested(column.type):
        array = array_of(name, pa.concat_arrays(column.chunks))
    else:
        array = column.to_numpy()
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    return array.astype(np.int64)


def _stays_whole(filling: Any) -> bool:
    """Whether whole numbers stay whole with this filling; a fitted one is a float64."""
    return not isinstance(filling, np.float64) and float(filling).is_integer()


def _numbers(columns: Mapping[str, Any], encoders: Mapping[str, Any]) -> dict[str, Array]:
    """The columns as numbers, by their encoders."""
    return {
        name: encoded(name, encoders[name], column) if name in encoders else column
        for name, column in columns.items()
    }


def _pair(columns: Mapping[str, Array], label: str) -> tuple[Array, ...]:
    """The columns beside the label as rows of float32, and the label."""
    rest = {name: column for name, column in columns.items() if name != label}
    if not rest:
        raise DataError(f"the table needs columns beside the label {label}")
    for name, column in rest.items():
        _warn_of_lost_digits(name, column)
    return _beside(rest), columns[label]


def _beside(columns: Mapping[str, Array]) -> Array:
    """The columns beside each other, float32 (n, k)."""
    flat = [array.reshape(len(array), -1).astype(np.float32) for array in columns.values()]
    return np.concatenate(flat, axis=1)


def _warn_of_lost_digits(name: str, column: Array) -> None:
    """Warn if different whole numbers become one number of float32."""
    if column.dtype.kind not in "iu" or not column.size:
        return
    if max(-int(column.min()), int(column.max())) <= EXACT:
        return
    before = len(np.unique(column))
    after = len(np.unique(column.astype(np.float32)))
    if after < before:
        warn(
            f"column {name} has {before} different whole numbers, e.g. {column.flat[0]}; as "
            f'float32 {after} remain: leave it out by drop=["{name}"], or encode it'
        )


# -- new rows ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableForm:
    """How a table's columns became numbers, so that new rows become the same ones.

    `encoders`: fitted, by column. `fills`: what takes the place of missing values, by column.
    `floating`: columns that filling made float32. `types`: pyarrow's, by column of the files.
    `shapes`: of a value, by column of the data, in its order.
    """

    kind: str
    setup: TableSetup
    encoders: Mapping[str, Any]
    fills: Mapping[str, Any]
    floating: frozenset[str]
    types: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def label(self) -> str | None:
        """The name of the column that is the label."""
        return self.setup.label

    @property
    def inputs(self) -> list[str]:
        """The columns beside the label, and how many numbers each became, as "city (3)"."""
        described = []
        for name, shape in self.shapes.items():
            many = f" ({math.prod(shape)})" if shape else ""
            if name != self.label:
                described.append(name + many)
        return described

    def encode(self, paths: Any, columns: Sequence[str] | None) -> Any:
        """New rows as `Data.encode` gives them, but as arrays."""
        names = [name for name in self.shapes if name != self.label]
        if columns:
            names = list(columns)
        wrong = [name for name in names if name not in self.shapes]
        if wrong:
            raise DataError(no_column(wrong, list(self.shapes)))
        setup = self.setup.of(names, self.fills)
        texts = {name: self.types[name] for name in setup.encode}
        files = read_tables(paths, self.kind, setup.form, texts)
        _check_named(files.table.schema.names, setup)
        typed = {name: self._typed(name, files.table.column(name)) for name in names}
        files = replace(files, table=pa.table(typed))
        check_columns(files, setup, new=True)
        values = _columns(files.table, setup, self.fills, self.floating)
        self._warn_of_unknown(values)
        numbers = _numbers(values, self.encoders)
        for name, column in numbers.items():
            shape = column.shape[1:]
            if shape != self.shapes[name]:
                raise DataError(
                    f"column {name} must have values of shape {self.shapes[name]}, as the data "
                    f"has; got {shape}"
                )
        if self.label is not None and not columns:
            return _beside(numbers)
        return numbers

    def _typed(self, name: str, column: Any) -> Any:
        """The new column, of the type that the data's column has."""
        kind = self.types[name]
        whole = name not in self.encoders and self.label is not None
        if whole and (of_numbers(column.type) or of_lists(column.type)):  # all become float32
            return column
        try:
            return column.cast(kind)
        except pa.ArrowException as error:
            raise DataError(
                f"column {name} of the new rows holds {column.type}, and {kind} in the data that "
                f"they are encoded as ({error})"
            ) from error

    def _warn_of_unknown(self, columns: Mapping[str, Any]) -> None:
        """Warn of texts that become rows of 0."""
        for name, encoder in self.encoders.items():
            if name not in columns or not isinstance(encoder, Categories):
                continue
            unknown = encoder.unknown(columns[name])
            if unknown and encoder.onehot:
                warn(
                    f"column {name} has texts that the training part lacks "
                    f"({', '.join(unknown[:3])}): their rows are all 0"
                )


# -- encoders ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Categories:
    """Values by number, as they are in the training part. `onehot`: rows of 0 and 1."""

    column: str
    known: Sequence[Any]
    onehot: bool

    def unknown(self, values: Sequence[Any]) -> list[str]:
        """Those of the values that the training part lacks."""
        return sorted(map(str, set(values).difference(self.known)))

    def __call__(self, values: Sequence[Any]) -> Array:
        """The values as numbers: (n,) int64, or (n, categories) float32.

        A row is all 0 for a value that the training part lacks.
        """
        numbers = {value: number for number, value in enumerate(self.known)}
        unknown = self.unknown(values)
        if unknown and not self.onehot:
            raise DataError(
                f"column {self.column} has values that the training part lacks "
                f'({", ".join(unknown[:3])}): use "onehot" or "hash"'
            )
        codes = np.array([numbers.get(value, -1) for value in values], np.int64)
        if not self.onehot:
            return codes
        rows: Array = np.equal.outer(codes, np.arange(len(self.known)))
        return rows.astype(np.float32)


def hashed(values: Sequence[Any]) -> Array:
    """The values as numbers below `BUCKETS`, the same on every machine: (n,) int64."""
    digests = [blake2b(str(value).encode(), digest_size=8).digest() for value in values]
    return np.array([int.from_bytes(digest, "big") % BUCKETS for digest in digests], np.int64)


def fitted(column: str, how: Any, training: Sequence[Any]) -> Encoder:
    """The encoder, fitted on the column's values in the training part.

    Raises:
        DataError: there is no such encoder, or the user's own cannot be fitted.
    """
    if how == "hash":
        return hashed
    if how in ("onehot", "ordinal"):
        # by type first: a filling may be a number among texts
        known = tuple(sorted(set(training), key=lambda value: (type(value).__name__, value)))
        return Categories(column, known, how == "onehot")
    if not callable(how):
        raise DataError(
            f"encode of column {column} must be one of {', '.join(KINDS)}, or a function of the "
            f"training values that returns a function of values; got {how!r}"
        )
    encoder: Encoder = _encode_by_function(column, how, training)
    if not callable(encoder):
        raise DataError(
            f"encode of column {column} must return a function of values; got {encoder!r}"
        )
    return encoder


def _encode_by_function(column: str, function: Callable[[Any], Any], values: Sequence[Any]) -> Any:
    """The result of the encoder, or of the user's function that fits one.

    Raises:
        DataError: it raised; the error names the line of the user's code.
    """
    try:
        return function(values)
    except DataError:
        raise
    except Exception as error:
        frames = [each for each in extract_tb(error.__traceback__) if each.filename != __file__]
        written_in = getattr(getattr(function, "__code__", None), "co_filename", None)
        frames = [each for each in frames if each.filename == written_in] or frames
        where = ""
        if frames:
            where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
        kinds = sorted({type(value).__name__ for value in values})
        raise DataError(
            f"encode of column {column} raised {type(error).__name__}: {error}"
            f"{where}; it got a list of {len(values)} values of type {', '.join(kinds)}"
        ) from error


def encoded(column: str, encoder: Encoder, values: Sequence[Any]) -> Array:
    """The values as numbers.

    Raises:
        DataError: the encoder gives something else.
    """
    array = np.asarray(_encode_by_function(column, encoder, values))
    if array.dtype.kind not in "biufc" or len(array) != len(values):
        raise DataError(
            f"encode of column {column} must give a number or a row of numbers for each of the "
            f"{len(values)} values; got {array.dtype} of shape {array.shape}"
        )
    return array
