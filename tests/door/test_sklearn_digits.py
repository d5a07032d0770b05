"""A scikit-learn classifier trains in Shoal as it trains alone."""

from pathlib import Path

import door_kit as kit
import pytest

pytest.importorskip("sklearn")


@pytest.mark.slow
def test_it_trains_packed_and_resumed_as_alone(tmp_path: Path) -> None:
    kit.check_door("sklearn_digits", tmp_path)


@pytest.mark.nightly
def test_the_plain_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "best accuracy 0." in kit.run_plain("sklearn_digits")
