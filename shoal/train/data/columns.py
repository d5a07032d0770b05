"""Columns: a tuple of arrays of equal length, or a dict of them where they have names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# NumPy arrays or tensors, whose first axis is samples.
Columns = tuple[Any, ...] | dict[str, Any]


class DataError(ValueError):
    """The data is not what it must be, or cannot be read. Concerns the study, never one trial."""


def apply(columns: Columns, function: Callable[[Any], Any]) -> Columns:
    """The same form with the function's results for its columns."""
    if isinstance(columns, dict):
        return {name: function(column) for name, column in columns.items()}
    return tuple(function(column) for column in columns)


def parts(columns: Columns) -> tuple[Any, ...]:
    """The columns without their names."""
    if isinstance(columns, dict):
        return tuple(columns.values())
    return columns


def combine(columns: list[Columns], function: Callable[[list[Any]], Any]) -> Columns:
    """One set of columns out of several of the same form; `function` joins each column's parts."""
    first = columns[0]
    if isinstance(first, dict):
        return {
            name: function([c[name] for c in columns if isinstance(c, dict)])
            for name in first
        }
    return tuple(function([parts(c)[i] for c in columns]) for i in range(len(first)))


def rows(columns: Columns) -> int:
    """Samples in the columns.

    Raises:
        DataError: no columns, or of unequal lengths.
    """
    lengths = [len(column) for column in parts(columns)]
    if not lengths:
        raise DataError("data needs at least one column; got none")
    if len(set(lengths)) > 1:
        names: list[Any] = list(range(len(lengths)))
        if isinstance(columns, dict):
            names = list(columns)
        pairs = zip(names, lengths, strict=True)
        listed = ", ".join(f"{name}: {length}" for name, length in pairs)
        raise DataError(f"columns must have the same number of samples; got {listed}")
    return lengths[0]


def nbytes(columns: Columns) -> int:
    """Bytes in all columns."""
    return sum(int(column.nbytes) for column in parts(columns))


def form(columns: Any) -> Columns:
    """What a recipe's hook returned, as columns.

    A single array becomes a tuple of one, a list becomes a tuple.
    """
    if isinstance(columns, Mapping):
        return dict(columns)
    if isinstance(columns, list | tuple):
        return tuple(columns)
    return (columns,)


def cut(columns: Columns, start: int, stop: int) -> Columns:
    """These rows, as views."""
    if isinstance(columns, dict):
        return {name: column[start:stop] for name, column in columns.items()}
    return tuple([column[start:stop] for column in columns])


# An array's numbers in the order of memory, its shape, and its strides.
Laid = tuple[Any, tuple[int, ...], tuple[int, ...]]


def laid(array: Any) -> Laid:
    """The array in a form that keeps its layout if arrays are made contiguous on the way.

    The layout matters, for the rounding of sums over the array depends on it.
    """
    array = np.asarray(array)
    if not _is_dense(array):
        array = array.copy(order="K")
    flat = (array.size,), (array.itemsize,)
    numbers = np.lib.stride_tricks.as_strided(array, *flat)
    return numbers, array.shape, array.strides


def _is_dense(array: Array) -> bool:
    """Whether the array fills its memory without gaps or overlaps, and is not turned over."""
    if array.size == 0 or min(array.strides, default=0) < 0:
        return False
    span = array.itemsize
    for count, stride in zip(array.shape, array.strides, strict=True):
        span += (count - 1) * stride
    return span == array.nbytes


def unlaid(form: Laid) -> Any:
    """The array again, in memory of its own."""
    numbers, shape, strides = form
    return np.lib.stride_tricks.as_strided(numbers.copy(), shape, strides)
