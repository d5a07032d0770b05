"""What a recipe's or a function's own code reads of a configuration."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from functools import lru_cache, partial
from itertools import takewhile
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from shoal.train.recipe.recipe import Recipe

# A misspelt name is at least this similar to the right one, as difflib counts.
SIMILAR = 0.8
# Where functions that wrap another one keep it.
WRAPS = ("__func__", "fget", "__wrapped__")
# Instructions that spread a dict, as f(**config) and {**config} do.
SPREADS = ("DICT_MERGE", "DICT_UPDATE")
# Instructions that load what the code has as a constant.
CONSTANTS = ("LOAD_CONST", "RETURN_CONST")
# Instructions without a meaning of their own, and those after the names that a call or a dict gets.
SKIPPED = ("CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL", "PRECALL", "RESUME")
TAKE_NAMES = ("CALL_KW", "CALL_FUNCTION_KW", "BUILD_CONST_KEY_MAP")
INSTALLED = ("site-packages", "dist-packages")
# Instructions that name a global variable.
OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
# Methods that only add to a list or a set.
ADDS = ("append", "appendleft", "extend", "add")


class NotInSpaceError(KeyError):
    """The recipe reads a key that the configuration does not have."""


class Watched(dict[str, Any]):
    """A configuration that notes what is read of it; missing keys raise an error of their own."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.__dict__["seen"] = set()  # keys that were read one by one
        self.__dict__["whole"] = False  # whether somebody went through all keys

    @property
    def names(self) -> list[str]:
        """All keys; to ask for these counts as reading none."""
        return list(dict.keys(self))

    def unread(self, names: Collection[str]) -> list[str]:
        """The names that nobody has read; none, if somebody went through all keys."""
        if self.__dict__["whole"]:
            return []
        return [name for name in names if name not in self.__dict__["seen"]]

    def __missing__(self, name: str) -> Any:
        raise NotInSpaceError(name)

    def __getattr__(self, name: str) -> Any:
        instead = f"write config[{name!r}]"
        if name == "params":
            instead = 'write config["NAME"] in place of trial.params["NAME"]'
        elif name.startswith("suggest_"):
            instead = (
                f'name the range in search_space=, and write config["NAME"] in place of '
                f'{name}("NAME", …)'
            )
        raise AttributeError(f"a configuration is a dict: {instead}")

    def __getitem__(self, name: str) -> Any:
        self.__dict__["seen"].add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.__dict__["seen"].add(name)
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.__dict__["seen"].add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.__dict__["seen"].add(name)
        return super().pop(name, *default)

    def __iter__(self) -> Iterator[str]:
        self.__dict__["whole"] = True
        return super().__iter__()

    def keys(self) -> Any:
        self.__dict__["whole"] = True
        return super().keys()

    def values(self) -> Any:
        self.__dict__["whole"] = True
        return super().values()

    def items(self) -> Any:
        self.__dict__["whole"] = True
        return super().items()

    def copy(self) -> dict[str, Any]:
        self.__dict__["whole"] = True
        return super().copy()


# -- what the code says ----------------------------------------------------------------------------


def own_classes(recipe: Recipe) -> list[type]:
    """The recipe's class and those that it inherits from, without Shoal's own."""
    classes = []
    for kind in type(recipe).__mro__:
        if kind is not object and kind.__module__.partition(".")[0] != "shoal":
            classes.append(kind)
    return classes


def names_read(recipe: Recipe) -> set[str]:
    """Names of attributes and texts (keys of a configuration) in the recipe's own code."""
    names: set[str] = set()
    for function in _own_functions(recipe):
        names |= names_in(function.__code__)
    return names


def code_of(recipe: Recipe, *brought: Any) -> list[CodeType]:
    """The code of the recipe, or of its function, and of functions of the user's that it names.

    `brought`: functions and classes that count, too, if they are the user's.
    """
    waiting = [*_own_functions(recipe)]
    waiting += [function for each in brought for function in functions_of_users(each)]
    waiting += functions_of(getattr(recipe, "function", None))
    codes: dict[CodeType, None] = {}
    while waiting:
        function = waiting.pop()
        if function.__code__ not in codes:
            codes[function.__code__] = None
            for _, value_of in variables_of(function):
                waiting += functions_of_users(value_of())
    return [*codes]


def reports_no_checkpoint(recipe: Recipe) -> bool:
    """Whether the user's code makes reports, and none of it can give one a checkpoint."""
    codes = code_of(recipe)
    names = set().union(*map(names_in, codes))
    if "report" not in names or "checkpoint" in names:
        return False
    return not any(map(spreads, codes))


