"""Data out of CSV and Parquet files, by pyarrow: numbers by column, text by encoders."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from shoal.train.data.arrays import from_arrays
from shoal.train.data.columns import Array, DataError
from shoal.train.data.parts import Division, Index, Parts, is_fraction
from shoal.train.data.read.encode import Categories, How, encoded, fitted
from shoal.train.data.read.paths import listed
from shoal.train.data.read.values import array_of, label_numbers, no_column

DELIMITERS = ",;\t|"
SHOWN = 5  # columns that an error names


@dataclass(frozen=True, slots=True)
class TableSetup:
    """How a table's columns become numbers."""

    label: str | None
    columns: Sequence[str] | None  # None: all
    encode: Mapping[str, How]
    fill: Any  # of missing values: a number, one for each column by name, or None
    stratify: str | None = None  # the column whose values keep their shares

    def of(self, names: Collection[str]) -> TableSetup:
        """The same for these columns, none of which is a label."""
        encode = {name: how for name, how in self.encode.items() if name in names}
        fill = self.fill
        if isinstance(fill, Mapping):
            fill = {name: value for name, value in fill.items() if name in names}
        return TableSetup(None, tuple(names), encode, fill)

    def fill_of(self, name: str) -> Any:
        """What takes the place of missing values in the column; None: nothing may."""
        if isinstance(self.fill, Mapping):
            return self.fill.get(name)
        return self.fill


@dataclass(frozen=True, slots=True)
class TableForm:
    """How a table's columns became numbers, so that new rows become the same ones.

    `encoders`: fitted, by column. `types`: pyarrow's, by column of the files. `shapes`: of a value,
    by column of the data, in its order.
    """

    kind: str
    setup: TableSetup
    encoders: Mapping[str, Any]
    types: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def label(self) -> str | None:
        """The name of the column that is the label."""
        return self.setup.label

    @property
    def inputs(self) -> list[str]:
        """The columns beside the label, and how many numbers each became, as "city (3)"."""
        made = []
        for name, shape in self.shapes.items():
            many = f" ({math.prod(shape)})" if shape else ""
            if name != self.label:
                made.append(name + many)
        return made

    def encode(self, paths: Any, columns: Sequence[str] | None) -> Any:
        """See `Data.encode`; arrays in place of tensors."""
        names = [name for name in self.shapes if name != self.label]
        if columns:
            names = list(columns)
        wrong = [name for name in names if name not in self.shapes]
        if wrong:
            raise DataError(no_column(wrong, list(self.shapes)))
        setup = self.setup.of(names)
        texts = {name: self.types[name] for name in setup.encode}
        table = _read(paths, self.kind, setup, texts).select(names)
        typed = [self._typed(name, table.column(name)) for name in names]
        table = pa.table(dict(zip(names, typed, strict=True)))
        read = _columns(table, setup)
        self._warn_of_unknown(read)
        made = _numbers(read, self.encoders)
        for name, column in made.items():
            self._check_shape(name, column.shape[1:])
        if self.label is not None and not columns:
            return _beside(made)
        return made

    def _typed(self, name: str, column: Any) -> Any:
        """The new column, of the type that the data's column has."""
        kind = self.types[name]
        whole = name not in self.encoders and self.label is not None
        if whole and _is_of_numbers(column.type):  # all become float32
            return column
        try:
            return column.cast(kind)
        except pa.ArrowException as error:
            raise DataError(
                f"column {name} of the new rows holds {column.type}, and {kind} in the data that "
                f"they are encoded as ({error})"
            ) from error

    def _warn_of_unknown(self, read: Mapping[str, Any]) -> None:
        """Warn of texts that become rows of 0."""
        for name, encoder in self.encoders.items():
            if name not in read or not isinstance(encoder, Categories):
                continue
            unknown = encoder.unknown(read[name])
            if unknown and encoder.onehot:
                warnings.warn(
                    f"column {name} has texts that the training part lacks "
                    f"({', '.join(unknown[:3])}): their rows are all 0",
                    stacklevel=4,
                )

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if shape != self.shapes[name]:
            raise DataError(
                f"column {name} must have values of shape {self.shapes[name]}, as the data has; "
                f"got {shape}"
            )


def from_tables(
    paths: Any, kind: str, setup: TableSetup, validation: Any, how: Division
) -> Parts:
    """See `Data.csv` and `Data.parquet`."""
    table = _read(paths, kind, setup)
    columns = _columns(table, setup)
    labels = None
    if setup.stratify is not None:
        labels = label_numbers(setup.stratify, table.column(setup.stratify))
    rows = _training(len(table), validation, how, labels)
    encoders = {
        name: fitted(name, rule, [columns[name][row] for row in rows])
        for name, rule in setup.encode.items()
        if name in columns
    }
    made = _numbers(columns, encoders)
    shapes = {name: column.shape[1:] for name, column in made.items()}
    if validation is not None and not is_fraction(validation):
        others = _columns(_read(validation, kind, setup), setup)
        validation = _numbers(others, encoders)
        _check_names(made, validation)
    given: tuple[Array, ...] = ()
    if setup.label is not None:
        given = _pair(made, setup.label)
        if isinstance(validation, dict):
            validation = _pair(validation, setup.label)
        made = {}
    parts = from_arrays(given, made, validation, labels, how)
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    form = TableForm(kind, setup, encoders, types, shapes)
    return replace(parts, names=_categories(encoders), table=form)


