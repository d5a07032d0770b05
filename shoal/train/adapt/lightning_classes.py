"""Which objects are Lightning's or torchmetrics', found without importing either."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from torch import nn

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
# the first names of packages whose code is not the user's
LIBRARIES = {"lightning", "pytorch_lightning", "torch", "torchmetrics", "builtins", "shoal"}


def _classes(name: str) -> tuple[type, ...]:
    """The class of that name of each package that the user's code has imported."""
    modules = [sys.modules.get(package) for package in PACKAGES]
    classes = [getattr(module, name, None) for module in modules]
    return tuple(each for each in classes if isinstance(each, type))


def is_module_class(value: Any) -> bool:
    """Whether the value is a LightningModule class."""
    return isinstance(value, type) and issubclass(value, _classes("LightningModule"))


def is_module(value: Any) -> bool:
    """Whether the value is a LightningModule."""
    return isinstance(value, _classes("LightningModule"))


def is_data_module_class(value: Any) -> bool:
    """Whether the value is a LightningDataModule class."""
    kinds = _classes("LightningDataModule")
    return isinstance(value, type) and issubclass(value, kinds)


def is_data_module(value: Any) -> bool:
    """Whether the value is a LightningDataModule."""
    return isinstance(value, _classes("LightningDataModule"))


def is_metric(value: Any) -> bool:
    """Whether the value is one of torchmetrics' objects, or like one."""
    names = ("update", "compute", "reset")
    return isinstance(value, nn.Module) and all(hasattr(value, name) for name in names)


def own_classes(kind: type) -> Iterator[type]:
    """The class and those it inherits from, as far as the user wrote them."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in LIBRARIES:
            yield base


def _overrides(kind: type, method: str) -> bool:
    return any(method in vars(each) for each in own_classes(kind))


# Whether the user's classes bring their own version of the method; found out once.
overrides: Callable[[type, str], bool] = cache(_overrides)
