"""Which trials are better, by their scores so far."""

from collections.abc import Iterable, Mapping
from math import inf, isfinite
from typing import Literal

from shoal.core.state import Score, View, having
from shoal.core.trial import TrialId
from shoal.search.draws import by_number

Mode = Literal["min", "max"]
MaybeMode = Mode | None  # None: "min"
Metric = str | None  # None: none was named
Scores = Mapping[str, float]  # by metric, of one evaluation
EPOCH = 1e-9  # the part of an epoch that counts as none


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


def scored(view: View, trial: TrialId, metric: Metric) -> tuple[Score, ...]:
    """The trial's evaluations that give the metric, oldest first, each as it first came.

    Where the trial fell back and was evaluated anew, what was decided by the first values still
    holds.
    """
    return having(view.first_scores.get(trial) or view.scores[trial], metric)


def check_scores(view: View, metric: str | None) -> None:
    """Check that there are scores to compare by, once the first trial came to its end.

    Until then the metric may still come: it may be given by some evaluations only, or at the end.
    Evaluations that lack it do not count.

    Raises:
        ValueError: no metric was named, no evaluation gives it, or nothing is evaluated.
    """
    cost({}, metric, None)
    ends: list[TrialId] = []
    names: set[str] = set()
    for trial in view.known:
        if scored(view, trial, metric):
            return
        if view.ended.get(trial) == "finished":
            ends.append(trial)
            names.update(*(values for _, values in view.scores[trial]))
    if names:
        raise ValueError(
            f"trials have no metric {metric!r}; evaluations give {', '.join(sorted(names))}: trial "
            f"{ends[0]} came to an end where it is compared with others. Give metric= one of "
            "these, or let an evaluation give it by then"
        )
    if ends:
        raise ValueError(
            f"trials are compared by {metric!r}, but nothing is evaluated: define validation_step"
        )


def cost_at(view: View, trial: TrialId, epochs: float, metric: Metric, mode: MaybeMode) -> float:
    """The cost at the trial's last evaluation within so many epochs; inf if there was none."""
    for epoch, values in reversed(scored(view, trial, metric)):
        if epoch <= epochs + EPOCH:
            return cost(values, metric, mode)
    return inf


def reached(
    view: View, trial: TrialId, epochs: float, metric: Metric, mode: MaybeMode
) -> float | None:
    """The cost at the trial's first evaluation after so many epochs or more.

    None if it has not come so far.
    """
    for epoch, values in scored(view, trial, metric):
        if epoch >= epochs - EPOCH:
            return cost(values, metric, mode)
    return None


def best_first(
    view: View, trials: Iterable[TrialId], epochs: float, metric: Metric, mode: MaybeMode
) -> list[TrialId]:
    """Ranked by what they scored within so many epochs; ties go to the first."""
    return sorted(trials, key=lambda t: (cost_at(view, t, epochs, metric, mode), by_number(t)))
