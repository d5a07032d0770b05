"""A pass over a shard, cut into batches."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.stream.blocks import copied, joined

Batch = tuple[Columns, int]  # with its number of samples


class Batches:
    """Batches of one size, as views of the chunks.

    Samples at the end of a chunk that make no whole batch wait for the next chunk.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rest: Columns | None = None  # samples that wait

    def of(self, chunk: Columns) -> Iterator[Batch]:
        """The batches that end in this chunk."""
        size = self._size
        count = cols.rows(chunk)
        start = 0
        if self._rest is not None:
            start = self._fill(self._rest, chunk)
            if cols.rows(self._rest) < size:
                return
            batch = self._rest
            self._rest = None
            yield batch, size

        end = count - (count - start) % size
        for at in range(start, end, size):
            yield cols.cut(chunk, at, at + size), size
        if end < count:
            self._rest = cols.apply(cols.cut(chunk, end, count), copied)

    def _fill(self, rest: Columns, chunk: Columns) -> int:
        """Add the first samples of the chunk to those that wait; returns how many."""
        missing = self._size - cols.rows(rest)
        count = min(missing, cols.rows(chunk))
        head = cols.cut(chunk, 0, count)
        self._rest = cols.combine([rest, head], joined)
        return count

    def end(self) -> Batch | None:
        """The smaller batch that is left at the end of the pass; None if there is none."""
        rest = self._rest
        if rest is None:
            return None
        self._rest = None
        return rest, cols.rows(rest)
