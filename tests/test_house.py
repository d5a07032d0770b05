"""What `make house` counts, and the three rules that it keeps, on small samples."""

import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from house import File, broken_rules, foreign_names, parse, seams, walks  # noqa: E402


def files(**sources: str) -> list[File]:
    """Files of a package, by module name."""
    return [parse(f"shoal/{name}.py", source) for name, source in sources.items()]


def seam(files: list[File], beginning: str) -> tuple[str, list[str]]:
    """A figure, and its places."""
    return next((value, places) for what, value, places in seams(files) if beginning in what)


def test_modules_with_one_user_are_counted_without_faces() -> None:
    face = parse("shoal/room/__init__.py", "from shoal.a import A\n")
    several = [
        face,
        *files(a="", b="from shoal.a import A\n", c="import shoal.b\n", d="def f(): 0\n"),
    ]
    assert seam(several, "one user") == ("2", ["shoal/a.py: 0 lines", "shoal/b.py: 1 lines"])
    assert seam(several, "own imports") == (
        "0.5 / 1",
        ["shoal/b.py: 1", "shoal/c.py: 1", "shoal/a.py: 0", "shoal/d.py: 0"],
    )


def test_functions_are_counted_by_their_bodies_and_private_ones_by_their_callers() -> None:
    source = 'def _f():\n    """One.\n\n    Three.\n    """\n    return 1\n\n\nx = _f()\n'
    assert seam(files(a=source), "called once") == ("1 of 1", ["shoal/a.py _f"])
    assert seam(files(a=source), "function's body")[0] == "1.0 / 1"
    assert seam(files(a=source + "y = _f()\n"), "called once")[0] == "0 of 1"


def test_bases_are_counted_unless_they_are_protocols() -> None:
    source = "class P(Protocol): 0\nclass A(P): 0\nclass B(A): 0\nclass C(A, B, Exception): 0\n"
    assert seam(files(a=source + "def f(): 0\n"), "concrete")[1] == ["shoal/a.py B(A)"]
    assert seam(files(a=source + "def f(): 0\n"), "several own")[1] == ["shoal/a.py C(A, B)"]


@pytest.mark.parametrize("name", ["given", "waiting", "outcome_held", "own"])
def test_participles_and_pronouns_are_no_names(name: str) -> None:
    source = "def f(): 0\n"
    some = files(**{name: source, "string": source, "setting": source, "speed": source})
    assert seam(some, "no nouns")[1] == [f"shoal/{name}.py"]


def test_a_walk_is_the_files_its_section_names() -> None:
    page = (
        "# Map\nshoal/a.py\n## A batch's walk\nshoal/a.py:3, `shoal/b/c.py:1`, shoal/a.py\n## B\n"
    )
    assert walks(page) == [("A batch's walk", ["shoal/a.py", "shoal/b/c.py"])]


def test_imports_of_types_and_in_functions_close_a_circle() -> None:
    one = "if TYPE_CHECKING:\n    from shoal.b import B\n"
    other = "def f():\n    from shoal import a\n"
    rules = broken_rules(files(a=one, b=other, c="from shoal.a import A\n"))
    assert rules == {"import circles": ["shoal.a <-> shoal.b"]}


def test_a_package_door_closes_no_circle() -> None:
    door = parse("shoal/sub/__init__.py", "from shoal.sub.a import A\n")
    assert broken_rules([door, parse("shoal/sub/a.py", "from shoal.sub import b\n")]) == {}


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
    assert broken_rules(files(a=sources["a"], d=sources["d"], e=sources["e"])) == {}
    rules = broken_rules(files(**sources))
    assert rules == {
        "more than one file has private parts of torch": [
            "shoal/a.py:2 torch._foreach_add_",
            "shoal/b.py:1 torch._C.thing",
            "shoal/c.py:2 torch._dynamo",
        ],
        "private names of other modules": ["shoal/a.py:3 x._version"],
    }


def test_no_two_files_of_tests_are_alike() -> None:
    """pytest imports them by their names alone: of two, the second is not collected."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    names.update(path.name for path in (ROOT / "tools").glob("*.py"))
    names.update(path.name for path in (ROOT / "papers" / "cerebro").glob("*.py"))
    del names["conftest.py"]
    assert [name for name, count in names.items() if count > 1] == []
