"""The median stopping rule of Vizier (Golovin et al., "Google Vizier", KDD 2017, section 3.2.2), over any searcher."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from shoal.core.plan import Proposal
from shoal.core.ports import Searcher
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.search.draws import check_numbers, needed, training
from shoal.search.rank import EPOCH, Mode, check_scores, cost


@dataclass(frozen=True, slots=True)
class MedianStopping:
    """What `inner` proposes; and a trial stops whose best score is worse than the median of the others' averages up to there.

    The others are those that came at least as far (Vizier counts finished ones, of which there are none until the end where
    all advance together), `min_trials` or more. Nothing stops before `grace_period` epochs. A trial without a finite score
    counts as the worst. `inner`: None is what the study would take without a searcher; what else is None is the study's.

    Raises:
        ValueError: numbers out of range.
    """

    inner: Searcher[Any] | None = None
    metric: str | None = None
    mode: Mode | None = None
    grace_period: float = 1
    min_trials: int = 3

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.min_trials < 1:
            raise ValueError(f"MedianStopping: min_trials must be >= 1; got {self.min_trials!r}")

    def start(self) -> Any:
        needed(self, "inner")
        assert self.inner is not None
        return self.inner.start()

    def propose(self, view: View, memory: Any) -> tuple[Proposal, Any]:
        needed(self, "inner")
        assert self.inner is not None
        check_scores(view, self.metric)
        proposal, memory = self.inner.propose(view, memory)
        return replace(proposal, retire=proposal.retire | frozenset(self._stopped(view))), memory

    def _stopped(self, view: View) -> Iterator[TrialId]:
        at = {t: view.scores[t][-1][0] for t in training(view) if view.scores[t]}
        for epoch in sorted({e for e in at.values() if e >= self.grace_period - EPOCH}):
            came = [t for t in view.known if view.scores[t] and view.scores[t][-1][0] >= epoch - EPOCH]
            costs = {t: each for t in came if (each := self._costs(view, t, epoch))}  # what began later has none up to there
            means = {t: fmean(each) for t, each in costs.items()}
            ranked = sorted(means.values())
            for t in (t for t, e in at.items() if e == epoch and len(costs) > self.min_trials):
                if min(costs[t]) > _median_without(ranked, means[t]):
                    yield t

    def _costs(self, view: View, trial: TrialId, epochs: float) -> list[float]:
        return [cost(values, self.metric, self.mode) for epoch, values in view.scores[trial] if epoch <= epochs + EPOCH]


def _median_without(ranked: Sequence[float], one: float) -> float:
    """The median of the others."""
    gap, count = bisect_left(ranked, one), len(ranked) - 1
    low, high = ((count - 1) // 2, count // 2)
    return (ranked[low + (low >= gap)] + ranked[high + (high >= gap)]) / 2
