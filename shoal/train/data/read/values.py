"""Columns of Arrow's as arrays: numbers, equally long lists of them, and labels by number."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.train.data.columns import Array, DataError

LISTED = 20  # names of columns in an error


def no_column(wrong: Sequence[str], names: Sequence[str]) -> str:
    """What to tell a user who names columns that there are not."""
    near = [name for name in names if name.strip() == wrong[0].strip()]
    near = near or get_close_matches(wrong[0], names, cutoff=0.7)
    listed = ", ".join(map(_shown, names[:LISTED]))
    if len(names) > LISTED:
        listed += f" and {len(names) - LISTED} more"
    hint = f" (did you mean {_shown(near[0])}?)" if near else ""
    return f"no column {', '.join(map(_shown, wrong))}{hint}; there are {listed}"


def _shown(name: str) -> str:
    """The name; in quotes if it begins or ends with a space."""
    return name if name == name.strip() else repr(name)


def label_numbers(name: str, column: Any) -> Array:
    """(n,) int64: equal numbers for equal values, text and numbers alike; -1 for a missing value.

    `column`: pyarrow's, in chunks.

    Raises:
        DataError: a value is no single thing, but a list, a struct or the like.
    """
    kind = column.type
    if pa.types.is_nested(kind):
        raise DataError(
            f"stratify needs a column with one value per sample; column {name} holds {kind}"
        )
    if not pa.types.is_dictionary(kind):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    numbers: Array = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return numbers.astype("int64")


def checked_numbers(name: str, array: Array) -> Array:
    """The array, if it holds numbers.

    Raises:
        DataError: it does not.
    """
    if array.dtype.kind in "biufc":
        return array
    raise DataError(
        f"column {name} must become numbers; got {array.dtype}: "
        f'give decode={{"{name}": a function of a value}}'
    )


def array_of(name: str, values: Any) -> Array:
    """Numbers, or lists of numbers that are equally long.

    Raises:
        DataError: they are something else.
    """
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return array_of(name, values.storage)
    if pa.types.is_fixed_size_binary(kind):
        _, content = values.buffers()
        start = values.offset * kind.byte_width
        stop = start + len(values) * kind.byte_width
        flat = np.frombuffer(content, np.uint8)[start:stop]
        return flat.reshape(len(values), kind.byte_width)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise DataError(
                f"lists of column {name} must be equally long; got {lengths[0]} to {lengths[-1]} "
                "values: for unequal ones give the rows to Data.dataset(…, collate=…)"
            )
        inner = _within(name, values)
        return inner.reshape(len(values), int(lengths[0]), *inner.shape[1:])
    if pa.types.is_fixed_size_list(kind):
        inner = _within(name, values)
        return inner.reshape(len(values), kind.list_size, *inner.shape[1:])
    if not (pa.types.is_primitive(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"column {name} holds {kind}, no numbers: "
            f'give decode={{"{name}": a function of a value}}, or columns= without it'
        )
    array: Array = values.to_numpy(zero_copy_only=False)
    return array


def _within(name: str, lists: Any) -> Array:
    """What the lists hold, one after the other.

    Raises:
        DataError: as `array_of`, or a value is missing.
    """
    values = lists.flatten()
    if values.null_count:
        raise DataError(
            f"lists of column {name} lack {values.null_count} of {len(values)} values: fill them "
            "in, or leave the rows out"
        )
    return array_of(name, values)
