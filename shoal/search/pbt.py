"""Population based training (Jaderberg et al., 2017), synchronous or asynchronous.

A population trains side by side; every `perturbation_interval` epochs the worst are left where they are, and copies of the best
with changed hyper-parameters take their places. A copy is a trial that starts from the other's state (`Trial.start`), named
after its place in the population and its generation. All is read from the view at each time, nothing is remembered.
Asynchronous, as in the paper, nobody waits: a trial is compared when it comes to an interval's end.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, nextafter
from typing import Any

import numpy as np

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Trial, TrialId, Value
from shoal.search.batch import whole_epochs
from shoal.search.draws import EPS, Draws, by_number, check_numbers, draws, extended, needed, new_trial, numbered, through
from shoal.search.rank import Mode, best_first, check_scores, cost_at, reached
from shoal.search.space import Choice, GridDomain, LogUniform, RandInt, Space, Uniform, build, dimensions


@dataclass(frozen=True, slots=True)
class PBT:
    """`num_samples` places, trained to `max_epochs`; at each interval's end copies of the best take the places of the worst.

    `quantile_fraction`: how many are best, and how many worst; failed trials and those without a finite score are
    always among the worst. `mutate`: names of what copies change (None: whatever is `uniform` or `loguniform`): drawn
    anew with `resample_probability`, else times 0.8 or 1.2, or a neighbour of a `choice`. Model shapes must not change.
    `asynchronous`: a trial that comes to an interval's end is compared at once, with what the others scored then or later;
    one of the worst gives way to a copy of one of the best that is as far at least, from its newest durable state.
    What is None is the study's.

    Raises:
        ValueError: numbers out of range.
    """

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
    _draws: Draws = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        whole = self.perturbation_interval >= 1 and self.perturbation_interval % 1 == 0
        if not (whole and 0 < self.quantile_fraction <= 0.5 and 0 <= self.resample_probability <= 1):
            raise ValueError(
                "PBT needs perturbation_interval a whole number >= 1, quantile_fraction in (0, 0.5] and resample_probability "
                f"in [0, 1]; got {self.perturbation_interval!r}, {self.quantile_fraction!r}, {self.resample_probability!r}"
            )
        if isinstance(self.mutate, str):
            raise ValueError(f"PBT: mutate is a list of names; got the text {self.mutate!r}: write mutate=[{self.mutate!r}]")
        object.__setattr__(self, "mutate", None if self.mutate is None else tuple(self.mutate))
        object.__setattr__(self, "_draws", draws(self.space, self.seed))
        if self.space is not None:
            self._check_mutable()

    def _check_mutable(self) -> None:
        known = dict(dimensions(self._draws.space))
        free = {name for name, domain in known.items() if hasattr(domain, "sample") or isinstance(domain, GridDomain)}
        if self.mutate is None and not any(isinstance(domain, (Uniform, LogUniform)) for domain in known.values()):
            raise ValueError(
                "PBT: copies change what is uniform or loguniform, and nothing is in this space: they would repeat their models; "
                f"name what they may change, mutate=[…], of {', '.join(sorted(free)) or 'dimensions that are not constant'}"
            )
        if wrong := sorted(set(self.mutate or ()) - free):
            raise ValueError(f"PBT: mutate names {', '.join(wrong)}; the space has {', '.join(sorted(free)) or 'constants only'}")

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        needed(self, "num_samples", "max_epochs")
        check_scores(view, self.metric)
        assert self.num_samples is not None and self.max_epochs is not None
        every = self.perturbation_interval
        ends = [min((g + 1) * every, self.max_epochs) for g in range(ceil(self.max_epochs / every - 1e-9))]
        places = range(self.num_samples)
        new = [i for i in places if numbered(i) not in view.known]
        if new:
            return Proposal(tuple(new_trial(view, numbered(i), self._draws(i), ends[0]) for i in new)), memory
        chains = [_chain(view, i, len(ends)) for i in places]
        newest = [chain[max(chain)] for chain in chains]
        aims = [next(g for g, end in enumerate(ends) if view.known[t].samples <= whole_epochs(view, end)) for t in newest]
        if self.asynchronous:
            return Proposal(tuple(self._at_once(view, newest, aims, ends))), memory
        on = [i for i, t in enumerate(newest) if view.ended.get(t) != "retired" and aims[i] + 1 < len(ends)]
        for now in sorted({aims[i] for i in on}):  # the later ones where a crash came between, or where a place stays empty
            due = [i for i in on if aims[i] == now]
            if not all(newest[i] in view.ended for i in due):
                break
            holders = [chain[max(g for g in chain if g <= now)] for chain in chains]
            moved = tuple(self._next(view, holders, due, now, ends))
            if moved:
                return Proposal(moved), memory
        return Proposal(), memory

    def _next(
        self, view: View, holders: Sequence[TrialId], due: Sequence[int], now: int, ends: Sequence[float]
    ) -> Iterator[Trial]:
        """What these places go on with after a generation; `holders`: of all places, in it."""
        alive = [t for t in holders if through(view, t, whole_epochs(view, ends[now]))]
        ranked = best_first(view, alive, ends[now], self.metric, self.mode)
        sound = [t for t in ranked if cost_at(view, t, ends[now], self.metric, self.mode) < inf]
        most = whole_epochs(view, ends[now])  # a copy of what is beyond this generation would be, too
        count = min(ceil(len(ranked) * self.quantile_fraction), len(ranked) // 2)
        best, kept = sound[: max(1, count)], set(sound) & set(ranked[: len(ranked) - count])
        best = [t for t in best if view.done[t] <= most + EPS]
        for i in due:
            if holders[i] in kept or (holders[i] in alive and not best):
                yield extended(view, holders[i], ends[now + 1])
            elif best:
                yield self._copy(view, i, now + 1, best, whole_epochs(view, ends[now + 1]))

    def _at_once(self, view: View, newest: Sequence[TrialId], aims: Sequence[int], ends: Sequence[float]) -> Iterator[Trial]:
        """What the places go on with whose trials came to their interval's end; `newest`: of all places."""
        for i, trial in enumerate(newest):
            how, now = view.ended.get(trial), aims[i]
            if how in (None, "retired") or now + 1 == len(ends):
                continue
            found = {t: reached(view, t, ends[now], self.metric, self.mode) for t in newest}
            costs = {t: c for t, c in found.items() if c is not None}
            ranked = sorted(costs, key=lambda t: (costs[t], by_number(t)))
            count = min(ceil(len(ranked) * self.quantile_fraction), len(ranked) // 2)
            least, most = whole_epochs(view, ends[now]), whole_epochs(view, ends[-1])
            fit = [t for t in ranked[: max(1, count)] if costs[t] < inf and view.ended.get(t, "finished") == "finished"]
            best = [t for t in fit if t in view.kept and least - EPS <= view.kept[t].samples < most - EPS]
            sound = how == "finished" and costs.get(trial, inf) < inf and trial not in ranked[len(ranked) - count :]
            if not sound and best:
                yield self._copy_ahead(view, i, now, best, ends)
            elif how == "finished":
                yield extended(view, trial, ends[now + 1])

    def _copy_ahead(self, view: View, place: int, now: int, best: Sequence[TrialId], ends: Sequence[float]) -> Trial:
        """A copy of one of the best, from its newest durable state to the end of the interval that this is in."""
        rng = np.random.default_rng([self._draws.seed, now + 1, place])
        donor = best[int(rng.integers(len(best)))]
        kept = view.kept[donor]
        aim = next(g for g, end in enumerate(ends) if whole_epochs(view, end) > kept.samples + EPS)
        return self._child(view, place, aim, donor, kept.visits, whole_epochs(view, ends[aim]), rng)

    def _copy(self, view: View, place: int, generation: int, best: Sequence[TrialId], samples: float) -> Trial:
        """A copy of one of the best, to take the place from this generation on."""
        rng = np.random.default_rng([self._draws.seed, generation, place])
        donor = best[int(rng.integers(len(best)))]
        return self._child(view, place, generation, donor, len(view.visits[donor]), samples, rng)

    def _child(
        self, view: View, place: int, generation: int, donor: TrialId, visits: int, samples: float, rng: np.random.Generator
    ) -> Trial:
        old = view.known[donor]
        config = build(self._draws.space, lambda name, domain, _: self._changed(old.config, name, domain, rng))
        name = TrialId(f"{numbered(place)}-g{generation}")
        return replace(old, id=name, samples=samples, config=config, start=(donor, visits))

    def _changed(self, config: Mapping[str, Value], name: str, domain: Any, rng: np.random.Generator) -> Value:
        free = isinstance(domain, (Uniform, LogUniform)) if self.mutate is None else name in self.mutate
        if isinstance(domain, GridDomain):
            domain = Choice(domain.values)
        has = name in config and _within(domain, config[name])  # another branch may have had another domain by this name
        if has and not free:
            return config[name]
        if not has or rng.random() < self.resample_probability:
            anew: Value = domain.sample(rng)
            return anew
        return _perturbed(domain, config[name], rng)


def _within(domain: Any, value: Any) -> bool:
    if isinstance(domain, Choice):
        return value in domain.values
    return isinstance(value, int | float) and bool(domain.low <= value < domain.high)


def _perturbed(domain: Any, value: Any, rng: np.random.Generator) -> Value:
    """Near the value, within the domain: up or down, or the other way at its end. The same only where there is no other."""
    up = bool(rng.integers(2))
    near = _moved(domain, value, up)
    return near if near != value else _moved(domain, value, not up)


def _moved(domain: Any, value: Any, up: bool) -> Value:
    if isinstance(domain, Choice):
        at = domain.values.index(value) + (1 if up else -1)
        near: Value = domain.values[min(max(at, 0), len(domain.values) - 1)]
        return near
    moved = value * (1.2 if up else 0.8)
    if isinstance(domain, RandInt):
        whole = round(moved) if round(moved) != value else value + (1 if up else -1)
        kept_whole: int = min(max(whole, domain.low), domain.high - 1)
        return kept_whole
    kept: float = min(max(moved, domain.low), nextafter(domain.high, domain.low))
    return kept


def _chain(view: View, place: int, generations: int) -> dict[int, TrialId]:
    """The trials that had the place, each by the generation that was its first."""
    copies = {g: TrialId(f"{numbered(place)}-g{g}") for g in range(1, generations)}
    return {0: numbered(place), **{g: t for g, t in copies.items() if t in view.known}}
