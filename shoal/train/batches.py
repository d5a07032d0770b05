"""A pass over a shard, cut into batches."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from shoal.train import columns as cols
from shoal.train.columns import Columns

Batch = tuple[Columns, int]  # and how many samples


class Batches:
    """Batches of one size, as views of the chunks; what is left of a chunk waits for the next one."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rest: Columns | None = None  # an incomplete batch

    def of(self, chunk: Columns) -> Iterator[Batch]:
        """The batches that end in this chunk."""
        size, start, count = self._size, 0, cols.rows(chunk)
        if self._rest is not None:
            start = min(size - cols.rows(self._rest), count)
            batch = cols.combine([self._rest, cols.cut(chunk, 0, start)], torch.cat)
            self._rest = None
            if cols.rows(batch) < size:
                self._rest = batch
                return
            yield batch, size
        for at in range(start, count - size + 1, size):
            yield cols.cut(chunk, at, at + size), size
        left = start + (count - start) // size * size
        if left < count:
            self._rest = cols.apply(chunk, lambda column: column[left:].clone())

    def end(self) -> Batch | None:
        """The smaller batch that is left at the end of the pass."""
        rest, self._rest = self._rest, None
        return None if rest is None else (rest, cols.rows(rest))
