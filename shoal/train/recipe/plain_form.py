"""Objects as plain data that JSON can hold, and back.

What JSON has stands as it is. Anything else is a dict with a key "=" that says what it is: a tuple,
a class by its name, an instance by its class and its state. It is made again as `pickle` would:
by `__new__` and the state, mostly without `__init__`. To read a form imports what it names, which
runs code: read only what is known as the user's own.
"""

import copyreg
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial, reduce
from importlib import import_module
from math import isfinite
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from shoal.train.recipe.moved import now_at
from shoal.train.recipe.user_modules import MAIN

MARK = "="
PLAIN = (bool, int, str)
SEVERAL = (tuple, set, frozenset)
NAMED = (type, FunctionType, BuiltinFunctionType)
MOST = 100_000  # values in one form: beyond that it is no text for people any more


class NotPlain(ValueError):  # noqa: N818 - what it is, as its reader sees it
    """Something is not plain data; the message says what."""


class Encoder:
    """Makes forms, and remembers the modules that they name.

    `main`: the name by which the script is imported where the form is read; None: there is no
    script, so that nothing of `__main__` has a form.
    """

    def __init__(self, main: str | None) -> None:
        self.modules: dict[str, ModuleType] = {}
        # Names of the script's own definitions.
        self.of_main: dict[str, None] = {}
        self._main = main
        self._open: set[int] = set()  # ids of the things whose forms are being made
        self._values_left = MOST

    def form(self, thing: Any, where: str) -> Any:
        """The thing as plain data. `where`: what it is, for messages.

        Raises:
            NotPlain: it is no plain data.
        """
        self._values_left -= 1
        if self._values_left < 0:
            raise NotPlain(f"{where} belongs to more than {MOST} values")
        kind = type(thing)
        if thing is None or kind in PLAIN:
            return thing
        if kind is float:
            return thing if isfinite(thing) else {MARK: "float", "of": repr(thing)}
        with self._within(thing, where):
            return self._composed(thing, where)

    @contextmanager
    def _within(self, thing: Any, where: str) -> Iterator[None]:
        if id(thing) in self._open:
            raise NotPlain(f"{where} is within itself")
        self._open.add(id(thing))
        try:
            yield
        finally:
            self._open.discard(id(thing))

    def _composed(self, thing: Any, where: str) -> Any:
        """The form of what is no plain value."""
        kind = type(thing)
        if kind is dict:
            return self._mapping(thing, where)
        if kind is list or kind in SEVERAL:
            return self._collection(thing, where)
        if kind is bytes:
            return {MARK: "bytes", "of": thing.hex()}
        if isinstance(thing, PurePath):
            return {MARK: "path", "of": str(thing)}
        if _is_number(thing):
            return {MARK: "number", "of": repr(thing.item()), "kind": thing.dtype.str}
        return self._coded(thing, where)

    def _collection(self, thing: Any, where: str) -> Any:
        kind = type(thing)
        if kind is list:
            return self._items(thing, where)
        items = thing if kind is tuple else sorted(thing, key=repr)
        return {MARK: kind.__name__, "of": self._items(items, where)}

    def _coded(self, thing: Any, where: str) -> Any:
        """The form of what has to do with code."""
        if isinstance(thing, ModuleType):
            return {MARK: "module", "of": self._module(thing.__name__, where)}
        if isinstance(thing, NAMED):
            return self._named(thing, thing.__name__, where)
        if isinstance(thing, MethodType):
            owner = self.form(thing.__self__, where)
            return {MARK: "method", "of": owner, "name": thing.__name__}
        if type(thing) is partial:
            return {
                MARK: "partial",
                "of": self.form(thing.func, where),
                "arguments": self._items(thing.args, where),
                "named": self._mapping(thing.keywords, where),
            }
        if isinstance(thing, Enum):
            owner = self.form(type(thing), where)
            return {MARK: "member", "of": owner, "name": thing.name}
        return self._instance(thing, where)

    def _items(self, items: Any, where: str) -> list[Any]:
        return [self.form(item, f"{where}[{index}]") for index, item in enumerate(items)]

    def _mapping(self, items: Mapping[Any, Any], where: str) -> Any:
        if all(type(key) is str for key in items) and MARK not in items:
            return {key: self.form(item, f"{where}[{key!r}]") for key, item in items.items()}
        pairs = [
            [self.form(key, where), self.form(item, f"{where}[{key!r}]")]
            for key, item in items.items()
        ]
        return {MARK: "dict", "of": pairs}

    def _named(self, thing: Any, name: str, where: str) -> Any:
        """The form of a class, a function or a constant that a module has."""
        qualname = getattr(thing, "__qualname__", name)
        if "<" in qualname:
            raise NotPlain(
                f"{where} is {qualname.split('.')[-1]}, which was made within a function, or is a "
                "lambda: no file's import gives it again"
            )
        home = getattr(thing, "__module__", None)
        if not isinstance(home, str):
            home = pickle.whichmodule(thing, qualname)  # type: ignore[attr-defined]
        names = [each for each in (qualname, name) if _has(home, each, thing)]
        if not names:
            raise NotPlain(f"{where} is not what {home} has as {qualname}")
        name = names[0]
        if home == MAIN:
            self.of_main[name.partition(".")[0]] = None
        return {MARK: "name", "of": self._module(home, where), "name": name}

    def _module(self, name: str, where: str) -> str:
        """The name of the module where the form is read."""
        if name == MAIN:
            if self._main is None:
                raise NotPlain(
                    f"{where} is of a notebook or of python -c, where no file has its code"
                )
            return self._main
        self.modules[name] = sys.modules[name]
        return name

    def _instance(self, thing: Any, where: str) -> Any:
        label = f"{where} ({type(thing).__name__})"
        try:
            reduced = thing.__reduce_ex__(2)
        except Exception as error:
            raise NotPlain(f"{label} cannot be stored: {error}") from error
        if isinstance(reduced, str):
            return self._named(thing, reduced, where)
        function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        if function is copyreg.__newobj__:  # type: ignore[attr-defined]
            mark = "instance"
            function, *arguments = arguments
        elif function is type(thing):
            mark = "made"
        else:
            raise NotPlain(f"{label} is no plain data")
        if items is not None:
            raise NotPlain(f"{label} is a list with more to it")
        return {
            MARK: mark,
            "of": self.form(function, where),
            "arguments": self._items(arguments, where),
            "state": self._state(state, where),
            "items": self._items([] if pairs is None else pairs, where),
        }

    def _state(self, state: Any, where: str) -> Any:
        """The form of an instance's state; messages name its attributes."""
        if type(state) is not dict or MARK in state:
            return self.form(state, where)
        if not all(type(key) is str for key in state):
            return self.form(state, where)
        return {key: self.form(item, f"{where}.{key}") for key, item in state.items()}


