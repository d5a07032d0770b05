"""What the readers of data have in common: shards, validation parts, and how rows are divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from importlib import import_module
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch

from shoal.core.cluster import ShardId, proportional
from shoal.core.errors import warn
from shoal.core.install import install
from shoal.train.data import columns as cols
from shoal.train.data.columns import Array, Columns, DataError, MappedArray, Ragged
from shoal.train.rng import Rng

T = TypeVar("T")
SHARD_BYTES = 256 * 2**20  # of the largest shard, if the user names no number of shards
Index = np.ndarray[Any, np.dtype[np.int64]]
Order = Literal["random", "sequential"]  # in which shards take the samples
LOOKED_AT = 16  # samples that a fingerprint looks at


def is_sequential(order: Order) -> bool:
    """Whether the samples stay in their order.

    Raises:
        DataError: it is no such word.
    """
    if order not in ("random", "sequential"):
        raise DataError(f'order must be "random" or "sequential"; got {order!r}')
    return order == "sequential"


class Source(Protocol):
    """Where the columns of data come from.

    A source that can read some rows of a part without reading all of it is a `RowSource`.
    """

    @property
    def serial(self) -> bool:
        """Reading draws on global state, as a user's Dataset may: never do it beside training."""
        ...

    def read(self, part: ShardId) -> Columns:
        """All samples of the part. Raises DataError, or whatever reading raises."""
        ...


@runtime_checkable
class RowSource(Source, Protocol):
    """A source of which some rows can be read without the others."""

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the part, in this order: what `read` would give for them.

        What it draws at random is a function of the part and the index alone.
        Raises as `read` does.
        """
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """Data as a reader gives it: where samples come from, and how they are divided."""

    source: Source
    training: Mapping[ShardId, int]  # samples of each training shard
    validation: Mapping[ShardId, int]  # samples of each validation part
    row_bytes: int  # of one sample
    fingerprint: str  # changes when the data or its division does
    # what items are made of, and the function that makes a batch of them; None: batches are columns
    form: Any = None
    collate: Any = None
    tried: Sequence[Any] = ()  # the first items
    anew: bool = False  # items draw random numbers: training passes read them anew
    # the form and the first items of those to validate on, where these have a form of their own
    scored_form: Any = None
    scored_tried: Sequence[Any] = ()
    sequential: bool = False  # the rows of the parts are in the order of the data
    # the texts or classes behind a column's numbers, by column
    names: dict[str, Sequence[str]] = field(default_factory=dict)
    table: Any = None  # a `TableForm`, of data out of CSV and Parquet files


@dataclass(frozen=True)
class DividedSource:
    """A source whose parts are rows of data to train on, or of other data to validate on.

    The data is columns; a subclass with other data has a method `rows` of its own.
    """

    __slots__ = ()  # subclasses have them for all fields
    training: Any
    validation: Any
    index: Mapping[ShardId, Index]  # the rows of each part
    apart: frozenset[ShardId]  # parts that are rows of `validation`

    def read(self, part: ShardId) -> Columns:
        """All samples of the part."""
        return self.rows(part, np.arange(len(self.index[part])))

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the part, in this order."""
        rows = self.index[part][index]
        return cols.apply(self.data_of(part), lambda column: column[rows])

    def data_of(self, part: ShardId) -> Any:
        """The data of which the part is rows."""
        return self.validation if part in self.apart else self.training

    def divided(self, index: Mapping[ShardId, Index]) -> Self:
        """The same training data, divided otherwise; nothing else is validated on."""
        return replace(self, index=index, apart=frozenset())


@dataclass(frozen=True, slots=True)
class Division:
    """How the user wants rows divided: the seed of the random order, shards, and their weights."""

    seed: int
    shards: int | None = None  # None: as few as keep a shard within `SHARD_BYTES`
    weights: Sequence[float] | None = None  # sizes of the shards against each other
    sequential: bool = False  # rows stay in the order of the data; the last ones are set aside

    def order(self, count: int) -> Index:
        """The rows in the order in which shards take them."""
        if self.sequential:
            return np.arange(count)
        return np.random.default_rng(self.seed).permutation(count)

    def split(
        self, rows: int, validation: Any, scored: int = 0, labels: Array | None = None
    ) -> tuple[Index, Index]:
        """Which of so many rows are trained on, and which rows are validated on.

        `validation`: the fraction that is set aside, in which `labels` keep their shares; other
        data, of `scored` rows; or None.
        """
        order = self.order(rows)
        if not is_fraction(validation):
            return order, np.arange(0 if validation is None else scored)
        if not self.sequential:
            return set_aside(order, float(validation), labels)
        train, test = set_aside(order[::-1], float(validation), None)
        return train[::-1], test[::-1]


