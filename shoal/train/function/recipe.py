"""Functions as recipes: what a study trains when the user's code drives itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.trial import Trial
from shoal.train.data.data import Data
from shoal.train.recipe.recipe import Recipe

# Reports of a trial that ends when its function returns.
UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True)
class TrialContext:
    """What a function's trial knows of itself.

    `chosen`: the configuration, to which an objective adds what it draws. `restored`: whether it
    goes on from a checkpoint. `log`: where its output belongs; None: nowhere.
    """

    trial: Trial
    seed: int
    metric: str
    chosen: dict[str, Any]
    restored: bool
    log: Path | None


class FunctionRecipe(Recipe):
    """Trains by calling a function of the configuration, which reports by itself.

    A report counts as an epoch: one visit of data that is one shard of one sample.
    """

    max_epochs = UNLIMITED

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        """What the user calls it."""
        return name_of(self.function)

    def data(self) -> Data:
        """One sample, which nobody reads."""
        return Data.arrays(np.zeros(1), shards=1, validation=None)

    def run(self, context: TrialContext) -> Any:
        """Train a trial to its end; returns what the function returns."""
        return self.function(dict(context.chosen))

    def check(self, space: Mapping[str, Any] | None) -> None:
        """Raise ValueError if configurations of this space are not what the code needs."""


def name_of(function: Any) -> str:
    """The name of a function, or of the class of a callable object."""
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    return name.strip("<>")
