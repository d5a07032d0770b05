"""A stored recipe of which no code has run yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.train.recipe.recipe import Recipe


class UnreadRecipe:
    """A recipe that is loaded when it is first asked for: to look at results needs none.

    `head`: of the study's newest run. `load`: loads the recipe.
    """

    def __init__(self, head: Mapping[str, Any], load: Callable[[], Recipe]) -> None:
        self._head = head
        self._load = load

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, loaded."""
        return self._load()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of several recipes, as the journal has them."""
        return tuple(self._head.get("recipe", {}).get("parts", ()))

    @property
    def aims(self) -> Mapping[Any, tuple[str, str]]:
        """Metric and mode of each, where they have unlike ones."""
        found = self._head.get("aims") or {}
        return {name: (str(metric), str(mode)) for name, (metric, mode) in found.items()}
