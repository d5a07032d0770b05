"""Lists of files that are shards: which are trained on, and which are set aside."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from shoal.engine.files import whole
from shoal.train.data.columns import DataError
from shoal.train.data.parts import is_fraction

LOOKED_AT = 2**16  # bytes at either end of a file that a fingerprint looks at


def listed(paths: Any, pattern: str) -> list[Path]:
    """The files: a file, a folder with files of this pattern, a pattern of its own, or a list.

    Raises:
        DataError: there are none, or one is missing.
    """
    if isinstance(paths, str | os.PathLike):
        files = _found(whole(paths), pattern)
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
    """See that what is at the path has an end, if anything is there; links may lead to it.

    Raises:
        DataError: it is a FIFO, a device or a socket.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(
            f"{path} must be a file, but is a FIFO, a device or a socket, whose end may never "
            "come: take it out of the data, or write its content to a file"
        )


def _found(path: Path, pattern: str) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.glob(pattern) if file.is_file())
    if any(sign in path.name for sign in "*?["):
        return sorted(path.parent.glob(path.name))
    return [path]


def divided(paths: Any, pattern: str, validation: Any, seed: int) -> tuple[list[Path], list[Path]]:
    """The files to train and to validate on. `validation`: a fraction of them, others, or None.

    Raises:
        DataError: as `listed`; the fraction leaves nothing to train or to validate on.
    """
    files = listed(paths, pattern)
    if validation is None:
        return files, []
    if not is_fraction(validation):
        return files, listed(validation, pattern)
    if not 0 < validation < 1 or len(files) < 2:
        raise DataError(
            "validation must be a fraction between 0 and 1 of two files or more, other files, or "
            f"None; got {validation!r} of {len(files)}"
        )
    count = min(len(files) - 1, max(1, round(len(files) * validation)))
    chosen = set(np.random.default_rng(seed).permutation(len(files))[:count].tolist())
    train = [file for number, file in enumerate(files) if number not in chosen]
    return train, [files[number] for number in sorted(chosen)]


def looked_at_file(path: Path) -> str:
    """A hash of the file's name, size, and both ends."""
    size = path.stat().st_size
    hashed = blake2b(f"{path.name} {size}".encode(), digest_size=16)
    with path.open("rb") as file:
        hashed.update(file.read(LOOKED_AT))
        file.seek(max(0, size - LOOKED_AT))
        hashed.update(file.read(LOOKED_AT))
    return hashed.hexdigest()
