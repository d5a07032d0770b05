"""What a study is about: one frozen value, and the data and space that it names."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.cluster import RECIPE
from shoal.core.errors import StudyError
from shoal.engine.files import current_folder
from shoal.engine.process import Training, training
from shoal.engine.run import DataMissing
from shoal.search.optuna import instead
from shoal.study.code.recipe_file import parts_of
from shoal.study.code.recipe_store import UnreadRecipe
from shoal.study.folder import Folder, StudyPaused
from shoal.train.data.data import Data, DataError
from shoal.train.data.node_shards import Survey
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_data import bring
from shoal.train.recipe.recipes import (
    Recipes,
    aims,
    brought_by,
    named_in,
    own_space,
    own_validate_every,
)
from shoal.train.tools.error_text import said

Space = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setup:
    """What is trained, where it is stored, and what is to be optimized over which space."""

    source: Recipe | UnreadRecipe
    folder: Folder
    metric: str | None  # the name of a validation value
    mode: str  # "min" or "max"
    space: Mapping[str, Any] | None
    seed: int

    @property
    def recipe(self) -> Recipe:
        """What is trained. If it was only stored so far, this loads it, which runs its code.

        Raises:
            StudyError: it is not there, is not known as the user's own, or cannot be loaded.
        """
        if isinstance(self.source, Recipe):
            return self.source
        return self.source.recipe

    @property
    def names(self) -> tuple[str, ...]:
        """The names of several recipes; empty if there is one. It loads nothing."""
        if isinstance(self.source, Recipe):
            return tuple(parts_of(self.source))
        return self.source.names

    @property
    def aims(self) -> Mapping[Any, tuple[str, str]]:
        """Metric and mode of each of several recipes; empty if the study has one for all."""
        if isinstance(self.source, Recipe):
            return aims(self.source, self.metric)
        return self.source.aims

    def aim(self, config: Mapping[str, Any]) -> tuple[str | None, str]:
        """The metric and mode that a trial of this configuration is ranked by."""
        if self.metric is not None:
            return self.metric, self.mode
        return self.aims.get(config.get(RECIPE), (None, self.mode))


def each_recipe(
    setup: Setup, data: Data | None, space: Space | None
) -> Iterator[tuple[Setup, Data | None, Space | None]]:
    """The setup, data and space of each recipe as if it were alone.

    `space`: where configurations come from; None: that is not known.

    Raises:
        StudyError: the space names no recipe, or one that is not there.
    """
    recipe = setup.recipe
    if not isinstance(recipe, Recipes):
        yield setup, data, space
        return
    names = tuple(recipe.parts)
    if space is not None:
        names = named_recipes(recipe, space)
    for name in names:
        part_data = None if data is None else data.of_recipe(name)
        part_space = None if space is None else own_space(space, name)
        metric, mode = setup.aim({RECIPE: name})
        part = recipe.parts[name]
        alone = replace(setup, source=part, metric=metric, mode=mode, space=part_space)
        yield alone, part_data, part_space


def named_recipes(recipe: Recipes, space: Space) -> tuple[str, ...]:
    """The names of the recipes that the space has.

    Raises:
        StudyError: it names none, or one that is not there.
    """
    names = named_in(space)
    wrong = [name for name in names if name not in recipe.parts]
    if wrong or not names:
        raise StudyError(
            f"the search space needs a dimension {RECIPE!r} whose values are of "
            f"{', '.join(recipe.parts)}; got {', '.join(map(repr, wrong)) or 'none'}: give "
            f"{{{RECIPE!r}: shoal.grid({[*recipe.parts]})}}"
        )
    for name in names:
        twice = sorted(set(space) & set(brought_by(space, name)))
        if twice:
            raise StudyError(
                f"the search space has {', '.join(twice)} for all recipes, and once more for "
                f"recipe {name!r}: leave out one of both"
            )
    return names


def checked_space(space: Any) -> Mapping[str, Any] | None:
    """The search space, or None if there is none.

    Raises:
        StudyError: it is no dict, or a dimension is a tuple that looks like a range.
    """
    if space is None:
        return None
    if not isinstance(space, Mapping):
        raise StudyError(
            "search_space must be a dict from names to domains, such as "
            f'{{"lr": shoal.loguniform(1e-4, 1e-1)}}; got {type(space).__name__}'
        )
    for name, domain in space.items():
        hint = instead(domain)
        if hint is not None:
            raise StudyError(f"dimension {name!r} is one of Optuna's: {hint}")
        is_pair = isinstance(domain, tuple) and len(domain) == 2
        if (
            is_pair
            and all(isinstance(end, int | float) for end in domain)
            and domain[0] < domain[1]
        ):
            raise StudyError(
                f"dimension {name!r} is the tuple {domain!r}: write shoal.uniform(low, high) for "
                f"a range, shoal.choice([…]) for some values, or shoal.choice([{domain!r}]) if "
                "each trial gets the whole tuple"
            )
    return space


def data_of(recipe: Recipe, survey: Survey | None = None) -> Data:
    """The recipe's data, read for a study.

    `survey`: who looks at shards that lie at nodes; None: this process, which must hold them.

    Raises:
        StudyError: `data` raised, or returns something else than data, or data of which no batch
            can be made.
        OSError: a file cannot be read.
    """
    try:
        return bring(recipe, survey)
    except (StudyError, OSError):
        raise
    except DataError as error:
        raise StudyError(str(error)) from error
    except Exception as error:
        raise StudyError(said(error)) from error


@contextmanager
def explain_missing_data(before: Mapping[str, Any]) -> Iterator[None]:
    """Within, an error of missing data names the folder where the study began, if it is another.

    `before`: the head of the study's last run.

    Raises:
        StudyError, OSError: what the data raised.
    """
    try:
        yield
    except (StudyError, OSError) as error:
        began, here = before.get("cwd"), current_folder()
        if began in (None, here):
            raise
        raise StudyError(
            f"{error}. The study was begun in {began}, and this process is in {here}: if "
            "the recipe names data by a relative path, go there and run the same again, or let "
            "the recipe name the whole path"
        ) from error


def epochs_of(recipe: Recipe, max_epochs: float | None) -> Any:
    """Epochs of each trial: the given number, else the recipe's; None if neither is there."""
    if max_epochs is not None:
        return max_epochs
    return recipe.max_epochs


def with_recipe_options(recipe: Recipe, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, and what the recipe says of those that were not."""
    complete = dict(options)
    if complete.get("validate_every") is None:
        every = own_validate_every(recipe)
        complete["validate_every"] = 1 if every is None else every
    return complete


@contextmanager
def alone_in_process(folder: Folder) -> Iterator[None]:
    """Within, training of this study has the process for itself.

    Raises:
        StudyError: the process trains something already.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(training(f"the study in {folder.path}"))
        except Training as error:
            raise StudyError(str(error)) from None
        yield


@contextmanager
def pause_on_failure(folder: Folder) -> Iterator[None]:
    """Within, turn a failure of disk, data or folder into one clear StudyPaused."""
    try:
        yield
    except (OSError, DataError, DataMissing) as error:
        raise StudyPaused(
            f"the study in {folder.path} paused: {type(error).__name__}: {error}. What was durable "
            "is kept; mend this and run the same command or script again"
        ) from error


def trains_itself(setup: Setup) -> bool:
    """Whether trials are functions, which Shoal does not drive step by step."""
    return isinstance(setup.recipe, FunctionRecipe)
