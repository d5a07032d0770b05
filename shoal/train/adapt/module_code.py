"""Which names a module's steps read, found in their code before anything runs."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from shoal.train.adapt.lightning_classes import own_classes

# methods that run before or after training, never within a step
OUTSIDE_STEPS = {
    "__init__",
    "configure_optimizers",
    "configure_model",
    "configure_callbacks",
    "prepare_data",
    "setup",
    "teardown",
    "train_dataloader",
    "val_dataloader",
    "test_dataloader",
    "predict_dataloader",
    "test_step",
    "predict_step",
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_epoch_end",
    "on_validation_end",
}
# methods that run in validation only
OF_VALIDATION = {"validation_step", "on_validation_batch_start", "on_validation_batch_end"}
# with these, code can read any attribute
DYNAMIC = {"getattr", "vars", "__dict__", "eval", "exec", "locals"}


@cache
def names_in_steps(kind: type, training: bool = False) -> frozenset[str] | None:
    """The names and texts in the code of the class's steps; None: they may read any name.

    `training`: without the code that runs in validation only.
    """
    names: set[str] = set()
    for name, function in functions_of(kind):
        if name not in OUTSIDE_STEPS and not (training and name in OF_VALIDATION):
            names |= names_of(function.__code__)
    if names & DYNAMIC:
        return None
    return frozenset(names)


def functions_of(kind: type) -> Iterator[tuple[str, FunctionType]]:
    """The functions that the user's classes define, by name; those of properties, too."""
    for base in own_classes(kind):
        for name, value in vars(base).items():
            for part in _parts(value):
                if isinstance(part, FunctionType):
                    yield name, part


def _parts(value: Any) -> Iterator[Any]:
    """The function that the value is, or those that it is made of."""
    yield value
    for name in ("fget", "fset", "__func__", "__wrapped__", "func"):
        inner = getattr(value, name, None)
        if inner is not None and inner is not value:
            yield inner


def names_of(code: CodeType) -> set[str]:
    """Names of attributes and variables, and texts, in the code and in functions within it."""
    names = {*code.co_names, *code.co_freevars}
    for part in code.co_consts:
        if isinstance(part, CodeType):
            names |= names_of(part)
        elif isinstance(part, str):
            names.add(part)
    return names


def assigns(kind: type, name: str) -> bool:
    """Whether the user's classes set the attribute, in a method or in their bodies."""
    if any(name in vars(each) for each in own_classes(kind)):
        return True
    for _, function in functions_of(kind):
        for instruction in dis.get_instructions(function.__code__):
            if instruction.opname == "STORE_ATTR" and instruction.argval == name:
                return True
    return False
