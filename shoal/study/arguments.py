"""What a user gave to create a study: a recipe in one of several forms, a metric, a mode."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.cluster import fits_utf8
from shoal.core.errors import StudyError, warn
from shoal.core.site import page
from shoal.core.trial import is_whole, shown
from shoal.policy.width.convergence import more_is_better
from shoal.train.function.command import CommandRecipe
from shoal.train.function.recipe import FunctionRecipe, function_recipe, nothing
from shoal.train.recipe.adapter import Adapted
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipes import Recipes
from shoal.train.recipe.shard import ShardRecipe

DIRECTIONS = {"minimize": "min", "maximize": "max"}


def check_recipe_type(recipe: Any) -> None:
    """Raise StudyError unless this is an instance of a recipe that Shoal drives."""
    if isinstance(recipe, Mapping):
        raise StudyError(f"recipes by name are for create_study; here give one of {[*recipe]}")
    if isinstance(as_recipe(recipe), FunctionRecipe):
        raise StudyError(
            "only recipes can do this; a function drives itself: see "
            f"{page('functions', 'what-shoal-can-do-with-them')}"
        )


def as_recipe(recipe: Any, command: str | None = None) -> Recipe:
    """What a user gave to be trained, as a recipe: a recipe, a function, a command line.

    None is a study whose function comes later.

    Raises:
        StudyError: it is neither an instance of a recipe nor a function, or it is no command line.
    """
    if command is not None:
        return _command_recipe(recipe, command)
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, Mapping):
        return _several(recipe)
    if recipe is None:
        return function_recipe(nothing)
    if isinstance(recipe, type) and not hasattr(recipe, "named_parameters"):
        raise StudyError(f"give an instance: {recipe.__name__}() instead of {recipe.__name__}")
    if hasattr(recipe, "named_parameters"):
        raise StudyError(
            f"a model is no recipe; got {type(recipe).__name__}: write a shoal.Recipe whose "
            "configure_model makes it (a LightningModule's class goes into shoal.lightning)"
        )
    if not callable(recipe):
        raise StudyError(
            "the recipe must be an instance of a shoal.Recipe subclass, or a function "
            f"train(config); got {type(recipe).__name__}"
        )
    try:
        return function_recipe(recipe)
    except ValueError as error:
        raise StudyError(str(error)) from error


def _several(recipes: Mapping[str, Any]) -> Recipes:
    """One recipe made of several by name.

    Raises:
        StudyError: one of them is no recipe, or of a kind that trains alone.
    """
    try:
        several = Recipes(recipes)
    except ValueError as error:
        raise StudyError(str(error)) from error
    for name, recipe in recipes.items():
        if isinstance(recipe, Adapted | FunctionRecipe | ShardRecipe):
            raise StudyError(
                f"recipe {name!r}, a {type(recipe).__name__}, needs a study of its own: recipes by "
                "name are of the kind with configure_model and training_step"
            )
    return several


def _command_recipe(recipe: Any, command: str) -> Recipe:
    """The command line as a recipe.

    Raises:
        StudyError: there is a recipe, too, or it is no command line.
    """
    if recipe is not None:
        raise StudyError("give a recipe or command=, not both")
    try:
        return CommandRecipe(command)
    except ValueError as error:
        raise StudyError(str(error)) from error


def metric_of(metric: Any) -> str | None:
    """The checked name of the value to rank by; None: there is none."""
    if metric is None or (isinstance(metric, str) and fits_utf8(metric)):
        return metric
    raise StudyError(f"metric must be the name of one value; got {shown(metric)}")


def name_in(study_name: Any) -> str | None:
    """The checked name that a user gave a study, which names its folder."""
    if study_name is None:
        return None
    if isinstance(study_name, str) and fits_utf8(study_name):
        place = Path(study_name)
        if not place.is_absolute() and ".." not in place.parts:
            return study_name
    raise StudyError(
        "study_name must be a text that can name a folder within runs/, and no other place; got "
        f"{shown(study_name)}: give that as storage="
    )


def seed_in(seed: Any) -> int:
    """The checked seed that a user gave a study; None is 0."""
    if seed is None:
        return 0
    if not is_whole(seed) or seed < 0:
        raise StudyError(f"seed must be a whole number >= 0; got {shown(seed)}")
    return int(seed)


def usual_mode(metric: str | None) -> str:
    """The mode of a study for which none was given; a warning says so if that looks wrong."""
    if metric is not None and more_is_better(metric):
        warn(
            f"no mode was given, so that trials with the least {metric!r} count as the best: "
            'give mode="max", or mode="min" if that is meant'
        )
    return "min"


def mode_of(mode: str | None, direction: str | None) -> str | None:
    """The mode that `mode` or `direction` says, as "min" or "max"; None: neither says one."""
    words = [each for each in (mode, direction) if each is not None and each != ""]
    for each in words:
        if not isinstance(each, str):
            raise StudyError(f'mode must be "min" or "max"; got {shown(each)}')
    modes = {DIRECTIONS.get(each, each) for each in words}
    if not modes:
        return None
    if len(modes) > 1:
        raise StudyError(
            f"mode={mode!r} and direction={direction!r} are two names of one thing: give one"
        )
    (chosen,) = modes
    if chosen not in DIRECTIONS.values():
        raise StudyError(f'mode must be "min" or "max"; got {chosen!r:.80}')
    return chosen
