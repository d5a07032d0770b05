"""What is refused before a run begins: recipes, configurations, metrics, objectives are tried."""

import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from shoal.core.cluster import RECIPE
from shoal.core.errors import StudyError, warn
from shoal.core.ports import Policy, Searcher
from shoal.core.site import page
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId, shown
from shoal.core.visits import ValidateEvery
from shoal.options import Options, check_for_width, check_whole_visits
from shoal.policy.description import objectives_of
from shoal.policy.elastic.objective import MADE_UP, try_objective
from shoal.search import Random
from shoal.search.space import dimensions, validated
from shoal.study.searcher import most_slots, space_of, widths_of
from shoal.study.setup import Setup, Space, each_recipe
from shoal.train.data.data import Data
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.lane.device import device_of, gpus
from shoal.train.recipe.adapter import Adapted
from shoal.train.recipe.hooks import carries_state, why_one_slot
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_code import Watched
from shoal.train.recipe.recipes import Recipes, own_config, own_recipe
from shoal.train.recipe.shard import ShardRecipe, is_scored
from shoal.train.tools import keys, model_trial
from shoal.train.tools.check import trained_names
from shoal.train.tools.model_trial import check_configured
from shoal.train.tools.rehearsal import LARGE, Mistake, is_rehearsed, rehearse

UNLIKE = 16  # configurations that `unlike_config` chooses from
OTHERS = 3  # configurations that are tried, too, where the first one fails
MADE_UP_SAMPLES = 10_000.0  # of the trials with which an objective is tried


# -- the search ------------------------------------------------------------------------------------


def check_search(
    setup: Setup,
    searcher: Searcher[Any],
    policy: Policy[Any],
    options: Options,
    data: Data,
    state: State,
) -> None:
    """Raise StudyError if there can be no such scores, evaluations or objective as asked for."""
    space = space_of(searcher)
    try_objectives(setup, policy, space, state.trials.values(), widths_of(searcher))
    most = most_slots(searcher, state.trials.values())
    for part, part_data, part_space in each_recipe(setup, data, space):
        check_metric(part, part_data or data, part_space)
        check_validate_every(part, options, part_data or data, most)


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


def check_metric(setup: Setup, data: Data, space: Mapping[str, Any] | None) -> None:
    """Raise StudyError if there is a metric to rank by, and nothing that gives it.

    Without validation it is a value that training returns: of a training step the loss always is
    one, and for another name a step is tried. `space`: where configurations come from.
    """
    why = _why_no_scores(setup.recipe, data)
    metric = setup.metric
    if metric is None or why is None:
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
        f"scores: {why}, and {step} returns {', '.join(sorted(names)) or 'nothing'}; "
        f"see {page('recipe', 'what-validation_step-returns')}, or leave out metric="
    )


def _why_no_scores(recipe: Recipe, data: Data) -> str | None:
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
        check_whole_visits(options, shards, "train_shard makes a whole pass by itself")
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


def check_one_slot(recipe: Recipe, widths: tuple[int, int] | None) -> None:
    """Raise StudyError if trials may have several slots, and the recipe's steps cannot."""
    if widths is None or widths[1] <= 1:
        return
    if isinstance(recipe, Recipes):
        for part in recipe.parts.values():
            check_one_slot(part, widths)
        return
    why = why_one_slot(recipe)
    if why is not None:
        raise StudyError(f"{why}; got widths={widths!r}")


# -- the recipe ------------------------------------------------------------------------------------


def check_recipe(setup: Setup, space: Space | None) -> int:
    """Try the recipe with the first configuration of the space, before any trial starts.

    `space`: the searcher's; None if configurations come from somewhere else. Returns the number of
    the model's parameters; 0 where no model could be made.

    Raises:
        StudyError: a name is misspelt, a setting is out of range, or the recipe reads a key that
            configurations lack.
    """
    if isinstance(setup.recipe, FunctionRecipe):
        try:
            setup.recipe.check(space)
            keys.check_arguments(setup.recipe, [name for name, _ in dimensions(space or {})])
        except ValueError as error:
            raise StudyError(str(error)) from error
        return 0
    if isinstance(setup.recipe, Recipes):
        return max(check_recipe(part, inner) for part, _, inner in each_recipe(setup, None, space))
    chosen: dict[str, Any] = {}
    for name, domain in dimensions(validated(space or {})):
        chosen[name] = getattr(domain, "values", ())
    try:
        model_trial.check_names(setup.recipe, chosen)
        if space is not None:
            return _check_first(setup, first_config(space), chosen)
    except ValueError as error:
        raise StudyError(str(error)) from error
    return 0


