"""Successive halving and Hyperband, synchronous.

Sources: Jamieson and Talwalkar, AISTATS 2016; Li et al., JMLR 2018. All trials of a rung come to
its end before the best of them go on. A trial goes on by being submitted again with more samples,
from where it stands. Nothing is remembered: a rung's trials follow from the rung before, and from
the scores that they had then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil, floor, inf, log
from typing import ClassVar, NamedTuple

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Trial, TrialId
from shoal.search.batch import Widths, room_ahead
from shoal.search.draws import (
    SOBOL,
    Draws,
    asked_for,
    by_number,
    check_needs,
    check_numbers,
    draws,
    extended,
    new_trial,
    numbered,
    through,
)
from shoal.search.look import Look
from shoal.search.rank import Mode, best_first, check_scores, cost_at
from shoal.search.space import Space

ETA_SLACK = 1e-9  # so that log(81)/log(3) counts as 4


class Rung(NamedTuple):
    """So many trials, trained to so many epochs in all."""

    trials: int
    epochs: int


Bracket = tuple[Rung, ...]
Numbers = set[int]  # of brackets


def halving_bracket(
    trials: int, min_epochs: float, max_epochs: float, factor: float = 3
) -> Bracket:
    """Rungs from `trials` at `min_epochs`: each keeps one in `factor`, and trains `factor` longer.

    The last rung is at `max_epochs`, also if no power of the factor leads there, and if a single
    trial is left before.
    """
    rungs = []
    while trials > 1 and max(1, round(min_epochs)) < round(max_epochs):
        rungs.append(Rung(trials, max(1, round(min_epochs))))
        trials = max(1, floor(trials / factor + ETA_SLACK))
        min_epochs *= factor
    return (*rungs, Rung(trials, max(1, round(max_epochs))))


@lru_cache(maxsize=64)
def hyperband_brackets(
    max_epochs: float, factor: float = 3, trials: int | None = None
) -> tuple[Bracket, ...]:
    """Hyperband's brackets for R = `max_epochs`, the one with most trials first (its Algorithm 1).

    `trials`: how many in all. The brackets come again, the last one smaller, until there are so
    many; None: each bracket once.
    """
    largest = floor(log(max_epochs) / log(factor) + ETA_SLACK)
    if trials is None:
        return tuple(_bracket(s, largest, max_epochs, factor, None) for s in range(largest, -1, -1))
    brackets: list[Bracket] = []
    s = largest
    left = trials
    while left > 0:
        bracket = _bracket(s, largest, max_epochs, factor, left)
        brackets.append(bracket)
        left -= bracket[0].trials
        s = (s - 1) % (largest + 1)
    return tuple(brackets)


def _bracket(s: int, largest: int, max_epochs: float, factor: float, most: int | None) -> Bracket:
    """Bracket s of s_max = `largest`, with at most so many trials."""
    trials = ceil((largest + 1) / (s + 1) * factor**s - ETA_SLACK)
    if most is not None:
        trials = min(trials, most)
    return halving_bracket(trials, max_epochs / factor**s, max_epochs, factor)


@dataclass(frozen=True, slots=True)
class SuccessiveHalving:
    """Trials that train for a few epochs; the best of them go on, and so on.

    A trial that failed, or has no finite score, goes no further and keeps no other waiting; ties go
    to the first. Trial i's configuration is a function of (seed, i), as for `Random`. As rungs thin
    out, a policy may widen who is left. What is None is the study's.

    Args:
        space: the dimensions, by name.
        num_samples: trials that begin.
        max_epochs: epochs at which the last trials end.
        grace_period: epochs of the first rung, that is before trials are first compared.
        reduction_factor: one trial in so many goes on, and trains so many times longer.
        metric: the score to compare by.
        mode: "min" or "max".
        seed: of the draws, 0 or more.
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
    widths: Widths | None = None
    sampling: str | None = SOBOL
    _draws: Draws = field(init=False, repr=False, compare=False)
    _rungs: "_Brackets" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        object.__setattr__(self, "_draws", draws(self.space, self.seed, self.sampling))
        object.__setattr__(self, "_rungs", _Brackets(self))

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        check_needs(self)
        check_scores(view, self.metric)
        trials = self._rungs.due(view, self._brackets(), concurrent=False)
        return Proposal(trials), memory

    def _brackets(self) -> tuple[Bracket]:
        """The one bracket, of all trials."""
        assert self.num_samples is not None and self.max_epochs is not None
        bracket = halving_bracket(
            self.num_samples, self.grace_period, self.max_epochs, self.reduction_factor
        )
        return (bracket,)


@dataclass(frozen=True, slots=True)
class Hyperband:
    """Brackets of successive halving, from many trials trained shortly to few trained long.

    Each bracket is as `SuccessiveHalving`. What is None is the study's.

    Args:
        space: the dimensions, by name.
        max_epochs: epochs at which the best trials of each bracket end, the paper's R.
        reduction_factor: one trial in so many goes on, and trains so many times longer.
        metric: the score to compare by.
        mode: "min" or "max".
        seed: of the draws, 0 or more.
        concurrent: all brackets at once, so that a slot finds work, and packs find company, while
            one bracket waits for a rung to end. False: one after the other, as in the paper.
        num_samples: trials in all, the brackets being gone through again and again. None: once.
        widths: the fewest and most slots of each trial. None: one.
        sampling: "sobol" spreads the first draws over the space. None: each draw is by itself.

    Raises:
        ValueError: a number is out of range.
    """

    needs: ClassVar = ("max_epochs",)

    space: Space | None = field(default=None, hash=False)
    max_epochs: float | None = None
    reduction_factor: float = 3
    metric: str | None = None
    mode: Mode | None = None
    seed: int | None = None
    concurrent: bool = True
    num_samples: int | None = None
    widths: Widths | None = None
    sampling: str | None = SOBOL
    _draws: Draws = field(init=False, repr=False, compare=False)
    _rungs: "_Brackets" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        object.__setattr__(self, "_draws", draws(self.space, self.seed, self.sampling))
        object.__setattr__(self, "_rungs", _Brackets(self))

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        check_needs(self)
        check_scores(view, self.metric)
        due = self._rungs.due(view, self._brackets(), self.concurrent)
        return Proposal(due), memory

    def _brackets(self) -> tuple[Bracket, ...]:
        """The brackets to go through."""
        assert self.max_epochs is not None
        return hyperband_brackets(self.max_epochs, self.reduction_factor, self.num_samples)


