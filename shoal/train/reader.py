"""A pass over a shard from any sample on, in batches of any size: what a lane needs whose width changes on the way."""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch

from shoal.train import columns as cols
from shoal.train.batches import Batch
from shoal.train.columns import Columns

Open = Callable[[int], Generator[Columns, None, None]]  # the chunks of the pass, without its first so many samples


class Reader:
    """The samples of a pass in order. What was taken since `keep` is held, so that a step can be made again."""

    def __init__(self, chunks: Open, samples: int) -> None:
        self.samples = samples
        self.at = 0  # samples taken
        self._open = chunks
        self._stream: Generator[Columns, None, None] | None = None
        self._ahead: list[Columns] = []  # read, and not taken
        self._taken: list[Columns] = []  # since `keep`
        self._kept = 0  # where `_taken` begins

    def take(self, size: int) -> Batch | None:
        """The next batch, smaller at the end of the pass; None at its end."""
        size = min(size, self.samples - self.at)
        if size == 0:
            return None
        pieces: list[Columns] = []
        missing = size
        while missing:
            piece = self._piece()
            rows = cols.rows(piece)
            pieces.append(piece if rows <= missing else cols.cut(piece, 0, missing))
            if rows > missing:
                self._ahead.insert(0, cols.cut(piece, missing, rows))
            missing -= min(rows, missing)
        batch = pieces[0] if len(pieces) == 1 else cols.combine(pieces, torch.cat)
        self.at += size
        self._taken.append(batch)
        return batch, size

    def _piece(self) -> Columns:
        if self._ahead:
            return self._ahead.pop(0)
        if self._stream is None:
            self._stream = self._open(self.at)
        return next(self._stream)

    def keep(self) -> None:
        """What was taken so far was trained on for good."""
        self._taken, self._kept = [], self.at

    def seek(self, position: int) -> None:
        """Go on from that sample: at once where that is here, or where `keep` was called last."""
        if position == self._kept:
            self._ahead, self._taken = self._taken + self._ahead, []
        elif position != self.at:
            self.close()
        self.at = position
        self.keep()

    def end(self) -> None:
        """The pass is over.

        Raises:
            ValueError: a step wrote into its batch.
        """
        if self._stream is not None and not self._ahead:
            next(self._stream, None)  # the last chunk was found unchanged
        self.close()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._ahead, self._taken = None, [], []
