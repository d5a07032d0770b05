"""Searchers that stop trials early, over any searcher: by the median of the others, by patience.

`MedianStopping` is the rule of Golovin et al., "Google Vizier", KDD 2017, section 3.2.2.
`Patience` is how models leave a flotilla in Guan et al., "FLEET", MLSys 2020, once they have
converged, which is looked at after each epoch. The paper does not say by what rule. This is the
usual one: no improvement for so many epochs.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Any, ClassVar

from shoal.core.plan import Proposal
from shoal.core.ports import Searcher
from shoal.core.state import View
from shoal.core.trial import TrialId, is_number, is_whole, shown
from shoal.search.draws import check_needs, check_numbers, retiring, training
from shoal.search.rank import EPOCH, Mode, check_scores, cost, scored


@dataclass(frozen=True, slots=True)
class MedianStopping:
    """Another searcher's trials, of which those below the median of the others stop.

    A trial stops if its best score is worse than the median of the others' averages up to the same
    epoch. The others are those that came at least as far. (Vizier counts finished ones; where all
    advance together there are none until the end.) A trial without a finite score counts as the
    worst. What is None is the study's.

    Args:
        inner: the other searcher. None: what the study would take without a searcher.
        metric: the score to compare by.
        mode: "min" or "max".
        grace_period: epochs before which nothing stops.
        min_trials: others that there must be.

    Raises:
        ValueError: a number is out of range.
    """

    needs: ClassVar = ("inner",)

    inner: Searcher[Any] | None = None
    metric: str | None = None
    mode: Mode | None = None
    grace_period: float = 1
    min_trials: int = 3

    def __post_init__(self) -> None:
        check_numbers(self)
        if not is_whole(self.min_trials) or self.min_trials < 1:
            raise ValueError(
                f"MedianStopping: min_trials must be >= 1; got {shown(self.min_trials)}"
            )

    def start(self) -> Any:
        return _inner_of(self).start()

    def propose(self, view: View, memory: Any) -> tuple[Proposal, Any]:
        inner = _inner_of(self)
        check_scores(view, self.metric)
        proposal, memory = inner.propose(view, memory)
        return retiring(proposal, self._stopped(view)), memory

    def _stopped(self, view: View) -> Iterator[TrialId]:
        """The trials to stop: each is looked at in the epoch of its newest score."""
        for epoch, trials in sorted(_by_epoch(view, self.metric).items()):
            if epoch >= self.grace_period - EPOCH:
                yield from self._stopped_at(view, epoch, trials)

    def _stopped_at(self, view: View, epoch: float, trials: list[TrialId]) -> Iterator[TrialId]:
        costs = self._costs(view, epoch)
        if len(costs) <= self.min_trials:
            return
        means = {trial: fmean(each) for trial, each in costs.items()}
        ranked = sorted(means.values())
        for trial in trials:
            if min(costs[trial]) > _median_without(ranked, means[trial]):
                yield trial

    def _costs(self, view: View, epochs: float) -> dict[TrialId, list[float]]:
        """All costs up to that epoch, of the trials that came so far and were evaluated."""
        costs: dict[TrialId, list[float]] = {}
        for trial in view.known:
            scores = scored(view, trial, self.metric)
            if not scores or scores[-1][0] < epochs - EPOCH:
                continue
            within = [values for epoch, values in scores if epoch <= epochs + EPOCH]
            if within:  # a trial that began later than this epoch has none
                costs[trial] = [cost(values, self.metric, self.mode) for values in within]
        return costs


def _by_epoch(view: View, metric: str | None) -> dict[float, list[TrialId]]:
    """The trials under way, by the epoch of their newest score."""
    found: dict[float, list[TrialId]] = {}
    for trial in training(view):
        scores = scored(view, trial, metric)
        if scores:
            epoch = scores[-1][0]
            found.setdefault(epoch, []).append(trial)
    return found


def _median_without(ranked: Sequence[float], one: float) -> float:
    """The median of the others."""
    gap = bisect_left(ranked, one)
    others = len(ranked) - 1
    low = (others - 1) // 2
    high = others // 2
    return (ranked[low + (low >= gap)] + ranked[high + (high >= gap)]) / 2


@dataclass(frozen=True, slots=True)
class Patience:
    """Another searcher's trials, each of which stops once its metric does not improve any more.

    Scores that are not finite are no improvement. What is None is the study's. Nothing is
    remembered: the scores tell.

    Args:
        inner: the other searcher. None: what the study would take without a searcher.
        epochs: a trial stops after so many epochs without an improvement.
        min_delta: an improvement is one by more than this, in the metric's own unit.
        metric: the score to look at.
        mode: "min" or "max".
        grace_period: epochs before which nothing stops.

    Raises:
        ValueError: a number is out of range.
    """

    needs: ClassVar = ("inner",)

    inner: Searcher[Any] | None = None
    epochs: float = 5
    min_delta: float = 0.0
    metric: str | None = None
    mode: Mode | None = None
    grace_period: float = 1

    def __post_init__(self) -> None:
        check_numbers(self)
        numbers = is_number(self.epochs) and is_number(self.min_delta)
        if not numbers or not (self.epochs > 0 and 0 <= self.min_delta < inf):
            raise ValueError(
                "Patience: epochs must be > 0 and min_delta >= 0; "
                f"got {shown(self.epochs)} and {shown(self.min_delta)}"
            )

    def start(self) -> Any:
        return _inner_of(self).start()

    def propose(self, view: View, memory: Any) -> tuple[Proposal, Any]:
        inner = _inner_of(self)
        check_scores(view, self.metric)
        proposal, memory = inner.propose(view, memory)
        return retiring(proposal, self._stopped(view)), memory

    def _stopped(self, view: View) -> Iterator[TrialId]:
        """The trials under way that have converged."""
        for trial in training(view):
            if self._converged(view, trial):
                yield trial

    def _converged(self, view: View, trial: TrialId) -> bool:
        scores = scored(view, trial, self.metric)
        if not scores or scores[-1][0] < self.grace_period - EPOCH:
            return False
        best = inf
        since = scores[0][0]
        for epoch, values in scores:
            now = cost(values, self.metric, self.mode)
            if now < best - self.min_delta:
                best = now
                since = epoch
        return scores[-1][0] - since >= self.epochs - EPOCH


def _inner_of(rule: "MedianStopping | Patience") -> Searcher[Any]:
    """The searcher whose trials the rule stops early.

    Raises:
        ValueError: the rule has none.
    """
    check_needs(rule)
    assert rule.inner is not None
    return rule.inner
