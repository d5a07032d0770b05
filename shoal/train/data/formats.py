"""The reader of each format: a file as data of one shard, and the rows of files some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.arrays import Arrays, from_arrays
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.files import list_files, own_columns
from shoal.train.data.npz import MappedFiles, of_files
from shoal.train.data.parts import IN_ORDER, Parts, RowSource, reader, seed_of_rows
from shoal.train.rng import Rng

Size = int | tuple[int, int] | None
Read = Callable[[Path], Any]  # the user's reader of a file
ONLY = ShardId("s000")  # what readers call the only shard of a file
# What an error proposes for a table whose columns cannot become numbers.
OF_TABLES = (
    "a shard's table must be of numbers, without gaps: write it so, or "
    "give the recipe a method read(self, path) that returns its columns as numbers"
)
# The kind of files with these endings.
KINDS: Mapping[str, str] = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".tar": "tar",
    ".npy": "npy",
    ".npz": "npz",
}
PICTURES = (".jpg", ".jpeg", ".png")
TABLES = ("csv", "parquet", "arrow")
READABLE = "CSV, Parquet, Arrow, npz, npy, tar, or a folder of such files or of pictures by class"


@dataclass(frozen=True, slots=True)
class PartForm:
    """What is in a part: how many samples, and of what columns.

    `columns`: of each its name or place, type of number, and the shape of a sample. `by_rows`:
    whether some samples can be read without the others. `serial`: reading may draw on global state.
    """

    rows: int
    row_bytes: int
    columns: tuple[tuple[str, str, tuple[int, ...]], ...]
    by_rows: bool
    serial: bool

    def __str__(self) -> str:
        return ", ".join(f"{name} {kind}{list(shape)}" for name, kind, shape in self.columns)


def parts_of_file(path: Path) -> Parts:
    """The file or folder as data of one shard.

    Raises:
        DataError: nothing here reads it, or it is not what it must be.
    """
    if path.is_dir():
        return _read_as("pictures", [path], "a shard of pictures")
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"{path.name} is of no format that Shoal reads ({', '.join(KINDS)}, or a folder of "
            "pictures by class): give the recipe a method read(self, path) that returns its columns"
        )
    return _read_as(kind, [path], f"a shard {path.name}")


def _read_as(kind: str, files: Sequence[Path], user: str, size: Size = None) -> Parts:
    """The files as data, by the reader of this kind: each tar or .npz file is a shard.

    `user`: what needs the reader's library, as the error calls it. `size`: of pictures.
    """
    parts: Parts
    if kind == "npz":
        return of_files(files, [])
    if kind == "npy":
        _check_header(files[0])
        array = np.load(files[0], mmap_mode="r", allow_pickle=False)
        return from_arrays((array,), {}, None, None, IN_ORDER)
    if kind == "pictures":
        images = reader("images", user, "pillow")
        parts = images.from_images(files[0], size, None, IN_ORDER, False)
    elif kind == "arrow":
        arrow = reader("arrow", user, "pyarrow", "pillow")
        parts = arrow.from_arrow(files[0], None, None, None, IN_ORDER, None)
    elif kind == "tar":
        tar = reader("tar", user, "pillow")
        parts = tar.from_tars(files, None, None, size, None, 0)
    else:
        tables = reader("tables", user, "pyarrow")
        setup = tables.TableSetup(remedy=OF_TABLES)
        parts = tables.from_tables(files[0], kind, setup, None, IN_ORDER)
    return parts


def _check_header(path: Path) -> None:
    """Raise DataError if an array's file says that its header is longer than the file."""
    with path.open("rb") as file:
        begin = file.read(12)
    width = 2 if begin[6:7] == b"\1" else 4
    if int.from_bytes(begin[8 : 8 + width], "little") > path.stat().st_size:
        raise DataError(f"{path} is cut short: its header is longer than the file")


def read_whole(path: Path, read: Read | None, part: ShardId) -> Columns:
    """All samples of a file. `read`: the user's reader; it runs under a seed that is the part's."""
    if read is None:
        with _reading(path):
            return parts_of_file(path).source.read(ONLY)
    with Rng(seed_of_rows(0, part, np.arange(0)), torch.device("cpu")):
        return own_columns(path, read)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever a library raises for a damaged file is a DataError that names the file."""
    try:
        yield
    except (DataError, OSError):
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read ({type(error).__name__}: {error})") from error


def form_of(path: Path, read: Read | None, part: ShardId) -> PartForm:
    """What is in the file.

    Raises:
        DataError: it is not what it must be, or whatever reading raises.
    """
    if read is not None:
        return _form(read_whole(path, read, part), by_rows=False, serial=True)
    with _reading(path):
        parts = parts_of_file(path)
        source = parts.source
        if isinstance(source, RowSource) and not isinstance(source, Arrays):
            rows = parts.training[ONLY]
            form = _form(source.rows(ONLY, np.arange(1)), by_rows=True, serial=source.serial)
            return replace(form, rows=rows)
        return _form(source.read(ONLY), by_rows=path.suffix == ".npy", serial=source.serial)


def _form(columns: Columns, by_rows: bool, serial: bool) -> PartForm:
    """The form of a part with these columns."""
    rows = cols.rows(columns)
    described = tuple(
        (str(name), str(column.dtype), tuple(column.shape[1:]))
        for name, column in cols.named(columns).items()
    )
    return PartForm(rows, max(1, cols.nbytes(columns) // max(1, rows)), described, by_rows, serial)


# -- rows, some at a time ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read. `label`, `drop`: columns of tables. `size`: of pictures.

    `numeric_only`: columns of tables that hold no numbers are left out.
    """

    label: str | None = None
    drop: Sequence[str] = ()
    size: Size = None
    numeric_only: bool = False


