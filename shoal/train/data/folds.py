"""k-fold cross-validation: which rows a trial trains and validates on, by its fold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.core.cluster import ShardId
from shoal.train.data.columns import Array, DataError
from shoal.train.data.parts import Division, Index, divide


@dataclass(frozen=True)
class Folds:
    """The rows of each fold. All folds leave equally many rows to train on.

    `rows`: in a random order. `fold`: the number of each one's fold.
    """

    count: int
    rows: Index
    fold: Index
    shards: int
    row_bytes: float

    def index(self, fold: int) -> Mapping[ShardId, Index]:
        """The rows of the training shards and validation parts of trials with this fold."""
        chosen = self.fold == fold
        train = self.rows[~chosen]
        # Where a fold is smaller by a row, a row is left out: shards have one size in all folds.
        train = train[: len(self.rows) - self.largest]
        how = Division(0, self.shards)
        return divide(train, self.rows[chosen], how, self.row_bytes).index

    @property
    def largest(self) -> int:
        """Rows of the largest fold."""
        return -(-len(self.rows) // self.count)


def made_folds(
    count: int,
    rows: Index,
    labels: Array | None,
    seed: int,
    shards: int,
    row_bytes: float,
) -> Folds:
    """Divide rows in `count` folds; `labels`: of the rows, whose shares each fold has, too.

    Raises:
        DataError: fewer than two folds, or more than rows.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= len(rows):
        raise DataError(
            f"folds must be a whole number between 2 and the {len(rows)} samples; got {count!r}"
        )
    order = np.random.default_rng(seed).permutation(len(rows))
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(rows), np.int64)
    fold[order] = np.arange(len(rows)) % count
    mixed = np.random.default_rng([seed, 1]).permutation(len(rows))
    return Folds(count, rows[mixed], fold[mixed], shards, row_bytes)
