"""Data out of map-style torch Datasets: items, read once and kept as columns, and back again."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from shoal.core.cluster import ShardId
from shoal.core.errors import warn
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns, DataError, Ragged
from shoal.train.data.parts import (
    DividedSource,
    Division,
    Index,
    Parts,
    as_array,
    divide,
    hash_array,
    is_fraction,
    seed_of_rows,
)
from shoal.train.rng import Rng

NUMBERS: dict[str, Any] = {"bool": np.bool_, "int": np.int64, "float": np.float64}
LARGEST_INT = 2**63
PROBES = 64  # items that a fingerprint looks at
TWICE = 8  # items that are read twice, to find random transforms
# What ends the fingerprint of a dataset whose items are random. Former versions read these once,
# as is still done where two reads under one seed differ (`DRAWN_BY_ROWS`).
READ_ANEW = "-anew"
DRAWN_BY_ROWS = "-rows"
DEEP = 6  # how far within a dataset random generators are looked for
FEW = 100  # larger lists, say of samples, are not looked into
MOST = 2000  # objects that are looked into
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


@dataclass(frozen=True, slots=True)
class Items(DividedSource):
    """Which items of which dataset make up each part.

    Reading runs the user's code: under a seed, and never beside training. `whole`: items are kept
    as they are, for collate; otherwise they are columns of equal shapes. `scored_form`: of the
    items of `validation`, where it is another than `form`. `drawn`: the study's seed and the number
    of the pass, where the items of each pass draw numbers of their own.
    """

    seed: int
    serial: bool = True
    form: ItemForm | None = None  # of the items read first
    whole: bool = False
    scored_form: ItemForm | None = None
    drawn: tuple[int, int] | None = None

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Read also what an earlier Shoal pickled, which lacks the last fields."""
        defaults = [None, False, None, None]  # of the last fields
        missing = len(self.__slots__) - len(state)
        values = [*state, *defaults[len(defaults) - missing :]]
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These items of the part, read under a seed that is theirs."""
        form = self.form
        if part in self.apart:
            form = self.scored_form or form
        numbers = self.index[part][index].tolist()
        place = part if self.drawn is None else f"{part} {self.drawn}"
        seed = seed_of_rows(self.seed, place, index)
        return read(self.data_of(part), numbers, seed, form, self.whole)

    def drawn_in(self, seed: int, turn: int) -> Items:
        """The same source, whose items draw the numbers of that pass of a study with that seed."""
        return replace(self, drawn=(seed, turn))

    def collated(self) -> Items:
        """The same source, whose items are kept as they are."""
        return replace(self, whole=True)


def from_dataset(dataset: Any, validation: Any, how: Division, collate: Any = None) -> Parts:
    """The data of `Data.dataset`."""
    seed = how.seed
    count = _length(dataset, "the dataset")
    probed = _items(dataset, _spread(dataset, PROBES), seed)
    columns, form = columns_of(probed)
    whole = collate is not None or not is_plain(columns)
    scored = dataset
    scored_count = 0
    scored_form: ItemForm | None = None
    scored_probed: list[Any] = []
    if validation is not None and not is_fraction(validation):
        scored = validation
        scored_count = _length(scored, "the validation dataset")
        scored_probed = _items(scored, _spread(scored, PROBES), seed)
        scored_columns, scored_form = columns_of(scored_probed)
        whole = whole or not is_plain(scored_columns)
        if form.fits(scored_form):
            scored_form = None
    train, test = how.split(count, validation, scored_count)

    row_bytes = cols.nbytes(columns) / len(probed)
    rows = divide(train, test, how, row_bytes)
    items = Items(
        dataset,
        scored,
        rows.index,
        rows.apart(validation),
        seed,
        form=form,
        whole=whole,
        scored_form=scored_form,
    )
    hashed = blake2b(_fingerprint(dataset, seed), digest_size=16)
    if scored is not dataset:
        hashed.update(_fingerprint(scored, seed))
    is_random = _draws(dataset, seed)
    parts = rows.parts(
        items,
        row_bytes,
        hashed,
        sequential=how.sequential,
        form=form,
        collate=collate,
        tried=probed[:TWICE],
        scored_form=scored_form,
        scored_tried=scored_probed[:TWICE],
        anew=is_random and _repeats(dataset, seed),
    )
    if not is_random:
        return parts
    ending = READ_ANEW if parts.anew else DRAWN_BY_ROWS
    return replace(parts, fingerprint=parts.fingerprint + ending)


def _length(dataset: Any, name: str) -> int:
    """How many items the dataset has.

    Raises:
        DataError: it is not map-style, or empty.
    """
    if isinstance(dataset, Mapping):
        raise DataError(
            f"{name} must be one dataset; got a dict of {', '.join(map(str, dataset))}: give one "
            "of them"
        )
    usable = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not usable or isinstance(dataset, IterableDataset):
        raise DataError(
            f"{name} must be map-style, with __len__ and __getitem__; got "
            f"{type(dataset).__name__}: give list(…) of it, or make both IterableDatasets"
        )
    count = len(dataset)
    if not count:
        raise DataError(f"{name} needs at least one item; got none")
    return count


def _items(dataset: Any, numbers: Iterable[int], seed: int) -> list[Any]:
    """These items, read under the seed."""
    with Rng(seed, torch.device("cpu")):
        for generator in _generators_in(dataset, DEEP, set()):
            if isinstance(generator, np.random.Generator):
                bits: Any = generator.bit_generator
                bits.state = type(bits)(seed).state
            elif isinstance(generator, torch.Generator):
                generator.manual_seed(seed)
            else:
                generator.seed(seed % 2**32)
        return [dataset[number] for number in numbers]


def read(
    dataset: Any, numbers: Iterable[int], seed: int, form: ItemForm | None, whole: bool
) -> Columns:
    """These items as columns. Single numbers become int64, or float32 (`whole`: float64).

    Raises:
        DataError: the items have unequal forms, or unequal shapes although they are not `whole`.
    """
    columns, read_form = columns_of(_items(dataset, numbers, seed), form)
    if whole:
        return columns
    if not is_plain(columns):
        raise DataError(
            "items of a dataset must have equal shapes, or be put together by a collate= function; "
            "some of these have other shapes or kinds (None, say) than the items read first: "
            "give collate=, or pad, resize or leave them out"
        )
    return narrow_floats(columns, read_form.kinds)


def _is_of_tensors(dataset: Any) -> bool:
    """Whether the dataset is a TensorDataset, with no items of its own making."""
    if not isinstance(dataset, TensorDataset):
        return False
    return type(dataset).__getitem__ is TensorDataset.__getitem__


def _spread(dataset: Any, count: int) -> list[int]:
    """The numbers of so many items, spread over the dataset."""
    places = np.linspace(0, len(dataset) - 1, count)
    numbers: list[int] = np.unique(places.astype(int)).tolist()
    return numbers


def _fingerprint(dataset: Any, seed: int) -> bytes:
    """A hash of the dataset: of all tensors of a TensorDataset, of some items of any other."""
    name = f"{type(dataset).__qualname__}/{len(dataset)}"
    hashed = blake2b(name.encode(), digest_size=16)
    if _is_of_tensors(dataset):
        for tensor in dataset.tensors:
            hash_array(hashed, as_array(tensor, "of the dataset"))
        return hashed.digest()
    items = _items(dataset, _spread(dataset, PROBES), seed)
    columns, form = columns_of(items)
    if is_plain(columns):
        for column in cols.parts(narrow_floats(columns, form.kinds)):
            hash_array(hashed, column)
    else:
        for item in items:
            hash_value(hashed, item)
    return hashed.digest()


# -- items that draw random numbers ------------------------------------------------------------


def _draws(dataset: Any, seed: int) -> bool:
    """Whether reading an item draws from a global generator, or two reads of it differ.

    A seldom draw may change none of a few items, so that the generators are looked at, too.
    """
    if _is_of_tensors(dataset):
        return False
    with Rng(seed, torch.device("cpu")):
        for number in _spread(dataset, TWICE):
            states, digests = [_global_states()], []
            for _ in range(2):
                digests.append(_digest(dataset[number]))
                states.append(_global_states())
            # once alone it may have been another thread, or what is made at the first read
            draws = states[0] != states[1] != states[2]
            if draws or digests[0] != digests[1]:
                return True
    return False


def _global_states() -> tuple[Any, ...]:
    """The states of torch's, NumPy's and Python's global generators."""
    of_numpy: Any = np.random.get_state(legacy=False)["state"]
    numpy_state = (of_numpy["key"].tobytes(), of_numpy["pos"])
    return torch.get_rng_state().numpy().tobytes(), numpy_state, random.getstate()


