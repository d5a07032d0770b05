"""Where the rows of new shards come from: files of any kind that Shoal's readers know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.core.cluster import ShardId
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.npz import MappedFiles, from_folder
from shoal.train.data.parts import Division, Parts, RowSource
from shoal.train.data.read.paths import listed

PICTURES = (".jpg", ".jpeg", ".png")
IN_ORDER = Division(0, 1, sequential=True)  # rows are read as they lie
TABLES = ("csv", "parquet", "arrow")
KINDS = "CSV, Parquet, Arrow, npz, npy, tar, or a folder of such files or of pictures by class"


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
        lengths = {
            file.name: array.shape[:1]
            for file, array in zip(files, arrays, strict=True)
        }
        if len(set(lengths.values())) > 1 or () in lengths.values():
            listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise DataError(
                f"columns must have the same number of samples; got {listed}"
            )
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
                file.stem: np.array(
                    np.load(file, mmap_mode="r")[start : start + self.batch]
                )
                for file in self.files
            }
            yield arrays if len(arrays) > 1 else tuple(arrays.values())


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read. `label`, `drop`: columns of tables. `size`: of pictures."""

    label: str | None = None
    drop: Sequence[str] = ()
    size: int | tuple[int, int] | None = None


def row_batches(paths: Any, how: Reading, most: int) -> RowBatches:
    """The rows of these files, in batches of at most about so many bytes.

    Raises:
        DataError: no such files, or files of a kind that no reader knows.
    """
    kind = _kind(paths)
    if kind not in TABLES and (how.label is not None or how.drop):
        raise DataError(
            f"label and drop name columns of CSV, Parquet and Arrow files; got {paths}: leave "
            "them out"
        )
    if kind in TABLES:
        tables = _reader("shoal.train.data.make.tables", kind)
        rows: RowBatches = tables.table_rows(paths, kind, how.label, how.drop)
        return rows
    if kind == "npy":
        return ArrayRows.of(listed(paths, "*.npy"), most)
    parts = _READERS[kind](paths, how)
    batch = max(1, most // max(1, parts.row_bytes))
    return PartRows(parts, tuple(parts.training.items()), batch)


def _kind(paths: Any) -> str:
    """The kind of the files, by their ending.

    Raises:
        DataError: they have none, several, or one that no reader knows.
    """
    if isinstance(paths, str | Path) and Path(paths).is_dir():
        found = {
            kind for kind in _ENDINGS.values() if any(Path(paths).glob(f"*.{kind}"))
        }
        found |= {_ENDINGS[e] for e in _ENDINGS if any(Path(paths).glob(f"*.{e}"))}
        if not found and any(
            p.suffix.lower() in PICTURES for p in Path(paths).glob("*/*")
        ):
            found = {"pictures"}
    else:
        files = listed(paths, "*")
        found = {
            _ENDINGS.get(file.suffix.lower().lstrip("."), file.suffix) for file in files
        }
    if len(found) != 1 or not found <= {*_ENDINGS.values(), "pictures"}:
        named = ", ".join(sorted(found)) or "none"
        raise DataError(f"{paths} must be {KINDS}, of one kind; found {named}")
    return found.pop()


def _npz(paths: Any, how: Reading) -> Parts:
    """Files of numpy.savez: a folder, a file, a pattern."""
    path = Path(paths)
    if path.is_dir():
        return from_folder(path, "*.npz", None, 0)
    return from_folder(path.parent, path.name, None, 0)


def _tar(paths: Any, how: Reading) -> Parts:
    tar = _reader("shoal.train.data.read.tar", "tar", "pillow")
    made: Parts = tar.from_tars(paths, None, None, how.size, None, 0)
    return made


def _pictures(paths: Any, how: Reading) -> Parts:
    images = _reader("shoal.train.data.read.images", "pictures", "pillow")
    made: Parts = images.from_images(Path(paths), how.size, None, IN_ORDER, False)
    return made


def _reader(module: str, kind: str, needs: str = "pyarrow") -> Any:
    """The module that reads the kind of file, imported when it is needed.

    Raises:
        DataError: a library that it needs is missing.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(
            f"{kind} files need {needs}: pip install {needs} ({error})"
        ) from error


_ENDINGS = {
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    "feather": "arrow",
    "ipc": "arrow",
    "npz": "npz",
    "npy": "npy",
    "tar": "tar",
}
_READERS: dict[str, Callable[[Any, Reading], Parts]] = {
    "npz": _npz,
    "tar": _tar,
    "pictures": _pictures,
}
