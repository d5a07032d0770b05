"""Trials that have converged leave: early stopping on the metric, over any searcher.

So models leave a flotilla in Guan et al., "FLEET", MLSys 2020: whether one has converged is looked at after each epoch. The paper
does not say by what rule; this is the usual one, no improvement for so many epochs.
"""

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

from shoal.core.plan import Proposal
from shoal.core.ports import Searcher
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.search.draws import check_numbers, needed, training
from shoal.search.rank import EPOCH, Mode, check_scores, cost


@dataclass(frozen=True, slots=True)
class Patience:
    """What `inner` proposes; and a trial stops whose metric has not improved by more than `min_delta` for `epochs` epochs.

    Nothing stops before `grace_period` epochs. Scores that are not finite are no improvement. `inner`: None is what the
    study would take without a searcher; what else is None is the study's. It remembers nothing: the scores tell.

    Raises:
        ValueError: numbers out of range.
    """

    inner: Searcher[Any] | None = None
    epochs: float = 5
    min_delta: float = 0.0
    metric: str | None = None
    mode: Mode | None = None
    grace_period: float = 1

    def __post_init__(self) -> None:
        check_numbers(self)
        if not (self.epochs > 0 and self.min_delta >= 0 and isfinite(self.min_delta)):
            raise ValueError(f"Patience: epochs must be > 0 and min_delta >= 0; got {self.epochs!r} and {self.min_delta!r}")

    def start(self) -> Any:
        needed(self, "inner")
        assert self.inner is not None
        return self.inner.start()

    def propose(self, view: View, memory: Any) -> tuple[Proposal, Any]:
        needed(self, "inner")
        assert self.inner is not None
        check_scores(view, self.metric)
        proposal, memory = self.inner.propose(view, memory)
        converged = frozenset(trial for trial in training(view) if self._converged(view, trial))
        return (replace(proposal, retire=proposal.retire | converged) if converged else proposal), memory

    def _converged(self, view: View, trial: TrialId) -> bool:
        scores = view.scores[trial]
        if not scores or scores[-1][0] < self.grace_period - EPOCH:
            return False
        best, since = inf, scores[0][0]
        for epoch, values in scores:
            now = cost(values, self.metric, self.mode)
            if now < best - self.min_delta:
                best, since = now, epoch
        return scores[-1][0] - since >= self.epochs - EPOCH
