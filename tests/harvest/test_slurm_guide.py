"""The guide to a Slurm queue: what it shows happens on a real Slurm."""

from collections.abc import Callable
from pathlib import Path

import pytest
import shown_kit
from slurm_kit import SlurmLab

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slurm
def test_what_the_guide_shows_happens(start_slurm: Callable[..., SlurmLab], tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    start_slurm(nodes=1)
    folder = tmp_path / "empty"
    folder.mkdir()
    shown_kit.run_page(ROOT / "docs" / "guides" / "slurm.md", folder, slurm=True)
