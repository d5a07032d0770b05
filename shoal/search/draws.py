"""What searchers that draw have in common: numbered configurations, and trials made of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from typing import Any

from shoal.core.cluster import shards_of
from shoal.core.errors import ArgumentError
from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Samples, Trial, TrialId, is_number, is_whole, shown
from shoal.core.visits import EPS
from shoal.search.batch import Widths, check_rules, checked_widths, take_plain, whole_epochs
from shoal.search.sobol import Place, Source, source
from shoal.search.space import Combinations, Config, Space, dimensions, draw, independent, validated

SOBOL = "sobol"
OWN = "own"
SEED = "seed"  # the key of a configuration that the trial's own seed has


@dataclass(frozen=True, slots=True)
class Draws:
    """Configuration number i of a space, a function of (seed, i); grids are gone through in turn.

    `sampling`: "sobol" spreads the first draws over the space. Where nothing of a configuration is
    drawn, and it comes again, the repetition has a seed of its own: the study's and 1, 2, …
    None is how studies drew that were begun before: each draw by itself, and repetitions equal to
    the last bit. "own": trials draw their configurations themselves, and nothing is added.

    Raises:
        ValueError: the seed is below 0, or the space is not valid.
    """

    space: Space = field(hash=False)
    seed: int
    sampling: str | None = SOBOL
    _grids: Combinations = field(init=False, repr=False, compare=False)
    # The number of each dimension by name.
    _dimensions: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not is_whole(self.seed) or self.seed < 0:
            raise ValueError(f"a seed must be >= 0; got {shown(self.seed)}")
        named = self.sampling is None or isinstance(self.sampling, str)
        if not named or self.sampling not in (SOBOL, OWN, None):
            raise ValueError(
                'sampling must be "sobol", or None for draws that are independent; '
                f"got {shown(self.sampling)}"
            )
        space = validated(self.space)
        drawn = [name for name, each in dimensions(space) if hasattr(each, "sample")]
        numbers = {name: place for place, name in enumerate(dict.fromkeys(drawn))}
        object.__setattr__(self, "space", space)
        object.__setattr__(self, "_grids", Combinations(space))
        object.__setattr__(self, "_dimensions", numbers)

    @property
    def combinations(self) -> int:
        """How many combinations the space's grids have."""
        return self._grids.count

    def __call__(self, index: int) -> Config:
        sample, group = divmod(index, self.combinations)
        fixed = self._grids[group]
        if self.sampling is None:
            return draw(self.space, fixed, independent(self.seed, index))[0]
        place = Place(sample, group, self.combinations)

        def source_of(name: str) -> Source:
            return source(self.seed, self._dimensions[name], place)

        config, drawn = draw(self.space, fixed, source_of)
        if sample and not drawn and SEED not in config and self.sampling == SOBOL:
            config[SEED] = self.seed + sample
        return config


def draws(space: Space | None, seed: int | None, sampling: str | None = SOBOL) -> Draws:
    """What configurations are drawn by; without a space there is nothing to draw, the seed is 0."""
    return Draws(space or {}, seed or 0, sampling)


def numbered(index: int) -> TrialId:
    """t000, t001, …, t999, t1000.

    A trial's name does not depend on how many trials there will be, so `num_samples` may change.
    """
    return TrialId(f"t{index:03d}")


def by_number(trial: TrialId) -> tuple[int, TrialId]:
    """A sort key that orders names as numbers; ties between trials go to the first."""
    return len(trial), trial


def new_trial(
    view: View, name: TrialId, config: Mapping[str, Any], epochs: float, widths: Widths | None
) -> Trial:
    """A trial over all the data of its recipe. `widths`: its fewest and most slots (None: one)."""
    samples = whole_epochs(view, epochs, config)
    shards = frozenset(shards_of(view.shards, config))
    return Trial(name, samples, config, widths or (1, 1), shards)


def extended(view: View, trial: TrialId, epochs: float) -> Trial:
    """The trial, to be trained to so many epochs in all."""
    return replace(view.known[trial], samples=samples_in(view, trial, epochs))


