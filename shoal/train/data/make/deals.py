"""Samples dealt anew between the shards: which shard holds which of them in an epoch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.data.draws import stable
from shoal.train.data.parts import Index, RowSource
from shoal.train.data.ragged import Ragged

COUNTS, CHOSEN = 21, 22  # tell these draws from all others
KEPT = 2  # shards whose rows are kept at hand


class Piece(NamedTuple):
    """Samples that a shard gets of another one, or keeps: their places there, in order."""

    home: ShardId
    rows: Index


@dataclass(frozen=True)
class Deal:
    """Which samples each shard holds in one epoch; sizes stay.

    It depends on the study's seed, the epoch and the sizes alone, and all deals are equally likely.
    `sizes`: samples of each training shard as it was made. Its samples then are called its own.
    """

    seed: int
    epoch: int
    sizes: Mapping[ShardId, int]

    def counts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """(homes, shards): how many of each shard's own samples each shard gets."""
        drawn = np.random.default_rng([COUNTS, self.seed, self.epoch])
        room = np.array(list(self.sizes.values()), np.int64)
        made = []
        for size in self.sizes.values():
            made.append(drawn.multivariate_hypergeometric(room, size))
            room = room - made[-1]
        return np.stack(made)

    def pieces(self, shard: ShardId) -> list[Piece]:
        """What the shard holds, by where it comes from."""
        counts = self.counts()
        to = list(self.sizes).index(shard)
        found = []
        for home, row in zip(self.sizes, counts, strict=True):
            start = int(row[:to].sum())
            chosen = self._mixed(home)[start : start + int(row[to])]
            found.append(Piece(home, np.sort(chosen)))
        return found

    def _mixed(self, home: ShardId) -> Index:
        """The shard's own samples in the order in which they are dealt out."""
        drawn = np.random.default_rng([CHOSEN, self.seed, self.epoch, stable(home)])
        return drawn.permutation(self.sizes[home])


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
        pieces = self._of(part)
        ends = np.cumsum([len(piece.rows) for piece in pieces])
        which = np.searchsorted(ends, index, side="right")
        order = np.argsort(which, kind="stable")
        found = []
        for number in np.unique(which).tolist():
            home, own = pieces[number]
            places = index[which == number] - (ends[number] - len(own))
            found.append(self.source.rows(home, own[places]))
        back = np.empty(len(index), np.int64)
        back[order] = np.arange(len(index))
        return cols.apply(cols.combine(found, joined_rows), lambda column: column[back])

    def _of(self, part: ShardId) -> list[Piece]:
        if part not in self._pieces:
            self._pieces[part] = self.deal.pieces(part)
            while len(self._pieces) > KEPT:
                self._pieces.popitem(last=False)
        return self._pieces[part]


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
