"""The house in numbers: how big, how dense and how entangled the package is, against its targets.

    python tools/house.py [--offenders 8]

It prints a table: what is counted, how it stands, the target. Below it come the places that miss a
target. Targets are for orientation; three are rules (`HARD`), and a run fails that breaks one of
them. Only files that git knows are counted.

How things are counted:

- A syntax node is what `ast.walk` yields: of a function, its own node and all below it; of a line,
  the nodes of all files over the lines of all files, comments and docstrings included.
- A function's length is its lines from `def` to its end, without its docstring.
- Parameters are those with a name; `self` and `cls` are not counted. Options of the user's may be
  any number: parameters of the command line's commands, and those that are given by name only to
  what the package itself offers, methods that its classes inherit included.
- The median of nodes a function and the nodes a line may be a tenth above their targets.
- An import circle is a set of modules each of which imports, over others, itself. Imports under
  TYPE_CHECKING and inside functions count; those of a package's `__init__` do not.
- A private name of another module is `from x import _y`, `module._y`, or `thing._y` where `thing`
  is not `self` or `cls` and nothing in the same file defines `_y`.
- Private parts of torch and of Ray may stand in one file for each library, and there alone.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from house_files import File, Function, Row, limit, near, none, read_package, worst
from house_names import name_rows

PACKAGE = "shoal"
FILE_LINES = 400
CLASS_LINES = 250
FUNCTION_LINES = 50
PARAMETERS = 8
COLUMNS = 100
MODULES_IN_A_FOLDER = 12
NODES_IN_A_FUNCTION = 60
NODES_IN_A_LINE = 6
CONDITIONAL_EXPRESSIONS = 10  # per 1000 lines
IMPORTS_INSIDE_FUNCTIONS = 40
# Rules that a tool can hold without harm: only these fail a run. The other figures are orientation.
HARD = (
    "import circles",
    "files with private parts of",
    "private names of other modules",
)
SLOW = {
    "optuna",
    "pandas",
    "plotly",
    "pyarrow",
    "ray",
    "rich",
    "scipy",
    "torch",
}  # or optional


# -- size and density --------------------------------------------------------------------------


def size_rows(files: Sequence[File], public: Collection[str]) -> list[Row]:
    """Lines of files, classes and functions; parameters; modules in a folder."""
    lengths = {file.path: len(file.lines) for file in files}
    long = [f"{path}: {lines} lines" for path, lines in worst(lengths, FILE_LINES)]
    folders = Counter(file.folder for file in files if not file.is_init)
    crowded = [
        f"{folder}: {count} modules" for folder, count in worst(folders, MODULES_IN_A_FOLDER)
    ]
    classes = class_lengths(files)
    large = [f"{place}: {lines} lines" for place, lines in worst(classes, CLASS_LINES)]
    return [
        Row("files / lines", f"{len(files)} / {sum(lengths.values())}"),
        Row("median lines of a file", f"{median(lengths.values()):g}"),
        limit("most lines of a file", max(lengths.values()), FILE_LINES, long),
        limit(
            "most modules in a folder",
            max(folders.values()),
            MODULES_IN_A_FOLDER,
            crowded,
        ),
        limit(
            "most lines of a class",
            max(classes.values(), default=0),
            CLASS_LINES,
            large,
        ),
        *function_rows(files, public),
    ]


def class_lengths(files: Iterable[File]) -> dict[str, int]:
    """Lines of each class, its first one not counted."""
    return {
        f"{file.path}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno
        for file in files
        for node in file.classes()
    }


def function_rows(files: Iterable[File], public: Collection[str]) -> list[Row]:
    """Functions that are too long, or that take too much."""
    files = list(files)
    lengths: dict[str, int] = {}
    parameters: dict[str, int] = {}
    names = {*public, *inherited(files, public)}
    for file in files:
        offered = {node for name, node in top_functions(file) if name in names and not file.is_init}
        for node in file.functions():
            place = f"{file.path}:{node.lineno} {node.name}"
            lengths[place] = body_lines(node)
            if not is_command(node):
                parameters[place] = parameter_count(node, by_name=node not in offered)
    long = [f"{place}: {lines} lines" for place, lines in worst(lengths, FUNCTION_LINES)]
    greedy = [f"{place}: {count} parameters" for place, count in worst(parameters, PARAMETERS)]
    share = 100 * len(long) / max(len(lengths), 1)
    return [
        none(f"functions over {FUNCTION_LINES} lines ({share:.2g} %)", long),
        none(f"functions with over {PARAMETERS} parameters", greedy),
    ]


def inherited(files: Iterable[File], public: Collection[str]) -> Iterator[str]:
    """The classes from which what the package offers inherits."""
    for file in files:
        for node in file.classes():
            if node.name in public:
                yield from map(ast.unparse, node.bases)


def body_lines(node: Function) -> int:
    """Lines of a function without its docstring."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        first = node.body[0]
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def is_command(node: Function) -> bool:
    """Whether this is a command of the command line, by its decorator."""
    return any(".command(" in ast.unparse(decorator) for decorator in node.decorator_list)


def top_functions(file: File) -> Iterator[tuple[str, Function]]:
    """Functions under their names, methods under the names of their classes."""
    for node in file.tree.body:
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, Function):
                    yield node.name, method


def parameter_count(node: Function, by_name: bool) -> int:
    """Named parameters, `self` and `cls` left out; `by_name`: those given by name only, too."""
    given = node.args
    named = [*given.posonlyargs, *given.args]
    if by_name:
        named += given.kwonlyargs
    return sum(argument.arg not in ("self", "cls") for argument in named)


