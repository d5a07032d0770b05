"""Files that are shards: which are trained on, and those of any format, by the user's function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.core.cluster import ShardId
from shoal.engine.files import whole
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.parts import (
    Parts,
    alike,
    as_array,
    is_fraction,
    named_parts,
    parts_of,
    seed_of_rows,
)
from shoal.train.rng import Rng

LOOKED_AT = 2**16  # bytes at either end of a file that a fingerprint looks at
Read = Callable[[Path], Any]


def list_files(paths: Any, pattern: str) -> list[Path]:
    """The files: a file, a folder with files of this pattern, a pattern of its own, or a list.

    Raises:
        DataError: there are none, or one is missing.
    """
    if isinstance(paths, str | os.PathLike):
        path = whole(paths)
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.glob(pattern) if file.is_file())
        elif any(sign in path.name for sign in "*?["):
            files = sorted(path.parent.glob(path.name))
    elif isinstance(paths, Iterable):
        files = [whole(path) for path in paths]
    else:
        raise DataError(
            f"files must be a path, a folder, a pattern, or a list of paths; got {paths!r}"
        )
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        raise DataError(f"no such file: {', '.join(missing[:5]) or paths}")
    return files


def check_ends(path: Path) -> None:
    """Check that what is at the path, if anything is, has an end; links may lead to it.

    Raises:
        DataError: it is a FIFO, a device or a socket.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(
            f"{path} must be a file, but is a FIFO, a device or a socket, whose end may never "
            "come: take it out of the data, or write its content to a file"
        )


def divide_files(
    paths: Any, pattern: str, validation: Any, seed: int
) -> tuple[list[Path], list[Path]]:
    """The files to train and to validate on. `validation`: a fraction of them, others, or None.

    Raises:
        DataError: as `list_files`; the fraction leaves nothing to train or to validate on.
    """
    files = list_files(paths, pattern)
    if validation is None:
        return files, []
    if not is_fraction(validation):
        return files, list_files(validation, pattern)
    if not 0 < validation < 1 or len(files) < 2:
        raise DataError(
            "validation must be a fraction between 0 and 1 of two files or more, other files, or "
            f"None; got {validation!r} of {len(files)}"
        )
    return files_aside(files, float(validation), seed)


def files_aside(files: Sequence[Path], fraction: float, seed: int) -> tuple[list[Path], list[Path]]:
    """Files to train and to validate on, drawn at random: at least one of two or more for each."""
    count = min(len(files) - 1, max(1, round(len(files) * fraction)))
    chosen = set(np.random.default_rng(seed).permutation(len(files))[:count].tolist())
    train = [file for number, file in enumerate(files) if number not in chosen]
    return train, [files[number] for number in sorted(chosen)]


def file_fingerprint(path: Path) -> str:
    """A hash of the file's name, size, and both ends."""
    size = path.stat().st_size
    hashed = blake2b(f"{path.name} {size}".encode(), digest_size=16)
    with path.open("rb") as file:
        hashed.update(file.read(LOOKED_AT))
        file.seek(max(0, size - LOOKED_AT))
        hashed.update(file.read(LOOKED_AT))
    return hashed.hexdigest()


# -- files of any format -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """Parts that are files, read by the user's function, each as a whole."""

    paths: Mapping[ShardId, Path]
    function: Read
    seed: int
    serial: bool = True

    def read(self, part: ShardId) -> Columns:
        """All samples of the part, read under a seed that is the part's."""
        with Rng(seed_of_rows(self.seed, part, np.arange(0)), torch.device("cpu")):
            return own_columns(self.paths[part], self.function)


def from_files(paths: Any, read: Read, validation: Any, seed: int) -> Parts:
    """The data of `Data.files`."""
    if not callable(read):
        raise DataError(f"read must be a function of a path; got {read!r}")
    train, test = divide_files(paths, "*", validation, seed)
    files = named_parts(train, test)
    source = OwnFiles(files, read, seed)
    sizes: dict[ShardId, int] = {}
    total = 0
    first: Columns | None = None
    for part, path in files.items():
        columns = _read_part(source, part)
        if first is None:
            first = cols.apply(columns, lambda column: column[:1].copy())
        unlike = isinstance(first, dict) != isinstance(columns, dict)
        if (
            unlike
            or len(first) != len(columns)
            or (isinstance(first, dict) and list(first) != list(columns))
        ):
            raise DataError(f"all files must give the same columns; {path.name} gives others")
        alike(first, columns, "the first file", path.name)
        sizes[part] = cols.rows(columns)
        total += cols.nbytes(columns)
    contents = [(part, file_fingerprint(path), sizes[part]) for part, path in files.items()]
    hashed = blake2b(repr(contents).encode(), digest_size=16)
    return parts_of(source, sizes, total // max(1, sum(sizes.values())), hashed)


def _read_part(source: OwnFiles, part: ShardId) -> Columns:
    """The part's columns. Raises DataError if they cannot be read."""
    try:
        return source.read(part)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"read({source.paths[part].name!r}) raised {type(error).__name__}: {error}"
        ) from error


def own_columns(path: Path, function: Read) -> Columns:
    """What the user's function gives for the file, as columns of numbers."""
    columns = cols.form(function(path))
    if isinstance(columns, dict):
        return {name: as_array(column, name) for name, column in columns.items()}
    return tuple(as_array(column, str(i)) for i, column in enumerate(columns))
