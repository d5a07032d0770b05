"""Data out of a folder of pictures by class (root/class/*.jpg), by Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from shoal.engine.files import whole
from shoal.train.data.columns import Array, Columns, DataError
from shoal.train.data.files import check_ends
from shoal.train.data.parts import Division, Index, Parts, from_table, is_fraction

Size = int | tuple[int, int] | None  # one side of a square, or (height, width)
SUFFIXES = (".jpg", ".jpeg", ".png")
# What pictures are by their content. Pillow knows more, and has Ghostscript run those of EPS.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")


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
        """The pictures, (n, 3, height, width) uint8, and their labels, int64."""
        pictures = [picture(self.files[number], self.size) for number in numbers]
        column = stack_arrays(pictures, "0 (pictures)", "give size=(height, width)")
        return column, self.labels[numbers]

    @property
    def about(self) -> str:
        """What belongs into the fingerprint: the names and sizes of the files."""
        hashed = blake2b(digest_size=16)
        for file in self.files:
            hashed.update(f"{file.parent.name}/{file.name} {file.stat().st_size}\n".encode())
        return f"{hashed.hexdigest()} {self.size}"


def from_images(root: Path, size: Any, validation: Any, how: Division, stratify: bool) -> Parts:
    """The data of `Data.images`."""
    check_size(size)
    names = _classes(root)
    table = _pictures(root, names, size)
    about = table.about
    if validation is not None and not is_fraction(validation):
        folder = whole(validation)
        if _classes(folder) != names:
            raise DataError(
                f"both folders must have the same classes; {root} has {', '.join(names)}, "
                f"{folder} has {', '.join(_classes(folder))}"
            )
        validation = _pictures(folder, names, size)
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
    folders = [path.name for path in root.iterdir() if path.is_dir()]
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
        paths = sorted(file for file in (root / name).iterdir() if file.suffix.lower() in SUFFIXES)
        if not paths:
            raise DataError(f"{root / name} has no pictures ({', '.join(SUFFIXES)})")
        files += paths
        labels += [label] * len(paths)
    return Pictures(tuple(files), np.array(labels, np.int64), size)


# -- one picture -------------------------------------------------------------------------------


def picture(content: bytes | Path | IO[bytes], size: Size = None) -> Array:
    """The picture: (3, height, width), uint8, resized if a size is given.

    Raises:
        DataError: it cannot be read.
    """
    source: Any = content
    if isinstance(content, Path):
        check_ends(content)
    try:
        if isinstance(content, Path):  # of a file Pillow asks for what a chunk says it has
            source = io.BytesIO(content.read_bytes())
        elif isinstance(content, bytes):
            source = io.BytesIO(content)
        return _read(source, _pillow_size(size))
    except Exception as error:  # Pillow has many names for what is damaged or too large
        name = content if isinstance(content, Path) else "a picture"
        raise DataError(
            f"{name} cannot be read as a picture ({type(error).__name__}: {error}); mend it, or "
            "leave it out"
        ) from error


def _read(source: Any, size: tuple[int, int] | None) -> Array:
    """The picture as an array, resized to (width, height) if that is given."""
    with Image.open(source, formats=FORMATS) as image:
        if size is not None:
            image.draft("RGB", size)  # a JPEG is decoded at a smaller scale at once
        rgb: Any = image
        if image.mode.startswith("I"):  # 16 bits of grey, of which Pillow would clip
            rgb = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        rgb = rgb.convert("RGB")
        if size is not None and rgb.size != size:
            rgb = rgb.resize(size, Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def _pillow_size(size: Size) -> tuple[int, int] | None:
    """The size as Pillow takes it: (width, height)."""
    if size is None:
        return None
    if isinstance(size, int):
        return size, size
    return size[1], size[0]


def check_size(size: Any) -> None:
    """Raise DataError unless it is None, a side, or (height, width)."""
    if size is None:
        return
    sides = size if isinstance(size, tuple) else (size, size)
    if len(sides) != 2 or not all(isinstance(n, int) and n > 0 for n in sides):
        raise DataError(f"size must be a number of pixels, (height, width), or None; got {size!r}")


def stack_arrays(arrays: list[Array], name: str, remedy: str) -> Array:
    """The samples' arrays as a column.

    Raises:
        DataError: they have unequal shapes.
    """
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        listed = ", ".join(map(str, sorted(shapes)[:3]))
        raise DataError(f"samples of column {name} must have one shape; got {listed}: {remedy}")
    return np.stack(arrays)
