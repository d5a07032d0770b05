"""A pass over a shard from any sample on, in batches of any size.

A lane needs this if its width changes during the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.stream.batches import Batch
from shoal.train.stream.blocks import joined

Chunks = Generator[Columns, None, None]
Open = Callable[[int], Chunks]  # the pass without its first so many samples


class Reader:
    """The samples of a pass in order.

    Batches that were taken since the last `keep` stay here, so that a step can be made again.
    """

    def __init__(self, chunks: Open, samples: int) -> None:
        self.samples = samples
        self.at = 0  # samples taken
        self._open = chunks
        self._stream: Chunks | None = None
        self._ahead: list[Columns] = []  # pieces that were read and not taken
        self._taken: list[Columns] = []  # batches since `keep`
        self._kept = 0  # the sample at which `_taken` begins

    def take(self, size: int) -> Batch | None:
        """The next batch, smaller at the end of the pass; None at its end."""
        size = min(size, self.samples - self.at)
        if size == 0:
            return None
        pieces: list[Columns] = []
        missing = size
        while missing:
            piece = self._piece(missing)
            pieces.append(piece)
            missing -= cols.rows(piece)
        batch = pieces[0]
        if len(pieces) > 1:
            batch = cols.combine(pieces, joined)
        self.at += size
        self._taken.append(batch)
        return batch, size

    def _piece(self, most: int) -> Columns:
        """The next samples that lie together, at most so many."""
        piece = self._next()
        rows = cols.rows(piece)
        if rows <= most:
            return piece
        rest = cols.cut(piece, most, rows)
        self._ahead.insert(0, rest)
        return cols.cut(piece, 0, most)

    def _next(self) -> Columns:
        """The next samples that were read, or else the next chunk."""
        if self._ahead:
            return self._ahead.pop(0)
        if self._stream is None:
            self._stream = self._open(self.at)
        return next(self._stream)

    def keep(self) -> None:
        """Note that the batches so far were trained on for good."""
        self._taken = []
        self._kept = self.at

    def seek(self, position: int) -> None:
        """Go on from that sample.

        Nothing is read again if that is the present sample, or the one at the last `keep`.
        """
        if position == self._kept:
            self._ahead = self._taken + self._ahead
            self._taken = []
        elif position != self.at:
            self.close()
        self.at = position
        self.keep()

    def end(self) -> None:
        """End the pass.

        Raises:
            ValueError: a step wrote into its batch.
        """
        if self._stream is not None and not self._ahead:
            next(self._stream, None)  # checks that the last chunk was not written to
        self.close()

    def close(self) -> None:
        """Drop what was read. The next batch is read from the present sample on."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._ahead = []
        self._taken = []
