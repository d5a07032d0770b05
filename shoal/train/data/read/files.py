"""Data out of files of any format, each a shard, by the user's own function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.parts import Parts, alike, as_array, part_names, seed_of_rows
from shoal.train.data.read.paths import divided, looked_at_file
from shoal.train.rng import Rng

Read = Callable[[Path], Any]


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
    """See `Data.files`."""
    if not callable(read):
        raise DataError(f"read must be a function of a path; got {read!r}")
    train, test = divided(paths, "*", validation, seed)
    named = dict(zip(part_names("s", len(train)), train, strict=True))
    named |= zip(part_names("v", len(test)), test, strict=True)
    source = OwnFiles(named, read, seed)
    sizes: dict[ShardId, int] = {}
    total = 0
    first: Columns | None = None
    for part, path in named.items():
        columns = _tried(source, part)
        if first is None:
            first = cols.apply(columns, lambda column: column[:1].copy())
        _check_form(first, columns, path)
        sizes[part] = cols.rows(columns)
        total += cols.nbytes(columns)
    about = [(part, looked_at_file(path), sizes[part]) for part, path in named.items()]
    hashed = blake2b(repr(about).encode(), digest_size=16)
    return Parts(
        source=source,
        training={part: n for part, n in sizes.items() if part.startswith("s")},
        validation={part: n for part, n in sizes.items() if part.startswith("v")},
        row_bytes=max(1, total // max(1, sum(sizes.values()))),
        fingerprint=hashed.hexdigest(),
    )


def _tried(source: OwnFiles, part: ShardId) -> Columns:
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


def _check_form(first: Columns, other: Columns, path: Path) -> None:
    """Raise DataError unless both have the same columns."""
    unlike = isinstance(first, dict) != isinstance(other, dict)
    if (
        unlike
        or len(first) != len(other)
        or (isinstance(first, dict) and list(first) != list(other))
    ):
        raise DataError(f"all files must give the same columns; {path.name} gives others")
    alike(first, other, "the first file", path.name)
