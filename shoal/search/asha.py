"""ASHA: asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020).

No trial waits for others: whoever is among the best of those that came to a rung so far goes on. On hopping, with as many
trials under way as slots, it is that of Cerebro section 6.3.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from math import floor, inf

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Trial, TrialId
from shoal.search.batch import whole_epochs
from shoal.search.draws import (
    EPS,
    Draws,
    by_number,
    check_numbers,
    draws,
    extended,
    mine,
    needed,
    new_trial,
    numbered,
    room,
    through,
    training,
)
from shoal.search.halving import ETA_SLACK
from shoal.search.rank import EPOCH, Mode, best_first, check_scores, cost_at, reached
from shoal.search.space import Space


def rungs(grace_period: float, factor: float, max_epochs: float) -> tuple[float, ...]:
    """Epochs at which trials are compared, each `factor` times the one before, and last `max_epochs`."""
    found: list[float] = []
    epochs = grace_period
    while epochs < max_epochs * (1 - ETA_SLACK):
        found.append(max(1, round(epochs)))
        epochs *= factor
    return (*dict.fromkeys(at for at in found if at < max_epochs), max_epochs)


@dataclass(frozen=True, slots=True)
class ASHA:
    """`num_samples` trials in all, compared after `grace_period` epochs, `reduction_factor` times as many, …, `max_epochs`.

    Promotion (the paper's Algorithm 2): a trial stops at each rung, and goes on while it is among the best 1/factor of those that
    came there; where none may, a new one begins, and where too few come for one to reach the end, the best goes there.
    `stopping`: a trial trains on unless it is not among them when it comes there, or before its next evaluation (much as Ray
    Tune does it); nothing stopped ever goes on.
    `max_concurrent`: trials under way; None: as many as slots, or `per_slot` times as many for packs. A trial without a
    finite score goes no further; ties go to the first. What is None is the study's.

    Raises:
        ValueError: numbers out of range.
    """

    space: Space | None = field(default=None, hash=False)
    num_samples: int | None = None
    max_epochs: float | None = None
    grace_period: float = 1
    reduction_factor: float = 3
    metric: str | None = None
    mode: Mode | None = None
    seed: int | None = None
    stopping: bool = False
    max_concurrent: int | None = None
    per_slot: int | None = None
    _draws: Draws = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        object.__setattr__(self, "_draws", draws(self.space, self.seed))

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        needed(self, "num_samples", "max_epochs")
        check_scores(view, self.metric)
        assert self.num_samples is not None and self.max_epochs is not None
        epochs = rungs(self.grace_period, self.reduction_factor, self.max_epochs)
        trials, free = mine(view, self.num_samples), room(view, self.max_concurrent, self.per_slot)
        stopped = frozenset(self._stopped(view, trials, epochs)) if self.stopping else frozenset()
        on = [] if self.stopping else list(self._promoted(view, trials, epochs))[:free]
        more = range(len(trials), min(self.num_samples, len(trials) + free - len(on)))
        first = epochs[-1] if self.stopping else epochs[0]
        new = [new_trial(view, numbered(i), self._draws(i), first) for i in more]
        if free and len(trials) == self.num_samples and not (self.stopping or on or any(t in view.trials for t in trials)):
            on = list(islice(self._left(view, trials, epochs), 1))
        return Proposal((*on, *new), stopped), memory

    def _promoted(self, view: View, trials: list[TrialId], epochs: tuple[float, ...]) -> Iterator[Trial]:
        """Trials that may go on, those of the highest rung first."""
        for at, after in reversed(list(pairwise(epochs))):
            came = [t for t in trials if through(view, t, whole_epochs(view, at))]
            best = best_first(view, came, at, self.metric, self.mode)[: floor(len(came) / self.reduction_factor + ETA_SLACK)]
            yield from (extended(view, t, after) for t in self._here(view, best, at))

    def _left(self, view: View, trials: list[TrialId], epochs: tuple[float, ...]) -> Iterator[Trial]:
        """Where too few came for any to be promoted to the end, the best of the highest rung, as in successive halving.

        Who was stopped on the way, by another rule, went as far as it would: nobody from below takes its place.
        """
        sent = {t: view.known[t].samples for t in trials if not view.ended.get(t, "").startswith("failed")}
        if max(sent.values(), default=0.0) >= whole_epochs(view, epochs[-1]) - EPS:
            return
        for at, after in reversed(list(pairwise(epochs))):
            ranked = best_first(view, trials, at, self.metric, self.mode)
            yield from (extended(view, t, after) for t in self._here(view, ranked, at))
            if any(view.ended.get(t) == "retired" and samples >= whole_epochs(view, at) - EPS for t, samples in sent.items()):
                return

    def _here(self, view: View, trials: Iterable[TrialId], at: float) -> Iterator[TrialId]:
        """Those that ended at this rung, with a finite score."""
        for t in trials:
            here = view.ended.get(t) == "finished" and abs(view.known[t].samples - whole_epochs(view, at)) <= EPS
            if here and cost_at(view, t, at, self.metric, self.mode) < inf:
                yield t

    def _stopped(self, view: View, trials: list[TrialId], epochs: tuple[float, ...]) -> Iterator[TrialId]:
        """Trials whose newest evaluation is their first at a rung, and not among the best there."""
        for at in epochs[:-1]:
            costs = {t: c for t in trials if (c := reached(view, t, at, self.metric, self.mode)) is not None}
            keep = max(1, floor(len(costs) / self.reduction_factor + ETA_SLACK))
            best = {t for t in sorted(costs, key=lambda t: (costs[t], by_number(t)))[:keep] if costs[t] < inf}
            for t in costs.keys() & set(training(view)) - best:
                before = [epoch for epoch, _ in view.scores[t][:-1]]
                if not before or before[-1] < at - EPOCH:
                    yield t
