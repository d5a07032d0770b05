"""A lane's scores on validation data, chunk by chunk, so that several lanes can share the chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shoal.train import columns as cols
from shoal.train.buffers import buffers
from shoal.train.columns import Columns
from shoal.train.device import doubled

if TYPE_CHECKING:
    from shoal.train.lane import Lane

EVALUATION_BATCHES = 4  # without gradients a batch of so many training batches fits where one of those does


class Scoring:
    """The means of the validation step's values over the chunks so far."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._totals: dict[str, list[Any]] = {}

    def add(self, chunk: Columns) -> None:
        """Validate on these samples, too."""
        lane = self._lane
        with lane.rng, torch.no_grad():
            size = EVALUATION_BATCHES * lane.settings.batch_size
            for at in range(0, cols.rows(chunk), size):
                self._add(cols.cut(chunk, at, at + size))
            for total in self._totals.values():  # on the device until here
                total[0] = float(total[0])

    def _add(self, batch: Columns) -> None:
        lane, count = self._lane, cols.rows(batch)
        with lane._casting():
            scores = lane._recipe.validation_step(lane.model, batch)
        for name, values in scores.items():
            if not isinstance(values, Tensor) or tuple(values.shape) != (count,):
                got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                rule = f"validation_step must return a value for each of the {count} samples, shape ({count},)"
                raise ValueError(f"{rule}; {name}: got {got}")
            total = self._totals.setdefault(name, [0.0, 0])
            total[0] = total[0] + doubled(values).sum()
            total[1] += count

    def means(self) -> dict[str, float]:
        """By name."""
        return {name: total / count for name, (total, count) in self._totals.items()}


@contextmanager
def scoring(lane: Lane) -> Iterator[Scoring]:
    """Have the lane validated. Afterwards no parameter, buffer, random state or training flag has changed."""
    flags = [(module, module.training) for module in lane.model.modules()]
    held, mark = buffers(lane.model), lane.rng.mark()
    try:
        lane.model.eval()
        yield Scoring(lane)
    finally:
        lane.rng.back(mark)
        for module, flag in flags:
            module.training = flag
        held.put_back()
