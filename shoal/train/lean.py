"""Torch's compiler, kept waiting until it is wanted: optimizers import it at their first use, only to tell it to keep out.

That import takes 1.4 s of CPU and 70 MB in every process that trains (torch 2.13), a slot's too, and nothing of it is used
unless a recipe compiles its model. Whatever is asked of it beyond the two calls that optimizers make loads it, in place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import RLock
from types import ModuleType
from typing import Any

import torch

NAME = "torch._dynamo"
_lock = RLock()


def wait() -> None:
    """From now on the compiler waits, unless it is there."""
    with _lock:
        if NAME not in sys.modules:
            waiting: Any = Waiting()
            sys.modules[NAME] = torch._dynamo = waiting
            sys.meta_path.insert(0, _Within())


class Waiting:
    """Stands in for the compiler as long as no more is asked of it than what does nothing outside of compiled functions."""

    __spec__ = None
    __path__: tuple[str, ...] = ()  # a package

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Of no effect where nothing is compiled."""

    def disable(self, fn: Callable[..., Any], recursive: bool = True, **_: Any) -> Callable[..., Any]:
        """The function; as soon as the compiler is there, kept out of what it compiles."""

        def plainly(*args: Any, **kwargs: Any) -> Any:
            if isinstance(sys.modules.get(NAME), Waiting):
                return fn(*args, **kwargs)
            disabled: Callable[..., Any] = sys.modules[NAME].disable(fn, recursive, wrapping=False)
            setattr(fn, "__dynamo_disable", disabled)  # where torch/_compile.py keeps what this returned
            return disabled(*args, **kwargs)

        return plainly

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what looks through all modules
            raise AttributeError(name)
        return getattr(_loaded(), name)


def _loaded() -> ModuleType:
    with _lock:
        if isinstance(sys.modules.get(NAME), Waiting):
            del sys.modules[NAME]
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Within)]
        return import_module(NAME)


class _Within(MetaPathFinder):
    """An import of one of the compiler's own modules loads the compiler first."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if not name.startswith(f"{NAME}."):
            return None
        _loaded()
        return ModuleSpec(name, _Found(import_module(name)))


class _Found(Loader):
    """A module that is there already, as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
