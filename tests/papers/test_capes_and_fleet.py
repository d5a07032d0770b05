"""papers/capes and papers/fleet: a row for every table and figure, and the goals in the short
form.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.simulate.run import run_spec
from shoal.simulate.spec import load_spec

PAPERS = Path(__file__).resolve().parents[2] / "papers"
SHOWN = {
    "capes": [f"Table {n}" for n in (1, 2, 3)],
    "fleet": [*(f"Table {n}" for n in range(1, 5)), *(f"Figure {n}" for n in range(1, 10))],
}


@pytest.mark.parametrize("paper", SHOWN)
def test_every_table_and_figure_has_a_row(paper: str) -> None:
    rows = re.findall(
        r"^\| ((?:Table|Figure) \d+)",
        (PAPERS / paper / "README.md").read_text().partition("\n## ")[0],
        re.M,
    )
    assert rows == SHOWN[paper]


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("paper", "goals"), [("capes", {"B-1", "B-2", "B-3", "B-4"}), ("fleet", {"C-1", "C-2", "C-3"})]
)
def test_goals_hold_in_the_short_form(paper: str, goals: set[str]) -> None:
    script = [sys.executable, str(PAPERS / paper / "run.py"), "--short"]
    found = subprocess.run(script, capture_output=True, text=True, timeout=590, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    written = json.loads((PAPERS / "results" / f"{paper}-short.json").read_text())
    assert written["goals"].keys() == goals
    assert all(goal["holds"] for goal in written["goals"].values())


@pytest.mark.parametrize(
    ("paper", "quicker", "slower"), [("capes", "equi", "eight"), ("fleet", "waterfill", "baseline")]
)
def test_the_spec_runs(paper: str, quicker: str, slower: str) -> None:
    spec = load_spec(PAPERS / paper / "spec.toml")
    found = {name: run_spec(spec, spec.policies[name])[0] for name in (quicker, slower)}
    assert all(figures["finished"] == figures["trials"] for figures in found.values())
    assert found[quicker]["mean_completion_s"] < found[slower]["mean_completion_s"]
