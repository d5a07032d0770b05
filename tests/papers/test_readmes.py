"""Tables in papers/*/README.md: every row says how its figures came about, and they are those of
papers/results.
"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from figure_tables import HOW, Tables, cells  # noqa: E402

PAPERS = sorted(path.parent.name for path in ROOT.glob("papers/*/README.md"))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_says_how_and_has_the_results_figures(paper: str) -> None:
    readme = f"papers/{paper}/README.md"
    text = (ROOT / readme).read_text()
    headers = [cells(line) for line in text.splitlines() if line.startswith(("| what", "| of"))]
    assert headers[0][:2] == ["of the paper", "how"]
    assert ["what", "how"] in [header[:2] for header in headers], "no table of figures"
    _, problems = Tables(readme, paper).brought_up_to_date(text)
    assert problems == [], "python tools/figures.py --write puts the results' figures in"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("| Table 7, mean, MFLOP | simulated | 5939 | 5941 |", "5941 should be 5942"),
        ("| Table 7, mean, MFLOP | simulated | 5938 | 5942 |", "5938 should be 5939"),
        ("| Table 7, mean, MFLOP | simulated | 5939 | 5941.6 |", "5941.6 should be 5941.5"),
        ("| goal A-5 | simulated | | 216 % |", "216 % should be 217 %"),
        ("| Table 7, mean, MFLOP | guessed | 5939 | 5942 |", "`how` is none of"),
        ("| Table 8, MFLOP | simulated | 5939 | 5942 |", "no result is called"),
        ("| Table 7, mean, MFLOP | simulated | 5942 |", "4 columns, but other cells"),
    ],
)
def test_a_wrong_row_is_found(row: str, problem: str) -> None:
    page = f"| what | how | paper | ours |\n| --- | --- | --- | --- |\n{row}\n"
    mended, problems = Tables("page.md", "cerebro").brought_up_to_date(page)
    assert [found[: len(problem)] for found in problems] == [problem]
    if " should be " in problem:
        assert Tables("page.md", "cerebro").brought_up_to_date(mended) == (mended, [])


def test_a_question_mark_is_filled_in() -> None:
    page = (
        "| what | how | ours |\n| --- | --- | --- |\n"
        "| goal A-5 | simulated | ? % |\n"
        "| `benchmarks/hop.py`, nothing | measured | ? |\n"
    )
    mended, problems = Tables("page.md", "cerebro").brought_up_to_date(page)
    assert "| goal A-5 | simulated | 217 % |" in mended
    assert len(problems) == 2
    assert HOW == ("simulated", "measured", "impossible")
