"""CSV, Parquet and Arrow files by pyarrow: one table, batches of rows, columns as arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, ipc, parquet

from shoal.train.data.columns import Array, Columns, DataError
from shoal.train.data.files import list_files
from shoal.train.data.parts import Index

LISTED = 20  # names of columns in an error
DELIMITERS = ",;\t|"
BLOCK = 2**20  # bytes of a CSV file that are read at a time
NAMED = 5  # columns in an error
PER_CHARACTER = 4  # bytes of numbers that a byte of a CSV file becomes at most, about


def several(names: Any) -> Any:
    """The names; a single one as a tuple of it."""
    return (names,) if isinstance(names, str | int | float) else names


@dataclass(frozen=True, slots=True)
class CsvForm:
    """How values are written in CSV files."""

    encoding: str | None = None  # of text; None: UTF-8
    # texts that mean a missing value, beside the usual ones; a single one may stand by itself
    na_values: Sequence[Any] = ()
    decimal: str = "."

    def __post_init__(self) -> None:
        texts = tuple(map(str, several(self.na_values)))
        object.__setattr__(self, "na_values", texts)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The rows of all files, one after the other."""

    table: Any
    kind: str  # "csv", "parquet" or "frame"
    files: Sequence[Path]
    counts: Sequence[int]  # rows of each file
    numbers: Index  # of the table's rows, in the files

    def without(self, names: Sequence[str]) -> TableFiles:
        """The files' rows that have a value in each of these columns."""
        keep = np.ones(len(self.table), bool)
        for name in names:
            keep &= self.table.column(name).is_valid().to_numpy()
        if keep.all():
            return self
        return replace(self, table=self.table.filter(pa.array(keep)), numbers=self.numbers[keep])

    def of_kinds(self, like: Any) -> TableFiles:
        """The files' rows; columns without any value become of the other table's kinds."""
        fields = []
        for each in self.table.schema:
            if pa.types.is_null(each.type) and each.name in like.schema.names:
                each = like.schema.field(each.name)
            fields.append(each)
        return replace(self, table=self.table.cast(pa.schema(fields)))

    def place(self, row: int) -> str:
        """Where a row of the table stands, as a spreadsheet counts: the header is row 1."""
        number = int(self.numbers[row])
        file = int(np.searchsorted(np.cumsum(self.counts), number, side="right"))
        number -= sum(self.counts[:file])
        header = self.kind == "csv"
        name = f" of {self.files[file].name}" if len(self.files) > 1 else ""
        return f"row {number + 1 + header}{name}"


def read_tables(
    paths: Any, kind: str, form: CsvForm, types: Mapping[str, Any] | None = None
) -> TableFiles:
    """The rows of files, or of a frame. `types`: of columns of CSV files that are known.

    Raises:
        DataError: no file, not of this kind, files of other columns than the first, no rows.
    """
    if kind == "frame":
        files, tables = [Path("frame")], [_of_frame(paths)]
    else:
        files = list_files(paths, f"*.{kind}")
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


def _of_frame(frame: Any) -> Any:
    """A frame's rows, without its index: pandas', scikit-learn's, or one that knows `to_arrow`.

    Raises:
        DataError: it is no frame, or a column holds values of several kinds.
    """
    if not hasattr(frame, "columns") and getattr(frame, "frame", None) is not None:
        frame = frame.frame  # what scikit-learn loads with as_frame=True
    try:
        if hasattr(frame, "to_arrow"):  # Polars
            return frame.to_arrow()
        if isinstance(frame, pa.Table):
            return frame
        return pa.Table.from_pandas(frame, preserve_index=False)
    except AttributeError as error:
        raise DataError(
            "Data.frame needs a frame of pandas, Polars or pyarrow, or what scikit-learn loads "
            f"with as_frame=True; got {type(frame).__name__}"
        ) from error
    except (ValueError, TypeError) as error:
        raise DataError(f"the frame cannot be read ({error}): mend it, or drop columns") from error


