"""Attributes of recipes that are given as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.train.recipe.adapted import Adapted
from shoal.train.recipe.recipe import Recipe


def set_attributes(recipe: Adapted, attributes: Mapping[str, Any]) -> None:
    """Give the recipe these attributes.

    Raises:
        TypeError: recipes have none of that name.
    """
    known = [
        name
        for name, value in vars(Recipe).items()
        if not name.startswith("_") and not callable(value)
    ]
    for name, value in attributes.items():
        if name not in known:
            raise TypeError(
                f"recipes have no attribute {name!r}; they have {', '.join(sorted(known))}"
            )
        if value is not None:
            setattr(recipe, name, value)
