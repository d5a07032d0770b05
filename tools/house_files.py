"""What the table of `house.py` is made of: the package's files as syntax trees, and its rows."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class File:
    """One module: its path, its dotted name, its lines, its syntax tree."""

    path: str
    module: str
    lines: tuple[str, ...]
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def is_init(self) -> bool:
        return self.path.endswith("/__init__.py")

    def functions(self) -> Iterator[Function]:
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield node

    def classes(self) -> Iterator[ast.ClassDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                yield node


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `offenders`: where the target is missed, the worst first."""

    what: str
    value: str
    target: str = ""
    holds: bool = True
    offenders: Sequence[str] = field(default=())
    close: bool = False  # above the target, but by a tenth of it at most

    @property
    def mark(self) -> str:
        if self.close:
            return "within a tenth"
        return "" if self.holds else "missed"


def worst(counts: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """What is above the limit, the worst first."""
    above = [(place, count) for place, count in counts.items() if count > most]
    return sorted(above, key=lambda item: -item[1])


def limit(what: str, value: float, most: float, offenders: Sequence[str]) -> Row:
    """A figure that may be so large."""
    return Row(what, f"{value:g}", f"<= {most:g}", value <= most, offenders)


def near(what: str, value: float, most: float, offenders: Sequence[str]) -> Row:
    """A figure that may be so large, or a tenth larger for now."""
    close = most < value <= 1.1 * most
    held = value <= 1.1 * most
    return Row(what, f"{value:g}", f"<= {most:g}", held, offenders, close)


def none(what: str, offenders: Sequence[str]) -> Row:
    """Something that there should be none of."""
    return Row(what, str(len(offenders)), "0", not offenders, offenders)


def read_package(root: Path, package: str) -> list[File]:
    """The package's modules that git knows.

    Raises:
        subprocess.CalledProcessError: `root` is not in a git repository.
    """
    command = ["git", "ls-files", package]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    paths = [path for path in listed.stdout.split() if path.endswith(".py")]
    there = [path for path in paths if "/tests/" not in path and (root / path).exists()]
    return [parse(path, (root / path).read_text()) for path in there]


def parse(path: str, source: str) -> File:
    """A file from its path and its text."""
    module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return File(path, module, tuple(source.splitlines()), ast.parse(source))