def _check_first(setup: Setup, config: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    """Try one configuration, and warn of dimensions with several `values` that nobody reads.

    Returns the number of the model's parameters.

    Raises:
        ValueError: see `check_recipe`.
    """
    watched = Watched(config)
    model_trial.check_values(setup.recipe, config, values)
    parameters = model_trial.check_configured(setup.recipe, config, setup.seed, watched)
    varied = [name for name in config if name in values and values[name] != (config[name],)]
    if parameters:
        keys.check_attributes(setup.recipe, watched)
    unread = keys.unread_dimensions(setup.recipe, varied, parameters, watched)
    if unread:
        warn(keys.unread_text(setup.recipe, unread))
    return parameters


# -- one batch -------------------------------------------------------------------------------------


def check_by_rehearsal(
    setup: Setup, space: Space | None, data: Data, options: Options, parameters: int
) -> None:
    """Train and validate a configuration on one batch; see `rehearse`.

    Where no batch can be tried, a second model is built. What is wrong with some configurations
    only is left to their trials. `parameters`: of a model.

    Raises:
        StudyError: unlike configurations fail, too; or models share what is trained.
    """
    if space is None or parameters > LARGE or isinstance(setup.recipe, FunctionRecipe):
        return
    first = first_config(space)
    device = _device(data, options)
    if device is None or not is_rehearsed(setup.recipe, data):
        try:  # a model was built before: what this one shares with it, trials would share
            check_configured(setup.recipe, first, setup.seed)
        except ValueError as error:
            raise StudyError(str(error)) from error
        return
    first_mistake: Mistake | None = None
    for config in (first, *unlike_configs(space, first)[:OTHERS]):
        try:
            rehearse(setup.recipe, data, config, setup.seed, device, setup.metric, setup.mode)
        except Mistake as mistake:
            first_mistake = first_mistake or mistake
        else:
            return
    raise StudyError(str(first_mistake)) from first_mistake


def _device(data: Data, options: Options) -> str | None:
    """Where a batch can be tried; None: nowhere.

    Of the ray backend's devices this process knows only that there are no GPUs on this machine. And
    it reads no data that is not in memory.
    """
    if options.backend == "local":
        return device_of(options.device)
    ray = sys.modules.get("ray")
    elsewhere = options.address or (ray is not None and ray.is_initialized())
    if elsewhere or gpus() or not data.in_memory:
        return None
    return "cpu"


# -- configurations --------------------------------------------------------------------------------


def check_added(setup: Setup, config: Mapping[str, Any]) -> None:
    """Check the keys of a configuration that a user adds to the study.

    Raises:
        StudyError: one is misspelt, nobody reads one, or one is missing.
    """
    if isinstance(setup.recipe, Recipes):
        try:
            name = own_recipe(setup.recipe, config).recipe_name
            values = {**own_config(setup.recipe, config)}
        except ValueError as error:
            raise StudyError(str(error)) from error
        for part, _, _ in each_recipe(setup, None, setup.space):
            if part.recipe.recipe_name == name:
                del values[RECIPE]
                check_added(part, values)
        return
    space = validated(setup.space or {})
    names = [name for name, _ in dimensions(space)]
    try:
        keys.check_added(setup.recipe, config, names, list(space), setup.seed)
    except ValueError as error:
        raise StudyError(str(error)) from error


def first_config(space: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A configuration of the space, to try a recipe with."""
    return Random(space or {}, num_samples=1).config(0)


def unlike_config(space: Space | None, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Another configuration of the space, which differs from `config` in as many keys as it may."""
    return next(iter(unlike_configs(space, config)), config)


def unlike_configs(space: Space | None, config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Other configurations of the space, first those that differ from `config` in more keys."""
    searcher = Random(space or {}, num_samples=UNLIKE, sampling=None)
    unlike: list[Mapping[str, Any]] = []
    for number in range(UNLIKE):
        drawn = searcher.config(number)
        if drawn != config and drawn not in unlike:
            unlike.append(drawn)

    def differences(other: Mapping[str, Any]) -> int:
        return sum(other.get(key) != config[key] for key in config)

    return sorted(unlike, key=differences, reverse=True)
