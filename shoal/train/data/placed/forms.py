"""What a shard's file holds: the reader for each format, and the form of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.arrays import Arrays, from_arrays
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.npz import of_files
from shoal.train.data.parts import IN_ORDER, Parts, RowSource, reader, seed_of_rows
from shoal.train.data.read.files import own_columns
from shoal.train.rng import Rng

Read = Callable[[Path], Any]  # the user's reader of a file
ONLY = ShardId("s000")  # what readers call the only shard of a file
# What to do about a table that is no numbers.
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


def opened(path: Path) -> Parts:
    """The file or folder as data of one shard.

    Raises:
        DataError: nothing here reads it, or it is not what it must be.
    """
    if path.is_dir():
        return _opened_folder(path)
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"{path.name} is of no format that Shoal reads ({', '.join(KINDS)}, or a folder of "
            "pictures by class): give the recipe a method read(self, path) that returns its columns"
        )
    if kind == "npz":
        return of_files([path], [])
    if kind == "npy":
        _check_header(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return from_arrays((array,), {}, None, None, IN_ORDER)
    return _by_library(kind, path)


def _check_header(path: Path) -> None:
    """Raise DataError if an array's file says that its header is longer than the file."""
    with path.open("rb") as file:
        begin = file.read(12)
    width = 2 if begin[6:7] == b"\1" else 4
    if int.from_bytes(begin[8 : 8 + width], "little") > path.stat().st_size:
        raise DataError(f"{path} is cut short: its header is longer than the file")


def _opened_folder(path: Path) -> Parts:
    """A folder with pictures of each class in a folder of its name."""
    images = reader("read.images", "a shard of pictures", "pillow")
    made: Parts = images.from_images(path, None, None, IN_ORDER, False)
    return made


def _by_library(kind: str, path: Path) -> Parts:
    """What a reader in `shoal.train.data.read` makes of the file."""
    made: Parts
    what = f"a shard {path.name}"
    if kind == "arrow":
        arrow = reader("read.arrow", what, "pyarrow", "pillow")
        made = arrow.from_arrow(path, None, None, None, IN_ORDER, None)
    elif kind == "tar":
        tar = reader("read.tar", what, "pillow")
        made = tar.from_tars(path, None, None, None, None, 0)
    else:
        tables = reader("read.tables", what, "pyarrow")
        setup = tables.TableSetup(None, None, {}, None, remedy=OF_TABLES)
        made = tables.from_tables(path, kind, setup, None, IN_ORDER)
    return made


def read_whole(path: Path, read: Read | None, part: ShardId) -> Columns:
    """All samples of a file. `read`: the user's reader; it runs under a seed that is the part's."""
    if read is None:
        with _reading(path):
            return opened(path).source.read(ONLY)
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
        return _own_form(path)


def _own_form(path: Path) -> PartForm:
    """What is in a file of a format that Shoal reads."""
    parts = opened(path)
    source = parts.source
    if isinstance(source, RowSource) and not isinstance(source, Arrays):
        rows = parts.training[ONLY]
        found = _form(source.rows(ONLY, np.arange(1)), by_rows=True, serial=source.serial)
        return replace(found, rows=rows)
    return _form(source.read(ONLY), by_rows=path.suffix == ".npy", serial=source.serial)


def _form(columns: Columns, by_rows: bool, serial: bool) -> PartForm:
    rows = cols.rows(columns)
    named = columns if isinstance(columns, dict) else dict(enumerate(columns))
    about = tuple(
        (str(name), str(column.dtype), tuple(column.shape[1:])) for name, column in named.items()
    )
    return PartForm(rows, max(1, cols.nbytes(columns) // max(1, rows)), about, by_rows, serial)
