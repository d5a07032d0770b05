"""Which modules hold the user's own code, and where they are imported from."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

MAIN = "__main__"


def modules_of(parts: Iterable[Any]) -> Iterator[ModuleType]:
    """The modules of the parts' classes and functions, and the packages that those lie in."""
    for part in parts:
        for kind in _kinds(part):
            for name in dict.fromkeys((kind.__module__, kind.__module__.partition(".")[0])):
                module = sys.modules.get(name)
                if module is not None and not is_installed(module):
                    yield module


def _kinds(part: Any) -> Iterator[Any]:
    """The function or the classes of a part, and of what it wraps."""
    if isinstance(part, FunctionType):
        yield part
    else:
        yield from type(part).__mro__
    wrapped = getattr(part, "function", None) or getattr(part, "func", None)
    if wrapped is not None:
        yield from _kinds(wrapped)
    if callable(getattr(type(part), "brought", None)):  # an adapted recipe, made of others
        for user_code in part.brought():
            yield from user_code.__mro__ if isinstance(user_code, type) else (user_code,)


def is_installed(module: ModuleType) -> bool:
    """Whether the module came with Python, with Shoal or with a package, or has no file."""
    file = getattr(module, "__file__", None) or ""
    top = module.__name__.partition(".")[0]
    if top == "shoal" or top in sys.stdlib_module_names:
        return True
    return not file or "site-packages" in file or "dist-packages" in file


def root_of(module: ModuleType) -> str | None:
    """The folder from which the module is imported by its full name."""
    if getattr(module, "__file__", None) is None:
        return None
    path = Path(str(module.__file__)).resolve()
    levels = module.__name__.count(".")
    if path.name == "__init__.py":
        levels += 1
    return str(path.parents[levels])
