"""Functions on slots of Ray."""

import sys
from pathlib import Path
from typing import Any

import pytest

import shoal

pytestmark = pytest.mark.slow


def train(config: dict[str, Any]) -> None:
    """Counts from its checkpoint; returns early where the configuration says so."""
    state = shoal.restore()
    count = 0
    if state is not None:
        count = state["count"]
    while count < config.get("most", 100):
        count += 1
        kept = None
        if count % config.get("every", 1) == 0:
            kept = {"count": count}
        print("count", count)  # noqa: T201
        shoal.report({"loss": config["x"] / count}, checkpoint=kept)


@pytest.mark.nightly
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize("every", [1, 2, 100])
def test_rungs_and_returns_on_two_slots(tmp_path: Path, every: int) -> None:
    """What changes slots goes on from its checkpoint, or from the beginning."""
    space = {"x": shoal.uniform(0.0, 1.0), "every": every, "most": 7}
    study = shoal.create_study(train, storage=tmp_path / "s", metric="loss", search_space=space)
    study.optimize("asha", num_samples=9, max_epochs=9, backend="ray", slots=2, progress=False)
    assert {t.status for t in study.trials} == {"finished"}
    assert max(t.epochs for t in study.trials) == 7.0
    for trial in study.trials:
        found = [values["loss"] for _, values in trial.scores]
        assert found == [trial.config["x"] / (n + 1) for n in range(len(found))]
        assert len(found) == trial.epochs
    assert "count 1" in (tmp_path / "s" / "trials" / "t000" / "log.txt").read_text()


def test_objectives_and_errors_on_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also: what is said at once, on the screen and in the log, while Ray starts."""

    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", 0.0, 1.0)
        if trial.number == 2:
            raise RuntimeError("no luck")
        return float(x)

    study = shoal.create_study(storage=tmp_path / "s")
    study.optimize(objective, n_trials=4, backend="ray", slots=2)
    out = capsys.readouterr().out
    assert out.startswith("[       0 s] Starting Ray (2 slots) …\n")
    assert "Ray is there after " in out and "s; opening 2 slots …\n" in out
    assert "0.00 s  Starting Ray (2 slots) …\n" in (tmp_path / "s" / "log.txt").read_text()
    how = [t.status for t in study.trials]
    assert how.count("finished") == 3 and "no luck" in how[2]
    assert all("x" in t.config for t in study.trials)


PROGRAM = """
import os, sys
kept, rate, value = sys.argv[1] + "/state", float(sys.argv[2]), 1.0
begun = 0
if os.environ.get("SHOAL_RESTORED"):
    begun, value = map(float, open(kept).read().split())
for epoch in range(int(begun), 4):
    value *= 1 - rate
    open(kept, "w").write(f"{epoch + 1} {value}")
    print(f"loss={value}")
    sys.stdin.readline()
print("done by", os.environ["SHOAL_TRIAL"])
"""


@pytest.mark.usefixtures("shared_ray")
def test_command_lines_on_two_slots(tmp_path: Path) -> None:
    """They go on from their folders in a second run, and give the losses of the program alone."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    rates = [0.1, 0.2, 0.5]
    study = shoal.create_study(
        command=f"'{sys.executable}' '{program}' {{checkpoint}} {{lr}}",
        storage=tmp_path / "s",
        metric="loss",
        search_space={"lr": shoal.grid(rates)},
    )
    study.optimize(max_epochs=2, backend="ray", slots=2, progress=False)
    assert [t.epochs for t in study.trials] == [2.0] * 3
    study.optimize(max_epochs=9, backend="ray", slots=2, progress=False)
    assert [t.status for t in study.trials] == ["finished"] * 3
    for trial, rate in zip(study.trials, rates, strict=True):
        losses = [1.0]
        for _ in range(4):
            losses.append(losses[-1] * (1 - rate))
        assert [values["loss"] for _, values in trial.scores] == losses[1:]
        state = (study.checkpoint(trial) / "state").read_text()
        assert state == f"4 {losses[-1]}"
        log = tmp_path / "s" / "trials" / trial.id / "log.txt"
        assert f"done by {trial.id}" in log.read_text()
