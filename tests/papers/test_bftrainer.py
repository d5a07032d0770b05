"""papers/bftrainer: a row for every table and figure; the goals, in the short form, where the
authors' log is at hand.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.simulate.spec import load_spec

PAPER = Path(__file__).resolve().parents[2] / "papers" / "bftrainer"
DATA = Path(os.environ.get("BFTRAINER_DATA", PAPER.parents[2] / "shared" / "data" / "bftrainer"))


def test_every_table_and_figure_has_a_row():
    rows = re.findall(
        r"^\| ((?:Table|Figure) \d+)", (PAPER / "README.md").read_text().partition("\n## ")[0], re.M
    )
    assert rows == [*(f"Table {n}" for n in range(1, 5)), *(f"Figure {n}" for n in range(1, 17))]


def test_the_spec_is_one():
    spec = load_spec(PAPER / "spec.toml")
    assert len(spec.arrivals) == 300
    assert set(spec.policies) == {"elastic", "spatial", "killable"}


@pytest.mark.nightly
@pytest.mark.skipif(
    not DATA.exists(),
    reason="the authors' log has no licence and is not part of Shoal: it is not here",
)
def test_goals_hold_in_the_short_form():
    script = [sys.executable, str(PAPER / "run.py"), "--short"]
    found = subprocess.run(script, capture_output=True, text=True, timeout=280, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    written = json.loads((PAPER.parent / "results" / "bftrainer-short.json").read_text())
    assert written["goals"].keys() == {
        "E-2 log",
        "E-2 U",
        "on record U",
        "E-2 rescaling",
        "E-3 x1",
        "E-3 x5",
    }
