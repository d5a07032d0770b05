"""Population based training (Jaderberg et al., 2017), synchronous or asynchronous.

A population trains side by side. Every `perturbation_interval` epochs the worst are left where they
are, and copies of the best with changed hyper-parameters take their places. A copy is a trial that
starts from the other's state (`Trial.start`); it is named after its place in the population and its
generation. Nothing is remembered: all follows from the view.

Asynchronous, as in the paper, nobody waits: a trial is compared when it comes to an interval's end.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, nextafter
from typing import Any, ClassVar

import numpy as np

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Samples, Trial, TrialId, Value, is_number, shown
from shoal.core.visits import EPS
from shoal.search.batch import Widths
from shoal.search.draws import (
    SOBOL,
    Draws,
    by_number,
    check_needs,
    check_numbers,
    draws,
    extended,
    new_trial,
    numbered,
    samples_in,
    through,
)
from shoal.search.look import Look
from shoal.search.rank import Mode, best_first, check_scores, cost_at, reached
from shoal.search.space import (
    Choice,
    Config,
    GridDomain,
    LogUniform,
    RandInt,
    Space,
    Uniform,
    build,
    dimensions,
)

Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class PBT:
    """A population of trials; copies of the best, with changed hyper-parameters, replace the worst.

    Failed trials and those without a finite score are always among the worst. What is None is the
    study's.

    Args:
        space: the dimensions, by name.
        num_samples: places in the population.
        max_epochs: epochs to which each place is trained.
        perturbation_interval: epochs between two comparisons, a whole number.
        quantile_fraction: the part of the trials that are best, and the part that are worst, above
            0 and at most 0.5.
        resample_probability: how often a changed value is drawn anew, 0 to 1. Else it is multiplied
            by 0.8 or 1.2, or replaced by a neighbour of a `choice`.
        mutate: names of what copies change; model shapes must not change. None: whatever is
            `uniform` or `loguniform`.
        asynchronous: a trial that comes to an interval's end is compared at once, with what the
            others scored there or later. One of the worst gives way to a copy of one of the best
            that is at least as far, from its newest durable state. False: all wait for the
            interval's end.
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
    perturbation_interval: float = 1
    quantile_fraction: float = 0.25
    resample_probability: float = 0.25
    mutate: Sequence[str] | None = None
    asynchronous: bool = False
    metric: str | None = None
    mode: Mode | None = None
    seed: int | None = None
    widths: Widths | None = None
    sampling: str | None = SOBOL
    _draws: Draws = field(init=False, repr=False, compare=False)
    _places: "_Places" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        if not self._is_in_range():
            raise ValueError(
                "PBT needs perturbation_interval a whole number >= 1, quantile_fraction in (0, 0.5]"
                " and resample_probability in [0, 1]; got "
                f"{shown(self.perturbation_interval)}, {shown(self.quantile_fraction)}, "
                f"{shown(self.resample_probability)}"
            )
        if isinstance(self.mutate, str):
            raise ValueError(
                f"PBT: mutate is a list of names; got the text {self.mutate!r}: "
                f"write mutate=[{self.mutate!r}]"
            )
        if self.mutate is not None:
            object.__setattr__(self, "mutate", tuple(self.mutate))
        object.__setattr__(self, "_draws", draws(self.space, self.seed, self.sampling))
        object.__setattr__(self, "_places", _Places())
        if self.space is not None:
            check_mutable(dict(dimensions(self._draws.space)), self.mutate)

    def _is_in_range(self) -> bool:
        """Whether PBT's own numbers are in their ranges."""
        interval = self.perturbation_interval
        numbers = interval, self.quantile_fraction, self.resample_probability
        if not all(map(is_number, numbers)):
            return False
        whole = interval >= 1 and interval % 1 == 0
        quantile = 0 < self.quantile_fraction <= 0.5
        return whole and quantile and 0 <= self.resample_probability <= 1

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        check_needs(self)
        check_scores(view, self.metric)
        assert self.num_samples is not None
        ends = self.ends()
        self._places.look(view, len(ends))
        if self._places.came(view, self.num_samples) < self.num_samples:
            return Proposal(tuple(self._begin(view, self.num_samples, ends[0]))), memory
        population = _Population(self, view, ends, self._places.chains(self.num_samples))
        if self.asynchronous:
            return Proposal(tuple(population.at_once())), memory
        return Proposal(population.next_generation()), memory

    def ends(self) -> list[float]:
        """The epochs at which intervals end, one for each generation."""
        assert self.max_epochs is not None
        count = ceil(self.max_epochs / self.perturbation_interval - 1e-9)
        return [
            min((number + 1) * self.perturbation_interval, self.max_epochs)
            for number in range(count)
        ]

    def _begin(self, view: View, places: int, epochs: float) -> Iterator[Trial]:
        """The first trial of each place, where it is not submitted yet."""
        for place in range(places):
            if numbered(place) not in view.known:
                config = self._draws(place)
                yield new_trial(view, numbered(place), config, epochs, self.widths)

    def mutated(self, config: Mapping[str, Value], rng: Rng) -> Config:
        """The configuration of a copy of a trial with that configuration."""
        mutation = Mutation(self.mutate, self.resample_probability, rng)
        return mutation.of(config, self._draws.space)


