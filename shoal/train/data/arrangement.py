"""Which samples a pass takes, in which order: weights, samplers, folds, deals between shards."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Array, Columns, DataError, Ragged
from shoal.train.data.parts import Division, Index, RowSource, divide
from shoal.train.rng import Rng

By = str | int | Callable[[Any], float]
DRAWN = 3  # tells these draws from those of orders and of collate
COUNTS, CHOSEN = 21, 22  # tell these draws from all others
KEPT = 2  # shards of which a deal's pieces are kept at hand


@dataclass(frozen=True)
class Arrangement:
    """How passes take the samples, beside the recipe's `shuffle`. Old pickles of data lack this.

    `draws`: what draws the samples of each pass. `buckets`: by what samples of similar length are
    put together. `folds`: the rows of each fold. `sequential`: the rows are in the order of the
    data. `reshuffles`: each epoch deals the samples anew between the shards. `defaults`: attributes
    of the recipe that the data brings along, for a recipe that does not set them. `workers`: the
    processes of the DataLoader that the data came with.
    """

    draws: SampleDraws | None = None
    buckets: By | None = None
    folds: Folds | None = None
    sequential: bool = False
    reshuffles: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 0


def stable(shard: ShardId) -> int:
    """A number for the shard, the same on every machine."""
    return int.from_bytes(blake2b(shard.encode(), digest_size=8).digest(), "big")


# -- weights and samplers ----------------------------------------------------------------------


class SampleDraws(Protocol):
    """Draws the samples of each pass."""

    def order(self, shard: ShardId, seed: int, turn: int) -> Index:
        """The places in the shard of the samples of one pass, as many as the shard has."""
        ...


@dataclass(frozen=True)
class Weighted:
    """Samples drawn with replacement in each pass, each with its share of the weights."""

    weights: Mapping[ShardId, Array]

    def order(self, shard: ShardId, seed: int, turn: int) -> Index:
        """See `SampleDraws`."""
        rng = np.random.default_rng([DRAWN, seed, stable(shard), turn])
        weights = self.weights[shard]
        count = len(weights)
        return rng.choice(count, count, p=weights / weights.sum())


def checked_weights(weights: Any, count: int) -> Array:
    """One weight for each training sample.

    Raises:
        DataError: another number of them, or one that is negative or not finite.
    """
    array = np.asarray(weights, np.float64)
    if array.shape != (count,):
        raise DataError(
            f"weights must be one number for each of the {count} samples; got shape {array.shape}"
        )
    if not np.isfinite(array).all() or (array < 0).any():
        raise DataError("weights must be numbers >= 0; got one that is not")
    return array


def balancing(labels: Array) -> Array:
    """Weights with which each label is drawn equally often.

    Raises:
        DataError: there are several labels for a sample.
    """
    if labels.ndim != 1:
        raise DataError(
            f"balanced needs a column with one label per sample; got shape {labels.shape}"
        )
    _, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    weights: Array = 1.0 / counts[which]
    return weights


@dataclass(frozen=True)
class Sampled:
    """The order of a torch Sampler, drawn anew in each pass. The data has one shard.

    `places`: by number of an item, its place in the shard.
    """

    sampler: Any
    places: Index

    def order(self, shard: ShardId, seed: int, turn: int) -> Index:
        """See `SampleDraws`.

        Raises:
            DataError: the sampler gives other samples than those of the shard.
        """
        count = len(self.places)
        sequence = np.random.SeedSequence([DRAWN, seed, stable(shard), turn])
        with Rng(int(sequence.generate_state(1)[0]), torch.device("cpu")):
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(turn)
            numbers = np.fromiter((int(n) for n in self.sampler), np.int64)
        if len(numbers) != count:
            raise DataError(
                f"a sampler must give as many samples as the data set has, {count}; "
                f"{sampler_name(self.sampler)} gave {len(numbers)}: give a Subset of the data set"
            )
        return self.places[numbers]


def sampler_name(sampler: Any) -> str:
    """The name of the user's class: a sampler, or what gives its batches."""
    return type(getattr(sampler, "batches", sampler)).__qualname__


def check_sampler(draws: Sampled, shard: ShardId) -> None:
    """Draw one order twice, and compare.

    Raises:
        DataError: the orders differ, or as `Sampled.order`.
    """
    if not np.array_equal(draws.order(shard, 0, 0), draws.order(shard, 0, 0)):
        raise DataError(
            f"{sampler_name(draws.sampler)} gives another order under the same seed: it must draw "
            "from torch's, NumPy's or Python's global generators, and remember nothing between "
            "passes; or give it a method set_epoch(number)"
        )


# -- orders of places --------------------------------------------------------------------------


def streams(count: int, size: int) -> Index:
    """Places in the order in which each row of a batch continues that row of the batch before.

    The samples, in the order of the data, are cut in `size` streams of equal length. What is left
    over comes last.
    """
    length = count // size
    rows: Index = np.arange(length * size).reshape(size, length).T.reshape(-1)
    return np.concatenate([rows, np.arange(length * size, count)])


def bucketed(lengths: Array, group: int, rng: np.random.Generator) -> Index:
    """Places such that samples of similar lengths stand together.

    The samples are sorted by length and cut in groups, which come in a random order. A smaller last
    group stays last, so that batches that divide a group lie within groups.
    """
    places = np.argsort(lengths, kind="stable")
    whole = len(places) // group
    cut = whole * group
    groups = places[:cut].reshape(whole, group)[rng.permutation(whole)]
    return np.concatenate([groups.reshape(-1), places[cut:]])


