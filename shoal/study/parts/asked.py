"""From what a user says of a search to a searcher that fits the study."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from shoal.core.ports import Policy, Searcher
from shoal.core.trial import Trial, TrialId, is_number, is_whole, shown
from shoal.core.visits import LEAST, ValidateEvery
from shoal.options import Options, check_for_width, check_whole_visits
from shoal.policy import Auto, Mixed, Pack, PacksAsTrials
from shoal.policy.elastic.objective import MADE_UP, try_objective
from shoal.policy.named import objectives_of
from shoal.search import (
    PBT,
    Grid,
    Random,
    completed,
    nested,
    parse,
)
from shoal.search.space import dimensions, validated
from shoal.study.folder import StudyError
from shoal.study.parts.auto import check_methods
from shoal.study.parts.backends import slots_on_this_machine
from shoal.study.setup import Setup, Space, each_recipe, first_config
from shoal.train.data.data import Data
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.recipe.adapted import Adapted
from shoal.train.recipe.hooks import carries_state
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.several.recipes import Recipes, aims
from shoal.train.recipe.shard import ShardRecipe, is_scored
from shoal.train.tools.check import trained_names

MADE_UP_SAMPLES = 10_000.0  # of the trials with which an objective is tried
# Trials under way for each slot, of searchers that learn from earlier trials.
PACKED = 8
# What `Wishes` may ask for that not every searcher can do: why not, and which ones can.
UNMET = {
    "widths": ("has no field widths", "one of Shoal's searchers, or add the field"),
    "priority": ("makes trials of one priority", "Grid or Random"),
    "max_concurrent": (
        "says itself how many are under way",
        "Grid, Random, ASHA or Optuna",
    ),
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What `optimize` was given for the searcher; None leaves a value to the searcher."""

    num_samples: int | None = None
    max_epochs: Any = None
    max_concurrent: int | None = None
    widths: tuple[int, int] | None = None
    priority: float | None = None

    def fields(self) -> dict[str, Any]:
        """The values by name, numbers of NumPy as Python's."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in named.items()
        }


def either(*given: int | None) -> int | None:
    """The number of samples under either name; None: none was given.

    Raises:
        StudyError: the two names have two numbers.
    """
    found = {count for count in given if count is not None}
    if len(found) > 1:
        raise StudyError(
            f"num_samples= and n_trials= are two names of one number; got {sorted(found)}: give "
            "one of them"
        )
    return next(iter(found), None)


def default_searcher(
    space: Mapping[str, Any] | None, wishes: Wishes, seed: int = 0
) -> Searcher[Any]:
    """A grid if every dimension is one and no number of samples is asked for, else random samples.

    Raises:
        StudyError: the number of epochs is missing, or the number of samples.
    """
    if wishes.max_epochs is None:
        raise StudyError(
            "say how long to train: max_epochs= (or a max_epochs attribute of the recipe)"
        )
    space = space or {}
    limits = {"max_epochs": wishes.max_epochs, "max_concurrent": wishes.max_concurrent}
    if wishes.num_samples is not None:
        return Random(space, num_samples=wishes.num_samples, seed=seed, **limits)
    if _is_drawn_from(validated(space)):
        raise StudyError(
            "the search space is not only grids: say how many samples to draw, num_samples="
        )
    return Grid(space, **limits)


def usual_searcher(space: Mapping[str, Any] | None) -> Searcher[Any]:
    """A grid if the space is nothing but grids, else random samples; without any numbers."""
    if space and not _is_drawn_from(validated(space)):
        return Grid()
    return Random()


def searcher_of(
    setup: Setup, searcher: Searcher[Any] | str | None, wishes: Wishes
) -> Searcher[Any]:
    """The searcher, itself or by name, completed with the study's values and the wishes.

    Raises:
        StudyError: a wish that the searcher cannot meet.
        ValueError: no searcher has that name, or its arguments do not fit.
    """
    given = wishes.fields()
    _check_numbers(given)
    wide = {name: given[name] for name in ("widths", "priority")}
    own = {
        "space": setup.space,
        "metric": setup.metric,
        "mode": setup.mode,
        "seed": setup.seed,
    }

    def usual() -> Searcher[Any]:
        return completed(default_searcher(setup.space, wishes, setup.seed), wide, usual)

    if isinstance(searcher, str):
        searcher = parse(searcher)
    if searcher is None:
        whole = usual()
    else:
        check_methods("searcher", searcher, ("start", "propose"))
        whole = completed(searcher, {**own, **given}, usual)
    _check_met(whole, given)
    _check_copies(setup.recipe, whole)
    if aims(setup.recipe, setup.metric):
        _check_compared(whole)
    return whole


def _check_copies(recipe: Recipe, searcher: Searcher[Any]) -> None:
    """Raise StudyError if copies of trials would be of one recipe, and their places of another."""
    if isinstance(recipe, Recipes) and any(isinstance(e, PBT) for e in nested(searcher)):
        raise StudyError(
            "PBT copies weights from trial to trial, and a study of several recipes has models "
            "that differ: use random, grid, asha, hyperband or optuna, or a study for each recipe"
        )


def _check_compared(searcher: Searcher[Any]) -> None:
    """Raise StudyError if scores of unlike metrics would be compared."""
    for each in nested(searcher):
        if getattr(each, "metric", "") is None:
            raise StudyError(
                f"{type(each).__name__} compares trials, and the recipes have metrics of their "
                "own: use random or grid, or give metric=, one that all of them have"
            )


def _check_numbers(given: Mapping[str, Any]) -> None:
    """Raise StudyError if a number is asked for by something else."""
    kinds = {
        "num_samples": is_whole,
        "max_epochs": is_number,
        "max_concurrent": is_whole,
    }
    words = {is_whole: "a whole number", is_number: "a number"}
    for name, holds in kinds.items():
        value = given[name]
        if value is not None and not holds(value):
            raise StudyError(f"{name} must be {words[holds]}; got {shown(value)}")


def _check_met(searcher: Searcher[Any], given: Mapping[str, Any]) -> None:
    """Raise StudyError if the searcher knows nothing of what the user asks for."""
    for name, (does, able) in UNMET.items():
        if given[name] is None or any(hasattr(each, name) for each in nested(searcher)):
            continue
        raise StudyError(
            f"{type(searcher).__name__} {does}, so {name}={given[name]!r} cannot be met: use {able}"
        )


def _is_drawn_from(space: Mapping[str, Any]) -> bool:
    """Whether a dimension of the validated space is drawn, not listed."""
    return any(hasattr(domain, "sample") for _, domain in dimensions(space))


def check_metric(setup: Setup, data: Data, space: Mapping[str, Any] | None) -> None:
    """Raise StudyError if there is a metric to rank by, and nothing that gives it.

    Without validation it is a value that training returns: of a training step the loss always is
    one, and for another name a step is tried. `space`: where configurations come from.
    """
    lack = _lack(setup.recipe, data)
    metric = setup.metric
    if metric is None or lack is None:
        return
    step = "training_step"
    if isinstance(setup.recipe, ShardRecipe):
        step = "train_shard"
    elif metric == "loss":
        return
    if space is None:
        return
    names = trained_names(setup.recipe, data, first_config(space), setup.seed)
    if names is None or metric in names:
        return
    raise StudyError(
        f"trials are to be ranked by {metric!r}, and {type(setup.recipe).__name__} gives no such "
        f"scores: {lack}, and {step} returns {', '.join(sorted(names)) or 'nothing'}; "
        "see docs/recipe.md, or leave out metric="
    )


def check_validate_every(setup: Setup, options: Options, data: Data, most: int) -> None:
    """Raise StudyError if evaluations cannot be made where they are asked for.

    `most`: slots that a trial may have.
    """
    every = options.every
    if isinstance(setup.recipe, FunctionRecipe) and every != ValidateEvery():
        raise StudyError(
            "validate_every is for recipes; a function is evaluated when it calls shoal.report: "
            f"got {options.validate_every!r}, leave it out"
        )
    check_in_place(setup.recipe, data)
    shards = max(1, len(data.shards))
    if isinstance(setup.recipe, ShardRecipe):
        check_whole_visits(options, shards, "train_shard makes a whole visit by itself")
    check_for_width(options, shards, most)


def check_in_place(recipe: Recipe, data: Data) -> None:
    """Raise StudyError if validation parts lie at several nodes, and must be read in one place."""
    if data.catalogue is None or data.catalogue.is_scored_whole:
        return
    why = None
    if isinstance(recipe, Adapted):
        why = "the code of another library validates on all of them in one process"
    elif carries_state(recipe):
        why = "its steps hand a state from batch to batch"
    if why is not None:
        raise StudyError(
            f"not all validation parts lie at each node that trains, and {why}: give them to each "
            'such node, or at "*" (every node)'
        )


def about_every(setup: Setup, options: Options, data: Data) -> ValidateEvery:
    """When trials are evaluated, for a simulation: steps are about so large a part of an epoch."""
    every = options.every
    size = setup.recipe.batch_size
    if not every.steps or not isinstance(size, int):
        return every
    samples = every.steps * size * setup.recipe.accumulate_grad_batches
    return ValidateEvery(max(LEAST, samples / data.samples))


def try_objectives(
    setup: Setup,
    policy: Policy[Any],
    space: Space | None,
    known: Iterable[Trial],
    widths: tuple[int, int],
) -> None:
    """Try the user's own objectives with made-up rates: for some known trials, else for new ones.

    `space`: where configurations come from. `widths`: of new trials.

    Raises:
        StudyError: one is no objective; see `try_objective`.
    """
    objectives = list(objectives_of(policy))
    if not objectives:
        return
    trials = list(islice(known, 3)) or [
        Trial(TrialId("of-your-space"), MADE_UP_SAMPLES, first_config(inner), widths)
        for _, _, inner in each_recipe(setup, None, space)
    ]
    for objective in objectives:
        for trial in trials:
            name = f"a trial with {shown(dict(trial.config))}"
            try:
                try_objective(objective, trial, name)
                try_objective(objective, trial, name, MADE_UP[:1])
            except ValueError as error:
                raise StudyError(str(error)) from error


def widths_of(searcher: Searcher[Any]) -> tuple[int, int]:
    """The fewest and the most slots of a trial that the searcher makes."""
    found = [getattr(each, "widths", None) for each in nested(searcher)]
    return next((widths for widths in found if widths is not None), (1, 1))


def usual_priority(searcher: Searcher[Any]) -> float:
    """The priority of the trials that the searcher makes."""
    found: list[Any] = [getattr(each, "priority", None) for each in nested(searcher)]
    return next((float(each) for each in found if is_number(each)), 1.0)


def most_slots(searcher: Searcher[Any], known: Iterable[Trial]) -> int:
    """The most slots that a trial of the searcher, or one that is known, may have."""
    widths = [widths_of(searcher), *(trial.widths for trial in known)]
    return max(most for _, most in widths)


def _lack(recipe: Recipe, data: Data) -> str | None:
    """Why trials get no scores; None if they get some, or report by themselves."""
    if isinstance(recipe, FunctionRecipe):
        return None
    if not data.validation:
        return "its data have no validation part"
    if not is_scored(recipe):
        if isinstance(recipe, ShardRecipe):
            return "it has no validate_shard"
        return "it has no validation_step"
    return None


def per_slot(searcher: Searcher[Any], policy: Policy[Any], options: Options) -> Searcher[Any]:
    """The searcher, with several trials under way for each slot if the policy may pack.

    With more trials under way the searcher would learn from fewer. If packing is only considered
    (`Auto`), at most a quarter of all trials is under way, so that later ones can learn.
    """
    count = min(_most_packed(policy), PACKED)
    if isinstance(policy, Auto):
        count = min(count, _quarter(searcher, options))
    return completed(searcher, {"per_slot": count}, lambda: searcher)


def _most_packed(policy: Policy[Any]) -> int:
    """Trials that the policy may have on one slot at once."""
    most = 1
    for each in _within(policy):
        if isinstance(each, (Mixed, Pack, PacksAsTrials)):
            most = max(most, each.most)
    return most


def _quarter(searcher: Searcher[Any], options: Options) -> int:
    """A quarter of all trials, for each slot; one at least, as where the slots are unknown."""
    if options.address and not options.slots:
        return 1
    slots = slots_on_this_machine(options)
    return max(1, _samples(searcher) // (4 * slots))


def _within(policy: Any) -> Iterator[Any]:
    """The policy's candidates, or itself, and the policies that each of them adapts (`Every`)."""
    waiting = [policy]
    if isinstance(policy, Auto):
        waiting = [*policy.candidates.values()]
    for each in waiting:
        inner = getattr(each, "policy", None)
        if inner is not None:
            waiting.append(inner)
        yield each


def _samples(searcher: Searcher[Any]) -> int:
    """Trials that the searcher, or one within it, is to draw; 1 if none says."""
    for each in nested(searcher):
        count: int | None = getattr(each, "num_samples", None)
        if count is not None:
            return count
    return 1
