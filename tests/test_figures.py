"""Figures in pages: how `tools/figures.py` finds and mends them, and that all are those of the
results.
"""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from figure_rules import Block, Rule, check, sentence  # noqa: E402
from figures import all_rules  # noqa: E402

PAPERS = sorted(path.parent.name for path in ROOT.glob("papers/*/README.md"))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(
        "It takes 15 s against\n  96 s (others), of 40 810.\n<!-- t -->\nold\n<!-- end of t -->\n"
    )
    return path


def test_what_differs_is_listed_and_put_right(page: Path) -> None:
    rules: list[Rule] = [
        sentence(
            "page.md", "takes {:.1f} s against {:.0f} s (others), of {:_}.", 7.66, 96.2, 40811
        ),
        Block("page.md", "t", "new"),
    ]
    found = check(rules, page.parent)
    assert [line.partition(": ")[2].partition(": ")[0] for line in found] == [
        "15 should be 7.7",
        "40 810 should be 40 811",
        "the tables of t are out of date",
    ]
    assert check(rules, page.parent, write=True) == []
    assert page.read_text() == (
        "It takes 7.7 s against\n  96 s (others), of 40 811.\n<!-- t -->\n\nnew\n"
        "<!-- end of t -->\n"
    )
    assert check(rules, page.parent) == []


@pytest.mark.parametrize("text", ["takes {} minutes", "{} s"], ids=["nowhere", "twice"])
def test_a_piece_stands_in_its_page_once(page: Path, text: str) -> None:
    (found,) = check([sentence("page.md", text, 1)], page.parent, write=True)
    assert "instead of once" in found


def test_a_page_without_a_place_for_a_table_is_named(page: Path) -> None:
    assert check([Block("page.md", "other", "")], page.parent) == [
        "page.md has no place <!-- other --> … <!-- end of … -->"
    ]


def test_a_rule_has_as_many_figures_as_places() -> None:
    with pytest.raises(ValueError, match="2 places, for 1 figures"):
        sentence("page.md", "{} and {}", 1)


@pytest.mark.parametrize("page", ["README.md", "docs/", *(f"papers/{name}/" for name in PAPERS)])
def test_figures_are_those_of_the_results(page: str) -> None:
    rules = [rule for rule in all_rules() if rule.page.startswith(page)]
    assert rules, f"no rule looks at {page}"
    assert check(rules) == [], "python tools/figures.py --write puts the results' figures in"


@pytest.mark.parametrize("name", PAPERS)
def test_rows_that_a_readme_names_are_in_the_results(name: str) -> None:
    readme = (ROOT / "papers" / name / "README.md").read_text()
    results = json.loads((ROOT / "papers" / "results" / f"{name}.json").read_text())
    there = [row["what"] for row in results["rows"]]
    for named in re.findall(r'rows? "([^"]+)"', readme):
        pattern = ".*".join(re.escape(part) for part in named.split("…"))
        assert any(re.match(pattern, what) for what in there), f"no row {named!r}"
