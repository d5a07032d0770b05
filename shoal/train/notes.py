"""Values that a training step notes (its loss and others), combined over the ranks of a wide lane."""

from __future__ import annotations

from typing import Any

from shoal.train.lane import Lane, _numbers


class Notes:
    """What this rank noted in the batches of a group: means over its own rows. `names` are those that all ranks know."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._batches: list[dict[str, tuple[int, Any]]] = []  # by name: rows, and the mean over them

    @property
    def own(self) -> set[str]:
        """The names of what this rank noted."""
        return {name for batch in self._batches for name in batch}

    def take(self, lane: Lane) -> None:
        """What the lane noted in a batch, or nothing where no row of it fell to this rank."""
        self._batches.append({name: noted[-1] for name, noted in lane._noted.items()})
        lane._noted = {}

    def clear(self) -> None:
        """Forget the batches."""
        self._batches = []

    def numbers(self) -> list[float]:
        """For each batch and name the sum of the values over this rank's rows, and the rows: to be summed over the ranks."""
        noted = [batch.get(name, (0, 0.0)) for batch in self._batches for name in self.names]
        values = [value for rows, value in noted if rows]
        means = iter(_numbers(values) if values else [])
        return [x for rows, _ in noted for x in (rows * next(means) if rows else 0.0, float(rows))]

    def give(self, lane: Lane, numbers: list[float]) -> None:
        """The same numbers, summed, as if the lane had noted the means itself."""
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        for _ in self._batches:
            for name, (total, rows) in zip(self.names, pairs, strict=False):
                if rows:
                    lane._noted.setdefault(name, []).append((int(rows), total / rows))
        self.clear()
