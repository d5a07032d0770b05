"""Columns: a tuple or a dict of arrays of equal length, `Ragged` columns, and arrays in files."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from mmap import mmap
from typing import Any, Literal, Protocol

import numpy as np

# What the values are: arrays, arrays that were tensors, text, bytes, or any other object.
Kind = Literal["array", "tensor", "text", "bytes", "object"]
BYTES = np.dtype(np.uint8)
PIECE = 2**16  # bytes that a fingerprint looks at in each of some places of a file
PLACES = 64  # of a file that a fingerprint looks at
Array = np.ndarray[Any, Any]
# NumPy arrays, tensors or `Ragged`, whose first axis is samples.
Columns = tuple[Any, ...] | dict[str, Any]
LONGEST_ERROR = 4000  # characters


def apply(columns: Columns, function: Callable[[Any], Any]) -> Columns:
    """The function's results for the columns, under the same names or places."""
    if isinstance(columns, dict):
        results = {name: function(column) for name, column in columns.items()}
        return columns.like(results) if isinstance(columns, Lot) else results
    return tuple(function(column) for column in columns)


def parts(columns: Columns) -> tuple[Any, ...]:
    """The columns without their names."""
    if isinstance(columns, dict):
        return tuple(columns.values())
    return columns


def named(columns: Columns) -> dict[Any, Any]:
    """The columns by name, or by place where they have no names."""
    return columns if isinstance(columns, dict) else dict(enumerate(columns))


def combine(columns: list[Columns], function: Callable[[list[Any]], Any]) -> Columns:
    """One set of columns out of several of the same form; `function` joins each column's parts."""
    first = columns[0]
    if isinstance(first, dict):
        dicts = [each for each in columns if isinstance(each, dict)]
        joined = {name: function([each[name] for each in dicts]) for name in first}
        return first.like(joined) if isinstance(first, Lot) else joined
    return tuple(function([parts(each)[i] for each in columns]) for i in range(len(first)))


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
    return {name: _kind(column) for name, column in named(columns).items()}


def _kind(column: Any) -> str:
    """The type and shape of an array, or the kind of a ragged column's values, in words."""
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
    """Rows start … stop of the columns, as views."""
    if isinstance(columns, dict):
        rows = {name: column[start:stop] for name, column in columns.items()}
        return columns.like(rows, start) if isinstance(columns, Lot) else rows
    return tuple([column[start:stop] for column in columns])


# -- errors ------------------------------------------------------------------------------------


class DataError(ValueError):
    """The data is not what it must be, or cannot be read. Concerns the study, never one trial.

    `part`: the training shard or validation part that cannot be read; empty if it is not about one.
    """

    part = ""

    def __init__(self, text: str = "") -> None:
        # A file may hold a name of a million letters.
        super().__init__(text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR] + " …")


class ShardError(DataError):
    """A part cannot be read at a node: it is gone, cut short, damaged, or lies elsewhere only.

    Another node may hold a good copy. `why`: what is wrong with the one at `node`.
    """

    def __init__(self, part: str, node: str, why: str) -> None:
        super().__init__(f"{part} at {node}: {why}; put it back, then resume")
        self.part = part
        self.node = node
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardError, (self.part, self.node, self.why)


# -- values of unequal sizes -------------------------------------------------------------------


