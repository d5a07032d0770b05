"""What the ranks of a wide lane tell each other with every step.

That is what its training step noted (its loss and others), to be averaged over the ranks, and
whether they go on together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.training_metrics import numbers

NOTHING = (0, 0.0)  # what a rank without rows noted
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class RankMessage(NamedTuple):
    """The message of one rank to the others, with every step."""

    generation: int  # that it is ready for; 0: none
    halted: bool
    unknown: bool  # it noted values whose names the others may not know
    present: Sequence[bool]  # by parameter, whether it has a gradient
    notes: Sequence[float]

    def packed(self) -> Bytes:
        """The message as bytes: equally many on all ranks."""
        flags = np.packbits([self.halted, self.unknown, *self.present])
        generation = np.array([self.generation], np.int64)
        notes = np.array(self.notes, np.float64)
        return np.concatenate([generation.view(np.uint8), flags, notes.view(np.uint8)])

    @classmethod
    def of(cls, packed: Bytes, parameters: int) -> RankMessage:
        """The message that was packed by a rank whose lane has so many parameters."""
        end = 8 + ceil((parameters + 2) / 8)  # the flags' last byte may be filled up
        generation = int(packed[:8].copy().view(np.int64)[0])
        flags = np.unpackbits(packed[8:end], count=parameters + 2).astype(bool).tolist()
        notes = packed[end:].copy().view(np.float64).tolist()
        return cls(generation, flags[0], flags[1], flags[2:], notes)


class Notes:
    """The values that this rank noted in the batches of a group: means over its own rows.

    `names`: the names of values that all ranks know.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        # of each batch, by name: rows, and the mean over them
        self._batches: list[dict[str, tuple[int, Any]]] = []

    @property
    def own_names(self) -> set[str]:
        """The names of what this rank noted."""
        return {name for batch in self._batches for name in batch}

    def take(self, lane: TrainingLane) -> None:
        """Take what the lane noted in a batch: nothing if no row of it fell to this rank."""
        noted = lane.metrics.take()
        self._batches.append({name: items[-1] for name, items in noted.items()})

    def clear(self) -> None:
        """Forget the batches."""
        self._batches = []

    def numbers(self) -> list[float]:
        """For each batch and name the sum over this rank's rows, and the number of rows.

        These numbers are to be summed over the ranks.
        """
        noted: list[tuple[int, Any]] = []
        for batch in self._batches:
            noted += [batch.get(name, NOTHING) for name in self.names]
        means = iter(numbers([mean for rows, mean in noted if rows]))
        sums: list[float] = []
        for rows, _ in noted:
            total = 0.0
            if rows:
                total = rows * next(means)
            sums += (total, float(rows))
        return sums

    def give(self, lane: TrainingLane, by_rank: Sequence[Sequence[float]]) -> None:
        """Note the means over all ranks, by their `numbers`, as if the lane had noted them."""
        summed = [sum(each) for each in zip(*by_rank, strict=True)]
        pairs = zip(summed[::2], summed[1::2], strict=True)
        by_name = lane.metrics.by_name
        for _ in self._batches:
            for name, (total, rows) in zip(self.names, pairs, strict=False):
                if rows:
                    mean = (int(rows), total / rows)
                    by_name.setdefault(name, []).append(mean)
        self.clear()
