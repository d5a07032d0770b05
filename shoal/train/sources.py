"""Data out of arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from shoal.core.cluster import ShardId, proportional
from shoal.train import columns as cols
from shoal.train.columns import Columns, DataError
from shoal.train.data import SHARD_BYTES, Data, as_array, part_names

Index = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Arrays:
    """Columns in memory, and which rows make up each part."""

    training: Columns
    validation: Columns
    index: Mapping[ShardId, Index]  # rows of `training`, or of `validation` for the parts named there
    apart: frozenset[ShardId]  # parts that index `validation`
    serial: bool = False

    def read(self, part: ShardId) -> Columns:
        held = self.validation if part in self.apart else self.training
        return cols.apply(held, lambda column: column[self.index[part]])


def from_arrays(
    columns: tuple[Any, ...],
    named: Mapping[str, Any],
    shards: int | None,
    validation: Any,
    stratify: int | str | None,
    seed: int,
    weights: Sequence[float] | None = None,
) -> Data:
    """See `Data.arrays`."""
    if columns and named:
        raise DataError(f"give the columns by position or by name, not both; got {len(columns)} and {', '.join(named)}")
    training: Columns = tuple(as_array(column, str(i)) for i, column in enumerate(columns))
    if named:
        training = {name: as_array(column, name) for name, column in named.items()}
    count = cols.rows(training)
    order = np.random.default_rng(seed).permutation(count)
    held = training
    if validation is None:
        train, test = order, order[:0]
    elif isinstance(validation, float | int) and not isinstance(validation, bool):
        train, test = split(order, float(validation), _labels(training, stratify))
    else:
        held = _like(training, validation)
        train, test = order, np.arange(cols.rows(held))
    index, row = divide(train, test, shards, cols.nbytes(training) / max(1, count), weights)
    apart = frozenset(part for part in index if part.startswith("v")) if held is not training else frozenset()
    source = Arrays(training, held, index, apart)
    return Data(source, *sizes_of(index), row, fingerprint([*cols.parts(training), *cols.parts(held)], index))


def sizes_of(index: Mapping[ShardId, Index]) -> tuple[dict[ShardId, int], dict[ShardId, int]]:
    """Samples in each training shard, and in each validation part."""
    sizes = {part: len(rows) for part, rows in index.items()}
    return {p: n for p, n in sizes.items() if p.startswith("s")}, {p: n for p, n in sizes.items() if p.startswith("v")}


def split(order: Index, fraction: float, labels: np.ndarray[Any, Any] | None) -> tuple[Index, Index]:
    """Training and validation rows, in the given random order; with labels, each of them in its share.

    Raises:
        DataError: the fraction leaves nothing to train or to validate on.
    """
    if not 0 < fraction < 1:
        raise DataError(f"validation must be a fraction between 0 and 1, the data itself, or None; got {fraction!r}")
    if labels is None:
        cut = round(len(order) * fraction)
        test, train = order[:cut], order[cut:]
    else:
        chosen = np.zeros(len(order), dtype=bool)
        for label in np.unique(labels):
            places = np.flatnonzero(labels[order] == label)
            chosen[places[: round(len(places) * fraction)]] = True
        test, train = order[chosen], order[~chosen]
    if not len(test) or not len(train):
        left = f"{len(train)} to train and {len(test)} to validate on"
        raise DataError(f"validation={fraction:g} of {len(order)} samples leaves {left}; both need one")
    return train, test


def divide(
    train: Index, test: Index, shards: int | None, row_bytes: float, weights: Sequence[float] | None = None
) -> tuple[dict[ShardId, Index], int]:
    """Rows of each part, training shards first; and bytes to a row. `weights`: the sizes of the shards against each other.

    Raises:
        DataError: no samples, more shards than samples, or weights that do not fit.
    """
    if not len(train):
        raise DataError("data needs at least one training sample; got none")
    if weights is not None:
        parts = _weighed(train, shards, weights)
        index = dict(zip(part_names("s", len(parts)), parts, strict=True))
        return index | _validation(test, row_bytes), max(1, int(row_bytes))
    if shards is None:
        shards = min(len(train), max(1, -(-int(len(train) * row_bytes) // SHARD_BYTES)))
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= len(train):
        raise DataError(f"shards must be a whole number between 1 and the {len(train)} training samples; got {shards!r}")
    index = dict(zip(part_names("s", shards), np.array_split(train, shards), strict=True))
    return index | _validation(test, row_bytes), max(1, int(row_bytes))


def _weighed(train: Index, shards: int | None, weights: Sequence[float]) -> list[Index]:
    """The rows in shards as large as their weights."""
    try:
        given = [float(weight) for weight in weights]
        sizes = proportional(len(train), given)
    except (TypeError, ValueError) as error:
        raise DataError(f"shard_weights must be a number > 0 for each shard; got {weights!r} ({error})") from error
    if shards not in (None, len(given)):
        raise DataError(f"shard_weights must be one for each of the {shards} shards; got {len(given)}")
    return np.split(train, np.cumsum(sizes)[:-1])


def _validation(test: Index, row_bytes: float) -> dict[ShardId, Index]:
    if not len(test):
        return {}
    pieces = max(1, -(-int(len(test) * row_bytes) // SHARD_BYTES))
    return dict(zip(part_names("v", pieces), np.array_split(test, min(pieces, len(test))), strict=False))


def fingerprint(arrays: list[np.ndarray[Any, Any]], index: Mapping[ShardId, Index]) -> str:
    """Of the arrays' contents and of their division."""
    hashed = blake2b(digest_size=16)
    seen: set[int] = set()
    for array in arrays:
        if id(array) not in seen:
            seen.add(id(array))
            hashed.update(f"{array.dtype.str}{array.shape}".encode())
            hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    for part, rows in index.items():
        hashed.update(part.encode())
        hashed.update(rows.astype("<i8").data)
    return hashed.hexdigest()


