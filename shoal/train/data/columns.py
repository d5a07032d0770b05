"""Columns: a tuple of arrays of equal length, or a dict of them where they have names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from shoal.train.data.ragged import Ragged

Array = np.ndarray[Any, Any]
# NumPy arrays, tensors or `Ragged`, whose first axis is samples.
Columns = tuple[Any, ...] | dict[str, Any]


LONGEST_ERROR = 4000  # characters


class DataError(ValueError):
    """The data is not what it must be, or cannot be read. Concerns the study, never one trial.

    `part`: the training shard or validation part that cannot be read; empty if it is not about one.
    """

    part = ""

    def __init__(self, said: str = "") -> None:
        # A file may hold a name of a million letters.
        super().__init__(said if len(said) <= LONGEST_ERROR else said[:LONGEST_ERROR] + " …")


class ShardError(DataError):
    """A part cannot be read at a node: it is gone, cut short, damaged, or lies elsewhere only.

    Another node may hold a good copy. `part`, `node`, `why`: of it.
    """

    def __init__(self, part: str, node: str, why: str) -> None:
        super().__init__(f"{part} at {node}: {why}; put it back, then resume")
        self.part = part
        self.node = node
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardError, (self.part, self.node, self.why)


class BatchMaker(Protocol):
    """Makes a batch of samples: it puts items together as the user's collate does."""

    def make(self, lot: Lot) -> Any:
        """The batch of these samples."""
        ...

    def check(self, batch: Any, lot: Lot) -> None:
        """Raise ValueError if a step wrote into the batch since it was made."""
        ...


class Lot(dict[Any, Any]):
    """Columns of samples that `collate` has still to make a batch of.

    The keys are names, or places where the data's columns have no names. `place`: what its random
    numbers depend on, (shard, turn); `at`: the first sample's place in the pass. Lanes that train
    on the same lot share its batch.
    """

    def __init__(
        self,
        columns: Mapping[Any, Any],
        maker: BatchMaker,
        place: tuple[int, int],
        at: int,
    ) -> None:
        super().__init__(columns)
        self.maker = maker
        self.place = place
        self.at = at
        self.versions: list[int] = []  # how often each tensor of the batch was written to
        self._batch: Any = None
        self._made = False

    def like(self, columns: Mapping[Any, Any], skipped: int = 0) -> Lot:
        """Other columns, for the same maker; they begin so many samples later."""
        return Lot(columns, self.maker, self.place, self.at + skipped)

    def batch(self) -> Any:
        """The batch; made once."""
        if not self._made:
            self._batch = self.maker.make(self)
            self._made = True
        return self._batch

    def check(self) -> None:
        """See that no step wrote into the batch.

        Raises:
            ValueError: one did. The next step gets a new batch.
        """
        try:
            self.maker.check(self._batch, self)
        except ValueError:
            self._made = False
            raise


def ready(batch: Any) -> Any:
    """What a step sees: the batch that a lot becomes; any other batch as it is."""
    if isinstance(batch, Lot):
        return batch.batch()
    return batch


def apply(columns: Columns, function: Callable[[Any], Any]) -> Columns:
    """The same form with the function's results for its columns."""
    if isinstance(columns, dict):
        made = {name: function(column) for name, column in columns.items()}
        return columns.like(made) if isinstance(columns, Lot) else made
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
        made = {name: function([c[name] for c in columns if isinstance(c, dict)]) for name in first}
        return first.like(made) if isinstance(first, Lot) else made
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


def described(columns: Columns) -> dict[Any, str]:
    """What each column holds, in words, by its name or place."""
    named: dict[Any, Any] = dict(enumerate(parts(columns)))
    if isinstance(columns, dict):
        named = columns
    return {name: _kind(column) for name, column in named.items()}


def _kind(column: Any) -> str:
    """The type and shape of an array; what a ragged column's values are."""
    if isinstance(column, Ragged):
        return f"{column.kind}, of unequal lengths"
    return f"{column.dtype} ({', '.join(['n', *map(str, column.shape[1:])])})"


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
        made = {name: column[start:stop] for name, column in columns.items()}
        return columns.like(made, start) if isinstance(columns, Lot) else made
    return tuple([column[start:stop] for column in columns])


# An array's numbers in the order of memory, its shape, and its strides; or a ragged column.
Laid = tuple[Any, tuple[int, ...], tuple[int, ...]] | Ragged


def laid(array: Any) -> Laid:
    """The array in a form that keeps its layout if arrays are made contiguous on the way.

    The layout matters, for the rounding of sums over the array depends on it.
    """
    if isinstance(array, Ragged):
        return array
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
    if isinstance(form, Ragged):
        return form.copy()
    numbers, shape, strides = form
    return np.lib.stride_tricks.as_strided(numbers.copy(), shape, strides)
