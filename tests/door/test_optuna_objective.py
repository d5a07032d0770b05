"""An Optuna objective trains in Shoal, and goes on from its checkpoint."""

import sys
from pathlib import Path

import door_kit as kit
import preloaded
import pytest

import shoal

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

FILE = str(kit.DOOR / "optuna_objective.py")


@pytest.mark.slow
def test_it_is_killed_and_resumed_as_alone(tmp_path: Path) -> None:
    kit.check_lines("optuna_objective")
    places = {}
    for way in ("alone", "killed"):
        place = tmp_path / way
        place.mkdir()
        places[way] = place / "runs" / "objective"
    done = preloaded.run(
        [sys.executable, FILE],
        cwd=tmp_path / "alone",
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "best accuracy 0." in done.stdout
    process = [sys.executable, FILE]
    kit.kill_process_once_kept(places["killed"], process, tmp_path / "killed")
    kit.run("resume", str(places["killed"]))
    kit.check_equal(places["alone"], places["killed"])
    scores = [[t.scores for t in shoal.load_study(place).trials] for place in places.values()]
    assert scores[0] == scores[1]


@pytest.mark.nightly
def test_the_plain_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    monkeypatch.chdir(tmp_path)
    assert "best accuracy 0." in kit.run_plain("optuna_objective")