def _categories(encoders: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """The texts by number, of each column that has such."""
    return {
        name: tuple(map(str, encoder.known))
        for name, encoder in encoders.items()
        if isinstance(encoder, Categories)
    }


def _read(
    paths: Any, kind: str, setup: TableSetup, types: Mapping[str, Any] | None = None
) -> Any:
    """The files' rows, one after the other. `types`: of columns of CSV files that are known.

    Raises:
        DataError: no file, not of this kind, other columns than asked for.
    """
    files = listed(paths, f"*.{kind}")
    tables = [_read_file(file, kind, types) for file in files]
    for file, table in zip(files, tables, strict=True):
        if table.schema.names != tables[0].schema.names:
            raise DataError(
                f"all files must have the same columns; {files[0].name} has "
                f"{', '.join(tables[0].schema.names)}, {file.name} has "
                f"{', '.join(table.schema.names)}"
            )
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowInvalid as error:
        raise DataError(f"the files' columns differ in kind ({error})") from error
    _check_asked(table, setup)
    return table


def _read_file(file: Path, kind: str, types: Mapping[str, Any] | None) -> Any:
    try:
        if kind == "parquet":
            return parquet.read_table(file)
        options = csv.ParseOptions(delimiter=_delimiter(file))
        # An empty field of text is missing, as an empty field of numbers is.
        missing = csv.ConvertOptions(strings_can_be_null=True, column_types=types)
        return csv.read_csv(file, parse_options=options, convert_options=missing)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{file} cannot be read as {kind} ({type(error).__name__}: {error})"
        ) from error


def _delimiter(file: Path) -> str:
    """What parts the values of a CSV file: what its header line has most of."""
    with file.open(encoding="utf-8-sig", errors="replace") as opened:
        head = opened.readline()
    return max(DELIMITERS, key=head.count)


def _check_asked(table: Any, setup: TableSetup) -> None:
    """Raise DataError unless the table has rows, and all columns that are named."""
    names = table.schema.names
    fills = setup.fill if isinstance(setup.fill, Mapping) else {}
    asked = [*(setup.columns or ()), *setup.encode, *fills]
    asked += [name for name in (setup.label, setup.stratify) if name is not None]
    wrong = [name for name in dict.fromkeys(asked) if name not in names]
    if wrong:
        raise DataError(no_column(wrong, names))
    if not table.num_rows:
        raise DataError("the table has no rows")


def _columns(table: Any, setup: TableSetup) -> dict[str, Any]:
    """The columns: arrays of numbers, and lists of the values that have an encoder.

    Raises:
        DataError: text without an encoder, or missing values without a filling.
    """
    names = list(setup.columns or table.schema.names)
    if setup.label is not None and setup.label not in names:
        names.append(setup.label)
    found = [_problem(name, table.column(name), setup) for name in names]
    problems = [problem for problem in found if problem]
    if problems:
        more = ""
        if len(problems) > SHOWN:
            more = f"; and so have {len(problems) - SHOWN} more columns"
        raise DataError("; ".join(problems[:SHOWN]) + more)
    return {name: _column(name, table.column(name), setup) for name in names}


def _problem(name: str, column: Any, setup: TableSetup) -> str:
    """Why the column cannot become numbers; empty if it can."""
    if column.null_count and setup.fill_of(name) is None:
        return (
            f"column {name} lacks {column.null_count} of {len(column)} values: give fill= a "
            f'number, or {{"{name}": …}}, or leave the rows out'
        )
    if name in setup.encode or _is_of_numbers(column.type):
        return ""
    return (
        f'column {name} holds {column.type}, no numbers: give encode={{"{name}": '
        '"onehot", "ordinal", "hash", or a function}, or columns= without it'
    )


def _is_of_numbers(kind: Any) -> bool:
    """Whether values are numbers, or lists of them."""
    types = pa.types
    while types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
    while types.is_fixed_size_list(kind):
        kind = kind.value_type
    number = types.is_integer(kind) or types.is_floating(kind)
    return bool(number or types.is_boolean(kind))


def _column(name: str, column: Any, setup: TableSetup) -> Any:
    """The column as an array, or of one that has an encoder the list of its values."""
    filling = setup.fill_of(name)
    if name in setup.encode:
        return [filling if value is None else value for value in column.to_pylist()]
    if column.null_count:
        column = column.fill_null(pa.scalar(filling).cast(column.type, safe=False))
    if pa.types.is_nested(column.type):
        array = array_of(name, pa.concat_arrays(column.chunks))
    else:
        array = column.to_numpy()
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    return array.astype(np.int64)


def _training(
    count: int, validation: Any, how: Division, labels: Array | None
) -> Index:
    """The rows that `from_arrays` will train on, on which encoders are fitted."""
    order = how.order(count)
    if not is_fraction(validation):
        return order
    train, _ = how.aside(order, float(validation), labels)
    return train


def _numbers(
    columns: Mapping[str, Any], encoders: Mapping[str, Any]
) -> dict[str, Array]:
    return {
        name: encoded(name, encoders[name], column) if name in encoders else column
        for name, column in columns.items()
    }


def _check_names(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    if list(one) != list(other):
        raise DataError(
            f"validation must have the columns {', '.join(one)}; got {', '.join(other)}"
        )


def _pair(columns: Mapping[str, Array], label: str) -> tuple[Array, ...]:
    """(a row of float32 for each sample, its label)."""
    rest = {name: column for name, column in columns.items() if name != label}
    if not rest:
        raise DataError(f"the table needs columns beside the label {label}")
    return _beside(rest), columns[label]


def _beside(columns: Mapping[str, Array]) -> Array:
    """The columns beside each other, float32 (n, k)."""
    flat = [each.reshape(len(each), -1).astype(np.float32) for each in columns.values()]
    return np.concatenate(flat, axis=1)