def _differing(files: Sequence[Path], tables: Sequence[Any]) -> str:
    """Which column holds numbers in one file and text in another; empty if none does."""
    for name in tables[0].schema.names:
        kinds = [table.schema.field(name).type for table in tables]
        of_text = [number for number, kind in enumerate(kinds) if kind == pa.string()]
        if not of_text or len(of_text) == len(kinds):
            continue
        first = of_text[0]
        texts = tables[first].column(name).drop_null().to_pylist()
        example = next((text for text in texts if not is_float(text)), texts[0])
        return (
            f"column {name} is text in {files[first].name}, e.g. {example!r}, and not in all other "
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
    """The file's table. Raises DataError if it cannot be read."""
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
    with file.open(encoding=encoding, errors="replace") as lines:
        head = lines.readline()
    return max(DELIMITERS, key=head.count)


# -- rows, some at a time ----------------------------------------------------------------------


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
        stored = sum(file.stat().st_size for file in self.files)
        if self.kind != "parquet":
            return PER_CHARACTER * stored
        unpacked = 0
        for file in self.files:
            about = parquet.read_metadata(file)
            unpacked += sum(about.row_group(n).total_byte_size for n in range(about.num_row_groups))
        return int(max(stored, 2 * unpacked))

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
            batches = ipc.open_file(mapped)
        except pa.ArrowInvalid:
            mapped.seek(0)
            yield from ipc.open_stream(mapped)
            return
        for number in range(batches.num_record_batches):
            yield batches.get_batch(number)


def _no_numbers(schema: Any) -> dict[str, Any]:
    """The columns that hold text or times, with their types."""
    kinds = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if is_text or pa.types.is_temporal(kind):
            kinds[name] = kind
    return kinds


def _check_numbers(batch: Any, names: Sequence[str], file: Path) -> None:
    """Raise DataError, of all columns at once, if some of these hold no numbers."""
    kinds = _no_numbers(batch.schema)
    wrong = [name for name in names if name in kinds]
    if not wrong:
        return
    shown = [
        f"column {name} holds {kinds[name]}, such as {str(batch.column(name)[0])!r}"
        for name in wrong[:NAMED]
    ]
    more = f", and {len(wrong) - NAMED} others do" if len(wrong) > NAMED else ""
    raise DataError(
        f"{file}: {', '.join(shown)}{more}, no numbers: encode them first, or leave them out: all "
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


# -- pyarrow's columns as arrays ---------------------------------------------------------------


def array_of(name: str, values: Any) -> Array:
    """The array of pyarrow's numbers, or of lists of numbers that are equally long.

    Raises:
        DataError: the values are something else.
    """
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return array_of(name, values.storage)
    if pa.types.is_fixed_size_binary(kind):
        _, content = values.buffers()
        start = values.offset * kind.byte_width
        stop = start + len(values) * kind.byte_width
        flat = np.frombuffer(content, np.uint8)[start:stop]
        return flat.reshape(len(values), kind.byte_width)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise DataError(
                f"lists of column {name} must be equally long; got {lengths[0]} to {lengths[-1]} "
                "values: for unequal ones give the rows to Data.dataset(…, collate=…)"
            )
        inner = _inner_values(name, values)
        return inner.reshape(len(values), int(lengths[0]), *inner.shape[1:])
    if pa.types.is_fixed_size_list(kind):
        inner = _inner_values(name, values)
        return inner.reshape(len(values), kind.list_size, *inner.shape[1:])
    if not (pa.types.is_primitive(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"column {name} holds {kind}, no numbers: "
            f'give decode={{"{name}": a function of a value}}, or columns= without it'
        )
    array: Array = values.to_numpy(zero_copy_only=False)
    return array


def _inner_values(name: str, lists: Any) -> Array:
    """The values of all lists, one after the other.

    Raises:
        DataError: as `array_of`, or a value is missing.
    """
    values = lists.flatten()
    if values.null_count:
        raise DataError(
            f"lists of column {name} lack {values.null_count} of {len(values)} values: fill them "
            "in, or leave the rows out"
        )
    return array_of(name, values)


def checked_numbers(name: str, array: Array) -> Array:
    """The array, if it holds numbers.

    Raises:
        DataError: it holds something else.
    """
    if array.dtype.kind in "biufc":
        return array
    raise DataError(
        f"column {name} must become numbers; got {array.dtype}: "
        f'give decode={{"{name}": a function of a value}}'
    )


def label_numbers(name: str, column: Any) -> Array:
    """(n,) int64: equal numbers for equal values, text and numbers alike; -1 for a missing value.

    `column`: pyarrow's, in chunks.

    Raises:
        DataError: a value is no single thing, but a list, a struct or the like.
    """
    kind = column.type
    if pa.types.is_nested(kind):
        raise DataError(
            f"stratify needs a column with one value per sample; column {name} holds {kind}"
        )
    if not pa.types.is_dictionary(kind):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    numbers: Array = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return numbers.astype("int64")


def no_column(wrong: Sequence[str], names: Sequence[str]) -> str:
    """The error's text for a user who names columns that there are not."""
    near = [name for name in names if name.strip() == wrong[0].strip()]
    near = near or get_close_matches(wrong[0], names, cutoff=0.7)
    shown = ", ".join(map(_quoted, names[:LISTED]))
    if len(names) > LISTED:
        shown += f" and {len(names) - LISTED} more"
    hint = f" (did you mean {_quoted(near[0])}?)" if near else ""
    return f"no column {', '.join(map(_quoted, wrong))}{hint}; there are {shown}"


def _quoted(name: str) -> str:
    """The name; in quotes if it begins or ends with a space."""
    return name if name == name.strip() else repr(name)