class Ragged(Sequence[Any]):
    """A sequence of arrays of unequal shapes, of texts, or of other objects.

    Slices and arrays of indices give another `Ragged`; a slice shares its memory. A single index
    gives the value: an array, text, bytes or object.

    `values`: the numbers (or bytes) of all values, one after the other. `offsets`: (n + 1,) where
    each begins, and the end. `shapes`: (n, axes) of arrays; None for the other kinds.
    """

    __slots__ = ("kind", "offsets", "shapes", "values")

    def __init__(self, values: Array, offsets: Array, shapes: Array | None, kind: Kind) -> None:
        self.values = values
        self.offsets = offsets
        self.shapes = shapes
        self.kind = kind

    @classmethod
    def of(cls, items: Sequence[Any], kind: Kind) -> Ragged:
        """A column of these values.

        Raises:
            ValueError: arrays of several dtypes or numbers of axes.
            Exception: whatever pickling an object raises.
        """
        if kind in ("array", "tensor"):
            arrays = [np.asarray(item) for item in items]
            dtypes = {array.dtype for array in arrays}
            axes = {array.ndim for array in arrays}
            if len(dtypes) != 1 or len(axes) != 1:
                raise ValueError(
                    "the arrays of a column need one dtype and one number of axes; got "
                    f"{sorted(map(str, dtypes))} and {sorted(axes)}"
                )
            values = np.concatenate([array.reshape(-1) for array in arrays])
            shapes = np.array([array.shape for array in arrays], np.int64)
            shapes = shapes.reshape(len(arrays), axes.pop())
            return cls(values, _offsets([array.size for array in arrays]), shapes, kind)
        contents = [_encoded(item, kind) for item in items]
        sizes = [len(content) for content in contents]
        values = np.frombuffer(b"".join(contents), BYTES)
        return cls(values, _offsets(sizes), None, kind)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, chosen: Any) -> Any:
        if isinstance(chosen, int | np.integer):
            return self._value(range(len(self))[chosen])
        if isinstance(chosen, slice):
            start, stop, step = chosen.indices(len(self))
            if step == 1:
                stop = max(start, stop)
                first = self.offsets[start]
                values = self.values[first : self.offsets[stop]]
                offsets = self.offsets[start : stop + 1] - first
                return Ragged(values, offsets, self._shapes_at(slice(start, stop)), self.kind)
            return self._gathered(np.arange(start, stop, step))
        return self._gathered(np.arange(len(self))[np.asarray(chosen)])

    def __iter__(self) -> Iterator[Any]:
        return map(self._value, range(len(self)))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} of kind {self.kind!r}, {self.nbytes} bytes)"

    def _value(self, number: int) -> Any:
        start, stop = self.offsets[number : number + 2].tolist()
        content = self.values[start:stop]
        if self.shapes is not None:
            return content.reshape(self.shapes[number])
        return _decoded(content.tobytes(), self.kind)

    def _gathered(self, numbers: Array) -> Ragged:
        """These values, in memory of their own."""
        starts = self.offsets[numbers]
        stops = self.offsets[numbers + 1]
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        pieces = [self.values[start:stop] for start, stop in spans]
        values = np.concatenate([self.values[:0], *pieces])
        offsets = _offsets(stops - starts)
        return Ragged(values, offsets, self._shapes_at(numbers), self.kind)

    def _shapes_at(self, chosen: Any) -> Array | None:
        if self.shapes is None:
            return None
        shapes: Array = self.shapes[chosen]
        return shapes

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers; bytes for kinds that are no arrays."""
        dtype: np.dtype[Any] = self.values.dtype
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the values, offsets and shapes."""
        shapes = 0 if self.shapes is None else self.shapes.nbytes
        return int(self.values.nbytes + self.offsets.nbytes + shapes)

    @property
    def lengths(self) -> Array:
        """The lengths of the values, (n,): an array's first axis, a text's bytes, a list's items.

        Raises:
            ValueError: an object has no length.
        """
        if self.shapes is not None and self.shapes.shape[1]:
            return self.shapes[:, 0]
        if self.kind == "object":
            return np.array([_length(value) for value in self], np.int64)
        return np.diff(self.offsets)

    def copy(self) -> Ragged:
        """The same values in memory of their own."""
        shapes = None if self.shapes is None else self.shapes.copy()
        return Ragged(np.array(self.values), self.offsets.copy(), shapes, self.kind)

    def locked(self) -> Ragged:
        """The same values, not to be written to."""
        values = self.values.view()
        values.flags.writeable = False
        return Ragged(values, self.offsets, self.shapes, self.kind)

    @classmethod
    def of_array(cls, column: Any) -> Ragged:
        """An array, whose rows have one shape, as a ragged column."""
        array = np.asarray(column)
        shape = np.array(array.shape[1:], np.int64)
        shapes = np.broadcast_to(shape, (len(array), len(shape)))
        sizes = np.full(len(array), shape.prod(dtype=np.int64))
        return cls.of_sizes(array.reshape(-1), sizes, shapes, "array")

    @classmethod
    def of_sizes(cls, values: Array, sizes: Array, shapes: Array | None, kind: Kind) -> Ragged:
        """A column of values that lie one after the other, each with its size."""
        return cls(values, _offsets(sizes), shapes, kind)

    @staticmethod
    def joined(columns: Sequence[Any]) -> Ragged:
        """Several columns, one after the other; arrays count as columns of equal shapes.

        Raises:
            ValueError: they are of several kinds or dtypes.
        """
        kinds = {column.kind for column in columns if isinstance(column, Ragged)}
        plain = not all(isinstance(column, Ragged) for column in columns)
        kind = kinds.pop()
        if kinds or (plain and kind not in ("array", "tensor")):
            raise ValueError(
                "a column's values must be of one kind; "
                f"got {', '.join(sorted({kind, *kinds}))}{' and numbers' * plain}"
            )
        parts = [
            column if isinstance(column, Ragged) else Ragged.of_array(column) for column in columns
        ]
        if len({part.dtype for part in parts}) > 1:
            raise ValueError("columns of several dtypes cannot be joined")
        shapes = None
        if parts[0].shapes is not None:
            shapes = np.concatenate([part.shapes for part in parts])
        values = np.concatenate([part.values for part in parts])
        sizes = np.concatenate([np.diff(part.offsets) for part in parts])
        return Ragged(values, _offsets(sizes), shapes, kind)


