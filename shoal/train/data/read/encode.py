"""Text as numbers: encoders that are fitted on the training part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

from shoal.train.data.columns import Array, DataError

BUCKETS = 1024  # of "hash"
KINDS = ("onehot", "ordinal", "hash")
Encoder = Callable[[Sequence[Any]], Any]  # of a column's values, an array
How = str | Callable[[Sequence[Any]], Encoder]


@dataclass(frozen=True, slots=True)
class Categories:
    """Values by number, as they are in the training part. `onehot`: rows of 0 and 1."""

    column: str
    known: Sequence[Any]
    onehot: bool

    def unknown(self, values: Sequence[Any]) -> list[str]:
        """Those of the values that the training part lacks."""
        return sorted(map(str, set(values).difference(self.known)))

    def __call__(self, values: Sequence[Any]) -> Array:
        """(n,) int64, or (n, categories) float32: all 0 for a value that training lacks."""
        numbers = {value: number for number, value in enumerate(self.known)}
        unknown = self.unknown(values)
        if unknown and not self.onehot:
            raise DataError(
                f"column {self.column} has values that the training part lacks "
                f'({", ".join(unknown[:3])}): use "onehot" or "hash"'
            )
        codes = np.array([numbers.get(value, -1) for value in values], np.int64)
        if not self.onehot:
            return codes
        rows: Array = np.equal.outer(codes, np.arange(len(self.known)))
        return rows.astype(np.float32)


def hashed(values: Sequence[Any]) -> Array:
    """(n,) int64: numbers below `BUCKETS`, the same on every machine."""
    return np.array([_bucket(value) for value in values], np.int64)


def _bucket(value: Any) -> int:
    digest = blake2b(str(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % BUCKETS


def fitted(column: str, how: Any, training: Sequence[Any]) -> Encoder:
    """The encoder, fitted on the column's values in the training part.

    Raises:
        DataError: there is no such encoder, or the user's own cannot be fitted.
    """
    if how == "hash":
        return hashed
    if how in ("onehot", "ordinal"):
        known = tuple(sorted(set(training), key=_place))
        return Categories(column, known, how == "onehot")
    if not callable(how):
        raise DataError(
            f"encode of column {column} must be one of {', '.join(KINDS)}, or a function of the "
            f"training values that returns a function of values; got {how!r}"
        )
    own = _own(column, how, training)
    if not callable(own):
        raise DataError(f"encode of column {column} must return a function of values; got {own!r}")
    encoder: Encoder = own
    return encoder


def _own(column: str, function: Callable[[Any], Any], values: Sequence[Any]) -> Any:
    """What the encoder, or the user's function that fits one, gives.

    Raises:
        DataError: it raised; the error names the line of the user's code.
    """
    try:
        return function(values)
    except DataError:
        raise
    except Exception as error:
        places = [at for at in extract_tb(error.__traceback__) if at.filename != __file__]
        own = [at for at in places if at.filename == _file(function)] or places
        where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        raise DataError(
            f"encode of column {column} raised {type(error).__name__}: {error}"
            f"{where}; it got {_seen(values)}"
        ) from error


def _file(function: Callable[[Any], Any]) -> str | None:
    """The file that the function is written in, if it is one of Python's."""
    code = getattr(function, "__code__", None)
    return getattr(code, "co_filename", None)


def _seen(values: Sequence[Any]) -> str:
    """The values' number and kinds, in words."""
    kinds = sorted({type(value).__name__ for value in values})
    return f"a list of {len(values)} values of type {', '.join(kinds)}"


def _place(value: Any) -> Any:
    """Its place in the order: a filling may be a number among texts."""
    return type(value).__name__, value


def encoded(column: str, encoder: Encoder, values: Sequence[Any]) -> Array:
    """The values as numbers.

    Raises:
        DataError: the encoder gives something else.
    """
    array = np.asarray(_own(column, encoder, values))
    if array.dtype.kind not in "biufc" or len(array) != len(values):
        raise DataError(
            f"encode of column {column} must give a number or a row of numbers for each of the "
            f"{len(values)} values; got {array.dtype} of shape {array.shape}"
        )
    return array
