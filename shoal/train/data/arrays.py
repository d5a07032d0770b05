"""Data out of arrays in memory, of one long sequence, or of MNIST's files (IDX)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from shoal.engine.files import whole
from shoal.engine.small import gunzip
from shoal.train.data import columns as cols
from shoal.train.data.columns import Array, Columns, DataError
from shoal.train.data.files import check_ends
from shoal.train.data.parts import (
    DividedSource,
    Division,
    Parts,
    alike,
    as_array,
    check_stratify,
    divide,
    hash_array,
    is_fraction,
)

MOST_AXES = 32  # of an array in NumPy, in all of its versions
_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@dataclass(frozen=True, slots=True)
class Arrays(DividedSource):
    """Columns in memory, and which rows make up each part."""

    serial: bool = False


def from_arrays(
    columns: tuple[Any, ...],
    named: Mapping[str, Any],
    validation: Any,
    stratify: int | str | Array | None,
    how: Division,
) -> Parts:
    """The data of `Data.arrays`. `stratify`: a column, or the values whose shares are kept."""
    check_stratify(stratify, validation, how)
    training = _training_columns(columns, named)
    count = cols.rows(training)
    labels = _labels(training, stratify)
    scored = training
    if validation is not None and not is_fraction(validation):
        if isinstance(training, dict):
            scored = _like_named(training, validation)
        else:
            scored = _like_placed(training, validation)
        if not cols.rows(scored):
            raise DataError(
                "validation data needs at least one sample; got none: give None to do without"
            )
        alike(training, scored, "training", "validation")
    train, test = how.split(count, validation, cols.rows(scored), labels)

    row_bytes = cols.nbytes(training) / max(1, count)
    rows = divide(train, test, how, row_bytes)
    hashed = blake2b(digest_size=16)
    contents = [*cols.parts(training), *cols.parts(scored)]
    for array in {id(array): array for array in contents}.values():
        hash_array(hashed, array)
    source = Arrays(training, scored, rows.index, rows.apart(validation))
    return rows.parts(source, row_bytes, hashed, sequential=how.sequential)


def _training_columns(columns: tuple[Any, ...], named: Mapping[str, Any]) -> Columns:
    """The training columns that the user gave, as arrays."""
    if columns and named:
        raise DataError(
            "give the columns by position or by name, not both; "
            f"got {len(columns)} and {', '.join(named)}"
        )
    if named:
        return {name: as_array(column, name) for name, column in named.items()}
    return tuple(as_array(column, str(i)) for i, column in enumerate(columns))


def _labels(training: Columns, stratify: int | str | Array | None) -> Array | None:
    """The values that are to keep their shares in the fraction set aside; None: none are.

    Raises:
        DataError: there is no such column, or it has several values per sample.
    """
    if stratify is None or isinstance(stratify, np.ndarray):
        return stratify
    named = cols.named(training)
    if stratify not in named:
        raise DataError(
            f"stratify must be one of the columns {', '.join(map(str, named))}; got {stratify!r}"
        )
    column: Array = named[stratify]
    if column.ndim != 1:
        raise DataError(
            f"stratify needs a column with one value per sample; "
            f"column {stratify} has shape {column.shape}"
        )
    return column


def _like_named(training: Mapping[str, Any], validation: Any) -> Columns:
    """The validation columns, by the names of the training columns."""
    got = type(validation).__name__
    if isinstance(validation, Mapping):
        got = ", ".join(validation)
        if set(validation) == set(training):
            return {name: as_array(validation[name], name) for name in training}
    raise DataError(f"validation must have the columns {', '.join(training)}; got {got}")


def _like_placed(training: tuple[Any, ...], validation: Any) -> Columns:
    """The validation columns, as many as there are training columns."""
    if isinstance(validation, tuple | list) and len(validation) == len(training):
        return tuple(as_array(column, str(i)) for i, column in enumerate(validation))
    raise DataError(
        f"validation must be a fraction, None, or a tuple of {len(training)} columns "
        f"as the training data is; got {type(validation).__name__}"
    )


# -- files of MNIST ----------------------------------------------------------------------------


def from_idx(
    images: Path, labels: Path, validation: Any, stratify: int | str | None, how: Division
) -> Parts:
    """The data of `Data.idx`."""
    if isinstance(validation, tuple | list):
        if len(validation) != 2:
            raise DataError(
                "validation must be (images, labels), a fraction, or None; "
                f"got {len(validation)} files"
            )
        validation = _idx_pair(whole(validation[0]), whole(validation[1]))
    return from_arrays(_idx_pair(images, labels), {}, validation, stratify, how)


def _idx_pair(images: Path, labels: Path) -> tuple[Array, Array]:
    return _read_idx(images), _read_idx(labels).astype(np.int64)


def _read_idx(path: Path) -> Array:
    """The file's array, in this machine's byte order.

    Raises:
        DataError: no such file, not an IDX file, or cut short.
    """
    content = _idx_content(path)
    size = len(content)
    if size < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        begin = content[:4].hex(" ") or "nothing"
        raise DataError(
            f"{path} is not an IDX file: it begins with {begin}, "
            "not with 00 00 and a type from 08 to 0e"
        )
    axes = content[3]
    start = 4 + 4 * axes
    lengths = min(axes, (size - 4) // 4)  # of axes, that are in the file
    shape = np.frombuffer(content, ">u4", lengths, offset=4)
    kind = np.dtype(_IDX_TYPES[content[2]])
    needed = start + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    broken = len(shape) < axes or axes > MOST_AXES or 0 in shape[1:].tolist()
    if broken or size != needed:
        raise DataError(
            f"{path} is cut short or damaged: it should have {needed} bytes "
            f"and has {size}; get it again"
        )
    numbers = np.frombuffer(content, kind, offset=start)
    return numbers.reshape(shape.tolist()).astype(kind.newbyteorder("="))


def _idx_content(path: Path) -> bytes:
    """The file's bytes, unpacked if they are gzipped.

    Raises:
        DataError: it cannot be read.
    """
    check_ends(path)
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            return gunzip(content)
        return content
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({type(error).__name__}: {error})") from error


def from_sequence(values: Any, window: int, validation: Any, shards: int | None) -> Parts:
    """The data of `Data.sequence`."""
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise DataError(f"window must be a whole number >= 1; got {window!r}")
    if validation is not None and not is_fraction(validation):
        validation = _windows(validation, window)
    how = Division(0, shards, sequential=True)
    return from_arrays(_windows(values, window), {}, validation, None, how)


def _windows(values: Any, window: int) -> tuple[Array, Array]:
    """The windows of the values, and the windows one step later; both are views.

    Raises:
        DataError: there are too few values.
    """
    array = as_array(values, "of values")
    count = (len(array) - 1) // window
    if count < 1:
        raise DataError(
            f"a sequence needs more values than a window; got {len(array)} for window={window}"
        )
    shape = (count, window, *array.shape[1:])
    end = count * window
    return array[:end].reshape(shape), array[1 : end + 1].reshape(shape)
