"""Samples of similar lengths, put together within a chunk."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.train.data import columns as cols
from shoal.train.data.arrangement import bucketed
from shoal.train.data.columns import Columns, Ragged
from shoal.train.data.data import Data
from shoal.train.data.items import ItemForm
from shoal.train.stream.blocks import as_numpy, taken

BATCHES = 4  # of the recipe's batch size, to a group of samples of similar lengths
USUAL = 32  # samples to a batch, where the recipe's batch size is to be found out


class LengthBuckets:
    """Sorts chunks by the lengths of their samples."""

    def __init__(self, data: Data, batch_size: int | str) -> None:
        size = batch_size if isinstance(batch_size, int) else USUAL
        self._group = BATCHES * size
        self._by = data.arrangement.buckets
        self._form = data.form or ItemForm()

    def sorted(self, chunk: Columns, drawn: np.random.Generator) -> Columns:
        """The chunk in groups of similar lengths, which come in a random order."""
        return taken(chunk, bucketed(self._lengths(chunk), self._group, drawn))

    def _lengths(self, chunk: Columns) -> Any:
        """The length of each sample.

        Raises:
            ValueError: there is no such column, or its values have no lengths.
        """
        named: dict[Any, Any] = dict(enumerate(cols.parts(chunk)))
        if isinstance(chunk, dict):
            named = chunk
        if callable(self._by):
            kept = cols.apply(chunk, as_numpy)
            form = self._form.of(kept)
            of_parts = dict(zip(named, cols.parts(kept), strict=True))
            return np.array([self._by(item) for item in form.items(of_parts)])
        if self._by not in named:
            raise ValueError(
                f"buckets={self._by!r} must name a column; there are {', '.join(map(str, named))}"
            )
        column = as_numpy(named[self._by])
        if isinstance(column, Ragged):
            return column.lengths
        if column.ndim == 1:
            return column
        return np.full(len(column), column.shape[1])