def _offsets(sizes: Any) -> Array:
    """Where values of these sizes begin, and the end."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


def _length(value: Any) -> int:
    if not hasattr(value, "__len__"):
        raise ValueError(
            f"buckets of similar lengths need values that have one; got a {type(value).__name__}: "
            "give bucketed(by) a function of an item"
        )
    return len(value)


def _encoded(item: Any, kind: Kind) -> bytes:
    if kind == "text":
        return str(item).encode("utf-8", "surrogatepass")
    if kind == "bytes":
        return bytes(item)
    return pickle.dumps(item, protocol=5)


def _decoded(content: bytes, kind: Kind) -> Any:
    if kind == "text":
        return content.decode("utf-8", "surrogatepass")
    if kind == "bytes":
        return content
    return pickle.loads(content)


# -- arrays in files ---------------------------------------------------------------------------


@dataclass(slots=True)
class MappedArray:
    """An array in a file. It travels as the file's name, and is mapped again where it arrives."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int  # bytes before it in the file
    order: str  # "C" or "F"
    _mapped: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, array: np.memmap[Any, Any]) -> MappedArray | None:
        """The whole file's array; None if this is a part of one, or its file is not known."""
        if not isinstance(array.base, mmap) or array.filename is None:
            return None
        order = "C"
        if not array.flags.c_contiguous:
            order = "F"
        return cls(str(array.filename), array.dtype, array.shape, int(array.offset), order)

    def __getstate__(self) -> Any:
        return self.path, self.dtype, self.shape, self.offset, self.order

    def __setstate__(self, state: Any) -> None:
        self.path, self.dtype, self.shape, self.offset, self.order = state
        self._mapped = None

    @property
    def array(self) -> Any:
        """The array, mapped.

        Raises:
            OSError: the file was cut short. To read what is not there would end the process.
        """
        end = self.offset + self.nbytes
        with suppress(FileNotFoundError):  # what is mapped stays as long as it is mapped
            size = os.stat(self.path).st_size
            if size < end:
                raise OSError(f"{self.path} has {size} bytes, and had {end} or more")
        if self._mapped is None:
            options: dict[str, Any] = {"offset": self.offset, "shape": self.shape}
            options["order"] = self.order
            self._mapped = np.memmap(self.path, self.dtype, mode="r", **options)
        return self._mapped

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.array, dtype=dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> Any:
        rows = self.array[chosen]
        if isinstance(rows, np.memmap):
            return np.array(rows)
        return np.asarray(rows)  # rows by number are in memory of their own already

    @property
    def ndim(self) -> int:
        """Axes, with that of the samples."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.dtype.itemsize * prod(self.shape)

    def some_bytes(self) -> bytes:
        """Some of the array's contents, spread over the file, for a fingerprint."""
        raw = np.memmap(self.path, np.uint8, mode="r", offset=self.offset, shape=(self.nbytes,))
        places = np.linspace(0, max(0, self.nbytes - PIECE), PLACES).astype(int)
        return b"".join(raw[place : place + PIECE].tobytes() for place in np.unique(places))


# -- samples that collate makes a batch of -----------------------------------------------------


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
    numbers depend on, (shard, turn); `start`: the first sample's place in the pass. Lanes that
    train on the same lot share its batch.
    """

    def __init__(
        self, columns: Mapping[Any, Any], maker: BatchMaker, place: tuple[int, int], start: int
    ) -> None:
        super().__init__(columns)
        self.maker = maker
        self.place = place
        self.start = start
        self.versions: list[int] = []  # how often each tensor of the batch was written to
        self._batch: Any = None
        self._is_made = False

    def like(self, columns: Mapping[Any, Any], skipped: int = 0) -> Lot:
        """A lot of other columns for the same maker, which begins so many samples later."""
        return Lot(columns, self.maker, self.place, self.start + skipped)

    def batch(self) -> Any:
        """The batch; made once."""
        if not self._is_made:
            self._batch = self.maker.make(self)
            self._is_made = True
        return self._batch

    def check(self) -> None:
        """See that no step wrote into the batch.

        Raises:
            ValueError: one did. The next step gets a new batch.
        """
        try:
            self.maker.check(self._batch, self)
        except ValueError:
            self._is_made = False
            raise


def step_batch(batch: Any) -> Any:
    """What a step sees: the batch that a lot becomes; any other batch as it is."""
    if isinstance(batch, Lot):
        return batch.batch()
    return batch


# -- the layout of arrays on their way to another process --------------------------------------


# An array's numbers in the order of memory, its shape, and its strides; or a `Ragged` column.
PackedColumn = tuple[Any, tuple[int, ...], tuple[int, ...]] | Ragged


def pack_layout(array: Any) -> PackedColumn:
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


def unpack_layout(form: PackedColumn) -> Any:
    """The array again, in memory of its own."""
    if isinstance(form, Ragged):
        return form.copy()
    numbers, shape, strides = form
    return np.lib.stride_tricks.as_strided(numbers.copy(), shape, strides)
