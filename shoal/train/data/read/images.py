"""Data out of a folder of pictures by class: root/class/*.jpg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from shoal.engine.files import whole
from shoal.train.data.columns import Array, Columns, DataError
from shoal.train.data.parts import Division, Index, Parts, is_fraction
from shoal.train.data.read.pictures import SUFFIXES, Size, check_size, picture, stacked
from shoal.train.data.read.table import from_table


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures and the numbers of their classes."""

    files: Sequence[Path]
    labels: Array
    size: Size
    own_code: bool = False

    def __len__(self) -> int:
        return len(self.files)

    def take(self, numbers: Index) -> Columns:
        """(pictures (n, 3, height, width) uint8, labels int64)."""
        made = [picture(self.files[number], self.size) for number in numbers]
        column = stacked(made, "0 (pictures)", "give size=(height, width)")
        return column, self.labels[numbers]

    @property
    def about(self) -> str:
        """The names and sizes of the files."""
        hashed = blake2b(digest_size=16)
        for file in self.files:
            hashed.update(f"{file.parent.name}/{file.name} {file.stat().st_size}\n".encode())
        return f"{hashed.hexdigest()} {self.size}"


def from_images(root: Path, size: Any, validation: Any, how: Division, stratify: bool) -> Parts:
    """See `Data.images`."""
    check_size(size)
    names = _classes(root)
    table = _pictures(root, names, size)
    about = table.about
    if validation is not None and not is_fraction(validation):
        other = whole(validation)
        if _classes(other) != names:
            raise DataError(
                f"both folders must have the same classes; {root} has {', '.join(names)}, "
                f"{other} has {', '.join(_classes(other))}"
            )
        validation = _pictures(other, names, size)
        about += validation.about
    labels = table.labels if stratify else None
    classes = {"1": names}
    return from_table(table, validation, how, labels=labels, names=classes, about=about)


def _classes(root: Path) -> list[str]:
    """The folders in the root, by name.

    Raises:
        DataError: there are none.
    """
    if not root.is_dir():
        raise DataError(f"{root} must be a folder with a folder for each class; no such folder")
    folders = [each.name for each in root.iterdir() if each.is_dir()]
    names = sorted(name for name in folders if not name.startswith("."))
    if not names:
        raise DataError(
            f"{root} must be a folder with a folder for each class; none found: put the pictures "
            "of each class in a folder of its name"
        )
    return names


def _pictures(root: Path, names: Sequence[str], size: Size) -> Pictures:
    """All pictures, class by class, each in the order of their names.

    Raises:
        DataError: a class has none.
    """
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        found = sorted(file for file in (root / name).iterdir() if file.suffix.lower() in SUFFIXES)
        if not found:
            raise DataError(f"{root / name} has no pictures ({', '.join(SUFFIXES)})")
        files += found
        labels += [label] * len(found)
    return Pictures(tuple(files), np.array(labels, np.int64), size)
