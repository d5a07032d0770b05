"""Where the rows of new shards come from: files of any kind that Shoal's readers know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.core.cluster import ShardId
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.npz import MappedFiles, of_files
from shoal.train.data.parts import IN_ORDER, Parts, RowSource, reader
from shoal.train.data.placed.forms import KINDS
from shoal.train.data.read.paths import listed

PICTURES = (".jpg", ".jpeg", ".png")
TABLES = ("csv", "parquet", "arrow")
READABLE = "CSV, Parquet, Arrow, npz, npy, tar, or a folder of such files or of pictures by class"


class RowBatches(Protocol):
    """Rows, some at a time."""

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
            found = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise DataError(f"columns must have the same number of samples; got {found}")
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


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read. `label`, `drop`: columns of tables. `size`: of pictures.

    `numeric_only`: columns of tables that hold no numbers are left out.
    """

    label: str | None = None
    drop: Sequence[str] = ()
    size: int | tuple[int, int] | None = None
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
        tables = reader("make.tables", f"a {kind} file", "pyarrow")
        rows: RowBatches = tables.TableBatches(
            _files(paths, kind),
            kind,
            how.label,
            tuple(how.drop),
            numeric_only=how.numeric_only,
        )
        return rows
    if kind == "npy":
        return ArrayRows.of(_files(paths, kind), most)
    parts = _parts(paths, kind, how)
    batch = max(1, most // max(1, parts.row_bytes))
    return PartRows(parts, tuple(parts.training.items()), batch)


def _kind(paths: Any) -> str:
    """The kind of the files, by their ending.

    Raises:
        DataError: they have none, several, or one that no reader knows.
    """
    if _is_folder(paths):
        files = Path(paths).iterdir()
        found = {_kind_of(file) for file in files} & {*KINDS.values()}
        pictures = (p.suffix.lower() in PICTURES for p in Path(paths).glob("*/*"))
        if not found and any(pictures):
            return "pictures"
    else:
        found = {_kind_of(file) for file in listed(paths, "*")}
    if len(found) != 1 or not found <= {*KINDS.values()}:
        named = ", ".join(sorted(found)) or "none"
        raise DataError(f"{paths} must be {READABLE}, of one kind; found {named}")
    return found.pop()


def _is_folder(paths: Any) -> bool:
    return isinstance(paths, str | Path) and Path(paths).is_dir()


def _kind_of(file: Path) -> str:
    """The kind of the file; its ending if no reader knows that."""
    return KINDS.get(file.suffix.lower(), file.suffix)


def _files(paths: Any, kind: str) -> list[Path]:
    """The files: of a folder those of this kind, by name."""
    return [file for file in listed(paths, "*") if _kind_of(file) == kind]


def _parts(paths: Any, kind: str, how: Reading) -> Parts:
    """Data of files that are no tables."""
    made: Parts
    if kind == "npz":
        made = of_files(_files(paths, kind), [])
    elif kind == "tar":
        tar = reader("read.tar", "a tar file", "pillow")
        made = tar.from_tars(_files(paths, kind), None, None, how.size, None, 0)
    else:
        images = reader("read.images", "a folder of pictures", "pillow")
        made = images.from_images(Path(paths), how.size, None, IN_ORDER, False)
    return made
