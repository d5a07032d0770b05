"""What came of one trial, as users see it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.state import Score
from shoal.core.trial import Samples, TrialId, Value
from shoal.train.function.objective import numbered

# What users of other tools look for, and what to use here.
MEANT = {
    "state": "status",
    "values": "value, or metrics",
    "intermediate_values": "scores",
    "user_attrs": "metrics",
    "last_result": "metrics",
    "last_step": "epochs",
    "name": "id",
    "trial_id": "id",
    "checkpoint": "study.checkpoint(trial)",
}


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of one trial.

    `value` is its last score of the study's metric, `best_value` the best over its epochs; both
    are nan without a score. `scores` are (epoch, {metric: value}), oldest first.
    """

    id: TrialId
    config: Mapping[str, Value]
    status: str  # "running", "finished", "retired" or "failed: why"
    epochs: float
    samples: Samples
    value: float
    best_value: float
    scores: tuple[Score, ...]

    @property
    def number(self) -> int:
        """The number in its name, from 0, as Optuna calls it."""
        return numbered(self.id)

    @property
    def params(self) -> Mapping[str, Value]:
        """`config`, as Optuna calls it."""
        return self.config

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last scores by name, as Ray Tune calls it; empty without a score."""
        if not self.scores:
            return {}
        return self.scores[-1][1]

    def __getattr__(self, name: str) -> Any:
        meant = MEANT.get(name)
        hint = ""
        if meant is not None:
            hint = f": did you mean {meant}?"
        raise AttributeError(f"a trial has no {name!r}{hint}")
