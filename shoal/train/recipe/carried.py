"""The state that a trial's steps hand from one batch to the next, as a recurrent model needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from shoal.train.data import columns as cols
from shoal.train.data.collate import moved
from shoal.train.data.columns import Lot

STATE = "state"  # the argument of a step that gets the state, and returns it
RULE = (
    "a step that names an argument `state` must return two things: what a step returns otherwise, "
    "and the state for the next batch"
)


class Carried:
    """The state of one trial in one pass: None at its start, and at a smaller last batch."""

    def __init__(self) -> None:
        self.state: Any = None
        self._rows = 0  # of the batch before

    def restart(self) -> None:
        """Begin a pass."""
        self.state = None
        self._rows = 0

    def saved(self, export: Callable[[Any], Any]) -> dict[str, Any]:
        """What a checkpoint within a pass must hold, as arrays. Nothing between passes."""
        if self.state is None:
            return {}
        return {"carried": export(self.state)}

    def load(
        self,
        saved: Mapping[str, Any],
        tensors: Callable[[Any], Any],
        device: torch.device,
    ) -> None:
        """Go on with the state of a checkpoint, on the device."""
        self.restart()
        self.state = moved(tensors(saved.get("carried")), device)

    def step(self, step: Callable[[Any], Any], batch: Any) -> Any:
        """What the step returns without the state, which is kept for the next batch.

        Raises:
            TypeError: it does not return two things.
        """
        rows = _rows(batch)
        if self.state is not None and self._rows not in (0, rows):
            self.state = None
        outcome = step(self.state)
        if not isinstance(outcome, tuple) or len(outcome) != 2:
            raise TypeError(f"{RULE}; got {type(outcome).__name__}")
        values, state = outcome
        self.state = detached(state)
        self._rows = rows
        return values


def _rows(batch: Any) -> int:
    """Samples in the batch."""
    if isinstance(batch, Lot | tuple | dict):
        return cols.rows(batch)
    return 0


def detached(state: Any) -> Any:
    """The state without the graph that it was computed by."""
    if isinstance(state, Tensor):
        return state.detach()
    if isinstance(state, Mapping):
        return {name: detached(value) for name, value in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*map(detached, state))
    if isinstance(state, tuple | list):
        return type(state)(map(detached, state))
    return state
