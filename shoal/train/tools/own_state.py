"""What the attributes of a recipe hold, and whether steps change it.

Trials share the recipe. That a step may set no attribute of it is refused where it does; that a
list, an array or an object grows or changes in place is seen only by looking at it again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from copy import copy, deepcopy
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.train.lane.model_changes import (
    FIXED,
    PLAIN,
    STEPPED,
    digest,
    is_stateful,
    is_users,
    parts_of,
)
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.unit import RAISED

ITEMS = 10_000  # of an attribute that is copied and looked into, with all that it holds
BYTES = 2**24  # of its arrays


def own_copy(recipe: Recipe) -> Recipe:
    """The recipe with containers, arrays, generators and objects of its own, where these are small.

    Modules, optimizers, and tensors with a gradient stay the same: who trains them is told by their
    identity.
    A pickled copy would not do: to load it would change the classes of this process.
    """
    made = copy(recipe)
    memo: dict[int, Any] = {id(recipe): made}
    for name, value in _looked_at(recipe):
        for part in _parts(value):
            if isinstance(part, (nn.Module, *STEPPED)) or (
                isinstance(part, Tensor) and part.requires_grad
            ):
                memo[id(part)] = part
        try:
            vars(made)[name] = deepcopy(value, memo)
        except RAISED:  # a lock, a file: it stays the same object
            continue
    return made


class Held:
    """What a recipe's attributes hold, from look to look."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._before = self._digests()
        again = self._digests()
        # iterators: nobody can see what was taken from them
        self.unknown = {name for name in again if again[name] != self._before[name]}

    def changed(self) -> list[str]:
        """The attributes that hold something else than at the last look, or may do so."""
        now = self._digests()
        found = [name for name in now if now[name] != self._before.get(name, now[name])]
        self._before = now
        return found

    def _digests(self) -> dict[str, Any]:
        return {
            name: digest(value, whole=True) for name, value in _looked_at(self._recipe)
        }


def _looked_at(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """The attributes of the recipe, and of its users' classes, that can change in place."""
    named: dict[str, Any] = {}
    for kind in reversed(type(recipe).__mro__):
        if issubclass(kind, Recipe) and kind is not Recipe:
            named |= vars(kind)
    named |= vars(recipe)
    for name, value in named.items():
        if not name.startswith("__") and _changes(value) and _is_small(value):
            yield name, value


def _changes(value: Any) -> bool:
    """Whether it may change while it stays the same object, in a way that can be seen."""
    if isinstance(value, (*PLAIN, *FIXED, FunctionType, MethodType, bytes, complex)):
        return False
    known = (Mapping, set, list, tuple, np.ndarray, Tensor, nn.Module, Iterator)
    generators = (np.random.Generator, np.random.RandomState, random.Random)
    if isinstance(value, (*known, *generators, torch.Generator)) or hasattr(
        type(value), "popleft"
    ):
        return True
    told = is_users(type(value)) or is_stateful(value)
    return told and not hasattr(type(value), "__get__")


def _is_small(value: Any) -> bool:
    """Whether it is worth to be looked into."""
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
    rest = [value]
    while rest:
        each = rest.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, Recipe):
            continue
        if isinstance(each, Mapping):
            rest += [*each.keys(), *each.values()]
        elif isinstance(each, (list, tuple, set, frozenset)) or hasattr(
            type(each), "popleft"
        ):
            rest += each
        elif isinstance(each, nn.Module):
            rest += [*each.parameters(), *each.buffers()]
        elif not isinstance(each, (*FIXED, Tensor)) and is_users(type(each)):
            rest += parts_of(each).values()
