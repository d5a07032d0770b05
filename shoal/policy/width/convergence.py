"""What a trial has left, foretold from its scores instead of taken from its `samples`.

Capes et al. 2019, section 3.1.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from shoal.core.state import View
from shoal.core.trial import Samples, TrialId
from shoal.policy.width.ask import Left, left_of

POINTS = 3  # fewer scores tell nothing
# Words in names of metrics of which more is better, and of those of which less is.
LARGER = frozenset({"acc", "accuracy", "auc", "auroc", "bleu", "dice", "f1", "iou", "r2", "recall"})
SMALLER = frozenset({"loss", "error", "nll", "perplexity", "mse", "rmse", "mae"})
Series = tuple[tuple[float, float], ...]  # epochs, rising, and the metric at each
Floats = NDArray[np.float64]


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
    """The error text for a metric to foretell by of which more is better."""
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
        # The trial's epochs and its scores above 0.
        points = []
        for epoch, scores in view.scores[trial]:
            if scores.get(metric, 0.0) > 0:
                points.append((epoch, scores[metric]))
        series = tuple(points)
        return min(most, _foretold(series, drop, view.done[trial], most))

    return left


def _foretold(series: Series, drop: float, done: Samples, most: Samples) -> Samples:
    """The samples left by the fitted curve; `most` where there are too few scores."""
    if len(series) < POINTS:
        return most
    now = series[-1][0]
    if now <= 0:
        return most
    first = series[0][1]
    last = _last_epoch(series, drop * first)
    epochs = max(last - now, now / 4)
    return epochs * done / now


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
    names = sorted(scores[0][1])
    listed = ", ".join(names) or "nothing"
    raise ValueError(
        "foretell must be a metric that evaluations give; "
        f"got {metric!r}, evaluations give {listed}: {_remedy(names)}"
    )


def _remedy(names: Iterable[str]) -> str:
    """The advice where evaluations do not give the metric to foretell by."""
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


# -- the fitted curve
#
# How long a trial still has to train, from its loss so far.
# Source: Capes et al. 2019, eq. 1 (after Optimus, EuroSys 2018). Stochastic gradient descent
# converges as 1/k, so the loss after k steps is 1 / (b0 k + b1) + b2, with b0 > 0 and b1, b2 >=
# 0. Steps are whatever the losses are counted in; epochs will do.


@dataclass(frozen=True, slots=True)
class Convergence:
    """The fitted curve: `slope` is b0, `offset` b1, and `floor` b2, the loss that it nears."""

    slope: float
    offset: float
    floor: float

    def loss(self, step: float) -> float:
        """The loss expected after so many steps; infinite at the curve's pole, before step 1."""
        below = self.slope * step + self.offset
        if below <= 0:
            return inf
        return self.floor + 1.0 / below

    def steps_to(self, loss: float) -> float:
        """Steps in all until the loss is this low; infinity if it never is."""
        gap = loss - self.floor
        if gap <= 0 or self.slope <= 0:
            return inf
        return self._step_at(1.0 / gap)

    def _step_at(self, inverse: float) -> float:
        """The step at which the inverse of the loss above the floor is this."""
        return max(0.0, (inverse - self.offset) / self.slope)

    def steps_until_flat(self, drop: float) -> float:
        """Steps in all until one more step lowers the loss by less than `drop`.

        That is Optimus' sign of convergence.

        Raises:
            ValueError: drop is not positive.
        """
        if not drop > 0:
            raise ValueError(
                f"the drop per step that counts as converged must be > 0; got {drop!r}"
            )
        if self.slope <= 0:
            return 0.0
        return self._step_at(sqrt(self.slope / drop))


def fit_convergence(steps: Sequence[float], losses: Sequence[float]) -> Convergence:
    """Least squares over (step, loss) points.

    For a given floor b2, NNLS gives b0 and b1; the floor is found by a search.

    Raises:
        ValueError: there are fewer than three points, the lengths differ, or a loss is not positive
            and finite.
    """
    if len(steps) != len(losses) or len(steps) < 3:
        raise ValueError(
            "a convergence fit needs three (step, loss) points at least; "
            f"got {len(steps)} and {len(losses)}"
        )
    if not all(isfinite(x) and x > 0 for x in losses):
        raise ValueError(f"losses must be > 0 and finite; got {min(losses)!r} among them")
    scale = float(max(losses))
    k = np.asarray(steps, float)
    y = np.asarray(losses, float) / scale
    floors = np.linspace(0.0, float(y.min()), 66)[:-1]
    for _ in range(4):  # each round looks closer around the best floor of the one before
        errors = [_fit(k, y, floor)[2] for floor in floors]
        best = int(np.argmin(errors))
        low = floors[max(best - 1, 0)]
        high = floors[min(best + 1, len(floors) - 1)]
        floors = np.linspace(low, high, 17)
    floor = float(min(floors, key=lambda f: _fit(k, y, f)[2]))
    slope, offset, _ = _fit(k, y, floor)
    return Convergence(slope / scale, offset / scale, floor * scale)


def _fit(k: Floats, y: Floats, floor: float) -> tuple[float, float, float]:
    """Slope and offset for this floor, and the squared error of the loss.

    NNLS fits the inverse of the loss above the floor; the weights make it the error of the loss.
    """
    from scipy.optimize import nnls  # slow to import, and needed here only

    gap = y - floor
    weight = gap**2
    (slope, offset), _ = nnls(np.stack([k * weight, weight], axis=1), weight / gap)
    below = slope * k + offset
    if (below <= 0).any():
        return float(slope), float(offset), inf
    error = ((1.0 / below + floor - y) ** 2).sum()
    return float(slope), float(offset), float(error)
