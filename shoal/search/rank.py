"""Which trials are better, by their scores so far."""

from collections.abc import Iterable, Mapping
from math import inf, isfinite
from typing import Literal

from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.search.draws import by_number

Mode = Literal["min", "max"]
MaybeMode = Mode | None  # None: "min"
Metric = str | None  # None: none was named
Scores = Mapping[str, float]  # by metric, of one evaluation
EPOCH = 1e-9  # the part of an epoch that counts as none
NOTHING: Scores = {}


def cost(values: Scores, metric: Metric, mode: MaybeMode) -> float:
    """The metric as a number whose smallest is best; inf if it is not there or not finite.

    Raises:
        ValueError: no metric was named.
    """
    if metric is None:
        raise ValueError(
            "trials are compared by a metric: name it, metric=, in create_study or to the searcher"
        )
    value = values.get(metric)
    if value is None or not isfinite(value):
        return inf
    if mode == "max":
        return -value
    return value


def check_scores(view: View, metric: str | None) -> None:
    """Check the first scores that there are, so that a wrong name is found early.

    One evaluation that lacks the metric counts as one that is not finite.

    Raises:
        ValueError: no metric was named, no evaluation gives it, or nothing is evaluated.
    """
    cost({}, metric, None)
    first: Mapping[str, float] | None = None
    for trial in view.known:
        for _, values in view.scores[trial]:
            if metric in values:
                return
            if first is None:
                first = values
    if first is not None:
        names = ", ".join(sorted(first)) or "nothing"
        raise ValueError(f"trials have no metric {metric!r}; evaluations give {names}")
    if any(view.ended.get(trial) == "finished" for trial in view.known):
        raise ValueError(
            f"trials are compared by {metric!r}, but nothing is evaluated: define validation_step"
        )


def cost_at(
    view: View, trial: TrialId, epochs: float, metric: Metric, mode: MaybeMode
) -> float:
    """The cost at the trial's last evaluation within so many epochs; inf if there was none."""
    return cost(_last_within(view, trial, epochs), metric, mode)


def _last_within(view: View, trial: TrialId, epochs: float) -> Scores:
    """The trial's last scores within so many epochs; nothing if there were none."""
    for epoch, values in reversed(view.scores[trial]):
        if epoch <= epochs + EPOCH:
            return values
    return NOTHING


def reached(
    view: View, trial: TrialId, epochs: float, metric: Metric, mode: MaybeMode
) -> float | None:
    """The cost at the trial's first evaluation after so many epochs or more.

    None if it has not come so far.
    """
    values = _first_from(view, trial, epochs)
    if values is None:
        return None
    return cost(values, metric, mode)


def _first_from(view: View, trial: TrialId, epochs: float) -> Scores | None:
    """The trial's first scores after so many epochs or more; None if it has not come so far."""
    for epoch, values in view.scores[trial]:
        if epoch >= epochs - EPOCH:
            return values
    return None


def best_first(
    view: View,
    trials: Iterable[TrialId],
    epochs: float,
    metric: Metric,
    mode: MaybeMode,
) -> list[TrialId]:
    """Ranked by what they scored within so many epochs; ties go to the first."""
    return sorted(
        trials, key=lambda t: (cost_at(view, t, epochs, metric, mode), by_number(t))
    )
