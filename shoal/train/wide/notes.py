"""Values that a training step notes (its loss and others), averaged over a wide lane's ranks."""

from __future__ import annotations

from typing import Any

from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.noted import numbers

NOTHING = (0, 0.0)  # what a rank without rows noted


class Notes:
    """What this rank noted in the batches of a group: means over its own rows.

    `names`: the names of values that all ranks know.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        # of each batch, by name: rows, and the mean over them
        self._batches: list[dict[str, tuple[int, Any]]] = []

    @property
    def own(self) -> set[str]:
        """The names of what this rank noted."""
        return {name for batch in self._batches for name in batch}

    def take(self, lane: TrainingLane) -> None:
        """Take what the lane noted in a batch: nothing if no row of it fell to this rank."""
        noted = lane.noted.take()
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
        found: list[float] = []
        for rows, _ in noted:
            total = 0.0
            if rows:
                total = rows * next(means)
            found += (total, float(rows))
        return found

    def give(self, lane: TrainingLane, summed: list[float]) -> None:
        """Note the means over all ranks as if the lane had noted them. `summed`: see `numbers`."""
        pairs = zip(summed[::2], summed[1::2], strict=True)
        by_name = lane.noted.by_name
        for _ in self._batches:
            for name, (total, rows) in zip(self.names, pairs, strict=False):
                if rows:
                    mean = (int(rows), total / rows)
                    by_name.setdefault(name, []).append(mean)
        self.clear()
