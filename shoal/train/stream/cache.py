"""Prepared chunks in memory, within a limit."""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from threading import Lock

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns


class ChunkCache:
    """Prepared chunks by shard, within a limit of bytes.

    Room is made by dropping the shard used longest ago. Several streams can share a cache: each
    has a view of it, made by `of`.
    """

    def __init__(self, limit: float) -> None:
        self._limit = [limit]  # a list, so that all views share it
        self._key = ""  # begins the names of this view's shards
        self._held: OrderedDict[str, dict[int, Columns]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._lock = Lock()

    def of(self, key: object) -> ChunkCache:
        """A view of the same cache, for data that is prepared in another way."""
        other = copy(self)
        other._key = repr(key)
        return other

    @property
    def total(self) -> int:
        """Bytes of all chunks."""
        return sum(self._sizes.values())

    def get(self, shard: ShardId, number: int) -> Columns | None:
        """The chunk, if it is here."""
        name = self._key + shard
        with self._lock:
            if name not in self._held:
                return None
            self._held.move_to_end(name)
            return self._held[name].get(number)

    def pop(self, shard: ShardId, number: int) -> Columns | None:
        """The chunk, if it is here; it is kept no longer."""
        name = self._key + shard
        with self._lock:
            chunk = self._held.get(name, {}).pop(number, None)
            if chunk is not None:
                self._sizes[name] -= cols.nbytes(chunk)
        return chunk

    def shrink(self) -> bool:
        """Drop all chunks, and keep half as much from now on; returns whether there were any."""
        with self._lock:
            if not self.total:
                return False
            self._limit[0] = self.total / 2
            self._held.clear()
            self._sizes.clear()
        return True

    def share(self, parts: int) -> None:
        """Keep to such a part of the limit from now on; what is beyond is dropped."""
        with self._lock:
            self._limit[0] /= parts
            while not self._fits(0):
                oldest, _ = self._held.popitem(last=False)
                self._sizes.pop(oldest, None)

    def drop(self, shard: ShardId) -> None:
        """Drop the shard's chunks."""
        name = self._key + shard
        with self._lock:
            self._held.pop(name, None)
            self._sizes.pop(name, None)

    def put(self, shard: ShardId, number: int, chunk: Columns) -> None:
        """Keep the chunk if there is room, or other shards can make room.

        A shard that is larger than the limit is kept in part.
        """
        size = cols.nbytes(chunk)
        name = self._key + shard
        with self._lock:
            held = self._held.setdefault(name, {})
            self._held.move_to_end(name)
            if number in held:
                return
            while not self._fits(size) and len(self._held) > 1:
                oldest, _ = self._held.popitem(last=False)
                self._sizes.pop(oldest, None)
            if self._fits(size):
                held[number] = chunk
                self._sizes[name] = self._sizes.get(name, 0) + size

    def _fits(self, size: int) -> bool:
        """Whether there is room for so many bytes."""
        return self.total + size <= self._limit[0]
