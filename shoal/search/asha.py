"""ASHA: asynchronous successive halving.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020. No trial
waits for others: whoever is among the best of those that came to a rung so far goes on. On hopping,
with as many trials under way as slots, this is the ASHA of Cerebro, section 6.3.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import floor, inf
from typing import ClassVar

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Trial, TrialId
from shoal.core.visits import EPS
from shoal.search.batch import Widths
from shoal.search.draws import (
    SOBOL,
    Draws,
    asked_for,
    check_needs,
    check_numbers,
    draws,
    extended,
    new_trial,
    numbered,
    room,
    samples_in,
    through,
    training,
)
from shoal.search.halving import ETA_SLACK
from shoal.search.look import Look, Ranking
from shoal.search.rank import EPOCH, Mode, best_first, check_scores, cost_at, reached, scored
from shoal.search.space import Space


def rungs(grace_period: float, factor: float, max_epochs: float) -> tuple[float, ...]:
    """Epochs at which trials are compared, each `factor` times the one before, and `max_epochs`."""
    before_the_end = dict.fromkeys(_stages(grace_period, factor, max_epochs))
    return (*before_the_end, max_epochs)


def _stages(epochs: float, factor: float, end: float) -> Iterator[float]:
    """Whole epochs before the end, each `factor` times the one before."""
    while epochs < end * (1 - ETA_SLACK):
        whole = max(1, round(epochs))
        if whole < end:
            yield whole
        epochs *= factor


@dataclass(frozen=True, slots=True)
class ASHA:
    """Trials compared at rungs, numbers of epochs; the best go on, and none waits for others.

    By promotion (the paper's Algorithm 2) a trial stops at each rung, and goes on while it is among
    the best 1/`reduction_factor` of those that came there. Where none may go on, a new trial
    begins. Where too few come for one to reach the end, the best one goes there.

    A trial without a finite score goes no further; ties go to the first. What is None is the
    study's.

    Args:
        space: the dimensions, by name.
        num_samples: trials in all.
        max_epochs: epochs of the last rung.
        grace_period: epochs of the first rung.
        reduction_factor: each rung is at so many times the epochs of the one before, and one trial
            in so many goes on.
        metric: the score to compare by.
        mode: "min" or "max".
        seed: of the draws, 0 or more.
        stopping: a trial trains on unless it is not among the best when it comes to a rung, or
            before its next evaluation, much as Ray Tune does it. A stopped trial never goes on.
            False: by promotion.
        max_concurrent: trials under way. None: `per_slot` for each slot.
        per_slot: trials under way for each slot. None: one, and more for policies that pack; where
            a trial needs several slots, so many for as many slots.
        widths: the fewest and most slots of each trial. None: one.
        sampling: "sobol" spreads the first draws over the space. None: each draw is by itself.

    Raises:
        ValueError: a number is out of range.
    """

    needs: ClassVar = ("num_samples", "max_epochs")

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
    widths: Widths | None = None
    sampling: str | None = SOBOL
    _draws: Draws = field(init=False, repr=False, compare=False)
    _rungs: "_Rungs" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        object.__setattr__(self, "_draws", draws(self.space, self.seed, self.sampling))
        object.__setattr__(self, "_rungs", _Rungs(self))

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        check_needs(self)
        check_scores(view, self.metric)
        assert self.num_samples is not None
        self._rungs.look(view)
        free = room(self, view)
        stopped: frozenset[TrialId] = frozenset()
        promoted: list[Trial] = []
        if self.stopping:
            stopped = frozenset(self._rungs.stopped(view))
        elif free:
            promoted = self._rungs.promoted(view, free)
        came = self._rungs.came(view, self.num_samples)
        new = self._new(view, came, free - len(promoted))
        over = came == self.num_samples and not self._rungs.under_way(view)
        if over and free and not promoted and not self.stopping:
            promoted = self._rungs.left(view)
        return Proposal((*promoted, *new), stopped), memory

    def epochs(self) -> tuple[float, ...]:
        """The epochs of the rungs."""
        assert self.max_epochs is not None
        return rungs(self.grace_period, self.reduction_factor, self.max_epochs)

    def _new(self, view: View, came: int, free: int) -> list[Trial]:
        """The next trials, as many as there is room for."""
        assert self.num_samples is not None
        end = min(self.num_samples, came + free)
        return [self._begun(view, number) for number in range(came, end)]

    def _begun(self, view: View, number: int) -> Trial:
        """A new trial, with this number."""
        config = self._draws(number)
        return new_trial(view, numbered(number), config, self._goal(), self.widths)

    def _goal(self) -> float:
        """Where a new trial is sent: to the first rung; by `stopping` to the last one."""
        epochs = self.epochs()
        if self.stopping:
            return epochs[-1]
        return epochs[0]


@dataclass(slots=True)
class _Rung:
    """One rung: who came there, and who ended there and may be promoted.

    `at`: its epochs. `after`: the epochs of the next rung.
    """

    at: float
    after: float
    came: Ranking = field(default_factory=Ranking)
    here: Ranking = field(default_factory=Ranking)


class _Rungs(Look):
    """The rungs as they stand. A look at a later view reads only the trials that changed."""

    def __init__(self, rule: ASHA) -> None:
        super().__init__()
        self._rule = rule
        self._below: list[_Rung] = []  # all rungs but the last

    def forget(self) -> None:
        self._below = []

    def look(self, view: View) -> None:
        """Take in what changed since the last look."""
        changed = self.changed(view)
        if not self._below:
            self._below = [_Rung(at, after) for at, after in pairwise(self._rule.epochs())]
        for trial in filter(self._is_mine, changed):
            for rung in self._below:
                self._place(view, trial, rung)

    @property
    def _trials(self) -> int:
        """How many trials the searcher makes in all."""
        assert self._rule.num_samples is not None
        return self._rule.num_samples

    def _is_mine(self, trial: TrialId) -> bool:
        """Whether the trial's name is one that this searcher gives."""
        number = trial.removeprefix("t")
        if not number.isdecimal():
            return False
        index = int(number)
        return index < self._trials and numbered(index) == trial

    def _place(self, view: View, trial: TrialId, rung: _Rung) -> None:
        rule = self._rule
        if rule.stopping:
            rung.came.put(trial, reached(view, trial, rung.at, rule.metric, rule.mode))
            return
        if not through(view, trial, rung.at):
            rung.came.put(trial, None)
            rung.here.put(trial, None)
            return
        cost = cost_at(view, trial, rung.at, rule.metric, rule.mode)
        rung.came.put(trial, cost)
        if self._ended_at(view, trial, rung) and cost < inf:
            rung.here.put(trial, cost)
        else:
            rung.here.put(trial, None)

    def _ended_at(self, view: View, trial: TrialId, rung: _Rung) -> bool:
        finished = view.ended.get(trial) == "finished"
        samples = samples_in(view, trial, rung.at)
        return finished and abs(view.known[trial].samples - samples) <= EPS

    def under_way(self, view: View) -> bool:
        """Whether a trial of the searcher has work left."""
        return any(self._is_mine(trial) for trial in view.trials)

    def promoted(self, view: View, most: int) -> list[Trial]:
        """Trials that may go on, those of the highest rung first; at most so many."""
        found: list[Trial] = []
        for rung in reversed(self._below):
            best = self._among_best(rung, most - len(found))
            found += [extended(view, trial, rung.after) for trial in best]
        return found

    def _among_best(self, rung: _Rung, most: int) -> list[TrialId]:
        """Trials that ended at the rung, at most so many, and are among the best there."""
        best = self._go_on(rung)
        ended = rung.here.best(min(best, most))
        return [trial for trial in ended if rung.came.place(trial) < best]

    def _go_on(self, rung: _Rung) -> int:
        """How many of those that came to the rung so far go on."""
        return floor(len(rung.came) / self._rule.reduction_factor + ETA_SLACK)

    def left(self, view: View) -> list[Trial]:
        """The best of the highest rung, where too few came for any to be promoted to the end.

        As in successive halving. A trial that another rule stopped on the way went as far as it
        would: no trial from below takes its place.
        """
        sent = [
            trial
            for trial in self._mine(view)
            if not view.ended.get(trial, "").startswith("failed")
        ]
        last = self._rule.epochs()[-1]
        if any(asked_for(view, trial, last) for trial in sent):
            return []
        for rung in reversed(self._below):
            ranked = best_first(view, sent, rung.at, self._rule.metric, self._rule.mode)
            for trial in ranked:
                if trial in rung.here:
                    return [extended(view, trial, rung.after)]
            if any(self._retired_beyond(view, trial, rung) for trial in sent):
                return []
        return []

    def _mine(self, view: View) -> Iterator[TrialId]:
        for number in range(self.came(view, self._trials)):
            yield numbered(number)

    def _retired_beyond(self, view: View, trial: TrialId, rung: _Rung) -> bool:
        retired = view.ended.get(trial) == "retired"
        return retired and asked_for(view, trial, rung.at)

    def stopped(self, view: View) -> Iterator[TrialId]:
        """Trials whose newest evaluation is their first at a rung, and not among the best there."""
        for trial in training(view):
            for rung in self._below:
                if self._falls_out(view, trial, rung):
                    yield trial

    def _falls_out(self, view: View, trial: TrialId, rung: _Rung) -> bool:
        """Whether the trial's newest evaluation is its first at the rung, and not good enough."""
        out = trial in rung.came and not self._keeps(rung, trial)
        return out and self._newest_is_first_at(view, trial, rung.at)

    def _newest_is_first_at(self, view: View, trial: TrialId, epochs: float) -> bool:
        before = scored(view, trial, self._rule.metric)[:-1]
        return not before or before[-1][0] < epochs - EPOCH

    def _keeps(self, rung: _Rung, trial: TrialId) -> bool:
        """Whether a trial that came to the rung is among the best there."""
        best = max(1, self._go_on(rung))
        return rung.came.place(trial) < best and rung.came.cost(trial) < inf
