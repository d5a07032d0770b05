"""What data says of the nodes at which it lies."""

from __future__ import annotations

from copy import copy
from typing import Any, Self

from shoal.core.cluster import ShardId
from shoal.train.data.placed.catalogue import Catalogue
from shoal.train.data.placed.constructor import ShardsOfData
from shoal.train.data.placed.source import PlacedFiles


class AtNodes:
    """The part of `Data` that is about where it lies."""

    shards = ShardsOfData()
    validation: tuple[ShardId, ...]
    _source: Any

    @property
    def catalogue(self) -> Catalogue | None:
        """Which nodes hold which parts; None: every process reads all of them."""
        source = self._source
        return source.catalogue if isinstance(source, PlacedFiles) else None

    def at(self, names: tuple[str, ...], alone: bool = True) -> Self:
        """The data as processes read it at the node with these names.

        `alone`: as of `PlacedFiles.at`.
        """
        other = copy(self)
        if isinstance(self._source, PlacedFiles):
            other._source = self._source.at(names, alone)
        return other

    def is_here(self, part: ShardId) -> bool:
        """Whether this process may read the part."""
        source = self._source
        return not isinstance(source, PlacedFiles) or source.is_here(part)

    @property
    def first_here(self) -> ShardId:
        """The first training shard that this process may read; the first of all if none."""
        return next(filter(self.is_here, self.shards), self.shards[0])

    def damaged(self) -> dict[ShardId, str]:
        """Why training shards that lie at this process's node are of no use there.

        They cannot be read, or no model can be validated there.
        """
        source = self._source
        if not isinstance(source, PlacedFiles):
            return {}
        found = source.damaged()
        for part in self.validation:
            if part in found:
                return dict.fromkeys(filter(self.is_here, self.shards), found[part])
        return found
