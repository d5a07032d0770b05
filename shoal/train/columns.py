"""Columns: a tuple of arrays of equal length, or a dict of them where they have names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Columns = tuple[Any, ...] | dict[str, Any]  # of NumPy arrays, or of tensors; first axis samples


class DataError(ValueError):
    """The data is not what it must be, or cannot be read. Concerns the study, never one trial."""


def apply(columns: Columns, function: Callable[[Any], Any]) -> Columns:
    """The same form with the function's results for its columns."""
    if isinstance(columns, dict):
        return {name: function(column) for name, column in columns.items()}
    return tuple(function(column) for column in columns)


def parts(columns: Columns) -> tuple[Any, ...]:
    """The columns without their names."""
    return tuple(columns.values()) if isinstance(columns, dict) else columns


def combine(columns: list[Columns], function: Callable[[list[Any]], Any]) -> Columns:
    """One set of columns out of several of the same form; the function gets each column's versions."""
    first = columns[0]
    if isinstance(first, dict):
        return {name: function([c[name] for c in columns if isinstance(c, dict)]) for name in first}
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
        names = list(columns) if isinstance(columns, dict) else range(len(lengths))
        listed = ", ".join(f"{name}: {length}" for name, length in zip(names, lengths, strict=True))
        raise DataError(f"columns must have the same number of samples; got {listed}")
    return lengths[0]


def nbytes(columns: Columns) -> int:
    """Bytes in all columns."""
    return sum(int(column.nbytes) for column in parts(columns))


def form(columns: Any) -> Columns:
    """What a recipe's hook returned, as columns: a lone array counts as a tuple of one, a list as a tuple."""
    if isinstance(columns, Mapping):
        return dict(columns)
    return tuple(columns) if isinstance(columns, list | tuple) else (columns,)


def cut(columns: Columns, start: int, stop: int) -> Columns:
    """These rows, as views."""
    if isinstance(columns, dict):
        return {name: column[start:stop] for name, column in columns.items()}
    return tuple([column[start:stop] for column in columns])


Laid = tuple[Any, tuple[int, ...], tuple[int, ...]]  # an array's numbers in the order of memory, its shape, its strides


def laid(array: Any) -> Laid:
    """The array in a form that keeps its layout where arrays are made contiguous: sums over it are rounded by its layout."""
    array = np.asarray(array)
    span = sum((count - 1) * stride for count, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    if array.size == 0 or min(array.strides, default=0) < 0 or span != array.nbytes:  # with gaps, overlaps, or turned over
        array = array.copy(order="K")
    return np.lib.stride_tricks.as_strided(array, (array.size,), (array.itemsize,)), array.shape, array.strides


def unlaid(form: Laid) -> Any:
    """The array again, in memory of its own."""
    numbers, shape, strides = form
    return np.lib.stride_tricks.as_strided(numbers.copy(), shape, strides)