# The trials that had a place, by the generation that was their first.
Chain = dict[int, TrialId]
_NAME = re.compile(r"t(\d{3,})(?:-g(\d+))?")


class _Places(Look):
    """Who had each place of the population."""

    def __init__(self) -> None:
        super().__init__()
        self._chains: dict[int, Chain] = {}

    def forget(self) -> None:
        self._chains = {}

    def look(self, view: View, generations: int) -> None:
        """Take in the trials that are new."""
        for trial in self.changed(view):
            found = _read(trial)
            if found is None:
                continue
            place, generation = found
            if generation < generations:
                self._chains.setdefault(place, {})[generation] = trial

    def chains(self, places: int) -> list[Chain]:
        """The chains of the places 0, 1, …"""
        return [self._chains[place] for place in range(places)]


def _read(trial: TrialId) -> tuple[int, int] | None:
    """The place and the generation that a name says; None if it is not one of `_name`."""
    found = _NAME.fullmatch(trial)
    if found is None:
        return None
    place = int(found[1])
    generation = int(found[2] or 0)
    if trial != _name(place, generation):
        return None
    return place, generation


def _name(place: int, generation: int) -> TrialId:
    """The name of the trial that has this place from this generation on."""
    if generation == 0:
        return numbered(place)
    return TrialId(f"{numbered(place)}-g{generation}")


