"""Data out of a folder of .npz files, one shard each. What lies where is told by their headers alone."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.cluster import ShardId
from shoal.train.columns import Columns, DataError
from shoal.train.data import Data, part_names

Layout = tuple[tuple[str, str, tuple[int, ...]], ...]  # of each column: name, dtype, shape of one sample


@dataclass(frozen=True, slots=True)
class Files:
    """Parts that are files."""

    paths: Mapping[ShardId, Path]
    serial: bool = False

    def read(self, part: ShardId) -> Columns:
        with np.load(self.paths[part], allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
        unnamed = [f"arr_{i}" for i in range(len(columns))]  # as numpy.savez calls arrays saved without a name
        return tuple(columns[name] for name in unnamed) if set(columns) == set(unnamed) else columns


@dataclass(frozen=True, slots=True)
class _Header:
    rows: int
    layout: Layout
    content: str  # its name, and size and check sum of every array


def from_folder(path: Path, pattern: str, validation: Any, seed: int) -> Data:
    """See `Data.folder`."""
    files = _listed(path, pattern)
    if validation is None:
        train, test = files, list[Path]()
    elif isinstance(validation, float | int) and not isinstance(validation, bool):
        train, test = _split(files, float(validation), seed)
    else:
        train, test = files, _listed(Path(validation), pattern)
    headers = {file: _header(file) for file in [*train, *test]}
    first = headers[train[0]]
    for file, header in headers.items():
        if header.layout != first.layout:
            told = f"{train[0].name} has {_told(first)}, {file.name} has {_told(header)}"
            raise DataError(f"all files must hold the same columns; {told}")
    row_bytes = sum(np.dtype(dtype).itemsize * prod(shape) for _, dtype, shape in first.layout)
    paths = dict(zip([*part_names("s", len(train)), *part_names("v", len(test))], [*train, *test], strict=True))
    sizes = {part: headers[file].rows for part, file in paths.items()}
    hashed = blake2b(repr([(part, headers[file].content) for part, file in paths.items()]).encode(), digest_size=16).hexdigest()
    training = {part: size for part, size in sizes.items() if part.startswith("s")}
    return Data(Files(paths), training, {part: size for part, size in sizes.items() if part not in training}, row_bytes, hashed)


def _listed(path: Path, pattern: str) -> list[Path]:
    files = sorted(file for file in path.glob(pattern) if file.is_file()) if path.is_dir() else []
    if not files:
        raise DataError(f"{path} must be a folder with files {pattern}; {'none found' if path.is_dir() else 'no such folder'}")
    return files


def _split(files: list[Path], fraction: float, seed: int) -> tuple[list[Path], list[Path]]:
    if not 0 < fraction < 1 or len(files) < 2:
        raise DataError(f"validation must be a fraction between 0 and 1 of two files or more; got {fraction!r} of {len(files)}")
    count = min(len(files) - 1, max(1, round(len(files) * fraction)))
    chosen = set(np.random.default_rng(seed).permutation(len(files))[:count].tolist())
    return [file for i, file in enumerate(files) if i not in chosen], [file for i, file in enumerate(files) if i in chosen]


def _header(path: Path) -> _Header:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.filename)
            arrays = [(info.filename.removesuffix(".npy"), *_array(archive, info)) for info in infos]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as .npz ({type(error).__name__}: {error})") from error
    if not arrays or any(not shape for _, _, shape in arrays):
        listed = ", ".join(f"{name}{list(shape)}" for name, _, shape in arrays) or "none"
        raise DataError(f"{path} must hold arrays whose first axis is samples; got {listed}")
    if len({shape[0] for _, _, shape in arrays}) > 1:
        listed = ", ".join(f"{name}: {shape[0]}" for name, _, shape in arrays)
        raise DataError(f"{path}: columns must have the same number of samples; got {listed}")
    bad = [f"{name} of {dtype}" for name, dtype, _ in arrays if np.dtype(dtype).kind not in "biufc"]
    if bad:
        raise DataError(f"{path}: columns must hold numbers; got {', '.join(bad)}: encode them as numbers first")
    content = repr([path.name, *((info.filename, info.file_size, info.CRC) for info in infos)])
    return _Header(arrays[0][2][0], tuple((name, dtype, shape[1:]) for name, dtype, shape in arrays), content)


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of one array, from its header."""
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return dtype.str, shape


def _told(header: _Header) -> str:
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, dtype, shape in header.layout)
