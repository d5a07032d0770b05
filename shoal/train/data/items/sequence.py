"""One long sequence, cut in windows: each sample is a window and the values that follow it."""

from __future__ import annotations

from typing import Any

from shoal.train.data.arrays import from_arrays
from shoal.train.data.columns import Array, DataError
from shoal.train.data.parts import Division, Parts, as_array, is_fraction


def from_sequence(values: Any, window: int, validation: Any, shards: int | None) -> Parts:
    """See `Data.sequence`."""
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise DataError(f"window must be a whole number >= 1; got {window!r}")
    others = validation
    if validation is not None and not is_fraction(validation):
        others = _windows(validation, window)
    how = Division(0, shards, sequential=True)
    return from_arrays(_windows(values, window), {}, others, None, how)


def _windows(values: Any, window: int) -> tuple[Array, Array]:
    """The windows, and those one step later; both are views.

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
