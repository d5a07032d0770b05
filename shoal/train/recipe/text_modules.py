"""Modules that are imported from a text in memory instead of a file."""

from __future__ import annotations

import ast
import hashlib
import symtable
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from shoal.train.recipe.plain_form import restored

RECIPE = "shoal_recipe_"  # begins the names of modules that nothing imports by name


class OtherModule(ValueError):  # noqa: N818 - what there is, as its reader sees it
    """This process has imported another module of the same name."""


@dataclass(frozen=True, slots=True)
class ScriptPart:
    """What of a script is needed: some of its definitions, and values of some of its variables.

    The rest of a script is not run again: it would begin the study once more.
    """

    wanted: tuple[str, ...]
    values: Mapping[str, Any]  # variables that the definitions read, as forms
    later: Mapping[str, Any]  # variables that are made of the definitions


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a module. `file`: where it was; that need not be there any more.

    `is_complete`: a package has only modules whose texts are known, and none of files beside it.
    """

    name: str
    file: str
    content: bytes
    package: bool = False
    part: ScriptPart | None = None  # of a script, what is needed of it
    is_complete: bool = False

    @property
    def sha256(self) -> str:
        """The text's hash."""
        return hashlib.sha256(self.content).hexdigest()


class TextLoader(InspectLoader):
    """Imports one module from its text."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def get_source(self, fullname: str) -> str:
        """The text, for tracebacks and `inspect`."""
        return decode_source(self.text.content)

    def is_package(self, fullname: str) -> bool:
        """Whether the module is a package."""
        return self.text.package

    def get_code(self, fullname: str) -> CodeType:
        """What is run when the module is imported."""
        content: Any = self.text.content
        if self.text.part is not None:
            part = self.text.part
            content = chosen(content, part.wanted, {*part.values, *part.later})
        code: CodeType = compile(content, self.text.file, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code; of a script, among the values of its variables."""
        names = vars(module)
        part = self.text.part or ScriptPart((), {}, {})
        names.update({name: restored(form) for name, form in part.values.items()})
        exec(self.get_code(self.text.name), names)
        names.update({name: restored(form) for name, form in part.later.items()})


class _TextFinder(MetaPathFinder):
    """Finds the modules whose texts are known here."""

    def __init__(self, texts: dict[str, Text]) -> None:
        self.texts = texts

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """How to import the module; None if its text is not known here."""
        text = self.texts.get(fullname)
        return None if text is None else _spec(text)


_known: dict[str, Text] = {}
# Folders of modules that are no packages by a file of their own, as if they had an empty one.
_folders: dict[str, Text] = {}
# The last two come after all other ways to import, the first one before them for a while.
_before, _after, _last = _TextFinder(_known), _TextFinder(_known), _TextFinder(_folders)


def _spec(text: Text) -> ModuleSpec:
    spec = spec_from_loader(text.name, TextLoader(text), origin=text.file)
    assert spec is not None
    spec.has_location = True
    if text.package:
        folders = [] if text.is_complete else [str(Path(text.file).parent)]
        spec.submodule_search_locations = folders
    return spec


def known() -> tuple[Text, ...]:
    """The texts of modules that this process can import."""
    return tuple(_known.values())


def text_of(name: str) -> Text | None:
    """The text that a module of this process was imported from; None if it came from a file."""
    loader = getattr(sys.modules.get(name), "__loader__", None)
    return loader.text if isinstance(loader, TextLoader) else None


def know(texts: Iterable[Text]) -> None:
    """Let this process import these modules, where it finds no others of their names."""
    for text in texts:
        _known[text.name] = text
        folder = Path(text.file).parent
        if text.package:
            folder = folder.parent
        package = text.name.rpartition(".")[0]
        while package:
            file = str(folder / "__init__.py")
            _folders[package] = Text(package, file, b"", True, is_complete=text.is_complete)
            folder = folder.parent
            package = package.rpartition(".")[0]
    if _after not in sys.meta_path:
        sys.meta_path += [_after, _last]


def imported(text: Text) -> ModuleType:
    """The module of this text, imported anew.

    Raises:
        Exception: whatever its code raises.
    """
    spec = _spec(text)
    module = ModuleType(text.name)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, text.file
    sys.modules[text.name] = module
    TextLoader(text).exec_module(module)
    return module


