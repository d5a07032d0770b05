"""A column of values of unequal sizes: all numbers in one array, and where each value begins."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

Numbers = np.ndarray[Any, Any]
# What the values are: arrays, arrays that were tensors, text, bytes, or any other object.
Kind = Literal["array", "tensor", "text", "bytes", "object"]
BYTES = np.dtype(np.uint8)


class Ragged(Sequence[Any]):
    """A sequence of arrays of unequal shapes, of texts, or of other objects.

    Slices and arrays of indices give another `Ragged`; a slice shares its memory. A single index
    gives the value: an array, text, bytes or object.

    `values`: the numbers (or bytes) of all values, one after the other. `offsets`: (n + 1,) where
    each begins, and the end. `shapes`: (n, axes) of arrays; None for the other kinds.
    """

    __slots__ = ("kind", "offsets", "shapes", "values")

    def __init__(
        self, values: Numbers, offsets: Numbers, shapes: Numbers | None, kind: Kind
    ) -> None:
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
            return cls._of_arrays([np.asarray(item) for item in items], kind)
        contents = [_encoded(item, kind) for item in items]
        sizes = [len(content) for content in contents]
        values = np.frombuffer(b"".join(contents), BYTES)
        return cls(values, _offsets(sizes), None, kind)

    @classmethod
    def _of_arrays(cls, arrays: Sequence[Numbers], kind: Kind) -> Ragged:
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

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, chosen: Any) -> Any:
        if isinstance(chosen, int | np.integer):
            return self._value(range(len(self))[chosen])
        if isinstance(chosen, slice):
            start, stop, step = chosen.indices(len(self))
            if step == 1:
                return self._span(start, max(start, stop))
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

    def _span(self, start: int, stop: int) -> Ragged:
        """Consecutive values, in the same memory."""
        first = self.offsets[start]
        values = self.values[first : self.offsets[stop]]
        offsets = self.offsets[start : stop + 1] - first
        return Ragged(values, offsets, self._shapes_at(slice(start, stop)), self.kind)

    def _gathered(self, numbers: Numbers) -> Ragged:
        """These values, in memory of their own."""
        starts = self.offsets[numbers]
        stops = self.offsets[numbers + 1]
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        pieces = [self.values[start:stop] for start, stop in spans]
        values = np.concatenate([self.values[:0], *pieces])
        offsets = _offsets(stops - starts)
        return Ragged(values, offsets, self._shapes_at(numbers), self.kind)

    def _shapes_at(self, chosen: Any) -> Numbers | None:
        if self.shapes is None:
            return None
        shapes: Numbers = self.shapes[chosen]
        return shapes

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the numbers; bytes for kinds that are no arrays."""
        dtype: np.dtype[Any] = self.values.dtype
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of what says where they begin."""
        shapes = 0 if self.shapes is None else self.shapes.nbytes
        return int(self.values.nbytes + self.offsets.nbytes + shapes)

    @property
    def lengths(self) -> Numbers:
        """(n,) the first axis of each array, the values of each list, the bytes of each text.

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
        return cls.made(array.reshape(-1), sizes, shapes, "array")

    @classmethod
    def made(cls, values: Numbers, sizes: Numbers, shapes: Numbers | None, kind: Kind) -> Ragged:
        """A column of values of these sizes, which lie one after the other."""
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


def _offsets(sizes: Any) -> Numbers:
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
