"""Whether a configuration has the keys that the code reads, and only such."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from types import CodeType, FunctionType, MethodType
from typing import Any

from shoal.train.function.command import CommandRecipe
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.recipe.adapter import Adapted
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_code import (
    Watched,
    attributes_in,
    code_of,
    keys_in,
    names_in,
    near,
    own_classes,
    spreads,
    subscripts,
    texts_in,
    variables_in,
)
from shoal.train.recipe.settings import FOLD, Settings
from shoal.train.tools.model_trial import check_configured

# What a recipe's attribute may be that holds no values.
CALLED = (FunctionType, MethodType, classmethod, staticmethod, property)


@dataclass(frozen=True, slots=True)
class Keys:
    """What is known of the keys that a recipe reads."""

    read: frozenset[str]  # all that may be read
    needed: frozenset[str]  # those that are read without a default
    open: bool  # whether keys may go where no code names them

    @classmethod
    def of(cls, recipe: Recipe) -> Keys:
        """The keys that the recipe's code reads, as far as it shows them."""
        if isinstance(recipe, CommandRecipe):
            placeholders = frozenset(recipe.placeholders)
            return cls(placeholders | {"seed"}, placeholders, False)
        read: set[str] = set()
        needed: set[str] = set()
        open_ = isinstance(recipe, Adapted | FunctionRecipe)
        for code in code_of(recipe):
            read |= names_in(code)
            needed |= subscripts(code)
            open_ = open_ or spreads(code)
        return cls(_settings(recipe).union(read), frozenset(needed), open_)


def _settings(recipe: Recipe) -> frozenset[str]:
    """The keys that Shoal reads itself."""
    names = {field.name for field in fields(Settings)}
    return frozenset(names | {"seed", "priority", FOLD, *(recipe.data_keys or ())})


def check_added(
    recipe: Recipe,
    config: Mapping[str, Any],
    dimensions: Collection[str],
    always: Collection[str],
    seed: int,
) -> None:
    """Raise ValueError if a configuration of the user's own has not the keys that are read.

    `dimensions`: the names in the search space; `always`: those that each of its configurations
    has. A key that is like none of the names is refused only if nobody could read it.
    """
    keys = Keys.of(recipe)
    unknown = sorted(config.keys() - keys.read - set(dimensions))
    missing = sorted(set(always) & keys.needed - config.keys())
    draws = getattr(recipe, "draws", False)
    known = {*dimensions, *(keys.read if draws else keys.needed)} - config.keys()
    for name in unknown:
        meant = near(name, known)
        if meant is not None:
            raise ValueError(
                f"nothing reads {name!r} of this configuration: did you mean {meant!r}?"
            )
    if not draws:
        _check_missing(recipe, config, missing)
    unread = [name for name in unknown if not keys.open]
    if unread and not isinstance(recipe, FunctionRecipe):
        watched = Watched(config)
        parameters = check_configured(recipe, config, seed, watched)
        unread = _unread(unread, parameters, watched)
    if unread:
        raise ValueError(
            f"nothing reads {', '.join(unread)} of this configuration: leave it out "
            f"(the search space has {', '.join(dimensions) or 'nothing'})"
        )


def _check_missing(recipe: Recipe, config: Mapping[str, Any], missing: Collection[str]) -> None:
    """Raise ValueError if keys are missing."""
    if isinstance(recipe, CommandRecipe):
        recipe.check_values(config)
        missing = sorted(recipe.placeholders - config.keys())
    if missing:
        name = getattr(recipe, "name", None) or type(recipe).__name__
        listed = ", ".join(config) or "nothing"
        raise ValueError(
            f"{name} reads {', '.join(missing)}, and this configuration has {listed}: give "
            + ", ".join(f"{each}=…" for each in missing)
            + ", too"
        )


def unread_dimensions(
    recipe: Recipe, dimensions: Collection[str], parameters: int, watched: Watched
) -> list[str]:
    """The dimensions that nobody reads, as far as that is sure.

    `parameters`: those of the model that was made of `watched`; 0: none was. A name with a dot
    may be put together as the code runs, so that it counts as read.
    """
    keys = Keys.of(recipe)
    read = keys.read
    if not isinstance(recipe, Adapted | FunctionRecipe):
        read = _settings(recipe).union(_keys_of(recipe))
    if isinstance(recipe, Adapted):  # whose own code reads keys that were watched
        codes = code_of(recipe, *recipe.brought())
        read = keys.read.union(*map(texts_in, codes))
        keys = Keys(read, keys.needed, any(map(spreads, codes)))
    if keys.open:
        return []
    plain = [name for name in dimensions if "." not in name]
    return _unread(sorted({*plain} - read), parameters, watched)


