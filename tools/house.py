"""The seams of the package: what a reader pays for, printed for orientation; three rules kept.

    python tools/house.py [--places 8]

Own imports: modules of the package that a file imports, also for types and inside functions; a
package's face, its `__init__`, is left out. One user: imported by exactly one other module. Called
once: a private function whose name stands once beside its definition, in its file. The four walks
are counted by hand: a section of docs/architecture.md whose heading says "walk" names the files at
which one stops, as `shoal/engine/run.py:12`.

Three rules fail a run, because a tool holds them without harm: no import circle; private parts of
torch and of Ray in one file each; no private names of other modules, which are `from x import _y`,
`module._y`, and `thing._y` where nothing in the same file defines `_y`. Only files that git knows
are looked at.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "shoal"
LIBRARIES = ("torch", "ray")
# Documented for all, in spite of their underscore.
PUBLIC_UNDERSCORES = {"_exit", "_replace", "_asdict", "_fields", "_make"}
# Words that are no nouns of the field: participles, adverbs, pronouns. A guess.
NO_NOUN = re.compile(
    r"(?:.*_)?(again|ahead|asked|beside|called|carried|elsewhere|fallen|found|gathered|given|grown"
    r"|held|joined|kept|known|lacking|learnt|logged|longer|made|mapped|meant|noted|own|pickled"
    r"|placed|said|stored|timed|together|told|tried|within|written|yielded"
    r"|(?:arrang|decid|end|form|leav|open|runn|split|wait|wak)(?:ed|ing))"
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class File:
    """One module: its path, its dotted name, its text and syntax tree."""

    path: str
    module: str
    text: str
    tree: ast.Module

    @property
    def is_init(self) -> bool:
        return self.path.endswith("/__init__.py")

    @property
    def functions(self) -> list[Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]


def parse(path: str, source: str) -> File:
    """A file from its path and its text."""
    module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return File(path, module, source, ast.parse(source))


def read_package(root: Path, package: str) -> list[File]:
    """The package's modules that git knows.

    Raises:
        subprocess.CalledProcessError: `root` is not in a git repository.
    """
    command = ["git", "ls-files", package]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    paths = [path for path in listed.stdout.split() if path.endswith(".py")]
    present = [path for path in paths if "/tests/" not in path and (root / path).exists()]
    return [parse(path, (root / path).read_text()) for path in present]


# -- imports ------------------------------------------------------------------------------------


def imports_between(files: Sequence[File]) -> dict[str, set[str]]:
    """For each module, the modules of the package that it imports anywhere; no `__init__`."""
    modules = {file.module for file in files if not file.is_init}
    arrows: dict[str, set[str]] = {file.module: set() for file in files}
    for file in files:
        if file.is_init:
            continue  # a face, which names what others import
        for node in ast.walk(file.tree):
            names: Iterable[str] = ()
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [
                    name
                    for alias in node.names
                    for name in (f"{node.module}.{alias.name}", node.module)
                ]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            arrows[file.module] |= {name for name in names if name in modules} - {file.module}
    return arrows


def circles_of(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of modules that reach each other."""
    reach = {module: reachable(module, arrows) for module in arrows}
    circles = {
        tuple(sorted(other for other in reach[module] if module in reach[other]))
        for module in arrows
        if module in reach[module]
    }
    return sorted(map(list, circles))


