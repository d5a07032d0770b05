"""Which trials are better: by their scores so far, never by those of trials that cannot be compared."""

from collections.abc import Iterable, Mapping
from math import inf, isfinite
from typing import Literal

from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.search.draws import by_number

Mode = Literal["min", "max"]
EPOCH = 1e-9  # of an epoch, that counts as none


def cost(values: Mapping[str, float], metric: str | None, mode: Mode | None) -> float:
    """The metric as a number whose smallest is best; inf where it is not finite or not there.

    Raises:
        ValueError: no metric was named.
    """
    if metric is None:
        raise ValueError("trials are compared by a metric: name it, metric=, in create_study or to the searcher")
    value = values.get(metric)
    if value is None or not isfinite(value):
        return inf
    return -value if mode == "max" else value


def check_scores(view: View, metric: str | None) -> None:
    """Look at the first scores that there are: a wrong name is told then, not when the first trials are compared.

    One evaluation that lacks it counts as one that is not finite.

    Raises:
        ValueError: no metric was named, none of the evaluations gives it, or there are none.
    """
    cost({}, metric, None)
    first: Mapping[str, float] | None = None
    for values in (values for trial in view.known for _, values in view.scores[trial]):
        if metric in values:
            return
        first = values if first is None else first
    if first is not None:
        raise ValueError(f"trials have no metric {metric!r}; evaluations give {', '.join(sorted(first)) or 'nothing'}")
    if any(view.ended.get(trial) == "finished" for trial in view.known):
        raise ValueError(f"trials are compared by {metric!r}, but nothing is evaluated: define validation_step")


def cost_at(view: View, trial: TrialId, epochs: float, metric: str | None, mode: Mode | None) -> float:
    """That of the trial's last evaluation within so many epochs; inf if there was none."""
    for epoch, values in reversed(view.scores[trial]):
        if epoch <= epochs + EPOCH:
            return cost(values, metric, mode)
    return cost({}, metric, mode)


def reached(view: View, trial: TrialId, epochs: float, metric: str | None, mode: Mode | None) -> float | None:
    """That of the trial's first evaluation after so many epochs or more; None if it has not come so far."""
    for epoch, values in view.scores[trial]:
        if epoch >= epochs - EPOCH:
            return cost(values, metric, mode)
    return None


def best_first(view: View, trials: Iterable[TrialId], epochs: float, metric: str | None, mode: Mode | None) -> list[TrialId]:
    """Ranked by what they scored within so many epochs; ties go to the first."""
    return sorted(trials, key=lambda t: (cost_at(view, t, epochs, metric, mode), by_number(t)))
