"""How `Data` makes shards: the arguments, and what they mean."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.train.data.make.shards import ShardPlan, make_shards
from shoal.train.data.make.sources import Reading

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class MakesShards:
    """What `Data` offers to make shards of other data."""

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
        size: int | tuple[int, int] | None = None,
        memory_gb: float = 1.0,
    ) -> dict[str, Any]:
        """Shuffle the rows of files once, write them as shards, and a catalogue of these.

        `source`: CSV, Parquet, Arrow, .npz, .npy or tar files, a folder of such, or a folder of
        pictures by class. `folder`: a new one. Each shard is an uncompressed .npz file, or
        `replicas` copies of it, at `nodes` in turn: `folder/node/s000.npz`. `speeds`: of the nodes;
        shards are as large as the mean speed of the nodes that hold them. `validation`: a
        fraction, other files, or None; it is divided in as many shards. `label`, `drop`: columns
        of CSV and Parquet files; with a label rows are (inputs float32, label). `size`: of
        pictures. `memory_gb`: what is held in memory at most, about; the disk holds the rows twice
        meanwhile. Equal arguments give equal files.

        Returns {"catalogue": the path of shards.toml, "rows": by shard, "bytes": written}.

        Raises:
            DataError: no such files, rows that are no numbers, a folder that is not empty, more
                shards than rows, more replicas than nodes.
        """
        plan = ShardPlan(
            shards, seed, replicas, names_of(nodes), speeds, validation, memory_gb
        )
        how = Reading(label, names_of(drop), size)
        return make_shards(source, Path(folder), plan, how)


def names_of(names: Sequence[str]) -> tuple[str, ...]:
    """The names; a single one as a tuple of it."""
    return (names,) if isinstance(names, str) else tuple(names)