class _Brackets(Look):
    """Brackets that are worked through: which trials begin or go on now.

    Brackets are known by their numbers. `_ready`: those to look at. `_waits`: for each trial that
    a bracket waits for, the bracket. `_begun`: those whose trials are all known. `_over`: those at
    their end.
    """

    def __init__(self, rule: "SuccessiveHalving | Hyperband") -> None:
        super().__init__()
        self._draws = draws(rule.space, rule.seed, rule.sampling)
        self._widths = rule.widths
        self._metric = rule.metric
        self._mode = rule.mode
        self.forget()

    def forget(self) -> None:
        self._ready: Numbers = set()
        self._looked = False
        self._waits: dict[TrialId, int] = {}
        self._begun: Numbers = set()
        # How many trials of each bracket were seen to be known, one after the other.
        self._known: dict[int, int] = {}
        self._over: Numbers = set()

    def due(self, view: View, brackets: Sequence[Bracket], concurrent: bool) -> tuple[Trial, ...]:
        """Trials to begin or to extend now; all brackets at once, or one after the other."""
        changed = self.changed(view)
        if not self._looked:
            self._looked = True
            self._ready = set(range(len(brackets)))
        for trial in changed:
            if trial in self._waits:
                self._ready.add(self._waits.pop(trial))
        sizes = (bracket[0].trials for bracket in brackets)
        # The number of each bracket's first trial.
        firsts = list(accumulate(sizes, initial=0))
        due: list[Trial] = []
        room = room_ahead(view)
        for number in self._turns(range(len(brackets)), concurrent):
            bracket = brackets[number]
            if number in self._begun:
                due += self._of_bracket(view, number, bracket, firsts[number])
                continue
            numbers = range(firsts[number], firsts[number] + bracket[0].trials)
            new = self._new(view, number, numbers, bracket[0].epochs, room)
            room -= len(new)
            due += new
            if number in self._begun:
                due += self._of_bracket(view, number, bracket, firsts[number])
        return tuple(due)

    def _turns(self, numbers: range, concurrent: bool) -> Iterator[int]:
        """The brackets to look at now, of those with these numbers."""
        if concurrent:
            yield from sorted(self._ready)
            return
        for number in numbers:
            if number in self._ready:
                yield number
            if number not in self._over:
                return

    def _of_bracket(self, view: View, number: int, bracket: Bracket, first: int) -> list[Trial]:
        numbers = range(first, first + bracket[0].trials)
        trials = [numbered(i) for i in numbers]
        for rung, after in pairwise(bracket):
            alive = self._alive(view, number, trials, rung)
            if not alive:
                return []
            ranked = best_first(view, alive, rung.epochs, self._metric, self._mode)
            trials = [
                t
                for t in ranked[: after.trials]
                if cost_at(view, t, rung.epochs, self._metric, self._mode) < inf
            ]
            # A trial that failed on the way to the next rung is not sent there again. That shows
            # when `num_samples` grew.
            due = [
                extended(view, trial, after.epochs)
                for trial in sorted(trials, key=by_number)
                if _may_be_sent(view, trial, after.epochs)
            ]
            if due:
                return due
        if self._alive(view, number, trials, bracket[-1]):
            self._end(number)
        return []

    def _new(self, view: View, number: int, numbers: range, epochs: int, room: int) -> list[Trial]:
        """The next trials of the bracket, whose trials have these numbers, if there is room.

        Once all of them are known, the bracket counts as begun.
        """
        came = self._known.get(number, 0)
        while came < len(numbers) and numbered(numbers[came]) in view.known:
            came += 1
        self._known[number] = came
        if came == len(numbers):
            self._begun.add(number)
        new: list[Trial] = []
        for index in numbers[came : came + max(0, room)]:
            trial = numbered(index)
            if trial not in view.known:
                config = self._draws(index)
                new.append(new_trial(view, trial, config, epochs, self._widths))
        return new

    def _alive(
        self, view: View, number: int, trials: Sequence[TrialId], rung: Rung
    ) -> list[TrialId]:
        """The trials that came through the rung; none while one of them is still on its way there.

        The last trial on its way is the one remembered: trials mostly come in order, so it is the
        one to wait for longest.
        """
        for trial in reversed(trials):
            if trial not in view.ended and not through(view, trial, rung.epochs):
                self._waits[trial] = number
                self._ready.discard(number)
                return []
        alive = [trial for trial in trials if through(view, trial, rung.epochs)]
        if not alive:
            self._end(number)
        return alive

    def _end(self, number: int) -> None:
        self._over.add(number)
        self._ready.discard(number)


def _may_be_sent(view: View, trial: TrialId, epochs: float) -> bool:
    """Whether the trial has not failed, and was not sent so far yet."""
    sendable = view.ended.get(trial) in (None, "finished")
    return sendable and not asked_for(view, trial, epochs)