def row_batches(paths: Any, how: Reading, most: int) -> RowBatches:
    """The rows of these files, in batches of at most about so many bytes.

    Raises:
        DataError: no such files, or files of a kind that no reader knows.
    """
    kind = _kind(paths)
    if kind not in TABLES and (how.label is not None or how.drop or how.numeric_only):
        raise DataError(
            f"label, drop and numeric_only choose columns of CSV, Parquet and Arrow files; got "
            f"{paths}: leave them out"
        )
    if kind in TABLES:
        tables = reader("table_files", f"a {kind} file", "pyarrow")
        rows: RowBatches = tables.TableBatches(
            _files(paths, kind), kind, how.label, tuple(how.drop), numeric_only=how.numeric_only
        )
        return rows
    if kind == "npy":
        return ArrayRows.of(_files(paths, kind), most)
    if kind == "pictures":
        parts = _read_as(kind, [Path(paths)], "a folder of pictures", how.size)
    else:
        parts = _read_as(kind, _files(paths, kind), f"a {kind} file", how.size)
    batch = max(1, most // max(1, parts.row_bytes))
    return PartRows(parts, tuple(parts.training.items()), batch)


class RowBatches(Protocol):
    """The rows of a source, in batches."""

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, about."""
        ...

    def __iter__(self) -> Iterator[Columns]: ...


@dataclass(frozen=True, slots=True)
class PartRows:
    """The rows of some parts of data, so many at a time."""

    parts: Parts
    sizes: Sequence[tuple[ShardId, int]]
    batch: int

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.parts.row_bytes * sum(size for _, size in self.sizes)

    def __iter__(self) -> Iterator[Columns]:
        source = self.parts.source
        for part, size in self.sizes:
            if not isinstance(source, RowSource):
                yield source.read(part)
                continue
            for start in range(0, size, self.batch):
                if isinstance(source, MappedFiles):
                    source = deepcopy(source)  # maps anew: what was read leaves memory
                yield source.rows(part, np.arange(start, min(size, start + self.batch)))


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """The rows of files of numpy.save, each of which is a column, so many at a time."""

    files: Sequence[Path]
    rows: int
    row_bytes: int
    batch: int

    @classmethod
    def of(cls, files: Sequence[Path], most: int) -> ArrayRows:
        """The rows in batches of at most about so many bytes.

        Raises:
            DataError: the arrays have unequal lengths, or no rows.
        """
        arrays = tuple(np.load(file, mmap_mode="r") for file in files)
        lengths = {file.name: array.shape[:1] for file, array in zip(files, arrays, strict=True)}
        if len(set(lengths.values())) > 1 or () in lengths.values():
            listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise DataError(f"columns must have the same number of samples; got {listed}")
        rows = len(arrays[0])
        row_bytes = max(1, sum(array.nbytes for array in arrays) // max(1, rows))
        return cls(files, rows, row_bytes, max(1, most // row_bytes))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes

    def __iter__(self) -> Iterator[Columns]:
        for start in range(0, self.rows, self.batch):
            # mapped anew for each batch: what was read leaves memory
            arrays = {
                file.stem: np.array(np.load(file, mmap_mode="r")[start : start + self.batch])
                for file in self.files
            }
            yield arrays if len(arrays) > 1 else tuple(arrays.values())


def _kind(paths: Any) -> str:
    """The kind of the files, by their ending.

    Raises:
        DataError: they have none, several, or one that no reader knows.
    """
    if isinstance(paths, str | Path) and Path(paths).is_dir():
        files = Path(paths).iterdir()
        kinds = {_kind_of(file) for file in files} & {*KINDS.values()}
        pictures = (p.suffix.lower() in PICTURES for p in Path(paths).glob("*/*"))
        if not kinds and any(pictures):
            return "pictures"
    else:
        kinds = {_kind_of(file) for file in list_files(paths, "*")}
    if len(kinds) != 1 or not kinds <= {*KINDS.values()}:
        listed = ", ".join(sorted(kinds)) or "none"
        raise DataError(f"{paths} must be {READABLE}, of one kind; found {listed}")
    return kinds.pop()


def _kind_of(file: Path) -> str:
    """The kind of the file; its ending if no reader knows that."""
    return KINDS.get(file.suffix.lower(), file.suffix)


def _files(paths: Any, kind: str) -> list[Path]:
    """The files: of a folder those of this kind, by name."""
    return [file for file in list_files(paths, "*") if _kind_of(file) == kind]
