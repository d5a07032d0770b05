"""Data out of files in the format of MNIST: IDX, gzipped or not (yann.lecun.org/exdb/mnist)."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.train.columns import DataError
from shoal.train.data import Data
from shoal.train.sources import from_arrays

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def from_idx(
    images: Path,
    labels: Path,
    shards: int | None,
    validation: Any,
    stratify: int | str | None,
    seed: int,
    weights: Sequence[float] | None = None,
) -> Data:
    """See `Data.idx`."""
    if isinstance(validation, tuple | list):
        if len(validation) != 2:
            raise DataError(f"validation must be (images, labels), a fraction, or None; got {len(validation)} files")
        validation = _pair(Path(validation[0]), Path(validation[1]))
    return from_arrays(_pair(images, labels), {}, shards, validation, stratify, seed, weights)


def _pair(images: Path, labels: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return read_idx(images), read_idx(labels).astype(np.int64)


def read_idx(path: Path) -> np.ndarray[Any, Any]:
    """The file's array, in this machine's byte order.

    Raises:
        DataError: no such file, not an IDX file, or cut short.
    """
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        begin = content[:4].hex(" ") or "nothing"
        raise DataError(f"{path} is not an IDX file: it begins with {begin}, not with 00 00 and a type from 08 to 0e")
    count = content[3]
    shape = np.frombuffer(content, ">u4", min(count, (len(content) - 4) // 4), offset=4)
    kind = np.dtype(_TYPES[content[2]])
    needed = 4 + 4 * count + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(shape) < count or len(content) != needed:
        raise DataError(f"{path} is cut short or damaged: it should have {needed} bytes and has {len(content)}; get it again")
    return np.frombuffer(content, kind, offset=4 + 4 * count).reshape(shape.tolist()).astype(kind.newbyteorder("="))