# All rows in one shard, as they lie.
IN_ORDER = Division(0, 1, sequential=True)


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows make up each part, training shards first."""

    index: Mapping[ShardId, Index]

    def apart(self, validation: Any) -> frozenset[ShardId]:
        """The validation parts, if `validation` is data whose rows they are, and no fraction."""
        return frozenset() if is_fraction(validation) else frozenset(of_letter("v", self.index))

    def parts(self, source: Source, row_bytes: float, hashed: blake2b, **fields: Any) -> Parts:
        """The source's data, divided so. For the arguments see `parts_of`."""
        sizes = {part: len(rows) for part, rows in self.index.items()}
        for part, rows in self.index.items():
            hashed.update(part.encode())
            hashed.update(rows.astype("<i8").data)
        return parts_of(source, sizes, row_bytes, hashed, **fields)


def parts_of(
    source: Source, sizes: Mapping[ShardId, int], row_bytes: float, hashed: blake2b, **fields: Any
) -> Parts:
    """The source's data, with so many samples in each part.

    `row_bytes`: of one sample, in the mean. `hashed`: of contents and division, for the
    fingerprint. `fields`: more of `Parts`.
    """
    return Parts(
        source=source,
        training=of_letter("s", sizes),
        validation=of_letter("v", sizes),
        row_bytes=max(1, int(row_bytes)),
        fingerprint=hashed.hexdigest(),
        **fields,
    )


def part_names(letter: str, count: int) -> tuple[ShardId, ...]:
    """The names of so many parts: s000, s001, … (or v000, …)."""
    return tuple(ShardId(f"{letter}{i:03d}") for i in range(count))


def of_letter(letter: str, by_part: Mapping[ShardId, T]) -> dict[ShardId, T]:
    """The values of the training shards ("s") or of the validation parts ("v")."""
    return {part: value for part, value in by_part.items() if part.startswith(letter)}


def named_parts(train: Sequence[T], test: Sequence[T]) -> dict[ShardId, T]:
    """The values of the training shards, then those of the validation parts, by name."""
    training = zip(part_names("s", len(train)), train, strict=True)
    return dict(training) | dict(zip(part_names("v", len(test)), test, strict=True))


def is_fraction(validation: Any) -> bool:
    """Whether `validation=` is a number, and not the data itself."""
    return isinstance(validation, float | int) and not isinstance(validation, bool)


def check_stratify(stratify: object, validation: Any, how: Division) -> None:
    """Raise DataError if labels are to keep their shares and no fraction is drawn at random."""
    if stratify is not None and (how.sequential or not is_fraction(validation)):
        raise DataError(
            "stratify= keeps labels' shares in the fraction that is set aside at random: give "
            'validation= a fraction and no order="sequential", or leave stratify= out'
        )


def set_aside(order: Index, fraction: float, labels: Array | None) -> tuple[Index, Index]:
    """Training and validation rows, in the given random order. Labels keep their shares.

    Raises:
        DataError: the fraction leaves nothing to train or to validate on.
    """
    if not 0 < fraction < 1:
        raise DataError(
            "validation must be a fraction between 0 and 1, the data itself, or None; "
            f"got {fraction!r}"
        )
    groups = [np.arange(len(order))]  # places in the order
    if labels is not None:
        shuffled = labels[order]
        groups = [np.flatnonzero(shuffled == label) for label in np.unique(labels)]
    chosen = np.zeros(len(order), dtype=bool)
    for places in groups:
        chosen[places[: round(len(places) * fraction)]] = True
    test = order[chosen]
    train = order[~chosen]
    if not len(test) or not len(train):
        detail = "" if labels is None else f", taken from each of {len(groups)} labels,"
        raise DataError(
            f"validation={fraction:g} of {len(order)} samples{detail} leaves {len(train)} to train "
            f"and {len(test)} to validate on; both need one"
        )
    return train, test


