"""What trials share beside their models, and whether their code changes it.

Trials share the recipe, and the variables beside its code. That a step may set no attribute of the
recipe is refused where it does; that a list, an array or an object grows or changes in place, and
that a variable of the module changes, is seen only by looking at it again. The rehearsal does so
before a study, and each slot at the ends of its units.
"""

from __future__ import annotations

import random
import sys
from collections import UserDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import copy, deepcopy
from functools import partial
from time import perf_counter
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.train.lane.model_changes import (
    FIXED,
    PLAIN,
    STEPPED,
    Entries,
    digest,
    is_stateful,
    is_users,
    parts_of,
)
from shoal.train.recipe.adapter import Adapted
from shoal.train.recipe.guard import shared_label
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_code import (
    functions_of_users,
    is_only_added_to,
    names_in,
    own_classes,
    variables_of,
)
from shoal.train.recipe.recipes import Recipes
from shoal.train.recipe.unit import RAISED

ITEMS = 10_000  # of an attribute that is copied and looked into, with all that it holds
BYTES = 2**24  # of its arrays
MOST = 1000  # items of a container or an array that a slot looks at
RARELY = 100  # times as long as a slot's look took, it does not look again
# methods whose code no trial runs: what they make is not changed by training
UNTRAINED = ("__init__", "data")
# what code may add to without reading it
NOTES = (list, set, deque, dict, int, float)


def own_copy(recipe: Recipe) -> Recipe:
    """The recipe with containers, arrays, generators and objects of its own, where these are small.

    Modules, optimizers, and tensors with a gradient stay the same: who trains them is told by their
    identity.
    A pickled copy would not do: to load it would change the classes of this process.
    """
    duplicate = copy(recipe)
    memo: dict[int, Any] = {id(recipe): duplicate}
    for name, value in attributes_of(recipe):
        for part in _parts(value):
            if isinstance(part, (nn.Module, *STEPPED)) or (
                isinstance(part, Tensor) and part.requires_grad
            ):
                memo[id(part)] = part
        try:
            vars(duplicate)[name] = deepcopy(value, memo)
        except RAISED:  # a lock, a file: it stays the same object
            continue
    return duplicate


class SharedValues:
    """Values that are compared from look to look, by their digests.

    `named`: gives the values with their names. `most`: as of `digest`.
    """

    def __init__(
        self, named: Callable[[], Iterable[tuple[str, Any]]], most: int = sys.maxsize
    ) -> None:
        self._named = named
        self._digest = partial(digest, whole=True, most=most)
        self._before = self._digests()
        second = self._digests()
        # iterators: nobody can see what was taken from them
        self.unknown = {name for name in second if second[name] != self._before[name]}

    def changed(self, filled: bool = True) -> list[str]:
        """The names of values that have changed since the last look, or may have.

        `filled`: also where something was only filled in.
        """
        now = self._digests()
        changed = [
            name
            for name, value in now.items()
            if value is not self._before.get(name, value)
            and value != self._before[name]
            and (filled or not _only_filled(self._before[name], value))
        ]
        self._before |= now
        return changed

    def _digests(self) -> dict[str, Any]:
        digests: dict[str, Any] = {}
        for name, value in self._named():
            try:
                digests[name] = self._digest(value)
            except RAISED:  # a thread that reads ahead changed it meanwhile
                continue
        return digests


def _only_filled(before: Any, now: Any) -> bool:
    """Whether the later digest has more, or less, of the same: a cache, or a value made late."""
    if before is None or before is now or before == now:
        return True
    if isinstance(before, frozenset) and isinstance(now, frozenset):
        return before <= now
    if isinstance(before, Entries) and isinstance(now, Entries):
        values_before = dict(zip(before.keys, before.values, strict=True))
        common = [
            each for each in zip(now.keys, now.values, strict=True) if each[0] in values_before
        ]
        return all(_only_filled(values_before[key], value) for key, value in common)
    if not isinstance(before, tuple) or not isinstance(now, tuple):
        return False
    return len(before) == len(now) and all(map(_only_filled, before, now))


class RecipeSharing:
    """Looks, at the ends of units, for changes of what the trials of one slot share."""

    def __init__(self, recipe: Recipe) -> None:
        recipes = recipe.parts.values() if isinstance(recipe, Recipes) else (recipe,)
        self._code = [SharedCode(each) for each in recipes]
        self._reported: set[str] = set()
        self._ended = perf_counter()
        self._values = SharedValues(self._named, MOST)
        self._took = (perf_counter() - self._ended) / 2  # it looks twice

    def look(self) -> tuple[str, ...]:
        """The names of what has changed since the last look; looks take a hundredth of the time."""
        begin = perf_counter()
        if begin - self._ended < RARELY * self._took:
            return ()
        changed = self._values.changed(filled=False)
        self._ended = perf_counter()
        self._took = self._ended - begin
        self._reported.update(changed)  # not looked at any more
        notes = {name for code in self._code for name in code.notes(changed)}
        return tuple(name for name in changed if name not in notes)

    def _named(self) -> Iterator[tuple[str, Any]]:
        for code in self._code:
            for name, value in code.values():
                if name not in self._reported:
                    yield name, value


