"""What searchers that draw have in common: numbered configurations, and what the study fills in where they leave it open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import isfinite
from typing import Any

from shoal.core.state import View
from shoal.core.trial import Samples, Trial, TrialId
from shoal.search.batch import whole_epochs
from shoal.search.space import Config, Space, draw, grids, validated

EPS = 1e-6  # samples


@dataclass(frozen=True, slots=True)
class Draws:
    """Configuration number i of a space, a function of (seed, i); grids are gone through in turn.

    Raises:
        ValueError: a seed below 0, or a space that is none.
    """

    space: Space = field(hash=False)
    seed: int
    _grids: tuple[Config, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"a seed must be >= 0; got {self.seed!r}")
        object.__setattr__(self, "space", validated(self.space))
        object.__setattr__(self, "_grids", tuple(grids(self.space)))

    @property
    def combinations(self) -> int:
        """Of the space's grids."""
        return len(self._grids)

    def __call__(self, index: int) -> Config:
        return draw(self.space, self.seed, index, self._grids[index % len(self._grids)])


def draws(space: Space | None, seed: int | None) -> Draws:
    """With nothing to draw from, and seed 0, where they are left open."""
    return Draws(space or {}, seed or 0)


def numbered(index: int) -> TrialId:
    """t000, t001, …, t999, t1000: a number's name never depends on how many there are to be, so `num_samples` may change."""
    return TrialId(f"t{index:03d}")


def by_number(trial: TrialId) -> tuple[int, TrialId]:
    """Orders names as numbers; ties between trials go to the first."""
    return len(trial), trial


def new_trial(view: View, name: TrialId, config: Mapping[str, Any], epochs: float) -> Trial:
    """A trial over all the study's data."""
    return Trial(name, whole_epochs(view, epochs), config, shards=frozenset(view.shards))


def extended(view: View, trial: TrialId, epochs: float) -> Trial:
    """The trial, to be trained to so many epochs in all."""
    return replace(view.known[trial], samples=whole_epochs(view, epochs))


def through(view: View, trial: TrialId, samples: Samples) -> bool:
    """Whether it has trained so long, or was to and converged before. What a finished trial did does not get lost again.

    That it trained is not enough: its evaluation comes later, in a pack after those of others. Who goes further was through.
    """
    asked = view.known[trial].samples
    return asked > samples + EPS or (view.ended.get(trial) == "finished" and asked >= samples - EPS)


def training(view: View) -> list[TrialId]:
    """Trials under way that have samples left: one that took its last is about to finish."""
    return [t for t, trial in view.trials.items() if view.done[t] < trial.samples - EPS]


def mine(view: View, count: int) -> list[TrialId]:
    """The searcher's trials so far, of at most so many."""
    return list(takewhile(view.known.__contains__, map(numbered, range(count))))


def room(view: View, max_concurrent: int | None, per_slot: int | None) -> int:
    """How many trials more may be under way: up to `max_concurrent`, or `per_slot` (one) for each slot there is."""
    most = max(1, len(view.slots)) * (per_slot or 1) if max_concurrent is None else max_concurrent
    return max(0, most - len(view.trials))


def needed(searcher: Any, *names: str) -> None:
    """Raise ValueError where the searcher was left without one of these and no study gave it."""
    for name in names:
        if getattr(searcher, name) is None:
            raise ValueError(f"{type(searcher).__name__} needs {name}=: give it to the searcher, or to optimize()")


def check_numbers(searcher: Any) -> None:
    """Raise ValueError unless the fields that are usual among searchers are in range, where they are set."""
    rules: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "num_samples": (">= 1", lambda x: x >= 1 and isfinite(x)),
        "max_epochs": (">= 1", lambda x: x >= 1),
        "grace_period": (">= 1", lambda x: x >= 1),
        "reduction_factor": ("> 1: one in so many goes on", lambda x: x > 1),
        "mode": ('"min" or "max"', lambda x: x in ("min", "max")),
        "seed": (">= 0", lambda x: x >= 0),
        "max_concurrent": (">= 1, or None", lambda x: x >= 1),
        "per_slot": (">= 1, or None", lambda x: x >= 1),
    }
    for name, (rule, holds) in rules.items():
        value = getattr(searcher, name, None)
        if value is not None and not holds(value):
            raise ValueError(f"{type(searcher).__name__}: {name} must be {rule}; got {value!r}")
    grace, most = getattr(searcher, "grace_period", None), getattr(searcher, "max_epochs", None)
    if grace is not None and most is not None and grace > most:
        raise ValueError(f"{type(searcher).__name__}: grace_period must be <= max_epochs; got {grace!r} and {most!r}")
