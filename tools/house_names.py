"""The rows of `house.py` about names: those that occur twice, and private ones of others."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from house_files import File, Row, limit, none

PUBLIC_NAMES = 31  # decision 0018
LIBRARIES = ("torch", "ray")
PUBLIC_UNDERSCORES = {
    "_exit",
    "_replace",
    "_asdict",
    "_fields",
    "_make",
}  # documented, for all


def name_rows(files: Sequence[File], public: int) -> list[Row]:
    """Class names that occur twice, public names, private names of others."""
    homes: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for node in file.classes():
            homes[node.name].append(file.path)
    twice = [f"{name}: {', '.join(paths)}" for name, paths in homes.items() if len(paths) > 1]
    uses = {library: private_parts(files, library) for library in LIBRARIES}
    exempt = {next(iter(found)) for found in uses.values() if len(found) == 1}
    foreign = [place for file in files if file.path not in exempt for place in foreign_names(file)]
    return [
        none("class names that occur twice", twice),
        limit("public names", public, PUBLIC_NAMES, []),
        none("private names of other modules", foreign),
        *(library_row(library, found) for library, found in uses.items()),
    ]


def library_row(library: str, found: Mapping[str, Sequence[str]]) -> Row:
    """The files that use private parts of a library: one at most."""
    places = [place for places in found.values() for place in places]
    value = next(iter(found)) if len(found) == 1 else str(len(found))
    holds = len(found) <= 1
    return Row(f"files with private parts of {library}", value, "1 at most", holds, places)


def foreign_names(file: File) -> Iterator[str]:
    """Private names of other modules that this file uses."""
    own = defined_names(file.tree)
    modules = set(module_aliases(file.tree))
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ImportFrom) and not of_library(node.module or ""):
            for alias in node.names:
                if is_private(alias.name):
                    yield f"{file.path}:{node.lineno} from {node.module} import {alias.name}"
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            thing = ast.unparse(node.value)
            ours = thing in ("self", "cls", "super()") or of_library(thing)
            if not ours and (thing in modules or node.attr not in own):
                yield f"{file.path}:{node.lineno} {thing[:40]}.{node.attr}"


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore, and is not known to be public all the same."""
    alone = name.startswith("_") and not name.startswith("__") and name != "_"
    return alone and name not in PUBLIC_UNDERSCORES


def of_library(dotted: str) -> bool:
    """Whether this is a name of torch or Ray, which a row of its own counts."""
    return dotted.partition(".")[0] in LIBRARIES


def defined_names(tree: ast.Module) -> set[str]:
    """Names that a file defines: functions, classes, variables, fields, and attributes of self."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif is_own_attribute(node):
            found.add(node.attr)
    return found


def is_own_attribute(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Whether this sets an attribute of self."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
        return False
    return ast.unparse(node.value) in ("self", "cls")


def module_aliases(tree: ast.Module) -> dict[str, str]:
    """Names bound by imports, and what they stand for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                found[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def private_parts(files: Iterable[File], library: str) -> dict[str, list[str]]:
    """Where each file names a private part of a library: by import, by attribute or in a string."""
    pattern = re.compile(rf"{library}(\.\w+)*\._(?!_)\w+(\.\w+)*")
    found: dict[str, list[str]] = {}
    for file in files:
        aliases = module_aliases(file.tree)
        places = []
        for node in ast.walk(file.tree):
            for dotted in dotted_names(node, aliases):
                if pattern.fullmatch(dotted):
                    places.append(f"{file.path}:{node.lineno} {dotted}")  # type: ignore[attr-defined]
        if places:
            found[file.path] = places
    return found


def dotted_names(node: ast.AST, aliases: Mapping[str, str]) -> list[str]:
    """The full dotted names that a node stands for, if any."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.Attribute):
        first, _, rest = ast.unparse(node).partition(".")
        return [f"{aliases.get(first, first)}.{rest}"]
    return []
