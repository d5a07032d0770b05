"""Successive halving (Jamieson and Talwalkar, AISTATS 2016) and Hyperband (Li et al., JMLR 2018), synchronous.

A rung's trials all come to its end before the best of them go on; a trial goes on by being submitted again with more
samples, from where it stands.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, inf, isfinite, log
from typing import Any, Literal, NamedTuple

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Trial, TrialId
from shoal.search.batch import trial_id, whole_epochs
from shoal.search.space import Config, Space, draw, grids, validated

Mode = Literal["min", "max"]
Memory = Mapping[str, Any]  # "brackets": begun so far; "came": trials so far; "open": [bracket, rung, [trials]] of those at work
ETA_SLACK = 1e-9  # so that log(81)/log(3) counts as 4


class Rung(NamedTuple):
    """So many trials, trained to so many epochs in all."""

    trials: int
    epochs: int


Bracket = tuple[Rung, ...]


def halving_bracket(trials: int, min_epochs: float, max_epochs: float, factor: float = 3) -> Bracket:
    """Rungs from `trials` at `min_epochs`: each keeps one in `factor` and trains that many times longer."""
    rungs = []
    while trials >= 1 and min_epochs <= max_epochs * (1 + ETA_SLACK):
        rungs.append(Rung(trials, max(1, round(min_epochs))))
        trials, min_epochs = floor(trials / factor + ETA_SLACK), min_epochs * factor
    return tuple(rungs)


def hyperband_brackets(max_epochs: float, factor: float = 3) -> tuple[Bracket, ...]:
    """Hyperband's brackets for R = `max_epochs`, the one with most trials first (its Algorithm 1)."""
    most = floor(log(max_epochs) / log(factor) + ETA_SLACK)
    brackets = []
    for s in range(most, -1, -1):
        trials = ceil((most + 1) / (s + 1) * factor**s - ETA_SLACK)
        brackets.append(halving_bracket(trials, max_epochs / factor**s, max_epochs, factor))
    return tuple(brackets)


@dataclass(frozen=True, slots=True)
class Halving:
    """`num_samples` trials; after `min_epochs`, and each time they have trained `reduction_factor` times longer, the best go on.

    `metric`, `mode`: of the evaluations; a trial without a finite score comes last, a failed one goes no further; ties
    go to the smaller id. Trial i's configuration is a function of (seed, i), as for `Random`.

    Raises:
        ValueError: numbers that are not positive, or a factor that is not above 1.
    """

    space: Space = field(default_factory=dict, hash=False)
    num_samples: int = 27
    max_epochs: float = 27
    min_epochs: float = 1
    reduction_factor: float = 3
    metric: str | None = None
    mode: Mode = "max"
    seed: int = 0
    _rungs: "Rungs" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.max_epochs, self.reduction_factor, self.mode, self.seed)
        if self.num_samples < 1 or not 0 < self.min_epochs <= self.max_epochs:
            raise ValueError(
                f"halving needs num_samples >= 1 and 0 < min_epochs <= max_epochs; got num_samples={self.num_samples}, "
                f"min_epochs={self.min_epochs}, max_epochs={self.max_epochs}"
            )
        bracket = halving_bracket(self.num_samples, self.min_epochs, self.max_epochs, self.reduction_factor)
        object.__setattr__(self, "_rungs", Rungs((bracket,), False, self.metric, self.mode, self.space, self.seed))

    def start(self) -> Memory:
        return self._rungs.start()

    def propose(self, view: View, memory: Memory) -> tuple[Proposal, Memory]:
        return self._rungs.propose(view, memory)


@dataclass(frozen=True, slots=True)
class Hyperband:
    """Brackets of successive halving, from many trials trained shortly to few trained long: R = `max_epochs`.

    `concurrent`: all brackets at once, so that a slot finds work, and packs find company, while one waits for a
    rung to end; else one after the other, as in the paper. The rest as for `Halving`.

    Raises:
        ValueError: max_epochs below 1, or a factor that is not above 1.
    """

    space: Space = field(default_factory=dict, hash=False)
    max_epochs: float = 81
    reduction_factor: float = 3
    metric: str | None = None
    mode: Mode = "max"
    seed: int = 0
    concurrent: bool = True
    _rungs: "Rungs" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.max_epochs, self.reduction_factor, self.mode, self.seed)
        brackets = hyperband_brackets(self.max_epochs, self.reduction_factor)
        rungs = Rungs(brackets, self.concurrent, self.metric, self.mode, self.space, self.seed)
        object.__setattr__(self, "_rungs", rungs)

    def start(self) -> Memory:
        return self._rungs.start()

    def propose(self, view: View, memory: Memory) -> tuple[Proposal, Memory]:
        return self._rungs.propose(view, memory)


