"""Which recipes a recipe is made of; to ask that, torch need not be there."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.train.recipe.recipe import Recipe

# The module of `Recipes`, which needs torch; it is loaded wherever there are some.
SEVERAL = "shoal.train.recipe.several.recipes"


def parts_of(recipe: Any) -> "Mapping[str, Recipe]":
    """The recipes of `Recipes` by name; empty for any other recipe."""
    module = sys.modules.get(SEVERAL)
    if module is None or not isinstance(recipe, module.Recipes):
        return {}
    found: Mapping[str, Recipe] = recipe.parts
    return found
