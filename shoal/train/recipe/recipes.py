"""Several recipes by name, each with its own data; a trial's configuration names its recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from shoal.core.cluster import OF_RECIPE, RECIPE
from shoal.search.space import Choice, GridDomain, grid, options, validated
from shoal.train.recipe.recipe import Recipe

Config = Mapping[str, Any]
Aim = Callable[[Config], tuple[str | None, str]]  # metric and mode of a trial
# What a study takes from its recipe where it is not told.
SHARED = ("metric", "mode", "max_epochs", "num_samples", "validate_every")


class Recipes(Recipe):
    """Recipes by name. A trial's `config["recipe"]` is the name of the one that trains it.

    A trial has to do with its own recipe only: it learns what it would in a study of that recipe.
    The search space is by default a grid of the recipes, each with its own space.

    Raises:
        ValueError: there are no recipes, or a name, a recipe or its mode is none.
    """

    def __init__(self, parts: Mapping[str, Recipe]) -> None:
        if not parts:
            raise ValueError("recipes by name need at least one; got none")
        self.parts = {}
        for name, recipe in parts.items():
            _check(name, recipe)
            part = copy(recipe)
            part.recipe_name = name
            self.parts[name] = part
        spaces = {name: part.search_space for name, part in self.parts.items()}
        self.search_space = {RECIPE: grid(spaces)}  # type: ignore[misc]
        for name in SHARED:
            values = [getattr(part, name) for part in self.parts.values()]
            values = [value for value in values if value is not None]
            agree = values and all(value == values[0] for value in values)
            setattr(self, name, values[0] if agree else None)
        if len({part.mode for part in self.parts.values()} - {None}) > 1:
            self.metric = None  # type: ignore[misc] # of one name, more is better or less

    def brought(self) -> list[type]:
        """The user's classes, whose code is pickled."""
        return [type(part) for part in self.parts.values()]


def own_recipe(recipe: Recipe, config: Config) -> Recipe:
    """The recipe that trains a trial of this configuration.

    Raises:
        ValueError: the configuration names none of several.
    """
    if not isinstance(recipe, Recipes):
        return recipe
    name: Any = config.get(RECIPE)
    if name not in recipe.parts:
        raise ValueError(
            f"config[{RECIPE!r}] must name one of the study's recipes, "
            f"{', '.join(recipe.parts)}; got {name!r}"
        )
    return recipe.parts[name]


def own_config(recipe: Recipe, config: Config) -> Config:
    """The configuration as the trial's own recipe gets it.

    "recipe.lr", which the value of "recipe" brings, is "lr" to the recipe.

    Raises:
        ValueError: the configuration has both.
    """
    if not isinstance(recipe, Recipes):
        return config
    values = {name.removeprefix(f"{RECIPE}."): value for name, value in config.items()}
    if len(values) < len(config):
        twice = [name for name in config if f"{RECIPE}.{name}" in config]
        both = ", ".join(f"{name} and {RECIPE}.{name}" for name in twice)
        raise ValueError(
            f"the configuration has {both}, which are the same to a recipe: give one of both"
        )
    return values


def changed(space: Mapping[str, Any], config: Config, modify: Config) -> Config:
    """The configuration with the values of `modify` in it.

    With another recipe, what came with the former one is left out. Of what comes with the new one,
    the space gives the values that are no choice.

    Raises:
        ValueError: values that come with the new recipe are missing.
    """
    new = {**config, **modify}
    if new.get(RECIPE) == config.get(RECIPE):
        return new
    prefix = f"{RECIPE}."
    new = {
        name: value for name, value in new.items() if name in modify or not name.startswith(prefix)
    }
    missing = []
    for name, domain in brought_by(space, str(new[RECIPE])).items():
        if name in new or prefix + name in new:
            continue
        if isinstance(domain, int | float | str):
            new[prefix + name] = domain
        else:
            missing.append(prefix + name)
    if missing:
        raise ValueError(
            f"a copy with the recipe {new[RECIPE]!r} needs {', '.join(missing)}, which the copied "
            "trial does not have: give it beside recipe in modify="
        )
    return new


def attribute(recipe: Recipe, config: Config, name: str) -> Any:
    """The recipe's attribute of this name, or what the configuration has in its place."""
    part = own_recipe(recipe, config)
    return own_config(recipe, config).get(name, getattr(part, name))


def aim_of(recipe: Recipe, config: Config, metric: str | None, mode: str) -> tuple[str | None, str]:
    """The metric and mode that a trial of this configuration is ranked by.

    `metric`, `mode`: the study's. Without a metric of the study, a trial of several recipes has
    that of its own recipe.
    """
    if metric is not None:
        return metric, mode
    return aims(recipe, metric).get(config.get(RECIPE), (None, mode))


def aims(recipe: Recipe, metric: str | None) -> dict[Any, tuple[str, str]]:
    """Metric and mode of each of several recipes; empty where the study has one metric for all."""
    if metric is not None or not isinstance(recipe, Recipes):
        return {}
    of_recipes: dict[Any, tuple[str, str]] = {}
    for name, part in recipe.parts.items():
        if part.metric is not None:
            of_recipes[name] = part.metric, part.mode or "min"
    return of_recipes


def own_validate_every(recipe: Recipe) -> float | str | None:
    """When the recipe, or each of several that says so, wants evaluations.

    Raises:
        ValueError: several want them at unlike times.
    """
    every = recipe.validate_every
    if isinstance(recipe, Recipes) and every is None:
        parts = recipe.parts.items()
        wishes = [f"{name} {p.validate_every!r}" for name, p in parts if p.validate_every]
        if wishes:
            raise ValueError(
                f"the recipes have unlike validate_every: {', '.join(wishes)}; give "
                "validate_every=, one for all"
            )
    return every


def own_space(space: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The dimensions of the trials of this recipe, as it sees them."""
    dimensions = validated(space)
    dimensions.pop(RECIPE, None)
    return dimensions | brought_by(space, name)


def brought_by(space: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The dimensions that come with this value of "recipe"."""
    domain = validated(space).get(RECIPE)
    if isinstance(domain, Choice | GridDomain):
        return dict(dict(options(domain)).get(name, {}))
    return {}


def named_in(space: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of "recipe" in the space; empty if it has no such dimension."""
    domain = validated(space).get(RECIPE)
    if domain is None:
        return ()
    if isinstance(domain, Choice | GridDomain):
        return domain.values
    return (domain,)


def _check(name: Any, recipe: Any) -> None:
    """Raise ValueError unless these are the name of a recipe, and one with a mode that there is."""
    if not isinstance(name, str) or not name or OF_RECIPE in name:
        raise ValueError(f"a recipe's name must be a text without {OF_RECIPE!r}; got {name!r}")
    if isinstance(recipe, type):
        raise ValueError(
            f"recipe {name!r}: give an instance, {recipe.__name__}() instead of {recipe.__name__}"
        )
    if not isinstance(recipe, Recipe) or isinstance(recipe, Recipes):
        raise ValueError(
            f"recipe {name!r} must be an instance of a shoal.Recipe subclass; "
            f"got {type(recipe).__name__}"
        )
    if recipe.mode not in (None, "min", "max"):
        raise ValueError(f'recipe {name!r}: mode must be "min" or "max"; got {recipe.mode!r}')