def density_rows(files: Sequence[File]) -> list[Row]:
    """How much stands on a line and in a function."""
    lines = sum(len(file.lines) for file in files)
    per_file = {file.path: sum(1 for _ in ast.walk(file.tree)) for file in files}
    per_line = round(sum(per_file.values()) / lines, 1)
    dense = {
        f"{file.path}: {per_file[file.path] / len(file.lines):.1f} a line": per_file[file.path]
        - NODES_IN_A_LINE * len(file.lines)
        for file in files
        if file.lines
    }
    functions = {
        f"{file.path}:{node.lineno} {node.name}": sum(1 for _ in ast.walk(node))
        for file in files
        for node in file.functions()
    }
    middle = median(functions.values())
    heavy = [f"{place}: {nodes}" for place, nodes in worst(functions, NODES_IN_A_FUNCTION)]
    thick = [place for place, _ in worst(dense, 0)]
    wide = {file.path: sum(len(line) > COLUMNS for line in file.lines) for file in files}
    far = sum(wide.values())
    widest = [f"{path}: {count} lines" for path, count in worst(wide, 0)]
    return [
        near("syntax nodes of a function, median", middle, NODES_IN_A_FUNCTION, heavy),
        near("syntax nodes a line", per_line, NODES_IN_A_LINE, thick),
        limit(f"lines over {COLUMNS} columns ({100 * far / lines:.2g} %)", far, 0, widest),
        conditional_row(files, lines),
    ]


def conditional_row(files: Iterable[File], lines: int) -> Row:
    """Conditional expressions, `a if c else b`, per 1000 lines."""
    counts = {
        file.path: sum(isinstance(node, ast.IfExp) for node in ast.walk(file.tree))
        for file in files
    }
    per_thousand = round(1000 * sum(counts.values()) / lines)
    most = [f"{path}: {count}" for path, count in worst(counts, 0)]
    return limit(
        "conditional expressions in 1000 lines",
        per_thousand,
        CONDITIONAL_EXPRESSIONS,
        most,
    )


# -- imports -----------------------------------------------------------------------------------


def import_rows(files: Sequence[File]) -> list[Row]:
    """Circles, and imports that wait for a call."""
    circles = [sorted(circle) for circle in circles_of(imports_between(files))]
    inside = [(file, node) for file in files for node in imports_in_functions(file)]
    avoidable = [
        f"{file.path}:{node.lineno} {', '.join(imported(node))}"
        for file, node in inside
        if not {name.partition(".")[0] for name in imported(node)} <= SLOW
    ]
    modules = sum(len(circle) for circle in circles)
    return [
        none(
            f"import circles ({modules} files)",
            [" <-> ".join(circle) for circle in circles],
        ),
        limit("imports inside functions", len(inside), IMPORTS_INSIDE_FUNCTIONS, avoidable),
    ]


def imports_between(files: Sequence[File]) -> dict[str, set[str]]:
    """For each module, the modules of the package that it imports anywhere."""
    by_name = {file.module: file for file in files}
    found: dict[str, set[str]] = {name: set() for name in by_name}
    for file in files:
        if file.path.count("/") == 1 and file.is_init:
            continue  # the package's own door, which names what others import
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found[file.module] |= targets(node, file, by_name)
    return found


def targets(node: ast.ImportFrom, file: File, by_name: Mapping[str, File]) -> set[str]:
    """The package's modules that this statement imports from."""
    found = set()
    for alias in node.names:
        below = f"{node.module}.{alias.name}"
        name = below if below in by_name else str(node.module)
        if name in by_name and name != file.module and not by_name[name].is_init:
            found.add(name)
    return found


def circles_of(arrows: Mapping[str, set[str]]) -> list[set[str]]:
    """Sets of modules that reach each other."""
    reach = {module: reachable(module, arrows) for module in arrows}
    seen: set[str] = set()
    circles = []
    for module in arrows:
        if module in seen or module not in reach[module]:
            continue
        circle = {other for other in reach[module] if module in reach[other]}
        seen |= circle
        circles.append(circle)
    return circles


def reachable(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    """All that one gets to by one arrow or more."""
    found: set[str] = set()
    waiting = list(arrows[start])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(arrows[module])
    return found


def imports_in_functions(file: File) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports inside functions; one inside a function of a function counts for both."""
    for function in file.functions():
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that a statement names."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or "."]
    return [alias.name for alias in node.names]


# -- the table ----------------------------------------------------------------------------------


def table(files: Sequence[File], public: Collection[str]) -> list[Row]:
    """All rows; `public`: the names that the package offers."""
    return [
        *size_rows(files, public),
        *density_rows(files),
        *import_rows(files),
        *name_rows(files, len(public)),
    ]


def show(rows: Sequence[Row], offenders: int) -> None:
    """Print the table, then what misses a target."""
    width = max(len(row.what) for row in rows)
    for row in rows:
        mark = f"  <- {row.mark}" if row.mark else ""
        print(f"{row.what:{width}}  {row.value:>12}  {row.target:>9}{mark}")
    for row in rows:
        if row.holds:
            continue
        print(f"\n{row.what}: {row.value}, target {row.target}")
        for place in row.offenders[:offenders]:
            print(f"  {place}")
        if len(row.offenders) > offenders:
            print(f"  ... and {len(row.offenders) - offenders} more (--offenders)")


def public_names(package: str) -> list[str]:
    """The names that the package offers."""
    return list(__import__(package).__all__)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--offenders", type=int, default=8, help="so many places for each target")
    args = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(root))
    rows = table(read_package(root, PACKAGE), public_names(PACKAGE))
    show(rows, args.offenders)
    sys.exit(any(not row.holds for row in rows if row.what.startswith(HARD)))


if __name__ == "__main__":
    main()