def _repeats(dataset: Any, seed: int) -> bool:
    """Whether the items are the same under the same seed; if not, the user is warned."""
    numbers = _spread(dataset, TWICE)
    first_read, second_read = (_items(dataset, numbers, seed) for _ in range(2))
    for number, first, second in zip(numbers, first_read, second_read, strict=True):
        if _digest(first) != _digest(second):
            warn(
                f"two reads of item {number} of the dataset differ whatever the seed, so that "
                "items are read once and kept: each epoch sees the same random transforms. Draw "
                "from torch's, NumPy's or Python's global generators, or from one that the "
                "dataset holds; or make the transforms in Recipe.augment, which varies each pass"
            )
            return False
    return True


def _generators_in(thing: Any, deep: int, seen: set[int]) -> Iterator[Any]:
    """The random generators among an object's attributes, and theirs."""
    if isinstance(thing, GENERATORS):
        yield thing
        return
    is_passed = id(thing) in seen or not deep or len(seen) > MOST
    if is_passed or isinstance(thing, type | ModuleType):
        return
    if hasattr(type(thing), "configure_optimizers"):  # it trains, and is no data
        return
    seen.add(id(thing))
    children: Iterable[Any] = ()
    if isinstance(thing, dict):  # other mappings may read their values from files
        children = list(thing.values()) if len(thing) <= FEW else ()
    elif isinstance(thing, list | tuple):
        children = thing if len(thing) <= FEW else ()
    elif not isinstance(thing, torch.Tensor):
        with suppress(TypeError):  # it has none
            children = list(vars(thing).values())
    for child in children:
        yield from _generators_in(child, deep - 1, seen)


