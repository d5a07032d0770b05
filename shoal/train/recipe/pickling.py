"""Pickling a recipe together with its code, so that other processes and later runs can load it.

A recipe's own file is no installed package, so the pickle holds the code itself. What that file
imports from beside it is found again because the pickle names the folder, and loading the pickle
puts that folder on sys.path. Of a recipe that was stored as source it holds the texts as well.
Recipes that an earlier Shoal pickled are read, too, although its modules had other names.
"""

import io
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from shoal.train.recipe.moved import now_at
from shoal.train.recipe.text_modules import Text, know, known, text_of
from shoal.train.recipe.user_modules import MAIN, modules_of, root_of

# Variables of the environment by which a recipe's modules are another thing.
ENVIRONMENT = ("KERAS_BACKEND",)
# What guards the threads of one process: another process has a new one.
PER_PROCESS: Mapping[type, Callable[[], Any]] = {
    type(make()): make for make in (threading.Lock, threading.RLock, threading.local)
}
_recipe_folders: list[str] = []  # folders that recipes of this process came from


def dumps(
    thing: Any, aside: Callable[[pickle.PickleBuffer], Any] | None = None, code_of: Any = None
) -> bytes:
    """The thing, pickled with the code of its classes, except that of installed packages.

    Of a tuple, the code of each part. `pickle.loads` reads it. `aside`: gets the contents of
    arrays, which then are not in the pickle, and have to be given to `pickle.loads` in this order.
    `code_of`: another thing, whose classes' modules are pickled by value here, too. A class that
    both pickles hold is then one class where they are loaded.
    """
    parts: tuple[Any, ...] = (thing,)
    if isinstance(thing, tuple):
        parts = thing
    modules = list(modules_of((*parts, code_of)))
    # The folder of a module with a text in memory need not hold what the text imports.
    filed = [module for module in modules if text_of(module.__name__) is None]
    folders = dict.fromkeys([*filter(None, map(root_of, filed)), *_recipe_folders])
    carried = _Carried(tuple(folders), thing)
    # cloudpickle sees to `__main__` itself
    by_value = {module for module in modules if module.__name__ != MAIN}
    try:
        blob, buffers = _pickled(carried, by_value, aside is not None)
    except Exception as error:  # whatever a class's own reduction raises
        # A lock or an open file that the code names: where the module can be imported, it is named.
        by_name = {module for module in by_value if root_of(module) is not None}
        if not by_name or any(_bad_attribute(part) for part in parts):
            raise
        try:
            blob, buffers = _pickled(carried, by_value - by_name, aside is not None)
        except Exception:  # noqa: BLE001 - the first error is the one to mend
            raise error from None
    if aside is not None:
        for buffer in buffers:
            aside(buffer)
    return blob