def _unread(names: list[str], parameters: int, watched: Watched) -> list[str]:
    """The names that were not read, if a model was made and nobody went through all keys."""
    return watched.unread(names) if parameters else []


def unread_text(recipe: Recipe, unread: Collection[str]) -> str:
    """What to tell a user of dimensions that nobody reads."""
    needed = Keys.of(recipe).needed
    hints = []
    for name in unread:
        meant = near(name, needed)
        hint = f" (did you mean {meant!r}?)" if meant else ""
        hints.append(f"{name!r}{hint}")
    return (
        f"{type(recipe).__name__} does not read {', '.join(hints)} of the search space, so that "
        f"trials which differ in nothing else train alike: read config[{next(iter(unread))!r}], "
        "or leave it out"
    )


def check_attributes(
    recipe: Recipe, watched: Watched, model: Any = None, stepped: bool = False
) -> None:
    """Raise ValueError if the code reads an attribute in the place of a configuration's value.

    `watched`: the configuration, which says what was read of it. `model`: what was built of it.
    `stepped`: steps ran, too; otherwise a name that they could read is let pass.
    """
    names = [name for name in watched.names if not hasattr(Recipe, name)]
    if isinstance(recipe, Adapted):
        owner = recipe.named()
        owner = owner.__name__ if isinstance(owner, type) else type(model).__name__
        instead = recipe.attributes_instead(model, names, watched.unread(names))
    else:
        owner = type(recipe).__name__
        codes = code_of(recipe)
        read = set().union(*map(attributes_in, codes))
        unread = watched.unread(names)
        instead = [n for n in unread if hasattr(recipe, n) and n in read]
        if not stepped and any(map(spreads, codes)):
            instead = unread = []
        elif not stepped:
            instead = [n for n in instead if not any(n in texts_in(c) for c in codes)]
        if not instead:
            _check_holders(recipe, unread, codes)
    if instead:
        raise ValueError(instead_text(owner, instead[0]))


def _keys_of(recipe: Recipe) -> set[str]:
    """The texts that may be keys of a configuration; the recipe's `__init__` gets none."""
    constructors = [vars(kind).get("__init__") for kind in own_classes(recipe)]
    excluded = [getattr(each, "__code__", None) for each in constructors]
    codes = [code for code in code_of(recipe) if code not in excluded]
    return set().union(*map(keys_in, codes))


def _check_holders(recipe: Recipe, unread: Collection[str], codes: Collection[CodeType]) -> None:
    """Raise ValueError if what holds a value of such a name is read, and no configuration is.

    That is an attribute with a dict or an object in it, as self.args.lr, or a global variable.
    """
    keys = _keys_of(recipe)
    attributes = set().union(*map(attributes_in, codes))
    texts = set().union(*map(texts_in, codes))
    spread = any(map(spreads, codes))
    holders = dict(vars(recipe))
    for kind in own_classes(recipe):
        holders = {**vars(kind), **holders}
    for name in [each for each in unread if each not in keys]:
        if any(name in variables_in(code) for code in codes):
            raise ValueError(instead_text("the code", name, "a variable"))
        for holder, value in holders.items():
            if holder.startswith("__") or isinstance(value, CALLED):
                continue
            if isinstance(value, Mapping):
                is_read = name in value and (spread or name in texts)
            else:
                is_read = name in attributes and name in getattr(value, "__dict__", ())
            if is_read:
                owner = f"{holder!r} of {type(recipe).__name__}"
                raise ValueError(instead_text(owner, name, "a value"))


def check_arguments(recipe: FunctionRecipe, names: Collection[str]) -> None:
    """Raise ValueError if the function reads an argument of its own instead of a dimension.

    A function gets the configuration alone, so that its other arguments have their defaults.
    """
    function = getattr(recipe, "function", None)
    codes = code_of(recipe)
    code = getattr(function, "__code__", None)
    if code is None or recipe.draws or any(map(spreads, codes)):
        return
    texts = set().union(*map(texts_in, codes))
    arguments = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    for name in arguments:
        if name in names and name in names_in(code) and name not in texts:
            raise ValueError(
                f"{recipe.name} has an argument {name!r} and reads that, not the {name!r} of the "
                "search space, so that all trials would train alike: a function gets one argument, "
                f"the configuration: read config[{name!r}], and leave the argument out"
            )


def instead_text(owner: str, name: str, kind: str = "an attribute") -> str:
    """What to tell a user whose code reads something else in the place of the trial's value."""
    return (
        f"{owner} has {kind} {name!r} of its own and reads that, not the {name!r} of the "
        f"search space, so that all trials would train alike: read config[{name!r}], or take it in "
        f"__init__ of a module; leave {name!r} out of the search space if {kind} is meant"
    )
