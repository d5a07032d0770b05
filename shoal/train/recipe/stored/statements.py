"""Statements of a Python text: which a definition needs, and which modules they import."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Collection, Iterable, Iterator
from importlib.util import decode_source

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Import = ast.Import | ast.ImportFrom


def definitions(content: bytes) -> dict[str, str]:
    """The source of each function and class at the text's top level, by name."""
    lines = _lines(content)
    found: dict[str, str] = {}
    for each in ast.parse(content).body:
        if isinstance(each, Definition):
            found[each.name] = found.get(each.name, "") + _source(each, lines)
    return found


def assigned(content: bytes) -> set[str]:
    """Names that the text's top level binds to something else than its definitions and imports."""
    found: set[str] = set()
    for each in ast.parse(content).body:
        if not isinstance(each, Definition | Import):
            found.update(_bound(each))
    return found


def names_read(source: str) -> set[str]:
    """The global names that a definition reads, when it is made and when it is called."""
    table = symtable.symtable(source, "<definition>", "exec")
    found = {each.get_name() for each in table.get_symbols() if each.is_referenced()}
    inner = list(table.get_children())
    while inner:
        own = inner.pop()
        inner += own.get_children()
        found.update(each.get_name() for each in own.get_symbols() if each.is_global())
    return {name for name in found if not name.startswith("__")}


def chosen(content: bytes, wanted: Iterable[str], given: Collection[str]) -> ast.Module:
    """The statements of a script that bind the wanted names, and what these need.

    `given`: names that have values already. Everything else of the script is left out.
    """
    body = ast.parse(content).body
    lines = _lines(content)
    keep: set[int] = set()
    todo = list(wanted)
    seen: set[str] = set(given)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for at, each in enumerate(body):
            if at not in keep and name in _bound(each):
                keep.add(at)
                todo += names_read(_source(each, lines))
    tree = ast.Module(body=[], type_ignores=[])
    for at, each in enumerate(body):
        if at in keep or _is_future(each):
            tree.body.append(each)
    return tree


def _is_future(each: ast.stmt) -> bool:
    return isinstance(each, ast.ImportFrom) and each.module == "__future__"


def _lines(content: bytes) -> list[str]:
    return decode_source(content).splitlines(keepends=True)


def _source(each: ast.stmt, lines: list[str]) -> str:
    """The source of a statement at the top level, with its decorators."""
    first = min([each.lineno, *(d.lineno for d in getattr(each, "decorator_list", ()))])
    return "".join(lines[first - 1 : each.end_lineno])


def _bound(each: ast.stmt) -> set[str]:
    """The names that a statement at the top level binds."""
    if isinstance(each, Definition):
        return {each.name}
    if isinstance(each, Import):
        return {(alias.asname or alias.name).partition(".")[0] for alias in each.names}
    found: set[str] = set()
    for part in ast.walk(each):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
        elif isinstance(part, Definition):
            found.add(part.name)
        elif isinstance(part, Import):
            found.update((a.asname or a.name).partition(".")[0] for a in part.names)
    return found


# -- imports -----------------------------------------------------------------------------------


def modules_read(content: bytes | str, package: str) -> Iterator[str]:
    """Names of modules that the text imports anywhere, and of what it may import from them.

    `package`: that the text's module lies in, for relative imports; empty if in none.
    """
    for each in ast.walk(ast.parse(content)):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            base = _base(each, package)
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in each.names)


def _base(each: ast.ImportFrom, package: str) -> str:
    """The module that `from … import` names; empty if it lies beyond the package."""
    if not each.level:
        return each.module or ""
    parts = package.split(".") if package else []
    if each.level > len(parts):
        return ""
    parts = parts[: len(parts) - each.level + 1]
    return ".".join([*parts, *([each.module] if each.module else [])])