def samples_in(view: View, trial: TrialId, epochs: float) -> Samples:
    """Samples in so many epochs of the trial."""
    return whole_epochs(view, epochs, view.known[trial].config)


def asked_for(view: View, trial: TrialId, epochs: float) -> bool:
    """Whether the trial is to train so many epochs, or more."""
    return view.known[trial].samples >= samples_in(view, trial, epochs) - EPS


def through(view: View, trial: TrialId, epochs: float) -> bool:
    """Whether the trial came to the end of so many epochs, or was to and converged before.

    That it trained on so many samples is not enough: in a pack, its evaluation comes after those
    of others. A trial that was asked to go further had come to that end before.
    """
    samples = samples_in(view, trial, epochs)
    asked = view.known[trial].samples
    if asked > samples + EPS:
        return True
    return view.ended.get(trial) == "finished" and asked >= samples - EPS


def training(view: View) -> list[TrialId]:
    """Trials under way that have samples left: one that took its last is about to finish."""
    return [name for name, trial in view.trials.items() if view.done[name] < trial.samples - EPS]


def mine(view: View, count: int) -> list[TrialId]:
    """The searcher's trials so far, of at most so many."""
    return list(takewhile(view.known.__contains__, map(numbered, range(count))))


def room(searcher: Any, view: View) -> int:
    """How many trials more may be under way.

    At most the searcher's `max_concurrent` are. Without it, `per_slot` (one) are for each slot that
    there is, or for as many slots as a trial needs.
    """
    most: int | None = searcher.max_concurrent
    if most is None:
        fewest, _ = searcher.widths or (1, 1)
        most = max(1, len(view.slots) // fewest) * (searcher.per_slot or 1)
    return max(0, most - len(view.trials))


def retiring(proposal: Proposal, trials: Iterable[TrialId]) -> Proposal:
    """The proposal, in which these trials stop, too."""
    more = frozenset(trials)
    if not more:
        return proposal
    return replace(proposal, retire=proposal.retire | more)


def check_needs(searcher: Any) -> None:
    """Raise ArgumentError if a field that it `needs` is None, because no study filled it in."""
    for name in getattr(searcher, "needs", ()):
        if getattr(searcher, name) is None:
            raise ArgumentError(
                f"{type(searcher).__name__} needs {name}=: "
                "give it to the searcher, or to optimize()"
            )


def check_numbers(searcher: Any) -> None:
    """Raise ValueError unless the fields that searchers share are in range, where they are set.

    Widths, where it has such a field, become a tuple.
    """
    take_plain(searcher)
    if hasattr(searcher, "widths"):
        object.__setattr__(searcher, "widths", checked_widths(searcher.widths))
    rules: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "num_samples": (">= 1", lambda x: is_whole(x) and x >= 1),
        "max_epochs": (">= 1", lambda x: is_number(x) and 1 <= x < inf),
        "grace_period": (">= 1", lambda x: is_number(x) and 1 <= x < inf),
        "reduction_factor": ("> 1: one in so many goes on", lambda x: is_number(x) and 1 < x < inf),
        "metric": ("the name of a score", lambda x: isinstance(x, str)),
        "mode": ('"min" or "max"', lambda x: isinstance(x, str) and x in ("min", "max")),
        "seed": (">= 0", lambda x: is_whole(x) and x >= 0),
        "max_concurrent": (">= 1, or None", lambda x: is_whole(x) and x >= 1),
        "per_slot": (">= 1, or None", lambda x: is_whole(x) and x >= 1),
        "stopping": ("True or False", lambda x: isinstance(x, bool)),
        "concurrent": ("True or False", lambda x: isinstance(x, bool)),
        "asynchronous": ("True or False", lambda x: isinstance(x, bool)),
    }
    check_rules(searcher, rules)
    kind = type(searcher).__name__
    grace = getattr(searcher, "grace_period", None)
    most = getattr(searcher, "max_epochs", None)
    if grace is not None and most is not None and grace > most:
        raise ValueError(f"{kind}: grace_period must be <= max_epochs; got {grace!r} and {most!r}")