def reachable(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    """All that one gets to by one arrow or more."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = arrows[waiting.pop()] - reached
        reached |= fresh
        waiting.extend(fresh)
    return reached


# -- the rules ----------------------------------------------------------------------------------


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
    """Whether this is a name of torch or Ray, for which there is a rule of its own."""
    return dotted.partition(".")[0] in LIBRARIES


def defined_names(tree: ast.Module) -> set[str]:
    """Names that a file defines: functions, classes, variables, fields, and attributes of self."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
    return names


def module_aliases(tree: ast.Module) -> dict[str, str]:
    """Names bound by imports, and what they stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def private_parts(files: Iterable[File], library: str) -> dict[str, list[str]]:
    """Where each file names a private part of a library: by import, by attribute or in a string."""
    pattern = re.compile(rf"{library}(\.\w+)*\._(?!_)\w+(\.\w+)*")
    places: dict[str, list[str]] = {}
    for file in files:
        aliases = module_aliases(file.tree)
        for node in ast.walk(file.tree):
            for dotted in filter(pattern.fullmatch, dotted_names(node, aliases)):
                places.setdefault(file.path, []).append(f"{file.path}:{node.lineno} {dotted}")  # type: ignore[attr-defined]
    return places


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


def broken_rules(files: Sequence[File]) -> dict[str, list[str]]:
    """The rules that do not hold, and where; empty if all do."""
    parts = {library: private_parts(files, library) for library in LIBRARIES}
    exempt = {path for places in parts.values() if len(places) == 1 for path in places}
    rules = {
        "import circles": [" <-> ".join(circle) for circle in circles_of(imports_between(files))],
        "private names of other modules": [
            place for file in files if file.path not in exempt for place in foreign_names(file)
        ],
    }
    for library, places in parts.items():
        if len(places) > 1:
            rules[f"more than one file has private parts of {library}"] = [*chain(*places.values())]
    return {rule: places for rule, places in rules.items() if places}


# -- the seams ----------------------------------------------------------------------------------


def called_once(file: File) -> list[str]:
    """Private functions whose name stands once beside their definition."""
    words = Counter(re.findall(r"\b_[a-z]\w*", file.text))
    names = [node.name for node in file.functions]
    return [
        f"{file.path} {name}" for name in names if re.match("_[a-z]", name) and words[name] == 2
    ]


def body_lines(node: Function) -> int:
    """Lines of a function below its head, without its docstring."""
    body = node.body[ast.get_docstring(node, clean=False) is not None :]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def inheriting(files: Sequence[File]) -> tuple[list[str], list[str]]:
    """Classes with several bases of the package (mixins); those with one that is no Protocol."""
    heads = {
        node.name: ast.unparse(node).split("\n", 1)[0] for file in files for node in file.classes
    }
    mixins, concrete = [], []
    for file in files:
        for node in file.classes:
            bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
            own = [base for base in bases if "Protocol" not in heads.get(base, "Protocol")]
            place = f"{file.path} {node.name}({', '.join(own)})"
            mixins += [place] * (len(own) > 1)
            concrete += [place] * (len(own) == 1)
    return mixins, concrete


def seams(files: Sequence[File]) -> list[tuple[str, str, list[str]]]:
    """What is counted, how it stands, and the places worth a look, the worst first."""
    modules = [file for file in files if not file.is_init]
    lines = {file.module: file.text.count("\n") for file in files}
    arrows = imports_between(files)
    imports = {file.path: len(arrows[file.module]) for file in modules}
    users = Counter(target for targets in arrows.values() for target in targets)
    single = sorted(
        (file for file in modules if users[file.module] == 1), key=lambda f: lines[f.module]
    )
    bodies = [body_lines(node) for file in files for node in file.functions]
    once = [place for file in files for place in called_once(file)]
    mixins, concrete = inheriting(files)
    odd = [file.path for file in modules if NO_NOUN.fullmatch(file.module.rpartition(".")[2])]
    folders = {file.path.rpartition("/")[0] for file in files}
    nodes = sum(1 for file in files for _ in ast.walk(file.tree))
    most = sorted(imports, key=lambda path: -imports[path])
    return [
        ("modules / folders", f"{len(modules)} / {len(folders)}", []),
        ("lines / syntax nodes", f"{sum(lines.values())} / {nodes}", []),
        (
            "own imports a file, mean / most",
            f"{mean(imports.values()):.1f} / {max(imports.values())}",
            [f"{path}: {imports[path]}" for path in most],
        ),
        (
            "modules with one user",
            str(len(single)),
            [f"{file.path}: {lines[file.module]} lines" for file in single],
        ),
        ("private functions called once", f"{len(once)} of {len(bodies)}", once),
        (
            "lines of a function's body, mean / median",
            f"{mean(bodies):.1f} / {median(bodies):g}",
            [],
        ),
        ("classes with several own bases", str(len(mixins)), mixins),
        ("classes that inherit from a concrete one", str(len(concrete)), concrete),
        ("modules whose names are no nouns", str(len(odd)), odd),
    ]


def walks(page: str) -> list[tuple[str, list[str]]]:
    """Each walk that a page of Markdown tells: its heading, and the files it stops at."""
    sections = re.split(r"^#+ ", page, flags=re.M)[1:]
    told = [(section.partition("\n")[0], section) for section in sections]
    return [
        (heading, list(dict.fromkeys(re.findall(rf"\b({PACKAGE}/[\w/]+\.py):\d", section))))
        for heading, section in told
        if "walk" in heading.lower()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--places", type=int, default=0, help="so many places below each figure")
    args = parser.parse_args()
    files = read_package(ROOT, PACKAGE)
    for what, value, places in seams(files):
        print(f"{what:42} {value:>14}")
        print(*(f"    {place}\n" for place in places[: args.places]), sep="", end="")
    page = ROOT / "docs" / "architecture.md"
    for walk, stops in walks(page.read_text() if page.exists() else ""):
        gone = [stop for stop in stops if not (ROOT / stop).exists()]
        print(f"{walk:42} {len(stops):>8} files", f"gone: {gone}" if gone else "")
    broken = broken_rules(files)
    for rule, places in broken.items():
        print(f"\nBroken: {rule}", *places, sep="\n    ")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
