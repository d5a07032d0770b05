"""How `Data` makes shards: the arguments, and what they mean."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

from shoal.core.cluster import ShardId
from shoal.train.data.columns import DataError
from shoal.train.data.make.deals import Deal, DealtRows, Exchange, ExchangedRows
from shoal.train.data.make.shards import ShardPlan, make_shards
from shoal.train.data.make.sources import Reading
from shoal.train.data.parts import RowSource, Source

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class MakesShards:
    """What `Data` offers to make shards of other data, and to deal samples between shards."""

    sizes: dict[ShardId, int]
    _source: Source

    # gets shards as they are dealt; None: all samples are read here
    exchange: Exchange | None = None

    def _arranged(self, what: str, **changes: Any) -> Self:
        raise NotImplementedError

    def reshuffle(self, how: str = "across") -> Self:
        """The data, whose samples are dealt anew between the training shards in each epoch.

        The first epoch trains on the shards as they are. Which samples a shard holds later is a
        function of the study's seed and the epoch; shards keep their sizes.

        Raises:
            DataError: `how` is not "across", or the data cannot be dealt: in weights, folds or its
                own order, or not readable by rows.
        """
        if how != "across":
            raise DataError(f'reshuffle must be "across"; got {how!r}')
        if not isinstance(self._source, RowSource):
            raise DataError(
                "reshuffle needs data that is read by rows, and these files can only be read as a "
                "whole: make shards of them with Data.make_shards"
            )
        return self._arranged("reshuffled across", reshuffles=True)

    def dealt(self, seed: int, epoch: int) -> Self:
        """The data as it is dealt in that epoch of a study with that seed."""
        assert isinstance(self._source, RowSource), "reshuffle asks for it"
        deal = Deal(seed, epoch, self.sizes)
        other = copy(self)
        other._source = DealtRows(self._source, deal)
        if self.exchange is not None:
            other._source = ExchangedRows(self.exchange, deal)
        return other

    def exchanging(self, exchange: Exchange) -> Self:
        """The data as a process reads it at whose node some of the shards do not lie."""
        other = copy(self)
        other.exchange = exchange
        return other

    def bytes_dealt(self) -> int:
        """Bytes of samples that came from other nodes since this was asked last."""
        return 0 if self.exchange is None else self.exchange.taken()

    @staticmethod
    def make_shards(
        source: Paths,
        folder: str | os.PathLike[str],
        *,
        shards: int,
        seed: int = 0,
        replicas: int = 1,
        nodes: Sequence[str] = (),
        speeds: Mapping[str, float] | None = None,
        validation: Any = None,
        label: str | None = None,
        drop: Sequence[str] = (),
        numeric_only: bool = False,
        size: int | tuple[int, int] | None = None,
        memory_gb: float = 1.0,
    ) -> dict[str, Any]:
        """Shuffle the rows of files once, write them as shards, and a catalogue of these.

        `source`: CSV, Parquet, Arrow, .npz, .npy or tar files, a folder of such, or a folder of
        pictures by class. `folder`: a new one. Each shard is an uncompressed .npz file, or
        `replicas` copies of it, at `nodes` in turn: `folder/node/s000.npz`. `speeds`: of the nodes;
        shards are as large as the mean speed of the nodes that hold them. `validation`: a
        fraction, other files, or None; it is divided in as many shards. `label`, `drop`: columns
        of CSV and Parquet files; with a label rows are (inputs float32, label). `numeric_only`:
        columns of these files that hold text or times are left out. `size`: of pictures.
        `memory_gb`: what is held in memory at most, about; the disk holds the rows twice
        meanwhile. Equal arguments give equal files.

        Returns {"catalogue": the path of shards.toml, "rows": by shard, "bytes": written}.

        Raises:
            DataError: no such files, rows that are no numbers, a folder that is not empty, more
                shards than rows, more replicas than nodes.
        """
        plan = ShardPlan(shards, seed, replicas, names_of(nodes), speeds, validation, memory_gb)
        how = Reading(label, names_of(drop), size, numeric_only)
        return make_shards(source, Path(folder), plan, how)


def names_of(names: Sequence[str]) -> tuple[str, ...]:
    """The names; a single one as a tuple of it."""
    return (names,) if isinstance(names, str) else tuple(names)
