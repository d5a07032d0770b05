"""Successive halving (Jamieson and Talwalkar, AISTATS 2016) and Hyperband (Li et al., JMLR 2018), synchronous.

A rung's trials all come to its end before the best of them go on; a trial goes on by being submitted again with more
samples, from where it stands. All is read from the view at each time, nothing remembered: a rung's trials are known from
the one before, by their scores then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, floor, inf, log
from typing import NamedTuple

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Trial, TrialId
from shoal.search.batch import whole_epochs
from shoal.search.draws import Draws, by_number, check_numbers, draws, extended, needed, new_trial, numbered, through
from shoal.search.rank import Mode, best_first, check_scores, cost_at
from shoal.search.space import Space

ETA_SLACK = 1e-9  # so that log(81)/log(3) counts as 4


class Rung(NamedTuple):
    """So many trials, trained to so many epochs in all."""

    trials: int
    epochs: int


Bracket = tuple[Rung, ...]


def halving_bracket(trials: int, min_epochs: float, max_epochs: float, factor: float = 3) -> Bracket:
    """Rungs from `trials` at `min_epochs`: each keeps one in `factor` and trains so many times longer, the last to `max_epochs`.

    That holds also where no power of the factor leads there, and where a single trial is left before.
    """
    rungs = []
    while trials > 1 and max(1, round(min_epochs)) < round(max_epochs):
        rungs.append(Rung(trials, max(1, round(min_epochs))))
        trials, min_epochs = max(1, floor(trials / factor + ETA_SLACK)), min_epochs * factor
    return (*rungs, Rung(trials, max(1, round(max_epochs))))


@lru_cache(maxsize=64)
def hyperband_brackets(max_epochs: float, factor: float = 3, trials: int | None = None) -> tuple[Bracket, ...]:
    """Hyperband's brackets for R = `max_epochs`, the one with most trials first (its Algorithm 1).

    `trials`: how many in all; the brackets come again, the last one smaller, until there are so many.
    """
    most = floor(log(max_epochs) / log(factor) + ETA_SLACK)
    brackets: list[Bracket] = []
    s, left = most, trials
    while s >= 0 if left is None else left > 0:
        count = ceil((most + 1) / (s + 1) * factor**s - ETA_SLACK)
        count = count if left is None else min(count, left)
        brackets.append(halving_bracket(count, max_epochs / factor**s, max_epochs, factor))
        left = None if left is None else left - count
        s = s - 1 if left is None else (s - 1) % (most + 1)
    return tuple(brackets)


@dataclass(frozen=True, slots=True)
class SuccessiveHalving:
    """`num_samples` trials for `grace_period` epochs; the best one in `reduction_factor` go on, so many times longer, and so on.

    A trial that failed, or without a finite score, goes no further and keeps no other waiting; ties go to the first.
    Trial i's configuration is a function of (seed, i), as for `Random`. What is None is the study's.

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
        bracket = halving_bracket(self.num_samples, self.grace_period, self.max_epochs, self.reduction_factor)
        return Proposal(_Rungs(view, self, (bracket,), False).submitted()), memory


@dataclass(frozen=True, slots=True)
class Hyperband:
    """Brackets of successive halving, from many trials trained shortly to few trained long: R = `max_epochs`.

    `concurrent`: all brackets at once, so that a slot finds work, and packs find company, while one waits for a
    rung to end; else one after the other, as in the paper. `num_samples`: so many trials in all, the brackets being
    gone through again and again; None: once. The rest as for `SuccessiveHalving`.

    Raises:
        ValueError: numbers out of range.
    """

    space: Space | None = field(default=None, hash=False)
    max_epochs: float | None = None
    reduction_factor: float = 3
    metric: str | None = None
    mode: Mode | None = None
    seed: int | None = None
    concurrent: bool = True
    num_samples: int | None = None
    _draws: Draws = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        object.__setattr__(self, "_draws", draws(self.space, self.seed))

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        needed(self, "max_epochs")
        check_scores(view, self.metric)
        assert self.max_epochs is not None
        brackets = hyperband_brackets(self.max_epochs, self.reduction_factor, self.num_samples)
        return Proposal(_Rungs(view, self, brackets, self.concurrent).submitted()), memory


class _Rungs:
    """One look at brackets that are worked through: who is in which rung, and which trials are due."""

    def __init__(self, view: View, rule: SuccessiveHalving | Hyperband, brackets: Sequence[Bracket], concurrent: bool) -> None:
        self.view, self.rule, self.brackets, self.concurrent = view, rule, brackets, concurrent

    def submitted(self) -> tuple[Trial, ...]:
        """Trials to begin or to extend now."""
        due: list[Trial] = []
        came = 0
        for bracket in self.brackets:
            names = [numbered(i) for i in range(came, came + bracket[0].trials)]
            new = [
                new_trial(self.view, t, self.rule._draws(came + i), bracket[0].epochs)
                for i, t in enumerate(names)
                if t not in self.view.known
            ]
            later = [] if new else self._later(bracket, names)
            due += new or later or []
            if not self.concurrent and later is not None:
                break
            came += len(names)
        return tuple(due)

    def _later(self, bracket: Bracket, trials: list[TrialId]) -> list[Trial] | None:
        """Those of a bracket whose trials are all known that are to go on now; None: the bracket is over."""
        view = self.view
        for rung, after in zip(bracket, (*bracket[1:], None), strict=True):
            samples = whole_epochs(view, rung.epochs)
            if not all(through(view, t, samples) or t in view.ended for t in trials):
                return []
            alive = [t for t in trials if through(view, t, samples)]
            if after is None or not alive:
                return None
            ranked = best_first(view, alive, rung.epochs, self.rule.metric, self.rule.mode)
            trials = [t for t in ranked[: after.trials] if self._cost(t, rung) < inf]
            more = [t for t in trials if view.known[t].samples < whole_epochs(view, after.epochs)]
            sound = [
                t for t in more if view.ended.get(t) in (None, "finished")
            ]  # not one that failed later, with a larger num_samples
            due = [extended(view, t, after.epochs) for t in sorted(sound, key=by_number)]
            if due:
                return due
        return None

    def _cost(self, trial: TrialId, rung: Rung) -> float:
        return cost_at(self.view, trial, rung.epochs, self.rule.metric, self.rule.mode)
