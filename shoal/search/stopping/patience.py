"""Trials that have converged leave: early stopping on the metric, over any searcher.

So models leave a flotilla in Guan et al., "FLEET", MLSys 2020: whether one has converged is looked
at after each epoch. The paper does not say by what rule. This is the usual one: no improvement for
so many epochs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from shoal.core.plan import Proposal
from shoal.core.ports import Searcher
from shoal.core.state import View
from shoal.core.trial import TrialId, is_number, shown
from shoal.search.draws import check_numbers, needed, retiring, training
from shoal.search.rank import EPOCH, Mode, check_scores, cost, scored


@dataclass(frozen=True, slots=True)
class Patience:
    """What `inner` proposes; a trial stops once its metric has not improved for `epochs` epochs.

    An improvement is one by more than `min_delta`. Nothing stops before `grace_period` epochs.
    Scores that are not finite are no improvement. `inner`: None is what the study would take
    without a searcher; what else is None is the study's. Nothing is remembered: the scores tell.

    Raises:
        ValueError: a number is out of range.
    """

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
        return self._within().start()

    def _within(self) -> Searcher[Any]:
        """The searcher whose trials stop early; ValueError if there is none."""
        needed(self, "inner")
        assert self.inner is not None
        return self.inner

    def propose(self, view: View, memory: Any) -> tuple[Proposal, Any]:
        inner = self._within()
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
