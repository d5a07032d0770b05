"""The recipe in a file that has no Recipe class: an instance, or a LightningModule."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from shoal.train.adapt.kinds import is_data_module_class, is_module_class
from shoal.train.adapt.lightning import lightning
from shoal.train.recipe.recipe import Recipe


def recipe_in(module: ModuleType, name: str | None) -> Recipe | None:
    """The recipe of that name in the file; without a name, the only one.

    A LightningModule is trained on the data of the only LightningDataModule beside it, if there is
    one. Returns None if the name, or the file, is about a Recipe class.

    Raises:
        ValueError: it is not clear which LightningModule or data module is meant.
    """
    if name is not None:
        return _of(getattr(module, name, None), module)
    if _own(module, lambda value: isinstance(value, type) and issubclass(value, Recipe)):
        return None
    recipes = [value for value in vars(module).values() if isinstance(value, Recipe)]
    modules = _own(module, is_module_class)
    found = recipes or list(modules.values())
    if not found:
        return None
    if len(found) > 1:
        listed = ", ".join(modules) if not recipes else f"{len(recipes)} recipes"
        raise ValueError(f"{module.__file__} has {listed}: say which one with FILE.py:NAME")
    return _of(found[0], module)


def _of(value: Any, module: ModuleType) -> Recipe | None:
    """The recipe that the value is, or that its class makes; None: it is about neither."""
    if isinstance(value, Recipe):
        return value
    if not is_module_class(value):
        return None
    beside = _own(module, is_data_module_class)
    if len(beside) > 1:
        raise ValueError(
            f"{module.__file__} has the data modules {', '.join(beside)}: name a recipe instead, "
            "recipe = shoal.lightning(Module, datamodule=…), with FILE.py:recipe"
        )
    return lightning(value, datamodule=next(iter(beside.values()), None))


def _own(module: ModuleType, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """The classes of that kind that the file itself defines, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if wanted(value) and value.__module__ == module.__name__
    }
