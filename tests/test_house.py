"""What `make house` counts, on small samples."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from house import function_rows, import_rows, size_rows  # noqa: E402
from house_files import File, Row, near, parse  # noqa: E402
from house_names import foreign_names, name_rows  # noqa: E402


def row(rows: Sequence[Row], beginning: str) -> Row:
    return next(row for row in rows if row.what.startswith(beginning))


def files(**sources: str) -> list[File]:
    """Files of a package, by module name."""
    return [parse(f"shoal/{name}.py", source) for name, source in sources.items()]


def test_a_function_is_measured_without_its_docstring() -> None:
    body = "    x = 1\n" * 49
    short = f'def f():\n    """One.\n\n    Three.\n    """\n{body}'
    assert row(function_rows(files(a=short), ()), "functions over 50").holds
    long = row(function_rows(files(a=short + "    x = 2\n"), ()), "functions over 50")
    assert (long.value, long.holds, long.offenders) == (
        "1",
        False,
        ["shoal/a.py:1 f: 51 lines"],
    )


def test_self_and_options_of_commands_are_no_parameters() -> None:
    eight = ", ".join(f"a{i}" for i in range(8))
    nine = ", ".join(f"a{i}" for i in range(9))
    source = f"class A:\n  def f(self, {eight}): 0\n@app.command()\ndef g({nine}): 0\n"
    assert row(function_rows(files(a=source), ()), "functions with over").holds
    source += f"def h(a, *, {nine}): 0\n"
    assert row(function_rows(files(a=source), ()), "functions with over").value == "1"
    assert row(function_rows(files(a=source), ("h",)), "functions with over").holds
    many = f"class Mixed:\n  def m(self, *, {nine}): 0\nclass Public(Mixed): 0\n"
    assert row(function_rows(files(a=many), ("Public",)), "functions with over").holds
    assert not row(function_rows(files(a=many), ()), "functions with over").holds


@pytest.mark.parametrize(("nodes", "mark"), [(60, ""), (66, "within a tenth"), (66.5, "missed")])
def test_density_may_be_a_tenth_above_its_target(nodes: float, mark: str) -> None:
    found = near("nodes", nodes, 60, ["a place"])
    assert found.mark == mark and found.holds == (mark != "missed")


def test_a_folder_may_have_twelve_modules_beside_its_init() -> None:
    many = files(__init__="", **{f"m{i}": "class A:\n  a = 1\n" for i in range(12)})
    assert row(size_rows(many, ()), "most modules").holds
    assert not row(size_rows([*many, *files(one_more="")], ()), "most modules").holds


def test_imports_of_types_and_in_functions_close_a_circle() -> None:
    one = "if TYPE_CHECKING:\n    from shoal.b import B\n"
    other = "def f():\n    from shoal import a\n"
    rows = import_rows(files(a=one, b=other, c="from shoal.a import A\n"))
    assert row(rows, "import circles").offenders == ["shoal.a <-> shoal.b"]
    assert row(rows, "imports inside functions").value == "1"


def test_a_package_door_closes_no_circle() -> None:
    door = parse("shoal/sub/__init__.py", "from shoal.sub.a import A\n")
    room = parse("shoal/sub/a.py", "from shoal.sub import b\n")
    assert row(import_rows([door, room]), "import circles").holds


@pytest.mark.parametrize(
    "source",
    [
        "from shoal.b import _hidden",
        "import shoal.b as b\nb._hidden()",
        "def f(lane): return lane._hidden",
        "class A:\n  def f(self): return self.lane._hidden",
    ],
)
def test_private_names_of_others_are_seen(source: str) -> None:
    (found,) = foreign_names(parse("shoal/a.py", source))
    assert "_hidden" in found


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n  def f(self): return self._mine\n",
        "class A:\n  _mine: int\n  def same(self, other): return other._mine\n",
        "class A:\n  def __init__(self): self._mine = 1\ndef f(a): return a._mine\n",
        "import os\nos._exit(0)",
        "def f(point): return point._replace(x=1)",
        "def f(a): return a.__class__",
    ],
)
def test_what_is_ones_own_may_be_used(source: str) -> None:
    assert list(foreign_names(parse("shoal/a.py", source))) == []


def test_private_parts_of_a_library_may_stand_in_one_file() -> None:
    sources = {
        "a": "import torch\ntorch._foreach_add_(x, y)\nx._version\n",
        "b": "from torch._C import thing\n",
        "c": 'import sys\nsys.modules["torch._dynamo"]\n',
        "d": "from ray._private import worker\n",
        "e": "import torch\ntorch.__version__\n",
    }
    one = name_rows(files(a=sources["a"], d=sources["d"], e=sources["e"]), 3)
    assert row(one, "files with private parts of torch").holds
    assert row(one, "files with private parts of ray").holds
    assert row(one, "private names of other modules").holds
    three = name_rows(files(**sources), 3)
    assert row(three, "files with private parts of torch").value == "3"
    assert row(three, "private names of other modules").offenders == ["shoal/a.py:3 x._version"]


def test_class_names_and_public_names_are_counted() -> None:
    rows = name_rows(files(a="class A: 0\n", b="class A: 0\nclass B: 0\n"), 32)
    assert row(rows, "class names").offenders == ["A: shoal/a.py, shoal/b.py"]
    assert not row(rows, "public names").holds
