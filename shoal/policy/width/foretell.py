"""What a trial has left, foretold from its scores instead of taken from its `samples`.

Capes et al. 2019, section 3.1.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from shoal.core.state import View
from shoal.core.trial import Samples, TrialId
from shoal.policy.width.ask import Left, left_of
from shoal.profile.convergence import fit_convergence

POINTS = 3  # fewer scores tell nothing
# Words in names of metrics of which more is better, and of those of which less is.
LARGER = frozenset({"acc", "accuracy", "auc", "auroc", "bleu", "dice", "f1", "iou", "r2", "recall"})
SMALLER = frozenset({"loss", "error", "nll", "perplexity", "mse", "rmse", "mae"})
Series = tuple[tuple[float, float], ...]  # epochs, rising, and the metric at each


def more_is_better(metric: str) -> bool:
    """Whether the metric's name says so."""
    words = _words(metric)
    return bool(words & LARGER) and not words & SMALLER


def _words(metric: str) -> set[str]:
    """The words in a metric's name."""
    return set(re.split("[_/ .-]", metric.lower()))


def check_foretell(metric: str | None) -> None:
    """Raise ValueError if more of this metric is better: the curve of eq. 1 only falls."""
    if metric and more_is_better(metric):
        raise ValueError(rises(metric))


def rises(metric: str) -> str:
    """What to say of a metric to foretell by of which more is better."""
    return (
        "foretell must be a metric that falls as trials learn, and more is better of "
        f"{metric!r}: say foretell='loss', or another loss that evaluations give"
    )


def left_by(metric: str | None) -> Left:
    """How to ask what a trial has left: foretold from the metric, or (None) from its samples."""
    if metric:
        return foretold(metric)
    return left_of


def foretold(metric: str, drop: float = 0.005) -> Left:
    """Samples until an epoch lowers this metric by less than `drop` of its first value.

    The fitted curve of the paper's section 3.1 tells. It is never more than the trial's own
    `samples` leave. While the trial goes on it is a quarter of what the trial has done at least,
    since the curve may be wrong. With fewer than three scores above 0 it is what `samples` leave.
    """

    def left(view: View, trial: TrialId) -> Samples:
        most = left_of(view, trial)
        _check_metric(view, trial, metric)
        series = _series(view, trial, metric)
        return min(most, _foretold(series, drop, view.done[trial], most))

    return left


def _foretold(series: Series, drop: float, done: Samples, most: Samples) -> Samples:
    """What the fitted curve says is left; `most` where there are too few scores."""
    if len(series) < POINTS:
        return most
    now = series[-1][0]
    if now <= 0:
        return most
    first = series[0][1]
    last = _last_epoch(series, drop * first)
    epochs = max(last - now, now / 4)
    return epochs * done / now


def _series(view: View, trial: TrialId, metric: str) -> Series:
    """The trial's epochs and its scores above 0."""
    found = []
    for epoch, scores in view.scores[trial]:
        if scores.get(metric, 0.0) > 0:
            found.append((epoch, scores[metric]))
    return tuple(found)


def check_scores(view: View, metric: str | None) -> None:
    """Raise ValueError if a running trial is evaluated, and no evaluation gives the metric.

    For policies that ask what is left only now and then, so that a misspelt one shows at once.
    """
    if metric:
        for trial in view.running:
            _check_metric(view, trial, metric)


def _check_metric(view: View, trial: TrialId, metric: str) -> None:
    """Raise ValueError if the trial is evaluated, and no evaluation gives the metric."""
    scores = view.scores[trial]
    if not scores:
        return
    for _, values in scores:
        if metric in values:
            return
    raise ValueError(_not_there(metric, sorted(scores[0][1])))


def _not_there(metric: str, names: Sequence[str]) -> str:
    """What to say where evaluations give other metrics than the one to foretell by."""
    listed = ", ".join(names) or "nothing"
    return (
        "foretell must be a metric that evaluations give; "
        f"got {metric!r}, evaluations give {listed}: {_remedy(names)}"
    )


def _remedy(names: Iterable[str]) -> str:
    """What to do where the metric to foretell by is not there."""
    falling = [name for name in names if not more_is_better(name)]
    if falling:
        return f"say foretell={max(falling, key=_is_loss)!r}"
    return "return a loss from validation_step"


def _is_loss(metric: str) -> bool:
    """Whether the metric's name says that less of it is better."""
    return bool(_words(metric) & SMALLER)


@lru_cache(maxsize=4096)
def _last_epoch(series: Series, drop: float) -> float:
    """The epoch from which on the fitted curve falls by less than `drop` an epoch."""
    epochs = [epoch for epoch, _ in series]
    losses = [loss for _, loss in series]
    return fit_convergence(epochs, losses).steps_until_flat(drop)
