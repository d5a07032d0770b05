"""A program trains in Shoal by its command line, and goes on from its files."""

import sys
from pathlib import Path

import door_kit as kit
import pytest

import shoal

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

PROGRAM = kit.DOOR / "shell_command.py"


def args(folder: Path) -> tuple[str, ...]:
    """The command that the example shows."""
    command = f"'{sys.executable}' '{PROGRAM}' --lr {{lr}} --momentum {{momentum}}"
    space = ("lr=grid([0.05,0.1])", "momentum=grid([0.0,0.9])")
    return (
        *("run", "--command", f"{command} --out {{checkpoint}}/state.npz"),
        *("--space", space[0], "--space", space[1]),
        *("--metric", "accuracy", "--mode", "max", "--storage", str(folder)),
    )


@pytest.mark.slow
def test_it_is_killed_and_resumed_as_alone(tmp_path: Path) -> None:
    kit.check_lines("shell_command")
    places = [tmp_path / "alone", tmp_path / "killed"]
    kit.run(*args(places[0]))
    kit.kill_once_kept(places[1], *args(places[1]))
    kit.run("resume", str(places[1]))
    kit.check_equal(*places)
    scores = [[t.scores for t in shoal.load_study(place).trials] for place in places]
    assert scores[0] == scores[1] and len(scores[0][0]) == 6


@pytest.mark.nightly
def test_the_plain_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "best accuracy 0." in kit.run_plain("shell_command")
