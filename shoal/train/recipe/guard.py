"""Trials share a recipe: while a trial's method runs, no attribute of the recipe may change."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from shoal.core.errors import warn

OWN_STATE = (
    "keep what belongs to a trial on its model (model.name = …: a number, a tensor, a list), or "
    "derive it from epoch and step, which steps take as arguments; make what all trials share in "
    "__init__ or data()"
)
# what was warned of in this run; a process has one at a time
_warned: set[str] = set()
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


def changing(names: Iterable[str]) -> str:
    """The sentence that training changes what these names hold."""
    return (
        f"training changes what {', '.join(names)} holds. All trials share it, so that a trial "
        "finds there what its neighbours left, and after a move or a new start nothing"
    )


def shared_label(recipe: object, name: str) -> str:
    """An attribute of the recipe, as messages name it."""
    return f"self.{name} of {type(recipe).__name__}"


def warn_of_shared(names: Iterable[str]) -> None:
    """Warn, once for each name, that trials may depend on what others left there."""
    new = [name for name in names if name not in _warned]
    if new:
        _warned.update(new)
        warn(f"{changing(new)}: results must not depend on it; where they do, {OWN_STATE}")


def forget_shared() -> None:
    """Forget what was warned of, as a run is over: the next one warns anew."""
    _warned.clear()