class SharedCode:
    """The code that a recipe's trials run, and what it names that all of them share."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._codes: dict[CodeType, None] = {}
        self._variables: dict[str, Callable[[], Any]] = {}
        # the attributes of classes and functions, which may get more
        self._spaces: dict[str, Mapping[str, Any]] = {}
        self._follow_code()
        self._names = set[str]().union(*map(names_in, self._codes))

    def values(self) -> Iterator[tuple[str, Any]]:
        """The attributes of the recipe, and variables, that its trials' code may change."""
        for label, _, value in self._labelled():
            yield label, value

    def notes(self, labels: Collection[str]) -> list[str]:
        """The labels of values that the code adds to, and never reads."""
        return [
            label
            for label, name, value in self._labelled()
            if label in labels and isinstance(value, NOTES) and is_only_added_to(name, self._codes)
        ]

    def _labelled(self) -> Iterator[tuple[str, str, Any]]:
        """The labels, names and values of what the trials' code may change."""
        if not isinstance(self._recipe, Adapted):  # those are Shoal's own
            for name, value in attributes_of(self._recipe, all_of_them=True):
                if name in self._names:
                    yield shared_label(self._recipe, name), name, value
        for label, value_of in self._variables.items():
            value = value_of()
            if _may_change(value):
                yield label, label.rpartition(".")[2], value
        for place, space in self._spaces.items():
            for name, value in list(space.items()):
                inner = name.startswith("__") or name not in self._names
                if not inner and _may_change(value):
                    yield f"{place}.{name}", name, value

    def _follow_code(self) -> None:
        """Follow the code from function to function, and note what it names."""
        recipe_classes = own_classes(self._recipe)
        pending: list[FunctionType] = []
        for kind in recipe_classes:
            for name, member in vars(kind).items():
                if name not in UNTRAINED:
                    pending += functions_of_users(member)
        if isinstance(self._recipe, Adapted):
            pending += self._followed(self._recipe.named(), recipe_classes)
        for value in vars(self._recipe).values():
            pending += self._followed(value, recipe_classes)
        followed: set[FunctionType] = set()  # of one code, but with cells of their own
        while pending:
            function = pending.pop()
            if function in followed:
                continue
            followed.add(function)
            self._codes[function.__code__] = None
            for label, value_of in variables_of(function):
                is_cell = label.rpartition(".")[2] in function.__code__.co_freevars
                while is_cell and label in self._variables:  # as of a decorator
                    label = f"another {label}"
                self._variables[label] = value_of
                pending += self._followed(value_of(), recipe_classes)

    def _followed(self, value: Any, recipe_classes: list[type]) -> Iterator[FunctionType]:
        """The functions of a value that the code names, a function, a class or an object."""
        yield from functions_of_users(value)
        if isinstance(value, FunctionType) and any(functions_of_users(value)):
            self._spaces[f"{value.__module__}.{value.__qualname__}"] = vars(value)
        kind = value if isinstance(value, type) else type(value)
        if not is_users(kind) or kind in recipe_classes:
            return
        if kind is not value:
            yield from functions_of_users(kind)
        self._spaces[f"{kind.__module__}.{kind.__qualname__}"] = vars(kind)


def attributes_of(recipe: Recipe, all_of_them: bool = False) -> Iterator[tuple[str, Any]]:
    """The attributes of the recipe, and of its users' classes, that can change in place.

    `all_of_them`: also large ones, and plain ones, as a class may get others.
    """
    named: dict[str, Any] = {}
    for kind in reversed(type(recipe).__mro__):
        if issubclass(kind, Recipe) and kind is not Recipe:
            named |= vars(kind)
    named |= vars(recipe)
    for name, value in named.items():
        if name.startswith("__"):
            continue
        if _may_change(value) if all_of_them else _changes(value) and _is_small(value):
            yield name, value


def _may_change(value: Any) -> bool:
    """Whether the value may change, or another one come in its place.

    Not what a library reads when its items are asked for.
    """
    if isinstance(value, Mapping) and not isinstance(value, (dict, UserDict)):
        return is_users(type(value))
    return isinstance(value, PLAIN) or _changes(value)


def _changes(value: Any) -> bool:
    """Whether the value may change while it stays the same object, in a way that can be seen."""
    if isinstance(value, (*PLAIN, *FIXED, FunctionType, MethodType, bytes, complex)):
        return False
    kinds = (Mapping, set, list, tuple, np.ndarray, Tensor, nn.Module, Iterator)
    generators = (np.random.Generator, np.random.RandomState, random.Random)
    if isinstance(value, (*kinds, *generators, torch.Generator)) or hasattr(type(value), "popleft"):
        return True
    visible = is_users(type(value)) or is_stateful(value)
    return visible and not hasattr(type(value), "__get__")


def _is_small(value: Any) -> bool:
    """Whether the value is small enough to be copied and looked into."""
    size = 0
    for number, part in enumerate(_parts(value)):
        if isinstance(part, (np.ndarray, Tensor)):
            size += part.nbytes
        if number >= ITEMS or size > BYTES:
            return False
    return True


def _parts(value: Any) -> Iterator[Any]:
    """The value and all that it holds, each once, as far as `digest` looks."""
    seen: set[int] = set()
    pending = [value]
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, Recipe):
            continue
        if isinstance(each, Mapping):
            pending += [*each.keys(), *each.values()]
        elif isinstance(each, (list, tuple, set, frozenset)) or hasattr(type(each), "popleft"):
            pending += each
        elif isinstance(each, nn.Module):
            pending += [*each.parameters(), *each.buffers()]
        elif not isinstance(each, (*FIXED, Tensor)) and is_users(type(each)):
            pending += parts_of(each).values()