def _is_number(thing: Any) -> bool:
    """Whether this is one of NumPy's numbers, which need not be there."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(thing, numpy.generic):
        return False
    return thing.dtype.kind in "biuf" and thing.dtype.itemsize <= 8


def _has(module: str, name: str, thing: Any) -> bool:
    """Whether the module has this thing under this name."""
    try:
        return reduce(getattr, name.split("."), sys.modules[module]) is thing
    except (AttributeError, KeyError):
        return False


def modules_in(form: Any) -> Iterator[str]:
    """The names of the modules that the form names, in any part of it."""
    if isinstance(form, list):
        for item in form:
            yield from modules_in(item)
    elif isinstance(form, dict):
        if form.get(MARK) in ("name", "module"):
            yield form["of"]
        for item in form.values():
            yield from modules_in(item)


# -- back --------------------------------------------------------------------------------------


def restored(form: Any) -> Any:
    """What the form stands for. It imports modules that it names.

    Raises:
        ImportError, AttributeError: a module is not there, or lacks a name.
        ValueError, KeyError, TypeError: it is no form.
    """
    if isinstance(form, list):
        return [restored(item) for item in form]
    if not isinstance(form, dict):
        return form
    if MARK not in form:
        return {key: restored(item) for key, item in form.items()}
    return _RESTORED[form[MARK]](form)


def _method(form: Any) -> Any:
    return getattr(restored(form["of"]), form["name"])


def _dict(form: Any) -> Any:
    return {restored(key): restored(item) for key, item in form["of"]}


def _number(form: Any) -> Any:
    dtype = import_module("numpy").dtype(form["kind"])
    if dtype.kind == "b":
        return dtype.type(form["of"] == "True")
    return dtype.type(form["of"])


def _partial(form: Any) -> Any:
    function = restored(form["of"])
    return partial(function, *restored(form["arguments"]), **restored(form["named"]))


def _named(form: Any) -> Any:
    module, name = now_at(form["of"], form["name"])
    return reduce(getattr, name.split("."), import_module(module))


def _instance(form: Any) -> Any:
    """An instance with its state, as pickle makes it."""
    kind = restored(form["of"])
    arguments = restored(form["arguments"])
    if form[MARK] == "made":
        instance = kind(*arguments)
    else:
        instance = kind.__new__(kind, *arguments)
    for key, item in restored(form["items"]):
        instance[key] = item
    state = restored(form["state"])
    if state is None:
        return instance
    if hasattr(instance, "__setstate__"):
        instance.__setstate__(state)
        return instance
    slots: Mapping[str, Any] = {}
    if isinstance(state, tuple):
        state, slots = state
    if state:
        vars(instance).update(state)
    for name, item in slots.items():
        setattr(instance, name, item)
    return instance


_RESTORED: Mapping[str, Callable[[Any], Any]] = {
    "tuple": lambda form: tuple(restored(form["of"])),
    "set": lambda form: set(restored(form["of"])),
    "frozenset": lambda form: frozenset(restored(form["of"])),
    "float": lambda form: float(form["of"]),
    "bytes": lambda form: bytes.fromhex(form["of"]),
    "path": lambda form: Path(form["of"]),
    "module": lambda form: import_module(form["of"]),
    "number": _number,
    "dict": _dict,
    "name": _named,
    "member": _method,
    "method": _method,
    "partial": _partial,
    "instance": _instance,
    "made": _instance,
}
