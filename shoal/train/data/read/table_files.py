"""The rows of CSV and Parquet files as one table of pyarrow's, before columns become numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from shoal.train.data.columns import DataError
from shoal.train.data.parts import Index
from shoal.train.data.read.paths import listed

DELIMITERS = ",;\t|"


@dataclass(frozen=True, slots=True)
class CsvForm:
    """How values are written in CSV files."""

    encoding: str | None = None  # of text; None: UTF-8
    # texts that mean a missing value, beside the usual ones
    na_values: Sequence[str] = ()
    decimal: str = "."


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The rows of all files, one after the other."""

    table: Any
    kind: str  # "csv" or "parquet"
    files: Sequence[Path]
    counts: Sequence[int]  # rows of each file
    kept: Index  # the table's rows by their numbers in the files

    def without(self, names: Sequence[str]) -> TableFiles:
        """Only rows that lack a value in none of these columns."""
        keep = np.ones(len(self.table), bool)
        for name in names:
            keep &= self.table.column(name).is_valid().to_numpy()
        if keep.all():
            return self
        return replace(self, table=self.table.filter(pa.array(keep)), kept=self.kept[keep])

    def of_kinds(self, like: Any) -> TableFiles:
        """With columns that have no value at all as columns of the other table's kinds."""
        fields = []
        for each in self.table.schema:
            if pa.types.is_null(each.type) and each.name in like.schema.names:
                each = like.schema.field(each.name)
            fields.append(each)
        return replace(self, table=self.table.cast(pa.schema(fields)))

    def place(self, row: int) -> str:
        """Where a row of the table stands, as a spreadsheet counts: the header is row 1."""
        number = int(self.kept[row])
        file = int(np.searchsorted(np.cumsum(self.counts), number, side="right"))
        number -= sum(self.counts[:file])
        header = self.kind == "csv"
        name = f" of {self.files[file].name}" if len(self.files) > 1 else ""
        return f"row {number + 1 + header}{name}"


def opened(
    paths: Any, kind: str, form: CsvForm, types: Mapping[str, Any] | None = None
) -> TableFiles:
    """The files' rows. `types`: of columns of CSV files that are known.

    Raises:
        DataError: no file, not of this kind, files of other columns than the first, no rows.
    """
    files = listed(paths, f"*.{kind}")
    tables = [_read_file(file, kind, form, types) for file in files]
    for file, table in zip(files, tables, strict=True):
        if table.schema.names != tables[0].schema.names:
            raise DataError(
                f"all files must have the same columns; {files[0].name} has "
                f"{', '.join(tables[0].schema.names)}, {file.name} has "
                f"{', '.join(table.schema.names)}"
            )
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        why = _differing(files, tables)
        raise DataError(f"the files' columns differ in kind: {why or error}") from error
    if not table.num_rows:
        raise DataError("the table has no rows")
    counts = [len(each) for each in tables]
    return TableFiles(table, kind, files, counts, np.arange(len(table)))


def _differing(files: Sequence[Path], tables: Sequence[Any]) -> str:
    """Which column holds numbers in one file and text in another; empty if none does."""
    for name in tables[0].schema.names:
        kinds = [table.schema.field(name).type for table in tables]
        of_text = [number for number, kind in enumerate(kinds) if kind == pa.string()]
        if not of_text or len(of_text) == len(kinds):
            continue
        at = of_text[0]
        texts = tables[at].column(name).drop_null().to_pylist()
        example = next((text for text in texts if not is_float(text)), texts[0])
        return (
            f"column {name} is text in {files[at].name}, e.g. {example!r}, and not in all other "
            f"files; if this means a missing value, give na_values=[{example!r}]"
        )
    return ""


def is_float(text: str) -> bool:
    """Whether the text is a number, as CSV files have them."""
    try:
        float(text)
    except ValueError:
        return False
    return not set(text) & {"_", " "}


def _check_names(file: Path, names: Sequence[str]) -> None:
    """Raise DataError if two columns have one name."""
    twice = [repr(name) for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"columns need different names; {file.name} has several columns "
            f"{', '.join(twice)}: give them other names in the file"
        )


def _read_file(file: Path, kind: str, form: CsvForm, types: Mapping[str, Any] | None) -> Any:
    try:
        if kind == "parquet":
            table = parquet.read_table(file)
            _check_names(file, table.schema.names)
            return table
        return _read_csv(file, form, types)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not written in {form.encoding or 'UTF-8'} ({error}): "
            'give encoding=, such as "latin-1"'
        ) from error
    except LookupError as error:
        raise DataError(
            f'encoding must be one that Python knows, such as "latin-1"; got {form.encoding!r}'
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{file} cannot be read as {kind} ({type(error).__name__}: {error})"
        ) from error


def _read_csv(file: Path, form: CsvForm, types: Mapping[str, Any] | None) -> Any:
    converted = csv.ConvertOptions(
        # An empty field of text is missing, as an empty field of numbers is.
        strings_can_be_null=True,
        null_values=[*csv.ConvertOptions().null_values, *form.na_values],
        decimal_point=form.decimal,
        column_types=types,
    )
    table = csv.read_csv(
        file,
        read_options=csv.ReadOptions(encoding=form.encoding or "utf8"),
        parse_options=csv.ParseOptions(delimiter=delimiter(file, form)),
        convert_options=converted,
    )
    # Names that are not written in the encoding raise when they are read, so here.
    _check_names(file, table.schema.names)
    return table


def delimiter(file: Path, form: CsvForm) -> str:
    """What parts the values of a CSV file: what its header line has most of."""
    encoding = form.encoding or "utf-8-sig"
    with file.open(encoding=encoding, errors="replace") as opened:
        head = opened.readline()
    return max(DELIMITERS, key=head.count)