def divide(train: Index, test: Index, how: Division, row_bytes: float) -> Rows:
    """The rows of each part.

    Raises:
        DataError: no samples, more shards than samples, or weights that do not fit.
    """
    if not len(train):
        raise DataError("data needs at least one training sample; got none")
    if how.weights is not None:
        shards = _weighted_shards(train, how.shards, how.weights)
    else:
        shards = np.array_split(train, _shard_count(len(train), how.shards, row_bytes))
    names = part_names("s", len(shards))
    index = dict(zip(names, shards, strict=True))
    if len(test):
        count = min(_needed_parts(len(test), row_bytes), len(test))
        names = part_names("v", count)
        index |= dict(zip(names, np.array_split(test, count), strict=True))
    return Rows(index)


def _needed_parts(samples: int, row_bytes: float) -> int:
    """How many parts keep each within `SHARD_BYTES`."""
    return max(1, -(-int(samples * row_bytes) // SHARD_BYTES))


def _shard_count(samples: int, shards: int | None, row_bytes: float) -> int:
    """How many training shards there are to be.

    Raises:
        DataError: `shards` is not a whole number, or more than there are samples.
    """
    if shards is None:
        return min(samples, _needed_parts(samples, row_bytes))
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= samples:
        raise DataError(
            f"shards must be a whole number between 1 and the {samples} training samples; "
            f"got {shards!r}"
        )
    return shards


def _weighted_shards(train: Index, shards: int | None, weights: Sequence[float]) -> list[Index]:
    """The rows in shards whose sizes are as their weights.

    Raises:
        DataError: the weights are not numbers > 0, one for each shard.
    """
    try:
        numbers = [float(weight) for weight in weights]
        sizes = proportional(len(train), numbers)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"shard_weights must be a number > 0 for each shard; got {weights!r} ({error})"
        ) from error
    if shards not in (None, len(numbers)):
        raise DataError(
            f"shard_weights must be one for each of the {shards} shards; got {len(numbers)}"
        )
    return np.split(train, np.cumsum(sizes)[:-1])


def seed_of_rows(seed: int, part: str, index: Index) -> int:
    """The seed under which user's code reads these rows, whichever process does it."""
    hashed = blake2b(f"{seed}/{part}".encode(), digest_size=8)
    hashed.update(index.astype("<i8").tobytes())
    return int.from_bytes(hashed.digest(), "big") >> 1  # torch takes 63 bits


def as_array(column: Any, name: str) -> Array:
    """The column as an array of numbers, first axis samples.

    Raises:
        DataError: it is a single value, or not numbers.
    """
    if isinstance(column, MappedArray):
        return column  # type: ignore[return-value]
    if isinstance(column, np.memmap):
        mapped = MappedArray.of(column)
        if mapped is not None:
            return _check_samples(mapped, name)
    _check_dense(column, name)
    if hasattr(column, "detach"):
        column = column.detach().cpu().numpy()
    try:
        array = np.asarray(column)
    except ValueError as error:
        raise DataError(
            f"column {name} must have rows of one shape ({error}): give items of unequal shapes to "
            "Data.dataset(…, collate=…)"
        ) from error
    _check_samples(array, name)
    _warn_of_missing(array, name)
    return array


def _check_dense(column: Any, name: str) -> None:
    """Raise DataError if it is a sparse matrix, of scipy or of torch."""
    if hasattr(column, "toarray") and hasattr(column, "nnz"):
        remedy = "toarray()"
    elif hasattr(column, "to_dense") and str(column.layout) != "torch.strided":
        remedy = "to_dense()"
    else:
        return
    raise DataError(
        f"column {name} must be dense; got a sparse {type(column).__name__} of shape "
        f"{tuple(column.shape)}: give .{remedy}, or its rows to Data.dataset(…, collate=…)"
    )


def _warn_of_missing(array: Array, name: str) -> None:
    """Warn if some values are NaN."""
    if array.dtype.kind not in "fc" or not array.size or not np.isnan(array.min()):
        return
    count = int(np.isnan(array).sum())
    warn(
        f"column {name} has {count} values that are NaN, of {array.size}: losses become NaN unless "
        "the step leaves these out; fill them, or leave the samples out"
    )


def _check_samples(array: Any, name: str) -> Array:
    """The array, if it has samples of numbers.

    Raises:
        DataError: it is a single value, or not numbers.
    """
    if array.ndim == 0:
        raise DataError(
            f"column {name} must have samples along its first axis; got the single value {array}"
        )
    if array.dtype.kind not in "biufc":
        raise DataError(
            f"column {name} must hold numbers; got dtype {array.dtype}: encode text first, as "
            "np.unique(column, return_inverse=True)[1] does; give dates as numbers of days, tables "
            "with both as a file to Data.csv(…, encode=…), and items of unequal lengths to "
            "Data.dataset"
        )
    numbers: Array = array
    return numbers


def alike(first: Columns, second: Columns, one: str, other: str) -> None:
    """Raise DataError unless samples have the same shape and kind of number in both."""
    names = range(len(first))
    if isinstance(first, dict):
        names = list(first)  # type: ignore[assignment]
    for name, a, b in zip(names, cols.parts(first), cols.parts(second), strict=True):
        if isinstance(a, Ragged) or isinstance(b, Ragged):
            continue
        if (a.shape[1:], a.dtype) != (b.shape[1:], b.dtype):
            raise DataError(
                f"column {name} must hold the same in every part; "
                f"got {a.dtype} of shape {a.shape[1:]} in {one} "
                f"and {b.dtype} of shape {b.shape[1:]} in {other}: samples to validate on may have "
                "a form of their own in Data.dataset(train, validation), as two TensorDatasets have"
            )


def hash_array(hashed: blake2b, array: Array) -> None:
    """Add the array's type, shape and contents to the hash; of one in a file, some contents."""
    if isinstance(array, MappedArray):
        hashed.update(f"{array.dtype.str}{array.shape}".encode() + array.some_bytes())
        return
    flat = np.ascontiguousarray(array).reshape(-1)
    hashed.update(f"{array.dtype.str}{array.shape}".encode())
    hashed.update(flat.view(np.uint8).data)


def reader(module: str, user: str, *libraries: str) -> Any:
    """The module below `shoal.train.data` that reads a format, imported when it is needed.

    `user`: what needs these libraries, as the error calls it.

    Raises:
        DataError: one of the libraries is missing.
    """
    try:
        return import_module(f"shoal.train.data.{module}")
    except ImportError as error:
        raise DataError(
            f"{user} needs {' and '.join(libraries)}: {install(*libraries)} ({error})"
        ) from error


class SampleTable(Protocol):
    """Samples by number, in files."""

    @property
    def own_code(self) -> bool:
        """Whether reading runs the user's code."""
        ...

    def __len__(self) -> int: ...

    def take(self, numbers: Index) -> Columns:
        """These samples. Raises DataError, or whatever reading raises."""
        ...


@dataclass(frozen=True, slots=True)
class TableRows(DividedSource):
    """Which samples of which table make up each part."""

    seed: int

    @property
    def serial(self) -> bool:
        """Whether reading may draw on global state."""
        return bool(self.training.own_code)

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the part."""
        table: SampleTable = self.data_of(part)
        take = partial(table.take, self.index[part][index])
        if not table.own_code:
            return take()
        with Rng(seed_of_rows(self.seed, part, index), torch.device("cpu")):
            return take()


def from_table(
    table: SampleTable,
    validation: Any,
    how: Division,
    *,
    labels: Array | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    about: str = "",
) -> Parts:
    """Data out of a table.

    `validation`: a fraction, another table, or None. `labels`: keep their shares in the fraction.
    `about`: what else belongs into the fingerprint.
    """
    scored = table if validation is None or is_fraction(validation) else validation
    train, test = how.split(len(table), validation, len(scored), labels)
    some, some_scored = some_samples(table), some_samples(scored)
    alike(some, some_scored, "training", "validation")

    row_bytes = cols.nbytes(some) / cols.rows(some)
    rows = divide(train, test, how, row_bytes)
    hashed = blake2b(f"{len(table)} {len(scored)} {about}".encode(), digest_size=16)
    for column in [*cols.parts(some), *cols.parts(some_scored)]:
        hash_array(hashed, column)
    source = TableRows(table, scored, rows.index, rows.apart(validation), how.seed)
    return rows.parts(source, row_bytes, hashed, names=dict(names or {}))


def some_samples(table: SampleTable) -> Columns:
    """Some samples, spread over the table.

    Raises:
        DataError: there are none, or they cannot be read.
    """
    if not len(table):
        raise DataError("data needs at least one sample; got none")
    numbers = np.unique(np.linspace(0, len(table) - 1, LOOKED_AT).astype(np.int64))
    with Rng(0, torch.device("cpu")):
        return table.take(numbers)
