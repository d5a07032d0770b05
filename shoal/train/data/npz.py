"""Data out of a folder of .npz files, one shard each; their headers say what they contain."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.cluster import ShardId
from shoal.engine.files import whole
from shoal.train.data.columns import Array, Columns, DataError, MappedArray
from shoal.train.data.files import files_aside
from shoal.train.data.parts import Index, Parts, is_fraction, named_parts, parts_of

PACKED = 1100  # at most so many bytes are packed in one
# Of a member of a zip archive; the last two numbers are the lengths of its name, and of what
# follows the name.
HEADER = struct.Struct("<4s5H3L2H")


@dataclass(frozen=True, slots=True)
class Files:
    """Parts that are files."""

    paths: Mapping[ShardId, Path]
    serial: bool = False

    def read(self, part: ShardId) -> Columns:
        """All samples of the part: a tuple if its arrays were saved without names."""
        return _read_file(self.paths[part])


@dataclass(frozen=True, slots=True)
class MappedFiles:
    """Parts that are files of uncompressed arrays, whose rows can be read where they lie."""

    paths: Mapping[ShardId, Path]
    serial: bool = False
    columns: Mapping[ShardId, Mapping[str, MappedArray]] = field(default_factory=dict)

    def read(self, part: ShardId) -> Columns:
        """All samples of the part, as `Files.read` gives them."""
        return _read_file(self.paths[part])

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the part."""
        return _columns({name: array[index] for name, array in self.columns[part].items()})


def _read_file(path: Path) -> Columns:
    """The file's arrays."""
    # NumPy leaves a file open that it opened itself and that is no archive.
    with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
        return _columns({name: file[name] for name in file.files})


def _columns(named: dict[str, Any]) -> Columns:
    """The arrays as columns: a tuple if they were saved without names."""
    unnamed = [f"arr_{i}" for i in range(len(named))]  # as numpy.savez names them
    if set(named) == set(unnamed):
        return tuple(named[name] for name in unnamed)
    return named


def from_folder(path: Path, pattern: str, validation: Any, seed: int) -> Parts:
    """The data of `Data.folder`."""
    train = _npz_files(path, pattern)
    test: list[Path] = []
    if is_fraction(validation):
        fraction = float(validation)
        if not 0 < fraction < 1 or len(train) < 2:
            raise DataError(
                "validation must be a fraction between 0 and 1 of two files or more; "
                f"got {fraction!r} of {len(train)}"
            )
        train, test = files_aside(train, fraction, seed)
    elif validation is not None:
        test = _npz_files(whole(validation), pattern)
    return of_files(train, test)


def of_files(train: Sequence[Path], test: Sequence[Path]) -> Parts:
    """These files as the training shards and the validation parts."""
    headers = {file: _header(file) for file in [*train, *test]}
    first = train[0]  # all files must hold its columns
    layout = [column.sample for column in headers[first].columns]
    for path, header in headers.items():
        if [column.sample for column in header.columns] != layout:
            raise DataError(
                f"all files must hold the same columns; {first.name} has {headers[first]}, "
                f"{path.name} has {header}"
            )
    paths = named_parts(train, test)
    contents = [(part, headers[file].content) for part, file in paths.items()]
    hashed = blake2b(repr(contents).encode(), digest_size=16)
    source: Files | MappedFiles = Files(paths)
    arrays = {part: headers[file].arrays for part, file in paths.items()}
    if all(arrays.values()):
        source = MappedFiles(paths, columns=arrays)
    sizes = {part: headers[file].rows for part, file in paths.items()}
    row_bytes = sum(column.row_bytes for column in headers[first].columns)
    return parts_of(source, sizes, row_bytes, hashed)


def _npz_files(path: Path, pattern: str) -> list[Path]:
    """The files of the folder, by name.

    Raises:
        DataError: no such folder, or no files.
    """
    if not path.is_dir():
        raise DataError(f"{path} must be a folder with files {pattern}; no such folder")
    files = sorted(file for file in path.glob(pattern) if file.is_file())
    if not files:
        raise DataError(f"{path} must be a folder with files {pattern}; none found")
    return files


