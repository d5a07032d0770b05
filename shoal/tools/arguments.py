"""How what a user typed becomes a study, a recipe, a search space, a configuration."""

import ast
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shoal
from shoal.core.cluster import RECIPE
from shoal.core.errors import StudyError
from shoal.core.site import page
from shoal.core.trial import parsed
from shoal.options import Options
from shoal.study.code.recipe_file import code_name, function_in, load_module, parts_of, recipe_class

if TYPE_CHECKING:
    from shoal.study.study import Study
    from shoal.train.recipe.recipe import Recipe

BY_NAME = "recipes"  # what a file calls a dict of recipes that needs no name
DOMAINS = ("uniform", "loguniform", "randint", "choice", "grid")


def open_study(
    file: str | None,
    storage: Path | None,
    space: list[str] | None,
    metric: str | None,
    mode: str | None,
    seed: int,
    command: str | None = None,
) -> "Study":
    """The study of a recipe's file or a command line; new, or going on in its folder.

    Raises:
        StudyError: not one of both is given.
    """
    if (file is None) == (command is None):
        raise StudyError("give FILE.py[:Recipe], or --command 'python train.py …'")
    recipe = None if file is None else recipe_of(file)
    return shoal.create_study(
        recipe,
        command=command,
        storage=storage,
        metric=metric,
        mode=mode,
        search_space=space_of(recipe, space),
        load_if_exists=True,
        seed=seed,
    )


def run_options(study: "Study", typed: Mapping[str, Any]) -> dict[str, Any]:
    """What `Study.optimize` takes, from what was typed for `shoal run`."""
    options = dict(typed)
    if not options["num_samples"]:
        options["num_samples"] = getattr(study.recipe, "num_samples", None)
    for option in fields(Options):
        read, text = option.metadata["typed"], options.get(option.name)
        if read is not None and text is not None:
            options[option.name] = read(text)
    options["loggers"] = options["loggers"] or ()
    return options


def file_and_name(file: str) -> tuple[str, str | None]:
    """The parts of FILE.py[:NAME]; a colon may also belong to the file's own name."""
    if ":" not in file or Path(file).exists():
        return file, None
    path, _, name = file.rpartition(":")
    return path, name


def recipe_of(file: str) -> "Recipe":
    """An instance of the recipe that FILE.py[:NAME] names.

    A name may also be that of a LightningModule, of a function to train, or of a dict of recipes by
    name; such a dict called `recipes` needs no name.

    Raises:
        ValueError: the recipe's class takes arguments without defaults.
    """
    from shoal.study.arguments import as_recipe
    from shoal.train.adapt.lightning import recipe_in
    from shoal.train.recipe.recipe import Recipe

    path, name = file_and_name(file)
    module = load_module(Path(path))
    adapted = recipe_in(module, name)
    if adapted is not None:
        return adapted
    by_name = getattr(module, name or BY_NAME, None)
    if isinstance(by_name, Mapping) and (
        name or any(isinstance(value, Recipe) for value in by_name.values())
    ):
        return as_recipe(by_name)
    function = getattr(module, name or "", None)
    if callable(function) and not isinstance(function, type):
        return as_recipe(function)
    kind = recipe_class(module, name)
    try:
        return kind()
    except TypeError as error:
        raise ValueError(
            f"{kind.__name__}() raised TypeError: {error}; "
            "here a recipe is made without arguments: give defaults"
        ) from error


def space_of(recipe: "Recipe | None", typed: list[str] | None) -> dict[str, Any] | None:
    """The recipe's search space; the dimensions typed replace its own of that name, or are added.

    Returns None if neither has any.
    """
    space: dict[str, Any] | None = getattr(recipe, "search_space", None)
    dimensions = parse_space(typed)
    if space is None:
        return dimensions
    if dimensions is None:
        return space  # the study says so if it is no dict
    if parts_of(recipe):
        space = _without(space, dimensions)
    return {**space, **dimensions}


def _without(space: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The space of recipes by name, in which no recipe has a dimension of these names."""
    kept = {}
    recipes = space[RECIPE]
    for name, dimensions in zip(recipes.values, recipes.under, strict=True):
        kept[name] = {key: value for key, value in dimensions.items() if key not in names}
    return {**space, RECIPE: shoal.grid(kept)}


def check_driven(recipe: "Recipe", command: str) -> None:
    """Raise StudyError if this is a function: no step of it can be timed or compared by itself."""
    if function_in(recipe) is not None:
        raise StudyError(
            f"{code_name(recipe)} is a function, which Shoal does not drive step by step: "
            f"{command} is for recipes ({page('functions', 'what-shoal-can-do-with-them')} "
            "says what it can do with functions)"
        )


def parse_space(typed: list[str] | None) -> dict[str, Any] | None:
    """A search space from "name=domain(arguments)" or "name=value"; nothing is executed.

    Raises:
        ValueError: not of that form.
    """
    if not typed:
        return None
    space: dict[str, Any] = {}
    for text in typed:
        name, _, value = text.partition("=")
        try:
            domain, values = _domain_and_values(value.strip())
        except (SyntaxError, TypeError, ValueError, RecursionError) as error:
            raise _no_domain(text) from error
        try:
            space[name] = values[0]
            if domain is not None:
                space[name] = getattr(shoal, domain)(*values)
        except (TypeError, IndexError, OverflowError) as error:
            raise _no_domain(text) from error
    return space


def _no_domain(text: str) -> ValueError:
    return ValueError(
        f"--space takes name=domain(arguments), domains {', '.join(DOMAINS)}, "
        f"text in quotes; got {text[:200]!r}"
    )


def _domain_and_values(text: str) -> tuple[str | None, list[Any]]:
    """The name of a domain and its arguments; or None and the only value.

    Raises:
        SyntaxError, TypeError, ValueError: the text is neither.
    """
    node = parsed(text)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DOMAINS:
        return node.func.id, [ast.literal_eval(argument) for argument in node.args]
    return None, [ast.literal_eval(node)]


def parse_config(typed: list[str]) -> dict[str, Any]:
    """A configuration from "name=value": Python literals; what is no literal is text.

    Raises:
        ValueError: not of that form.
    """
    config: dict[str, Any] = {}
    for text in typed:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise ValueError(f"a configuration is given as NAME=VALUE; got {text[:200]!r}")
        try:
            config[name.strip()] = ast.literal_eval(parsed(value.strip()))
        except (SyntaxError, ValueError):
            config[name.strip()] = value.strip()
    return config


def whole_numbers(text: str, option: str) -> list[int]:
    """The whole numbers in a text with commas between them.

    Raises:
        ValueError: not of that form.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ValueError(f"{option} takes whole numbers >= 1, as 1,2,4; got {text!r}")
    return [int(part) for part in parts]