def _pickled(
    carried: Any, by_value: Iterable[ModuleType], aside: bool
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """The pickle, which holds the code of these modules; and arrays' contents, if `aside`."""
    registered = cloudpickle.list_registry_pickle_by_value()
    new = [module for module in by_value if module.__name__ not in registered]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        _Pickler(file, buffers.append if aside else None).dump(carried)
        return file.getvalue(), buffers
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Names what `import` finds, instead of taking it apart.

    cloudpickle takes each word of a function for a submodule of what the function names: `.classes`
    and `.ops` beside `torch` for `torch.classes` and `torch.ops`, which are no plain modules and
    cannot be pickled.
    """

    def __init__(self, file: io.BytesIO, aside: Callable[[Any], Any] | None) -> None:
        super().__init__(file, protocol=5, buffer_callback=aside)
        self._imported: dict[int, str] = {}
        for name, module in list(sys.modules.items()):
            self._imported.setdefault(id(module), name)

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler.reducer_override`."""
        name = self._imported.get(id(obj))
        if obj is not None and name is not None and not _goes_by_value(name):
            return import_module, (name,)
        if type(obj) in PER_PROCESS:
            return PER_PROCESS[type(obj)], ()
        torch = sys.modules.get("torch")
        # No pickle of torch's knows what `torch.ops` holds.
        if torch is not None and type(obj).__module__ == type(torch.ops).__module__:
            name = getattr(obj, "__name__", "")
            if not isinstance(obj, ModuleType):
                name = f"torch.ops.{obj}"
            return attrgetter(name.partition(".")[2]), (torch,)
        return super().reducer_override(obj)


def _goes_by_value(name: str) -> bool:
    """Whether the module's code goes into the pickle."""
    by_value = cloudpickle.list_registry_pickle_by_value()
    parts = name.split(".")
    levels = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return name == MAIN or bool(levels & by_value)


def culprit(recipe: Any) -> str:
    """What of a recipe cannot be pickled, in words."""
    return _bad_attribute(recipe) or _bad_global(recipe) or "something that its code refers to"


def _bad_attribute(recipe: Any) -> str:
    """Which attribute of a recipe or its classes cannot be pickled, in words; empty: none."""
    attributes = dict(getattr(recipe, "__dict__", {}))
    for kind in type(recipe).__mro__:
        if not kind.__module__.startswith(("shoal.", "builtins")):
            attributes = {**vars(kind), **attributes}
    for name, value in attributes.items():
        if isinstance(value, FunctionType) or name.startswith("__"):
            continue
        if not _can_be_pickled(value):
            return f"its attribute {name!r} ({type(value).__name__})"
    return ""


def _bad_global(recipe: Any) -> str:
    """Which variable beside the code cannot be pickled, in words; empty: none found."""
    for function in _functions_of(recipe):
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if not callable(value) and not _can_be_pickled(value):
                return f"{name} ({type(value).__name__}), which {function.__name__} uses,"
    return ""


def _can_be_pickled(value: Any) -> bool:
    try:
        _pickled(value, (), aside=False)
    except Exception:  # noqa: BLE001 - whatever its own reduction raises
        return False
    return True


def import_from(folder: str | Path) -> None:
    """Let this process import modules from the folder, as a script does from its own folder."""
    path = str(Path(folder).resolve())
    if path not in _recipe_folders:
        _recipe_folders.append(path)
    if path not in sys.path:
        sys.path.insert(0, path)


class _Carried:
    """Pickles as folders followed by a thing; unpickles as the thing alone.

    Pickle restores parts in their order, so the folders are on sys.path before the thing's code
    is looked for, and the environment is as it was.
    """

    def __init__(self, folders: tuple[str, ...], thing: Any) -> None:
        self.folders = _Folders(folders)
        self.thing = thing

    def __reduce__(self) -> tuple[Any, ...]:
        return _second, (self.folders, self.thing)


class _Folders:
    """Pickles as folders; unpickling lets the process import from them."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self.folders = folders

    def __reduce__(self) -> tuple[Any, ...]:
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        texts = tuple(
            (text.name, text.file, text.content, text.package, None, text.is_complete)
            for text in known()
            if text.part is None
        )
        return _prepare_to_import, (self.folders, environment, texts)


def _prepare_to_import(
    folders: tuple[str, ...],
    environment: Mapping[str, str],
    texts: tuple[tuple[Any, ...], ...] = (),
    may_import: Callable[[str], bool] = os.path.exists,
) -> None:
    """Import from the folders, and modules that are not there from their texts.

    Variables of the environment that this process does not have get their values.
    """
    know(Text(*text) for text in texts)
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    for folder in folders:
        # A zip file, too; on another machine it may lack.
        if os.path.exists(folder) and may_import(folder):
            import_from(folder)


def _second(_: Any, thing: Any) -> Any:
    """The thing alone: what is before it only had to be restored first."""
    return thing


def _functions_of(thing: Any) -> Iterable[FunctionType]:
    """The functions of a thing's class and among its attributes; itself, if it is one."""
    values = [thing, *getattr(thing, "__dict__", {}).values()]
    for kind in type(thing).__mro__:
        values += vars(kind).values()
    return [value for value in values if isinstance(value, FunctionType)]


# -- reading -----------------------------------------------------------------------------------


class _Unpickler(pickle.Unpickler):
    """Finds classes of Shoal where they are now."""

    def __init__(self, blob: bytes, may_import: Callable[[str], bool]) -> None:
        super().__init__(io.BytesIO(blob))
        self._may_import = may_import

    def find_class(self, module_name: str, global_name: str) -> Any:
        value = super().find_class(*now_at(module_name, global_name))
        if value is _prepare_to_import:
            return partial(value, may_import=self._may_import)
        return value


def loads(blob: bytes, may_import: Callable[[str], bool] = os.path.exists) -> Any:
    """What was pickled, as `cloudpickle.loads` gives it.

    It runs the code in the blob: read what you trust.

    `may_import`: whether modules may be imported from a folder that is there, which the blob names.

    Raises:
        AttributeError, ModuleNotFoundError: it names a class that is not there any more.
    """
    return _Unpickler(blob, may_import).load()
