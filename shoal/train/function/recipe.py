"""Functions as recipes: what a study trains when the user's code drives itself."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any

import numpy as np

from shoal.train.data.data import Data
from shoal.train.function.objective import called
from shoal.train.function.session import TrialContext
from shoal.train.recipe.recipe import Recipe

# What to do about a function whose call does not run its code.
RUN_IT = (
    "Shoal calls a function, and awaits or iterates nothing: end an async function in "
    "asyncio.run(train_async(config)), and call shoal.report(…) where a generator yields"
)
# Reports of a trial that ends when its function returns.
UNLIMITED = 1_000_000


class FunctionRecipe(Recipe):
    """Trains by calling a function of the configuration, which reports by itself.

    A report counts as an epoch: one visit of data that is one shard of one sample.
    """

    max_epochs = UNLIMITED
    # whether trials draw their configurations themselves
    draws = False
    # whether their first draws are spread over trials, as those of `search.Draws`
    spread = False
    # the reports with which a trial ends for good, where it ends with its samples
    whole: float = inf

    def __init__(self, function: Any) -> None:  # a function, or a command line's text
        self.function = function

    @property
    def name(self) -> str:
        """What the user calls the function."""
        return name_of(self.function)

    def data(self) -> Data:
        """One sample, which nobody reads."""
        return Data.arrays(np.zeros(1), shards=1, validation=None)

    def run(self, context: TrialContext) -> Any:
        """Train a trial to its end; returns what the function returns."""
        return self.function(dict(context.chosen))

    def may_return(self, reports: int) -> bool:
        """Whether a function goes on after its trial's last report, for it may return a value."""
        return reports >= self.whole and returns_value(self.function)

    def check(self, space: Mapping[str, Any] | None) -> None:
        """Raise ValueError if configurations of this space are not what the code needs."""


class ObjectiveRecipe(FunctionRecipe):
    """Trains by calling an objective as Optuna has them: a function of a trial."""

    metric = "value"
    draws = True

    def run(self, context: TrialContext) -> Any:
        """Call the objective; returns its value by name."""
        return called(self.function, context)


def nothing(config: Mapping[str, Any]) -> None:
    """What a study trains that was created without a function.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError("this study has no function: give it to optimize()")


def returns_value(function: Any) -> bool:
    """Whether a function's code may return something; of what has no code nobody knows."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, str):  # a command line
        return False
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is None:
        return True
    none_loaded = False
    for step in dis.get_instructions(code):
        if step.opname == "RETURN_VALUE" and (step.is_jump_target or not none_loaded):
            return True
        if step.opname == "RETURN_CONST" and step.argval is not None:
            return True
        none_loaded = step.opname == "LOAD_CONST" and step.argval is None
    return False


def function_recipe(function: Callable[..., Any]) -> FunctionRecipe:
    """The recipe of a function: an objective if its first argument is called `trial`.

    Raises:
        ValueError: it suggests its parameters, and its first argument has another name; it cannot
            be called with one argument; or its call would not run its code.
    """
    _check_callable(function)
    try:
        arguments = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some functions in C have no signature
        arguments = []
    if function is nothing or arguments[:1] == ["trial"]:
        return ObjectiveRecipe(function)
    code = getattr(function, "__code__", None)
    if arguments and any(name.startswith("suggest_") for name in getattr(code, "co_names", ())):
        raise ValueError(
            "a function whose first argument is called trial is an objective as Optuna has them, "
            f"and that of {name_of(function)} is called {arguments[0]!r}: call it trial"
        )
    return FunctionRecipe(function)


def _check_callable(function: Callable[..., Any]) -> None:
    """Raise ValueError unless a call with one argument runs the function's code."""
    plain: Any = function
    while isinstance(plain, partial):
        plain = plain.func
    for code in (plain, getattr(plain, "__call__", None)):  # noqa: B004 - of an object
        if (
            inspect.iscoroutinefunction(code)
            or inspect.isasyncgenfunction(code)
            or inspect.isgeneratorfunction(code)
        ):
            raise ValueError(f"{name_of(function)} is an async function or a generator: {RUN_IT}")
    try:
        # Not of what it wraps: a decorator may give that more arguments.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some functions in C have none
        return
    try:
        signature.bind({})
    except TypeError:
        raise ValueError(
            "a function is called with one argument, the configuration (or the trial, if that is "
            f"its name), and {name_of(function)} takes {signature}: write def train(config), and "
            "give the others defaults, or functools.partial(…)"
        ) from None


def name_of(function: Any) -> str:
    """The name of a function, or of the class of a callable object."""
    while isinstance(function, partial):
        function = function.func
    if function is nothing:
        return "study"
    name: str = getattr(function, "__name__", type(function).__name__)
    return name.strip("<>")
