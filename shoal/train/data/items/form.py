"""Items of a dataset as columns, and the items again."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.parts import hash_array
from shoal.train.data.ragged import Ragged

NUMBERS: dict[str, Any] = {"bool": np.bool_, "int": np.int64, "float": np.float64}
LARGEST_INT = 2**63


@dataclass(frozen=True, slots=True)
class ItemForm:
    """What an item is made of.

    `container`: "single" value, "tuple", "list" or "dict", or the class of a named tuple.
    `kinds`: by name or place of a column, what its values are.
    """

    container: Any = "dict"
    kinds: Mapping[Any, str] = field(default_factory=dict)

    def items(self, columns: Mapping[Any, Any]) -> list[Any]:
        """The items that the columns hold, in memory of their own."""
        values = [
            _values(column, self.kinds.get(name, "tensor")) for name, column in columns.items()
        ]
        if self.container == "dict":
            return [dict(zip(columns, item, strict=True)) for item in zip(*values, strict=True)]
        if self.container == "single":
            return values[0]
        if self.container == "list":
            return [list(item) for item in zip(*values, strict=True)]
        if self.container == "tuple":
            return list(zip(*values, strict=True))
        return [self.container(*item) for item in zip(*values, strict=True)]

    def fits(self, other: ItemForm) -> bool:
        """Whether items of the other form hold the same kinds of values under the same names."""
        return (self.container, dict(self.kinds)) == (
            other.container,
            dict(other.kinds),
        )

    def of(self, columns: Columns) -> ItemForm:
        """The form of items in columns that a recipe's hook may have changed."""
        named = isinstance(columns, dict)
        if named == (self.container == "dict"):
            return self
        return ItemForm("dict" if named else "tuple", self.kinds)


def columns_of(items: Sequence[Any], like: ItemForm | None = None) -> tuple[Columns, ItemForm]:
    """Items as columns, and their form. `like`: the form of items read before.

    Raises:
        DataError: the items are not of one form, or hold what cannot be kept.
    """
    first = items[0]
    container = _container(first)
    before = {} if like is None else like.kinds
    if container == "single":
        column, kind = column_of(items, "of single values", before.get(0))
        return (column,), ItemForm(container, {0: kind})
    for item in items:
        _check_form(first, item)
    names: list[Any] = list(range(len(first)))
    if container == "dict":
        names = list(first)
    made = {}
    for name in names:
        values = [item[name] for item in items]
        made[name] = column_of(values, name, before.get(name))
    form = ItemForm(container, {name: kind for name, (_, kind) in made.items()})
    columns: dict[Any, Any] = {name: column for name, (column, _) in made.items()}
    if container == "dict":
        return columns, form
    return tuple(columns.values()), form


def _container(item: Any) -> Any:
    """What holds the values of an item."""
    if isinstance(item, Mapping):
        return "dict"
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)
    if isinstance(item, tuple):
        return "tuple"
    if isinstance(item, list) and item:
        return "list"
    return "single"


def _check_form(first: Any, item: Any) -> None:
    """Raise DataError unless both items have values of the same names, or as many."""
    same = _container(first) == _container(item)
    if same and isinstance(first, Mapping):
        same = set(first) == set(item)
    elif same:
        same = len(first) == len(item)
    if first is None or item is None:
        raise DataError(
            "an item of a dataset must not be None; got one that is: leave such items out, as in "
            "Subset(dataset, [i for i in range(len(dataset)) if dataset[i] is not None])"
        )
    if not same:
        raise DataError(
            "items of a dataset must have equal forms: the same names, or as many values; "
            f"got {_described(first)} and {_described(item)}"
        )


def _described(item: Any) -> str:
    if isinstance(item, Mapping):
        return f"a dict of {', '.join(map(str, item))}"
    if isinstance(item, tuple | list):
        return f"a {type(item).__name__} of {len(item)}"
    return f"a single {type(item).__name__}"


# -- one column --------------------------------------------------------------------------------