def _labels(training: Columns, stratify: int | str | None) -> np.ndarray[Any, Any] | None:
    if stratify is None:
        return None
    named = training if isinstance(training, dict) else dict(enumerate(training))
    if stratify not in named:
        raise DataError(f"stratify must be one of the columns {', '.join(map(str, named))}; got {stratify!r}")
    column: np.ndarray[Any, Any] = named[stratify]  # type: ignore[index]
    if column.ndim != 1:
        raise DataError(f"stratify needs a column with one value per sample; column {stratify} has shape {column.shape}")
    return column


def _like(training: Columns, validation: Any) -> Columns:
    """The validation columns in the form of the training ones."""
    if isinstance(training, dict):
        if not isinstance(validation, Mapping) or set(validation) != set(training):
            got = ", ".join(validation) if isinstance(validation, Mapping) else type(validation).__name__
            raise DataError(f"validation must have the columns {', '.join(training)}; got {got}")
        held: Columns = {name: as_array(validation[name], name) for name in training}
    else:
        if not isinstance(validation, tuple | list) or len(validation) != len(training):
            rule = f"validation must be a fraction, None, or a tuple of {len(training)} columns as the training data is"
            raise DataError(f"{rule}; got {type(validation).__name__}")
        held = tuple(as_array(column, str(i)) for i, column in enumerate(validation))
    if not cols.rows(held):
        raise DataError("validation data needs at least one sample; got none: give None to do without")
    alike(training, held, "training", "validation")
    return held


def alike(first: Columns, second: Columns, one: str, other: str) -> None:
    """Raise DataError unless samples have the same shape and kind of number in both."""
    names = list(first) if isinstance(first, dict) else range(len(first))
    for name, a, b in zip(names, cols.parts(first), cols.parts(second), strict=True):
        if (a.shape[1:], a.dtype) != (b.shape[1:], b.dtype):
            raise DataError(
                f"column {name} must hold the same in every part; got {a.dtype} of shape {a.shape[1:]} in {one} "
                f"and {b.dtype} of shape {b.shape[1:]} in {other}"
            )
