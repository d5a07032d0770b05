"""Callbacks and loggers with slots of Ray: they run in the process that called optimize."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest

import shoal

pytestmark = pytest.mark.slow


class Steering(shoal.Callback):
    """Notes where and for whom it is called, and stops one trial."""

    def __init__(self) -> None:
        self.said: list[tuple[str, ...]] = []
        self.processes: set[int] = set()

    def on_trial_start(self, study: Any, trial: Any) -> None:
        self.said.append(("start", trial.id))

    def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:
        self.processes.add(os.getpid())
        if trial.id == "t001":
            study.stop("t001")

    def on_trial_end(self, study: Any, trial: Any) -> None:
        self.said.append(("end", trial.id, trial.status))


def test_on_two_slots_a_trial_is_stopped_and_scores_are_logged(
    tmp_path: Path, blobs: Any
) -> None:
    called = Steering()
    space = {"width": shoal.grid([4, 8]), "lr": 0.01}
    study = shoal.create_study(blobs(), storage=tmp_path / "s", search_space=space)
    study.optimize(
        policy="fifo",
        backend="ray",
        slots=2,
        max_epochs=300,
        callbacks=[called],
        loggers=["csv"],
        progress=False,
    )
    assert called.processes == {os.getpid()}
    assert sorted(called.said) == [
        ("end", "t000", "finished"),
        ("end", "t001", "retired"),
        ("start", "t000"),
        ("start", "t001"),
    ]
    with (tmp_path / "s" / "csv" / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for trial in study.trials:
        found = [float(row["accuracy"]) for row in rows if row["trial"] == trial.id]
        assert found == [values["accuracy"] for _, values in trial.scores]