# -- what a file holds, by its headers ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileColumn:
    """An array in a file, by its header."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # with its samples
    mapped: MappedArray | None  # None: it is compressed, or empty

    @property
    def sample(self) -> tuple[str, str, tuple[int, ...]]:
        """The name, type and shape of a sample, which must be equal in all files."""
        return self.name, self.dtype, self.shape[1:]

    @property
    def rows(self) -> int:
        """Samples in the column."""
        return self.shape[0]

    @property
    def is_of_numbers(self) -> bool:
        """Whether its values are numbers or truth values."""
        return np.dtype(self.dtype).kind in "biufc"

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample."""
        return np.dtype(self.dtype).itemsize * prod(self.shape[1:])

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape[1:])}"


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The columns of a file, and its name, sizes and check sums."""

    columns: Sequence[FileColumn]
    content: str

    @property
    def rows(self) -> int:
        """Samples in the file."""
        return self.columns[0].rows

    @property
    def arrays(self) -> dict[str, MappedArray]:
        """The columns where they lie, as the file has them; none if one cannot be mapped."""
        columns = {column.name: column.mapped for column in self.columns}
        mapped = {name: array for name, array in columns.items() if array is not None}
        if len(mapped) < len(columns):
            return {}
        return dict(sorted(mapped.items(), key=lambda item: item[1].offset))

    def __str__(self) -> str:
        return ", ".join(map(str, self.columns))


def _header(path: Path) -> FileHeader:
    """What the file holds.

    Raises:
        DataError: it cannot be read, or does not hold columns of numbers.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.filename)
            columns = [_column(path, archive, info) for info in infos]
    except Exception as error:  # zipfile and NumPy have many errors for a damaged file
        raise DataError(
            f"{path} cannot be read as .npz ({type(error).__name__}: {error})"
        ) from error
    _check(path, columns)
    sums = [(info.filename, info.file_size, info.CRC) for info in infos]
    return FileHeader(columns, repr([path.name, *sums]))


def _check(path: Path, columns: Sequence[FileColumn]) -> None:
    """Raise DataError unless these are columns of numbers, of equal length."""
    if not columns or not all(column.shape for column in columns):
        shapes = [f"{column.name}{list(column.shape)}" for column in columns]
        listed = ", ".join(shapes) or "none"
        raise DataError(f"{path} must hold arrays whose first axis is samples; got {listed}")
    if len({column.rows for column in columns}) > 1:
        listed = ", ".join(f"{column.name}: {column.rows}" for column in columns)
        raise DataError(f"{path}: columns must have the same number of samples; got {listed}")
    bad = [column for column in columns if not column.is_of_numbers]
    if bad:
        listed = ", ".join(f"{column.name} of {column.dtype}" for column in bad)
        raise DataError(
            f"{path}: columns must hold numbers; got {listed}: encode them as numbers first"
        )


def _column(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> FileColumn:
    """One array, from its header."""
    with archive.open(info) as file:
        shape, is_fortran, dtype = npy_header(file)
        begin = file.tell()
    offset = _content_start(path, info) + begin
    _check_sizes(info, begin + dtype.itemsize * prod(shape))
    mapped = None
    stored = info.compress_type == zipfile.ZIP_STORED and not dtype.hasobject
    values: int = prod(shape)
    if stored and values:
        mapped = MappedArray(str(path), dtype, shape, offset, "F" if is_fortran else "C")
    name = info.filename.removesuffix(".npy")
    return FileColumn(name, dtype.str, shape, mapped)


def npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape, whether columns come first, and the dtype of an array's file.

    Raises:
        ValueError: an axis is negative; and whatever NumPy raises.
    """
    read = np.lib.format.read_array_header_2_0
    if np.lib.format.read_magic(file) == (1, 0):
        read = np.lib.format.read_array_header_1_0
    shape, is_fortran, dtype = read(file)
    if any(length < 0 for length in shape):
        raise ValueError(f"an axis must not be negative; got {shape}")
    return shape, is_fortran, dtype


def _check_sizes(info: zipfile.ZipInfo, needed: int) -> None:
    """Raise ValueError if a member says that it holds more than can be in it."""
    if info.compress_type == zipfile.ZIP_STORED:
        most = info.compress_size
    else:
        most = PACKED * info.compress_size + 2**16
    is_of_objects = needed != info.file_size  # these are refused by their dtype
    if info.file_size > most or (needed > most and is_of_objects):
        raise ValueError(
            f"{info.filename} has {info.compress_size} bytes, which cannot hold {needed}"
        )


def _content_start(path: Path, info: zipfile.ZipInfo) -> int:
    """Where the content of a member of the archive begins."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(HEADER.size)
    *_, name, extra = HEADER.unpack(header)
    return info.header_offset + HEADER.size + int(name) + int(extra)


# -- writing -----------------------------------------------------------------------------------


class NpzWriter:
    """Writes a file that `numpy.load` reads, and whose arrays can be mapped."""

    def __init__(self, path: Path) -> None:
        self._file = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True)

    def __enter__(self) -> NpzWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(
        self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], pieces: Iterable[Array]
    ) -> None:
        """Write one array, its pieces along the first axis."""
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": shape,
        }
        # A date of its own would give equal rows unequal files.
        info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
        with self._file.open(info, "w", force_zip64=True) as member:
            np.lib.format.write_array_header_2_0(member, header)
            for piece in pieces:
                member.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
