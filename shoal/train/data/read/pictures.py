"""Pictures as arrays, by Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from shoal.train.data.columns import Array, DataError
from shoal.train.data.read.paths import check_ends

Size = int | tuple[int, int] | None  # one side of a square, or (height, width)
SUFFIXES = (".jpg", ".jpeg", ".png")
# What pictures are by their content. Pillow knows more, and has Ghostscript run those of EPS.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")


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
        return _read(source, _wanted(size))
    except Exception as error:  # Pillow has many names for what is damaged or too large
        name = content if isinstance(content, Path) else "a picture"
        raise DataError(
            f"{name} cannot be read as a picture ({type(error).__name__}: {error}); mend it, or "
            "leave it out"
        ) from error


def _read(source: Any, wanted: tuple[int, int] | None) -> Array:
    with Image.open(source, formats=FORMATS) as image:
        if wanted is not None:
            image.draft("RGB", wanted)  # a JPEG is decoded at a smaller scale at once
        shown: Any = image
        if image.mode.startswith("I"):  # 16 bits of grey, of which Pillow would clip
            shown = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        shown = shown.convert("RGB")
        if wanted is not None and shown.size != wanted:
            shown = shown.resize(wanted, Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(shown).transpose(2, 0, 1))


def _wanted(size: Size) -> tuple[int, int] | None:
    """(width, height)."""
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


def stacked(arrays: list[Array], name: str, remedy: str) -> Array:
    """The samples' arrays as a column.

    Raises:
        DataError: they have unequal shapes.
    """
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        listed = ", ".join(map(str, sorted(shapes)[:3]))
        raise DataError(f"samples of column {name} must have one shape; got {listed}: {remedy}")
    return np.stack(arrays)
