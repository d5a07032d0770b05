"""What a trial has left, foretold from its scores (Capes et al. 2019, section 3.1) instead of taken from its `samples`."""

from collections.abc import Callable
from functools import lru_cache

from shoal.core.state import View
from shoal.core.trial import Samples, TrialId
from shoal.policy.ask import left_of
from shoal.profile.convergence import fit_convergence

POINTS = 3  # fewer scores tell nothing


def foretold(metric: str, drop: float = 0.005) -> Callable[[View, TrialId], Samples]:
    """Samples until an epoch lowers this metric by less than `drop` of its first value, as the fitted curve has it.

    Never more than the trial's own `samples` leave, and a quarter of what it has done at least while it goes on, since the
    curve may be wrong. With fewer than three scores above 0: what its `samples` leave.
    """

    def left(view: View, trial: TrialId) -> Samples:
        most = left_of(view, trial)
        series = tuple((epoch, scores[metric]) for epoch, scores in view.scores[trial] if scores.get(metric, 0.0) > 0)
        if len(series) < POINTS or series[-1][0] <= 0:
            return most
        now = series[-1][0]
        epochs = max(_last_epoch(series, drop * series[0][1]) - now, now / 4)
        return min(most, epochs * view.done[trial] / now)

    return left


@lru_cache(maxsize=4096)
def _last_epoch(series: tuple[tuple[float, float], ...], drop: float) -> float:
    return fit_convergence([epoch for epoch, _ in series], [loss for _, loss in series]).steps_until_flat(drop)