# -- folds -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Folds:
    """The rows of each fold. All folds leave equally many rows to train on.

    `rows`: in a random order. `fold`: the number of each row's fold.
    """

    count: int
    rows: Index
    fold: Index
    shards: int
    row_bytes: float

    def index(self, fold: int) -> Mapping[ShardId, Index]:
        """The rows of the training shards and validation parts of trials with this fold."""
        chosen = self.fold == fold
        train = self.rows[~chosen]
        # Where a fold is smaller by a row, a row is left out: shards have one size in all folds.
        train = train[: len(self.rows) - self.largest]
        how = Division(0, self.shards)
        return divide(train, self.rows[chosen], how, self.row_bytes).index

    @property
    def largest(self) -> int:
        """Rows of the largest fold."""
        return -(-len(self.rows) // self.count)


def divide_folds(
    count: int, rows: Index, labels: Array | None, seed: int, shards: int, row_bytes: float
) -> Folds:
    """Divide rows in `count` folds; `labels`: of the rows, whose shares each fold has, too.

    Raises:
        DataError: fewer than two folds, or more than rows.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= len(rows):
        raise DataError(
            f"folds must be a whole number between 2 and the {len(rows)} samples; got {count!r}"
        )
    order = np.random.default_rng(seed).permutation(len(rows))
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(rows), np.int64)
    fold[order] = np.arange(len(rows)) % count
    mixed = np.random.default_rng([seed, 1]).permutation(len(rows))
    return Folds(count, rows[mixed], fold[mixed], shards, row_bytes)


# -- deals between shards ----------------------------------------------------------------------


class Piece(NamedTuple):
    """Samples that a shard gets of another one, or keeps: their places there, in order."""

    home: ShardId
    rows: Index


@dataclass(frozen=True)
class Deal:
    """Which samples each shard holds in one epoch; sizes stay.

    It depends on the study's seed, the epoch and the sizes alone, and all deals are equally likely.
    `sizes`: samples of each training shard as it was made; those samples are called its own.
    """

    seed: int
    epoch: int
    sizes: Mapping[ShardId, int]

    def counts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """How many of each shard's own samples each shard gets: (homes, shards)."""
        rng = np.random.default_rng([COUNTS, self.seed, self.epoch])
        room = np.array(list(self.sizes.values()), np.int64)
        counts = []
        for size in self.sizes.values():
            counts.append(rng.multivariate_hypergeometric(room, size))
            room = room - counts[-1]
        return np.stack(counts)

    def pieces(self, shard: ShardId) -> list[Piece]:
        """What the shard holds, by where it comes from."""
        counts = self.counts()
        place = list(self.sizes).index(shard)
        pieces = []
        for home, row in zip(self.sizes, counts, strict=True):
            start = int(row[:place].sum())
            rng = np.random.default_rng([CHOSEN, self.seed, self.epoch, stable(home)])
            order = rng.permutation(self.sizes[home])  # in which they are dealt out
            pieces.append(Piece(home, np.sort(order[start : start + int(row[place])])))
        return pieces


@dataclass(slots=True)
class DealtRows:
    """The training shards of a source, with the samples that a deal gives them."""

    source: RowSource
    deal: Deal
    _pieces: OrderedDict[ShardId, list[Piece]] = field(default_factory=OrderedDict, repr=False)

    @property
    def serial(self) -> bool:
        """Whether the source must not be read beside training."""
        return self.source.serial

    def read(self, part: ShardId) -> Columns:
        """All samples of the shard."""
        return self.rows(part, np.arange(self.deal.sizes[part]))

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the shard."""
        if part not in self._pieces:
            self._pieces[part] = self.deal.pieces(part)
            while len(self._pieces) > KEPT:
                self._pieces.popitem(last=False)
        pieces = self._pieces[part]
        ends = np.cumsum([len(piece.rows) for piece in pieces])
        which = np.searchsorted(ends, index, side="right")
        order = np.argsort(which, kind="stable")
        columns = []
        for number in np.unique(which).tolist():
            home, rows = pieces[number]
            places = index[which == number] - (ends[number] - len(rows))
            columns.append(self.source.rows(home, rows[places]))
        inverse = np.empty(len(index), np.int64)
        inverse[order] = np.arange(len(index))
        return cols.apply(cols.combine(columns, joined_rows), lambda column: column[inverse])


class Exchange(Protocol):
    """Gets shards as they are dealt, where samples of them lie at other nodes only."""

    def rows(self, deal: Deal, shard: ShardId, index: Index) -> Columns:
        """These samples of a shard that lies here. Raises DataError if some are nowhere."""
        ...

    def taken(self) -> int:
        """Bytes of samples that came from other nodes since this was asked last."""
        ...


@dataclass(frozen=True, slots=True)
class ExchangedRows:
    """The training shards that lie here, with the samples that a deal gives them."""

    exchange: Exchange
    deal: Deal
    serial: bool = False

    def read(self, part: ShardId) -> Columns:
        """All samples of the shard."""
        return self.rows(part, np.arange(self.deal.sizes[part]))

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the shard."""
        return self.exchange.rows(self.deal, part, index)


def joined_rows(columns: list[Any]) -> Any:
    """The pieces of one column, one after the other."""
    if any(isinstance(column, Ragged) for column in columns):
        return Ragged.joined(columns)
    return np.concatenate(columns)
