"""Files with recipes: importing them, and what the journal says of the code in them."""

import hashlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from traceback import walk_tb
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from shoal.core.errors import StudyError
from shoal.train.recipe.pickling import import_from
from shoal.train.recipe.text_modules import RECIPE, Text, imported, text_of

if TYPE_CHECKING:
    from shoal.train.recipe.recipe import Recipe


# Where recipes' classes are that need torch: it is loaded wherever there is one of them.
_MODULES = {
    "Adapted": "shoal.train.recipe.adapter",
    "FunctionRecipe": "shoal.train.function.recipe",
    "Recipes": "shoal.train.recipe.recipes",
}


def load_module(file: Path) -> ModuleType:
    """Import a Python file under a name of its own; it may import what lies beside it.

    Raises:
        StudyError: there is no such file, or it raises when imported.
    """
    if not file.is_file():
        raise StudyError(
            f"there is no file {file}: give the path of a Python file with a shoal.Recipe in it"
        )
    content = file.read_bytes()
    import_from(file.parent)
    return module_of(file, content)


def module_of(file: Path, content: bytes) -> ModuleType:
    """The module that a Python file of this content is, imported under a name of its own.

    Raises:
        StudyError: it raises when imported.
    """
    text = Text(RECIPE + file.stem, str(file.resolve()), content)
    try:
        return imported(text)
    except SystemExit as error:
        raise StudyError(
            f"{file} ended with {error.code} when it was imported; a script that reads its command "
            f'line is run as one: shoal run --command "python {file} --lr {{lr}}" '
            '--space "lr=…" --metric …'
        ) from error
    except Exception as error:
        if _calls_study(error.__traceback__):
            raise StudyError(
                f'put the search in {file} under if __name__ == "__main__": it began when the file '
                f"was imported, and raised {type(error).__name__} ({str(error).partition(': ')[0]})"
            ) from error
        raise StudyError(
            f"{file} raised {type(error).__name__} when it was imported: {error}"
        ) from error


def _calls_study(traceback: TracebackType | None) -> bool:
    """Whether what a file does when it is imported makes a study, or calls one."""
    frames = (frame for frame, _ in walk_tb(traceback))
    return any(frame.f_globals.get("__name__") == "shoal.study.study" for frame in frames)


def recipe_class(module: ModuleType, name: str | None = None) -> "type[Recipe]":
    """The recipe of that name in a module; without a name, the only one.

    Raises:
        StudyError: there is none, several without a name, or none of that name.
    """
    from shoal.train.recipe.recipe import Recipe

    recipes: dict[str, type[Recipe]] = {}
    for key, value in vars(module).items():
        is_recipe = inspect.isclass(value) and issubclass(value, Recipe)
        if is_recipe and value.__module__ == module.__name__:
            recipes[key] = value
    if name is None and len(recipes) == 1:
        return next(iter(recipes.values()))
    if name is not None and name in recipes:
        return recipes[name]
    ask = "say which one with FILE.py:NAME"
    if name is not None:
        ask = f"there is no {name}"
    listed = ", ".join(recipes) or "(none)"
    raise StudyError(f"{module.__file__} has the recipes {listed}: {ask}")


def _is_of(recipe: Any, kind: str) -> bool:
    """Whether the recipe is of this class of Shoal's, whose module needs torch."""
    module = sys.modules.get(_MODULES[kind])
    return module is not None and isinstance(recipe, getattr(module, kind))


def function_in(recipe: Any) -> Any:
    """The function that the recipe calls, if it is a `FunctionRecipe`."""
    return recipe.function if _is_of(recipe, "FunctionRecipe") else None


def is_adapted(recipe: Any) -> bool:
    """Whether the recipe was made of another library's code."""
    return _is_of(recipe, "Adapted")


def code_name(recipe: "Recipe") -> str:
    """What the user calls what is trained: a function's name, or that of a recipe's class."""
    if function_in(recipe) is not None:
        return str(recipe.name)  # type: ignore[attr-defined]
    return str(getattr(_adapted_code(recipe), "__name__", type(recipe).__name__))


def _adapted_code(recipe: Any) -> Any:
    """The class or function that an adapted recipe is made of; None of other recipes."""
    return recipe.named() if is_adapted(recipe) else None


def parts_of(recipe: Any) -> "Mapping[str, Recipe]":
    """The recipes of `Recipes` by name; empty for any other recipe."""
    return recipe.parts if _is_of(recipe, "Recipes") else {}


def describe_recipe(recipe: "Recipe") -> dict[str, Any]:
    """What the journal's head says of a recipe: file, name and a hash of the source."""
    code = function_in(recipe) or _adapted_code(recipe) or type(recipe)
    about: dict[str, Any] = {"name": code_name(recipe), "file": None, "sha256": None}
    parts = parts_of(recipe)
    if parts:
        about["parts"] = {name: describe_recipe(each) for name, each in parts.items()}
        return about
    if isinstance(code, str):
        return {**about, "command": code, "sha256": recipe.sha256}  # type: ignore[attr-defined]
    text = text_of(getattr(code, "__module__", ""))
    if text is not None:
        return {**about, "file": text.file, "sha256": text.sha256}
    try:
        file = inspect.getsourcefile(code)
    except (TypeError, OSError):
        file = None
    if file is not None and Path(file).is_file():
        about["file"] = str(Path(file).resolve())
        about["sha256"] = sha256(Path(file).read_bytes())
    return about


def sha256(content: bytes) -> str:
    """The content's hash."""
    return hashlib.sha256(content).hexdigest()
