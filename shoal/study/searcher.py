"""From what a user says of a search to a searcher that fits the study."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from shoal.core.errors import StudyError, arguments_checked
from shoal.core.ports import Policy, Searcher
from shoal.core.trial import Trial, is_number
from shoal.options import Options, SearchArguments
from shoal.policy import Auto, Mixed, Pack, PacksAsTrials
from shoal.search import (
    ASHA,
    PBT,
    Grid,
    Hyperband,
    Optuna,
    Random,
    SuccessiveHalving,
    completed,
    nested,
    parse,
)
from shoal.search.draws import OWN, SOBOL
from shoal.search.registry import KNOWN
from shoal.search.space import dimensions, validated
from shoal.study.auto import check_methods
from shoal.study.backends import slots_on_this_machine
from shoal.study.code.recipe_file import function_in
from shoal.study.search_extension import with_core
from shoal.study.setup import Setup, Space
from shoal.train.function.recipe import UNLIMITED, FunctionRecipe, nothing
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_code import reports_no_checkpoint
from shoal.train.recipe.recipes import Recipes, aims

# Trials under way for each slot, of searchers that learn from earlier trials.
PACKED = 8
# The arguments of `Study.optimize` that are a searcher's fields where it leaves them open.
OF_SEARCHERS = ("num_samples", "max_epochs", "max_concurrent", "widths", "priority")
# Those of them that not every searcher has: why not, and which ones do.
UNMET = {
    "widths": ("has no field widths", "one of Shoal's searchers, or add the field"),
    "priority": ("makes trials of one priority", "Grid or Random"),
    "max_concurrent": ("says itself how many are under way", "Grid, Random, ASHA or Optuna"),
}
# Searchers whose trials stop at rungs, which lie before an end that must be known.
BY_RUNGS = (ASHA, Hyperband, PBT, SuccessiveHalving)


def sample_count(*counts: int | None) -> int | None:
    """The number of samples under any of its names; None: none was given.

    Raises:
        StudyError: the two names have two numbers.
    """
    numbers = {count for count in counts if count is not None}
    if len(numbers) > 1:
        raise StudyError(
            f"num_samples= and n_trials= are two names of one number; got {sorted(numbers)}: give "
            "one of them"
        )
    return next(iter(numbers), None)


@arguments_checked()
def searcher_of(setup: Setup, arguments: SearchArguments) -> Searcher[Any]:
    """The searcher that is asked for, completed with the study's values and the arguments.

    Raises:
        StudyError: the searcher cannot do what an argument asks for.
        ArgumentError: no searcher has that name, or its arguments do not fit.
    """
    values = {name: getattr(arguments, name) for name in OF_SEARCHERS}
    of_trials = {name: values[name] for name in ("widths", "priority")}
    study = {"space": setup.space, "metric": setup.metric, "mode": setup.mode, "seed": setup.seed}

    def usual() -> Searcher[Any]:
        return completed(default_searcher(setup.space, arguments, setup.seed), of_trials, usual)

    searcher = arguments.searcher
    if isinstance(searcher, str):
        searcher = parse(searcher)
    if searcher is None:
        complete = usual()
    else:
        check_methods("searcher", searcher, ("start", "propose"))
        complete = completed(searcher, {**study, **values}, usual)
    _check_met(complete, values)
    _check_copies(setup.recipe, complete)
    if aims(setup.recipe, setup.metric):
        _check_compared(complete)
    return complete


def default_searcher(
    space: Mapping[str, Any] | None, arguments: SearchArguments, seed: int = 0
) -> Searcher[Any]:
    """A grid if every dimension is one and no number of samples is asked for, else random samples.

    Raises:
        StudyError: the number of epochs is missing, or the number of samples.
    """
    if arguments.max_epochs is None:
        raise StudyError(
            "say how long to train: max_epochs= (or a max_epochs attribute of the recipe)"
        )
    space = space or {}
    limits: dict[str, Any] = {
        "max_epochs": arguments.max_epochs,
        "max_concurrent": arguments.max_concurrent,
    }
    if arguments.num_samples is not None:
        return Random(space, num_samples=arguments.num_samples, seed=seed, **limits)
    if _is_drawn_from(validated(space)):
        raise StudyError(
            "the search space is not only grids: say how many samples to draw, num_samples=; or "
            "list values as shoal.grid([…]), for a trial of each of them"
        )
    return Grid(space, **limits)


def grid_or_random(space: Mapping[str, Any] | None) -> Searcher[Any]:
    """A grid if the space is nothing but grids, else random samples; without any numbers."""
    if space and not _is_drawn_from(validated(space)):
        return Grid()
    return Random()


def _is_drawn_from(space: Mapping[str, Any]) -> bool:
    """Whether a dimension of the validated space is drawn, not listed."""
    return any(hasattr(domain, "sample") for _, domain in dimensions(space))


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


def _check_met(searcher: Searcher[Any], values: Mapping[str, Any]) -> None:
    """Raise StudyError if the searcher knows nothing of what the user asks for."""
    for name, (does, able) in UNMET.items():
        if values[name] is None or any(hasattr(each, name) for each in nested(searcher)):
            continue
        raise StudyError(
            f"{type(searcher).__name__} {does}, so {name}={values[name]!r} cannot be met: use "
            f"{able}"
        )


# -- what a searcher says of its trials ------------------------------------------------------------


def space_of(searcher: Searcher[Any]) -> Space | None:
    """The space that the searcher, or one within it, takes configurations from."""
    for each in nested(searcher):
        space: Space | None = getattr(each, "space", None)
        if space is not None:
            return space
    return None


def widths_of(searcher: Searcher[Any]) -> tuple[int, int]:
    """The fewest and the most slots of a trial that the searcher makes."""
    all_widths = [getattr(each, "widths", None) for each in nested(searcher)]
    return next((widths for widths in all_widths if widths is not None), (1, 1))


def usual_priority(searcher: Searcher[Any]) -> float:
    """The priority of the trials that the searcher makes."""
    priorities: list[Any] = [getattr(each, "priority", None) for each in nested(searcher)]
    return next((float(each) for each in priorities if is_number(each)), 1.0)


def most_slots(searcher: Searcher[Any], known: Iterable[Trial]) -> int:
    """The most slots that a trial of the searcher, or one that is known, may have."""
    widths = [widths_of(searcher), *(trial.widths for trial in known)]
    return max(most for _, most in widths)


def end_beyond_rungs(searcher: Searcher[Any]) -> float | None:
    """The epochs to which trials go on at most that ended at a rung; None: none goes on."""
    for each in nested(searcher):
        if isinstance(each, BY_RUNGS) and not getattr(each, "stopping", False):
            return each.max_epochs
    return None


# -- packs -----------------------------------------------------------------------------------------


def per_slot(searcher: Searcher[Any], policy: Policy[Any], options: Options) -> Searcher[Any]:
    """The searcher, with several trials under way for each slot if the policy may pack.

    With more trials under way the searcher would learn from fewer. If packing is only considered
    (`Auto`), at most a quarter of all trials is under way, so that later ones can learn.
    """
    most = [
        each.most
        for each in _policies_within(policy)
        if isinstance(each, (Mixed, Pack, PacksAsTrials))
    ]
    count = min(max(most, default=1), PACKED)
    if isinstance(policy, Auto):
        quarter = 1  # for each slot, if the number of slots is unknown
        if options.slots or not options.address:
            quarter = _samples(searcher) // (4 * slots_on_this_machine(options))
        count = min(count, max(1, quarter))
    return completed(searcher, {"per_slot": count}, lambda: searcher)


def _policies_within(policy: Any) -> Iterator[Any]:
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


# -- functions -------------------------------------------------------------------------------------


def check_function_search(setup: Setup, searcher: Searcher[Any]) -> None:
    """Raise StudyError if the searcher asks of functions what they cannot do."""
    if isinstance(setup.recipe, FunctionRecipe) and setup.recipe.draws:
        if function_in(setup.recipe) is nothing:
            raise StudyError(
                "there is nothing to train: study.optimize(objective, n_trials=…), or a loop of "
                "your own with study.ask() and study.tell()"
            )
        check_space_known(searcher)
    for each in nested(searcher):
        if isinstance(each, PBT) and reports_no_checkpoint(setup.recipe):
            raise StudyError(
                "PBT copies trials from their checkpoints, and this function reports without one: "
                "give shoal.report(…, checkpoint=…) and begin with shoal.restore(), or use another "
                "searcher"
            )
        widths = getattr(each, "widths", None)
        if widths not in (None, (1, 1)):
            raise StudyError(
                f"a function has one slot for itself, so widths={widths!r} cannot be met: "
                "leave widths= out"
            )
        if isinstance(each, BY_RUNGS) and each.max_epochs == UNLIMITED:
            raise StudyError(
                f"{type(each).__name__} compares trials after some of their reports: say how many "
                "a trial makes at most, max_epochs="
            )


def check_space_known(searcher: Searcher[Any]) -> None:
    """Raise StudyError if the searcher must know the space that an objective draws from."""
    for each in nested(searcher):
        if getattr(each, "space", None):
            continue
        if isinstance(each, Optuna | PBT):
            raise StudyError(
                f"{type(each).__name__} must know the space before a trial begins, and this "
                "objective draws its parameters as it runs: give search_space= (suggest_* then "
                "take their values from it), or leave the searcher out for random ones"
            )
        if isinstance(each, Grid):
            raise StudyError("say how many trials to draw: n_trials=")


def _whole(searcher: Searcher[Any]) -> float:
    """The reports with which a trial ends for good; before, one that has its samples may go on."""
    if not all(type(each) in KNOWN.values() for each in nested(searcher)):
        return inf  # what sends its trials on, nobody knows
    return end_beyond_rungs(searcher) or 0.0


def with_own_draws(setup: Setup, searcher: Searcher[Any]) -> Searcher[Any]:
    """The searcher; where an objective alone draws, both know that it does.

    What an objective draws is spread over trials then. It is not in a study that was begun before,
    nor where the searcher draws, too: both would take the same places.
    """
    if not isinstance(setup.recipe, FunctionRecipe):
        return searcher
    setup.recipe.whole = _whole(searcher)
    core: Any = [*nested(searcher)][-1]
    if not hasattr(core, "sampling"):
        return searcher
    if setup.recipe.draws and core.sampling == SOBOL and not core.space:
        core = replace(core, sampling=OWN)
        searcher = with_core(searcher, core)
    setup.recipe.spread = core.sampling == OWN
    return searcher