def _digest(item: Any) -> bytes:
    """A hash of the item's contents."""
    hashed = blake2b(digest_size=16)
    hash_value(hashed, item)
    return hashed.digest()


# -- items as columns, and the items again -----------------------------------------------------


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
        return (self.container, dict(self.kinds)) == (other.container, dict(other.kinds))

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
    columns: dict[Any, Any] = {}
    kinds = {}
    for name in names:
        values = [item[name] for item in items]
        columns[name], kinds[name] = column_of(values, name, before.get(name))
    form = ItemForm(container, kinds)
    return columns if container == "dict" else tuple(columns.values()), form


def _container(item: Any) -> Any:
    """What holds the values of an item, as `ItemForm.container` says it."""
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
    """The item's form in words, for an error."""
    if isinstance(item, Mapping):
        return f"a dict of {', '.join(map(str, item))}"
    if isinstance(item, tuple | list):
        return f"a {type(item).__name__} of {len(item)}"
    return f"a single {type(item).__name__}"


def column_of(values: Sequence[Any], name: Any, before: str | None = None) -> tuple[Any, str]:
    """The values as a column, and their kind. `before`: the kind of values read before.

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
    """What a recipe's hook returned for a column: a list of values becomes a column."""
    if isinstance(column, list):
        return column_of(column, name)[0]
    return column


def _kind(value: Any) -> str:
    """The kind of an item's value: "tensor", "array", "int", "text", …; "object" for all else."""
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
    """The tensor's or array's numbers as an array."""
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
        numbers: list[Any] = column.tolist()
        return numbers
    if kind == "array":
        return list(np.array(column))
    return list(torch.from_numpy(np.array(column)).unbind())


def is_plain(columns: Columns) -> bool:
    """Whether all columns are arrays, which need no collate."""
    return not any(isinstance(column, Ragged) for column in cols.parts(columns))


def narrow_floats(columns: Columns, kinds: Mapping[Any, str]) -> Columns:
    """The columns, those of Python's floats as float32."""
    narrowed = {
        name: column.astype(np.float32) if kinds[name] == "float" else column
        for name, column in cols.named(columns).items()
    }
    return narrowed if isinstance(columns, dict) else tuple(narrowed.values())


def hash_value(hashed: blake2b, value: Any) -> None:
    """Add a value to the hash, by its contents.

    Of an object that is neither numbers, text, bytes, an image nor a container of those, only the
    type counts: other objects have no contents that are the same in every process.
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            hashed.update(repr(name).encode())
            hash_value(hashed, inner)
    elif isinstance(value, tuple | list):
        hashed.update(f"{len(value)} values".encode())
        for inner in value:
            hash_value(hashed, inner)
    elif _kind(value) in ("array", "tensor"):
        hash_array(hashed, _array(value))
    elif isinstance(value, bool | int | float | str | bytes):
        hashed.update(repr(value).encode("utf-8", "surrogatepass"))
    else:
        hashed.update(type(value).__qualname__.encode())
        if callable(getattr(value, "tobytes", None)):
            hashed.update(value.tobytes())
