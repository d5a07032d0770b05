"""papers/cerebro and papers/pack: a row for every table and figure, specs that run, and the
goals in the short form.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.simulate.command import simulate

PAPERS = Path(__file__).resolve().parents[2] / "papers"
SHOWN = {
    "cerebro": [*(f"Table {n}" for n in range(1, 8)), *(f"Figure {n}" for n in range(1, 23))],
    "pack": [*(f"Table {n}" for n in range(1, 5)), *(f"Figure {n}" for n in range(1, 7))],
}


@pytest.mark.parametrize("paper", SHOWN)
def test_every_table_and_figure_has_a_row(paper: str) -> None:
    rows = re.findall(
        r"^\| ((?:Table|Figure) \d+)",
        (PAPERS / paper / "README.md").read_text().partition("\n## ")[0],
        re.M,
    )
    assert rows == SHOWN[paper]


@pytest.mark.parametrize("paper", SHOWN)
def test_the_spec_runs_under_each_of_its_policies(paper: str) -> None:
    found, _ = simulate([PAPERS / paper / "spec.toml"])
    figures = found["specs"][0]["policies"]
    assert len(figures) >= 2
    finished = {f["finished"] for f in figures.values()}
    assert len(finished) == 1
    assert finished != {0}


def test_packing_is_not_used_where_it_gains_nothing() -> None:
    figures = simulate([PAPERS / "pack" / "spec.toml"])[0]["specs"][0]["policies"]
    assert figures["pack"]["makespan_s"] == figures["fifo"]["makespan_s"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("paper", "goals"), [("cerebro", {"A-1", "A-2", "A-3", "A-4", "A-5"}), ("pack", {"D-1"})]
)
def test_goals_hold_in_the_short_form(paper: str, goals: set[str]) -> None:
    script = [sys.executable, str(PAPERS / paper / "run.py"), "--short"]
    found = subprocess.run(script, capture_output=True, text=True, timeout=280, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    written = json.loads((PAPERS / "results" / f"{paper}-short.json").read_text())
    assert written["goals"].keys() == goals
    assert all(goal["holds"] for goal in written["goals"].values())