def column_of(values: Sequence[Any], name: Any, before: str | None = None) -> tuple[Any, str]:
    """The values as a column, and what they are. `before`: what other values of the column were.

    Numbers, and arrays of equal shapes, make a plain array. Arrays of unequal shapes, texts and
    other objects make a `Ragged` column.

    Raises:
        DataError: an object cannot be pickled.
    """
    kinds = {_kind(value) for value in values}
    kind = kinds.pop()
    if kinds or before == "object":
        kind = "object"
    if kind in NUMBERS:
        return np.array(values, NUMBERS[kind]), kind
    if kind in ("array", "tensor"):
        arrays = [_array(value) for value in values]
        if len({array.dtype for array in arrays}) == 1:
            shapes = {array.shape for array in arrays}
            if len(shapes) == 1:
                return np.stack(arrays), kind
            if len({len(shape) for shape in shapes}) == 1:
                return Ragged.of(arrays, kind), kind  # type: ignore[arg-type]
        kind = "object"
    if kind == "object":
        column = Ragged.of([_dumped(value, name) for value in values], "bytes")
        column.kind = "object"
        return column, kind
    return Ragged.of(values, kind), kind  # type: ignore[arg-type]


def as_column(column: Any, name: Any) -> Any:
    """What a recipe's hook returned as a column: lists of values become one."""
    if isinstance(column, list):
        return column_of(column, name)[0]
    return column


def _kind(value: Any) -> str:
    """What a value of an item is."""
    if isinstance(value, Tensor):
        return "tensor" if _is_plain(value) else "object"
    if isinstance(value, np.ndarray | np.generic):
        return "array" if value.dtype.kind in "biufc" else "object"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -LARGEST_INT <= value < LARGEST_INT else "object"
    for known, kind in ((float, "float"), (str, "text"), (bytes, "bytes")):
        if type(value) is known:
            return kind
    return "object"


def _is_plain(tensor: Tensor) -> bool:
    """Whether NumPy can hold the tensor."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return False
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.dtype not in (
        torch.bfloat16,
        torch.complex32,
    )


def _array(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().resolve_conj().resolve_neg().numpy()
    return np.asarray(value)


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays, which takes a tenth of the time."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Tensor) and _is_plain(thing):
            return _tensor, (_array(thing),)
        return NotImplemented


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))


def _dumped(value: Any, name: Any) -> bytes:
    """The object's pickle.

    Raises:
        DataError: it cannot be pickled.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, protocol=5).dump(value)
    except Exception as error:
        raise DataError(
            f"column {name} holds a {type(value).__name__} that cannot be kept "
            f"({type(error).__name__}: {error}); give tensors, arrays, numbers, text, images, or "
            "dicts, tuples and lists of them"
        ) from error
    return file.getvalue()


def _values(column: Any, kind: str) -> list[Any]:
    """The values of a column as they were in the items, in memory of their own."""
    if isinstance(column, Ragged):
        if column.kind not in ("array", "tensor"):
            return list(column)
        if kind == "array":
            return [np.array(value) for value in column]
        return [torch.from_numpy(np.array(value)) for value in column]
    if kind in NUMBERS and column.ndim == 1:
        listed: list[Any] = column.tolist()
        return listed
    if kind == "array":
        return list(np.array(column))
    return list(torch.from_numpy(np.array(column)).unbind())


def is_plain(columns: Columns) -> bool:
    """Whether all columns are arrays, which need no collate."""
    return not any(isinstance(column, Ragged) for column in cols.parts(columns))


def narrowed(columns: Columns, kinds: Mapping[Any, str]) -> Columns:
    """The columns, those of Python's floats as float32."""
    named: dict[Any, Any] = dict(enumerate(cols.parts(columns)))
    if isinstance(columns, dict):
        named = columns
    made = {
        name: column.astype(np.float32) if kinds[name] == "float" else column
        for name, column in named.items()
    }
    return made if isinstance(columns, dict) else tuple(made.values())


def hash_value(hashed: blake2b, value: Any) -> None:
    """Add a value to the hash, by its contents.

    Of an object that is neither numbers, text, bytes, an image nor a container of those, only the
    type counts: other objects have no contents that are the same in every process.
    """
    if isinstance(value, Mapping):
        for name, each in value.items():
            hashed.update(repr(name).encode())
            hash_value(hashed, each)
    elif isinstance(value, tuple | list):
        hashed.update(f"{len(value)} values".encode())
        for each in value:
            hash_value(hashed, each)
    elif _kind(value) in ("array", "tensor"):
        hash_array(hashed, _array(value))
    elif isinstance(value, bool | int | float | str | bytes):
        hashed.update(repr(value).encode("utf-8", "surrogatepass"))
    else:
        hashed.update(type(value).__qualname__.encode())
        if callable(getattr(value, "tobytes", None)):
            hashed.update(value.tobytes())