def _check(max_epochs: float, factor: float, mode: str, seed: int) -> None:
    if not max_epochs >= 1:
        raise ValueError(f"max_epochs must be >= 1; got {max_epochs!r}")
    if not factor > 1:
        raise ValueError(f"reduction_factor must be > 1: one in so many goes on; got {factor!r}")
    if mode not in ("min", "max"):
        raise ValueError(f'mode is "min" or "max"; got {mode!r}')
    if seed < 0:
        raise ValueError(f"a seed must be >= 0; got {seed!r}")


class Rungs:
    """What both searchers are: brackets worked through, their trials drawn in order from the space."""

    def __init__(
        self, brackets: Sequence[Bracket], concurrent: bool, metric: str | None, mode: Mode, space: Space, seed: int
    ) -> None:
        self.brackets = tuple(brackets)
        self.concurrent = concurrent
        self.metric = metric
        self.sign = 1.0 if mode == "min" else -1.0
        self.space = validated(space)
        self.seed = seed
        self.grids = tuple(grids(self.space))
        self.count = sum(bracket[0].trials for bracket in self.brackets)

    def start(self) -> Memory:
        return {"brackets": 0, "came": 0, "open": []}

    def propose(self, view: View, memory: Memory) -> tuple[Proposal, Memory]:
        begun, came = memory["brackets"], memory["came"]
        submit: list[Trial] = []
        at_work: list[list[Any]] = []
        for number, rung, trials in memory["open"]:
            if all(t in view.ended for t in trials):
                later = self._promoted(view, number, rung + 1, trials)
                submit += later
                at_work += [[number, rung + 1, [t.id for t in later]]] if later else []
            else:
                at_work.append([number, rung, trials])
        while begun < len(self.brackets) and (self.concurrent or not at_work):
            new = list(self._first(view, self.brackets[begun][0], came))
            submit += new
            at_work.append([begun, 0, [t.id for t in new]])
            begun, came = begun + 1, came + len(new)
        if not submit and at_work == memory["open"]:
            return Proposal(), memory
        return Proposal(tuple(submit)), {"brackets": begun, "came": came, "open": at_work}

    def config(self, index: int) -> Config:
        return draw(self.space, self.seed, index, self.grids[index % len(self.grids)])

    def _first(self, view: View, rung: Rung, came: int) -> Iterator[Trial]:
        samples, shards = whole_epochs(view, rung.epochs), frozenset(view.shards)
        for i in range(came, came + rung.trials):
            yield Trial(trial_id(i, self.count), samples, self.config(i), shards=shards)

    def _promoted(self, view: View, bracket: int, rung: int, trials: Sequence[TrialId]) -> list[Trial]:
        """The best of a rung that is over, to go on to the next; none after the last."""
        if rung >= len(self.brackets[bracket]):
            return []
        alive = [t for t in trials if view.ended[t] == "finished"]
        best = sorted(alive, key=lambda t: (self._rank(view, t), t))[: self.brackets[bracket][rung].trials]
        samples = whole_epochs(view, self.brackets[bracket][rung].epochs)
        known = view.known
        return [Trial(t, samples, known[t].config, known[t].widths, known[t].shards) for t in sorted(best)]

    def _rank(self, view: View, trial: TrialId) -> float:
        if self.metric is None:
            raise ValueError("halving compares trials: say by which metric, metric=")
        values = view.scores[trial][-1][1] if view.scores[trial] else {}
        value = values.get(self.metric)
        if value is None and values:
            raise ValueError(f"trials have no metric {self.metric!r}; evaluations give {', '.join(sorted(values))}")
        return self.sign * value if value is not None and isfinite(value) else inf