def variables_of(function: FunctionType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The variables beside the function that its code names, each with what gives its value now.

    Those of user's modules that it names, too. The value is None where there is none yet.
    """
    code, module = function.__code__, function.__module__
    for name in sorted(globals_in(code)):
        yield f"{module}.{name}", partial(function.__globals__.get, name)
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType) and not _is_of_library(
            value.__name__, str(getattr(value, "__file__", ""))
        ):
            for attribute in sorted(names_in(code) & vars(value).keys()):
                yield f"{value.__name__}.{attribute}", partial(vars(value).get, attribute)
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        yield f"{module}.{function.__qualname__}.{name}", partial(_content, cell)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not filled yet
        return None


def functions_of_users(value: Any) -> Iterator[FunctionType]:
    """The user's functions in a value: itself and what it wraps, or those of a class."""
    parts = [value]
    if isinstance(value, type):
        parts += vars(value).values()
    for part in parts:
        for function in functions_of(part):
            if not _is_of_library(str(function.__module__), function.__code__.co_filename):
                yield function


@lru_cache(256)
def _instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """What the code does. Several questions are asked of each function of a recipe."""
    return tuple(dis.get_instructions(code))


def globals_in(code: CodeType) -> set[str]:
    """Names of global variables that the code, and functions that it defines, read or set."""
    names = {
        str(instruction.argval)
        for instruction in _instructions(code)
        if instruction.opname in OF_GLOBALS
    }
    return names.union(*map(globals_in, _inner(code)))


def is_only_added_to(name: str, codes: Collection[CodeType]) -> bool:
    """Whether the code only notes things in that variable or attribute: no result depends on it.

    To note is x.append(…), x[key].append(…), x += 1, or x[key] += 1.
    """
    return all(_only_adds(name, code) and is_only_added_to(name, _inner(code)) for code in codes)


def _only_adds(name: str, code: CodeType) -> bool:
    """Whether the code, without functions that it defines, only adds to what has this name."""
    steps = [i for i in _instructions(code) if i.opname != "EXTENDED_ARG"]
    loads = [
        index
        for index, step in enumerate(steps)
        if step.argval == name and step.opname.startswith("LOAD") and "FAST" not in step.opname
    ]
    return all(_adds(name, steps[index + 1 :]) for index in loads)


def _adds(name: str, steps: list[dis.Instruction]) -> bool:
    """Whether the instructions after the variable was loaded only add to it."""
    # x.append(…), or x[key].append(…)
    after = steps[2:] if len(steps) > 1 and _is_subscript(steps[1]) else steps
    is_method = bool(after) and after[0].opname in ("LOAD_ATTR", "LOAD_METHOD")
    if is_method and after[0].argval in ADDS:
        return True
    # x[key] += …
    keys = [*takewhile(lambda each: each.opname.startswith("LOAD"), steps)]
    copies = steps[len(keys) : len(keys) + 3]
    kinds = [each.opname for each in copies[:2]]
    if keys and kinds == ["COPY", "COPY"] and _is_subscript(copies[2]):
        return True
    # x += …
    ends = [index for index, each in enumerate(steps) if each.argval == name]
    if not ends or not steps[ends[0]].opname.startswith("STORE"):
        return False
    before = [each for each in steps[: ends[0]] if each.opname != "SWAP"]
    return bool(before) and before[-1].argrepr in ("+=", "-=")


def _is_subscript(instruction: dis.Instruction) -> bool:
    return instruction.opname == "BINARY_SUBSCR" or instruction.argrepr == "[]"


def _inner(code: CodeType) -> list[CodeType]:
    """The code of functions that the code defines."""
    return [part for part in code.co_consts if isinstance(part, CodeType)]


def _is_of_library(module: str, file: str) -> bool:
    """Whether the module of that name and file is Python's, Shoal's, or of an installed package."""
    root = module.partition(".")[0]
    if root == "shoal" or root in sys.stdlib_module_names:
        return True
    return any(each in file for each in INSTALLED)


def _own_functions(recipe: Recipe) -> Iterator[FunctionType]:
    """The functions of the recipe's own classes, without those that a subclass replaces."""
    replaced: set[str] = set()
    for kind in own_classes(recipe):
        members = {name: [*functions_of(value)] for name, value in vars(kind).items()}
        for name, functions in members.items():
            if name not in replaced:
                yield from functions
        for name, functions in members.items():
            if functions and not any("super" in f.__code__.co_names for f in functions):
                replaced.add(name)


def functions_of(value: Any) -> Iterator[FunctionType]:
    """The function that the value is, and those that it wraps."""
    wrapped = [getattr(value, name, None) for name in WRAPS]
    for part in (value, *wrapped):
        if isinstance(part, FunctionType):
            yield part


def names_in(code: CodeType) -> set[str]:
    """Names of attributes and texts in the code, and in functions that it defines."""
    names = set(_names_of(code))
    for part in code.co_consts:
        if isinstance(part, CodeType):
            names |= names_in(part)
        elif isinstance(part, tuple):
            names |= {name for name in part if isinstance(name, str)}
    return names


def _names_of(code: CodeType) -> Iterator[str]:
    """Names and texts that the code's own instructions read."""
    for instruction in _instructions(code):
        stores = instruction.opname.startswith(("STORE", "DELETE"))
        if not stores and isinstance(instruction.argval, str):
            yield instruction.argval


def attributes_in(code: CodeType) -> set[str]:
    """Names of attributes that the code reads, of whatever object; with getattr, texts, too."""
    names: set[str] = set()
    for instruction in _instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.add(str(instruction.argval))
    if "getattr" in code.co_names:
        names |= texts_in(code)
    return names.union(*map(attributes_in, _inner(code)))


def texts_in(code: CodeType) -> set[str]:
    """The texts in the code, as "lr" in config.get("lr"); not the names of arguments."""
    texts = {part for part in code.co_consts if isinstance(part, str)}
    return texts.union(*map(texts_in, _inner(code)))


def keys_in(code: CodeType) -> set[str]:
    """The texts in the code that may be keys of a configuration, which is a local variable.

    Not names of arguments, as of f(lr=0.1), or of a dict that is made, nor keys of what is an
    attribute or a global variable, as of self.defaults["lr"] and DEFAULTS.get("lr").
    """
    keys: set[str] = set()
    steps = [each for each in _instructions(code) if each.opname not in SKIPPED]
    for index, step in enumerate(steps):
        value = step.argval
        following = steps[index + 1].opname if index + 1 < len(steps) else ""
        if isinstance(value, CodeType):
            keys |= keys_in(value)
        elif step.opname not in CONSTANTS or following in TAKE_NAMES:
            continue
        elif isinstance(value, tuple):
            keys |= {each for each in value if isinstance(each, str)}
        elif isinstance(value, str) and not _is_key_of_another(steps[:index], following):
            keys.add(value)
    return keys


def _is_key_of_another(before: list[dis.Instruction], following: str) -> bool:
    """Whether the text that is loaded after these is a key of an attribute or a global variable."""
    if not before:
        return False
    *earlier, owner = before
    if owner.argval in ("get", "pop") and owner.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        if not earlier:
            return False
        owner = earlier[-1]
    elif following not in ("BINARY_SUBSCR", "BINARY_OP"):
        return False
    return owner.opname in ("LOAD_ATTR", "LOAD_GLOBAL")


def variables_in(code: CodeType) -> set[str]:
    """Names of variables from outside of the function that the code reads."""
    return globals_in(code).union(code.co_freevars)


def subscripts(code: CodeType) -> set[str]:
    """The texts in square brackets, as "lr" in config["lr"]: they are read without a default."""
    texts: set[str] = set()
    before: Any = None
    for instruction in _instructions(code):
        if _is_subscript(instruction) and isinstance(before, str):
            texts.add(before)
        before = instruction.argval if instruction.opname == "LOAD_CONST" else None
    return texts.union(*map(subscripts, _inner(code)))


def spreads(code: CodeType) -> bool:
    """Whether the code spreads a dict, as f(**config) does: then its keys go anywhere."""
    if any(each.opname in SPREADS for each in _instructions(code)):
        return True
    return any(map(spreads, _inner(code)))


def near(name: str, known: Collection[str]) -> str | None:
    """The known name that this one is most probably meant to be; None: it is one, or like none.

    Names that differ in a number, as width1 and width2, are two names.
    """
    originals = {each.replace("_", "").lower(): each for each in known}
    squeezed = name.replace("_", "").lower()
    matches = get_close_matches(squeezed, originals, 1, SIMILAR)
    if not matches or name in known or _lettered(matches[0]) == _lettered(squeezed) != squeezed:
        return None
    return originals[matches[0]]


def _lettered(name: str) -> str:
    """The name without digits."""
    return "".join(sign for sign in name if not sign.isdigit())
