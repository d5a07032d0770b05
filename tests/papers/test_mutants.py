"""Faults in the papers' rules are noticed: `tools/mutants.py` tells which test notices which."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from mutants import MUTANTS, Mutant, broken, survivors  # noqa: E402


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.breaks)
def test_the_piece_to_break_is_there_once(mutant: Mutant) -> None:
    text = (ROOT / "shoal" / mutant.file).read_text()
    assert broken(text, mutant) != text


@pytest.mark.nightly
@pytest.mark.timeout(900)  # two minutes on two cores
def test_no_fault_survives() -> None:
    alive = [mutant.breaks for mutant, survives in survivors() if survives]
    assert alive == []