class _Population:
    """A population as it stands now, and what comes next.

    `_newest`: the trial of each place. `_aim`: the generation at whose end it will be.
    """

    def __init__(
        self, rule: PBT, view: View, ends: Sequence[float], chains: Sequence[Chain]
    ) -> None:
        self._rule = rule
        self._view = view
        self._ends = ends
        self._chains = chains
        self._newest = [chain[max(chain)] for chain in chains]
        # all trials are of one recipe
        self._samples = [samples_in(view, self._newest[0], end) for end in ends]
        self._aim = [
            bisect_left(self._samples, self._view.known[trial].samples) for trial in self._newest
        ]

    def _is_last(self, generation: int) -> bool:
        return generation + 1 == len(self._ends)

    # -- synchronous ---------------------------------------------------------------------------

    def next_generation(self) -> tuple[Trial, ...]:
        """What begins or goes on, once all places came to the end of a generation.

        Usually all places are in one generation. They are in several after a crash between two of
        their trials, and where a place stays empty.
        """
        on = [place for place in range(len(self._newest)) if self._goes_on(place)]
        for generation in sorted({self._aim[place] for place in on}):
            due = [place for place in on if self._aim[place] == generation]
            if not all(self._newest[place] in self._view.ended for place in due):
                return ()
            moved = tuple(self._moved(due, generation))
            if moved:
                return moved
        return ()

    def _goes_on(self, place: int) -> bool:
        retired = self._view.ended.get(self._newest[place]) == "retired"
        return not retired and not self._is_last(self._aim[place])

    def _moved(self, due: Sequence[int], generation: int) -> Iterator[Trial]:
        """What the places that are due go on with after a generation."""
        view = self._view
        rule = self._rule
        epochs = self._ends[generation]
        samples = self._samples[generation]
        holders = [
            chain[max(first for first in chain if first <= generation)] for chain in self._chains
        ]
        alive = [trial for trial in holders if through(view, trial, epochs)]
        ranked = best_first(view, alive, epochs, rule.metric, rule.mode)
        sound = [t for t in ranked if cost_at(view, t, epochs, rule.metric, rule.mode) < inf]
        count = self._quantile(len(ranked))
        kept = set(sound) & set(ranked[: len(ranked) - count])
        # A copy of a trial that is beyond this generation would be beyond it, too.
        best = [t for t in sound[: max(1, count)] if view.done[t] <= samples + EPS]
        self._check_durable(best)
        for place in due:
            trial = holders[place]
            if trial in kept or (trial in alive and not best):
                yield extended(view, trial, self._ends[generation + 1])
            elif best:
                yield self._copy(place, generation + 1, best)

    def _check_durable(self, donors: Sequence[TrialId]) -> None:
        """Raise ValueError unless copies can begin with what these trials have come to."""
        for trial in donors:
            kept = self._view.kept.get(trial)
            if kept is None or kept.visits != len(self._view.visits[trial]):
                raise ValueError(_not_durable(trial))

    def _quantile(self, ranked: int) -> int:
        return min(ceil(ranked * self._rule.quantile_fraction), ranked // 2)

    def _copy(self, place: int, generation: int, best: Sequence[TrialId]) -> Trial:
        """A copy of one of the best, to take the place from this generation on."""
        rng = self._rng(generation, place)
        donor = _drawn(best, rng)
        start = donor, len(self._view.visits[donor])
        return self._child(_name(place, generation), start, self._samples[generation], rng)

    # -- asynchronous --------------------------------------------------------------------------

    def at_once(self) -> Iterator[Trial]:
        """What the places go on with whose trials came to their interval's end."""
        for place, trial in enumerate(self._newest):
            how = self._view.ended.get(trial)
            if how not in (None, "retired") and not self._is_last(self._aim[place]):
                yield from self._next(place, trial, how == "finished")

    def _next(self, place: int, trial: TrialId, finished: bool) -> Iterator[Trial]:
        generation = self._aim[place]
        costs = self._costs(generation)
        ranked = sorted(costs, key=lambda t: (costs[t], by_number(t)))
        count = self._quantile(len(ranked))
        finite = [t for t in ranked[: max(1, count)] if costs[t] < inf]
        best = [t for t in finite if self._can_be_copied(t, generation)]
        if finite and not any(each in self._view.kept for each in ranked):
            raise ValueError(_not_durable(trial))
        among_worst = trial in ranked[len(ranked) - count :]
        sound = finished and costs.get(trial, inf) < inf and not among_worst
        if not sound and best:
            yield self._copy_ahead(place, generation, best)
        elif finished:
            yield extended(self._view, trial, self._ends[generation + 1])

    def _costs(self, generation: int) -> dict[TrialId, float]:
        """What the trials of all places scored at the end of a generation, if they came so far."""
        costs: dict[TrialId, float] = {}
        for trial in self._newest:
            rule = self._rule
            cost = reached(self._view, trial, self._ends[generation], rule.metric, rule.mode)
            if cost is not None:
                costs[trial] = cost
        return costs

    def _can_be_copied(self, trial: TrialId, generation: int) -> bool:
        """Whether it has a durable state, at least as far and not at the very end."""
        if self._view.ended.get(trial, "finished") != "finished" or trial not in self._view.kept:
            return False
        samples = self._view.kept[trial].samples
        return self._samples[generation] - EPS <= samples < self._samples[-1] - EPS

    def _copy_ahead(self, place: int, generation: int, best: Sequence[TrialId]) -> Trial:
        """A copy of one of the best, from its newest durable state to its interval's end."""
        rng = self._rng(generation + 1, place)
        donor = _drawn(best, rng)
        kept = self._view.kept[donor]
        # The generation whose end comes next after so many samples.
        later = (g for g, end in enumerate(self._samples) if end > kept.samples + EPS)
        aim = next(later)
        return self._child(_name(place, aim), (donor, kept.visits), self._samples[aim], rng)

    # -- both ----------------------------------------------------------------------------------

    def _rng(self, generation: int, place: int) -> Rng:
        return np.random.default_rng([self._rule.seed or 0, generation, place])

    def _child(
        self, name: TrialId, start: tuple[TrialId, int], samples: Samples, rng: Rng
    ) -> Trial:
        """A trial that starts from (another one, after so many of its visits)."""
        donor = self._view.known[start[0]]
        config = self._rule.mutated(donor.config, rng)
        return replace(donor, id=name, samples=samples, config=config, start=start)


def _not_durable(trial: TrialId) -> str:
    """What to say where a trial has no state that a copy could begin with."""
    return (
        f"PBT copies trials from their checkpoints, and trial {trial} has none at the end of an "
        "interval: give shoal.report(…, checkpoint=…) at the end of each perturbation_interval, or "
        "use another searcher"
    )


def _drawn(best: Sequence[TrialId], rng: Rng) -> TrialId:
    """One of the best, by lot."""
    return best[int(rng.integers(len(best)))]


FACTORS = {True: 1.2, False: 0.8}  # up, down
STEPS = {True: 1, False: -1}


def check_mutable(domains: Mapping[str, Any], names: Collection[str] | None) -> None:
    """Check that copies can change something.

    `names`: what they are to change; None: whatever is continuous.

    Raises:
        ValueError: nothing in the space is continuous, or a name cannot be changed.
    """
    changeable = sorted(
        name
        for name, domain in domains.items()
        if hasattr(domain, "sample") or isinstance(domain, GridDomain)
    )
    if names is None:
        if not any(map(_is_continuous, domains.values())):
            listed = ", ".join(changeable) or "dimensions that are not constant"
            raise ValueError(
                "PBT: copies change what is uniform or loguniform, and nothing is in this "
                "space: they would repeat their models; name what they may change, "
                f"mutate=[…], of {listed}"
            )
        return
    wrong = sorted(set(names).difference(changeable))
    if wrong:
        raise ValueError(
            f"PBT: mutate names {', '.join(wrong)}; the space has "
            f"{', '.join(changeable) or 'constants only'}"
        )


@dataclass(frozen=True, slots=True)
class Mutation:
    """A way to change configurations.

    `names`: what changes; None: whatever is `uniform` or `loguniform`. `anew`: the probability
    that a value is drawn anew, and not from near the old one.
    """

    names: Collection[str] | None
    anew: float
    rng: np.random.Generator

    def of(self, config: Mapping[str, Value], space: Space) -> Config:
        """A changed copy of a configuration of the space."""

        def pick(name: str, domain: Any, _: str) -> Value:
            return self._changed(config, name, domain)

        return build(space, pick)

    def _changed(self, config: Mapping[str, Value], name: str, domain: Any) -> Value:
        """The copy's value of one dimension."""
        free = self._is_free(name, domain)
        if isinstance(domain, GridDomain):
            domain = Choice(domain.values)
        # Another branch of the space may have another domain by this name.
        has = name in config and _within(domain, config[name])
        if has and not free:
            return config[name]
        if not has or self.rng.random() < self.anew:
            drawn: Value = domain.sample(self.rng)
            return drawn
        # Near the value, within the domain: up or down, or the other way at its end.
        value = config[name]
        up = bool(self.rng.integers(2))
        near = _shifted(domain, value, up)
        if near != value:
            return near
        return _shifted(domain, value, not up)

    def _is_free(self, name: str, domain: Any) -> bool:
        """Whether copies may change this dimension."""
        if self.names is None:
            return _is_continuous(domain)
        return name in self.names


def _is_continuous(domain: Any) -> bool:
    return isinstance(domain, Uniform | LogUniform)


def _within(domain: Any, value: Any) -> bool:
    if isinstance(domain, Choice):
        return value in domain.values
    return isinstance(value, int | float) and bool(domain.low <= value < domain.high)


def _shifted(domain: Any, value: Any, up: bool) -> Value:
    """The next value of a choice, or a fifth more or less, within the domain."""
    if isinstance(domain, Choice):
        place = domain.values.index(value) + STEPS[up]
        return domain.values[min(max(place, 0), len(domain.values) - 1)]
    if isinstance(domain, RandInt):
        return min(max(_another(value, up), domain.low), domain.high - 1)
    last = nextafter(domain.high, domain.low)
    near: float = min(max(value * FACTORS[up], domain.low), last)
    return near


def _another(value: int, up: bool) -> int:
    """The whole number a fifth above or below, at least one away."""
    whole = round(value * FACTORS[up])
    if whole == value:
        whole += STEPS[up]
    return whole