@contextmanager
def preferred(texts: Iterable[Text]) -> Iterator[None]:
    """Within it, imports take these texts first; afterwards, where there are no other modules.

    Raises:
        OtherModule: this process has imported another module under the name of one.
    """
    wanted = list(texts)
    for text in wanted:
        _make_way(text)
    know(wanted)
    sys.meta_path.insert(0, _before)
    try:
        yield
    finally:
        sys.meta_path.remove(_before)


def _make_way(text: Text) -> None:
    """Make sure that the text's module is imported from it, or was made of the same content."""
    module = sys.modules.get(text.name)
    if module is None or text_of(text.name) == text:
        return
    if text.name.startswith(RECIPE):
        del sys.modules[text.name]  # classes that were made of it go on as they are
        return
    file = Path(getattr(module, "__file__", None) or "")
    content = getattr(text_of(text.name), "content", None)
    if content is None and file.is_file():
        content = text.content if file == Path(text.file) else file.read_bytes()
    if content == text.content:
        return
    raise OtherModule(
        f"this process has imported another module {text.name} ({file or 'without a file'})"
    )


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Import = ast.Import | ast.ImportFrom


def definitions(content: bytes) -> dict[str, str]:
    """The source of each function and class at the text's top level, by name."""
    lines = _lines(content)
    sources: dict[str, str] = {}
    for statement in ast.parse(content).body:
        if isinstance(statement, Definition):
            sources[statement.name] = sources.get(statement.name, "") + _source(statement, lines)
    return sources


def assigned(content: bytes) -> set[str]:
    """Names that the text's top level binds to something else than its definitions and imports."""
    names: set[str] = set()
    for statement in ast.parse(content).body:
        if not isinstance(statement, Definition | Import):
            names.update(_bound(statement))
    return names


def names_read(source: str) -> set[str]:
    """The global names that a definition reads, when it is made and when it is called."""
    table = symtable.symtable(source, "<definition>", "exec")
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    waiting = list(table.get_children())
    while waiting:
        inner = waiting.pop()
        waiting += inner.get_children()
        names.update(symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global())
    return {name for name in names if not name.startswith("__")}


def chosen(content: bytes, wanted: Iterable[str], bound: Collection[str]) -> ast.Module:
    """The statements of a script that bind the wanted names, and what these need.

    `bound`: names that have values already. Everything else of the script is left out.
    """
    body = ast.parse(content).body
    lines = _lines(content)
    kept: set[int] = set()
    todo = list(wanted)
    seen: set[str] = set(bound)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for index, statement in enumerate(body):
            if index not in kept and name in _bound(statement):
                kept.add(index)
                todo += names_read(_source(statement, lines))
    tree = ast.Module(body=[], type_ignores=[])
    for index, statement in enumerate(body):
        if index in kept or (
            isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        ):
            tree.body.append(statement)
    return tree


def _lines(content: bytes) -> list[str]:
    return decode_source(content).splitlines(keepends=True)


def _source(statement: ast.stmt, lines: list[str]) -> str:
    """The source of a statement at the top level, with its decorators."""
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
    return "".join(lines[first - 1 : statement.end_lineno])


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top level binds, in any part of it."""
    if isinstance(statement, Definition):
        return {statement.name}
    if isinstance(statement, Import):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    names: set[str] = set()
    for part in ast.walk(statement):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            names.add(part.id)
        elif isinstance(part, Definition):
            names.add(part.name)
        elif isinstance(part, Import):
            names.update((a.asname or a.name).partition(".")[0] for a in part.names)
    return names


# -- imports -----------------------------------------------------------------------------------


@lru_cache(256)
def modules_read(content: bytes | str, package: str) -> tuple[str, ...]:
    """Names of modules that the text imports anywhere, and of what it may import from them.

    `package`: that the text's module lies in, for relative imports; empty if in none.
    """
    modules: list[str] = []
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            modules += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            if base:
                modules += (base, *(f"{base}.{alias.name}" for alias in node.names))
    return tuple(modules)


def _base(node: ast.ImportFrom, package: str) -> str:
    """The module that `from … import` names; empty if it lies beyond the package."""
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return ""
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])
