"""Trials share a recipe: while a trial's method runs, no attribute of the recipe may change."""

from __future__ import annotations

import threading

_thread = threading.local()  # `hook`: the method of a trial that runs in this thread


class RecipeState(AttributeError):  # noqa: N818
    """A method that runs for one trial set an attribute of the recipe."""


class guarded:  # noqa: N801 - used like a function; a class costs a step half as much
    """While `with guarded(hook)` lasts, this thread may set no attribute of a recipe."""

    __slots__ = ("_before", "_hook")

    def __init__(self, hook: str) -> None:
        self._hook = hook

    def __enter__(self) -> None:
        self._before = getattr(_thread, "hook", None)
        _thread.hook = self._hook

    def __exit__(self, *_: object) -> None:
        _thread.hook = self._before


def refuse(recipe: object, name: str) -> None:
    """Raise if a trial's method runs in this thread.

    Raises:
        RecipeState: it does; `name` is the attribute of the recipe that it sets or deletes.
    """
    hook = getattr(_thread, "hook", None)
    if hook is None:
        return
    raise RecipeState(
        f"{hook} sets self.{name}, but trials share the recipe, so that a neighbour would get the "
        f"value of this trial. What a step needs of the configuration it gets as an argument: "
        f"training_step(self, model, batch, config). What belongs to the trial goes on its model "
        f"(model.{name} = ...). What all trials share is set in {type(recipe).__name__}.__init__ "
        "or in data()."
    )
