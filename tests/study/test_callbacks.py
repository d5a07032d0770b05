"""Callbacks: what they are called with, and that they cannot disturb a trial."""

import random
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_study import same_weights

import shoal
from shoal.study.folder import StudyError

ONE = {"width": 4, "lr": shoal.grid([1e-2, 1e-3])}


class Notes(shoal.Callback):
    """What it was called with."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def on_start(self, study: Any) -> None:
        self.said.append(("start", len(study.trials)))

    def on_trial_start(self, study: Any, trial: Any) -> None:
        self.said.append(("trial start", trial.id, trial.epochs))

    def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:
        assert trial.scores[-1] == (epoch, values) and trial.value == values["accuracy"]
        self.said.append(("epoch", trial.id, epoch))

    def on_trial_end(self, study: Any, trial: Any) -> None:
        self.said.append(("trial end", trial.id, trial.status))

    def on_end(self, study: Any) -> None:
        self.said.append(("end", study.best_trial.status))


def made(folder: Path, recipe: Any, **more: Any) -> shoal.Study:
    return shoal.create_study(
        recipe, storage=folder, search_space=ONE, load_if_exists=True, **more
    )


def test_they_are_called_in_order_and_again_when_the_study_goes_on(
    tmp_path: Path, blobs: Any
) -> None:
    notes = Notes()
    study = made(tmp_path / "s", blobs())
    study.optimize(policy="fifo", callbacks=[notes], progress=False)

    def of(name: str, first: int) -> list[Any]:
        epochs = [("epoch", name, first + 1), ("epoch", name, first + 2)]
        return [("trial start", name, first), *epochs, ("trial end", name, "finished")]

    begun = [*of("t000", 0), *of("t001", 0), ("end", "finished")]
    assert notes.said == [("start", 0), *begun]
    notes.said = []
    study.optimize(policy="fifo", max_epochs=4, callbacks=[notes], progress=False)
    went_on = [*of("t000", 2), *of("t001", 2), ("end", "finished")]
    assert notes.said == [("start", 2), *went_on]
    notes.said = []
    study.resume(callbacks=[notes], progress=False)
    assert notes.said == [("start", 2), ("end", "finished")]


class Rude(shoal.Callback):
    """Does all that it should not."""

    def on_start(self, study: Any) -> None:
        raise RuntimeError("no start")

    def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:
        values["accuracy"] = trial.config["lr"] = 0.0
        trial.scores[-1][1]["accuracy"] = -1.0
        study.trials[0].config["width"] = 99
        torch.manual_seed(1), np.random.seed(1), random.seed(1)
        torch.rand(3)
        time.sleep(0.01)
        raise ValueError(f"no {epoch:g}")


@pytest.mark.parametrize("policy", ["fifo", "pack", "hop"])
def test_they_cannot_disturb_a_trial(tmp_path: Path, blobs: Any, policy: str) -> None:
    class Drawing(Rude):
        def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:
            try:
                super().on_epoch(study, trial, epoch, values)
            except ValueError:
                return

    options = {"policy": policy, "fuse": False, "progress": False, "max_epochs": 3}
    study = made(tmp_path / "s", blobs())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study.optimize(callbacks=[Rude(), Drawing()], **options)
    said = [str(each.message) for each in caught]
    assert [text.partition(":")[0] for text in said] == [
        "on_start of the callback Rude raised RuntimeError",
        "on_start of the callback Drawing raised RuntimeError",
        "on_epoch of the callback Rude raised ValueError",
    ], "one each"
    alone = made(tmp_path / "alone", blobs())
    alone.optimize(**options)
    assert same_weights(study, alone)
    assert [t.scores for t in study.trials] == [t.scores for t in alone.trials]
    assert [t.config for t in study.trials] == [t.config for t in alone.trials]
    assert all(row["equal"] for row in study.replay())


def test_warnings_that_are_errors_end_nothing(tmp_path: Path, blobs: Any) -> None:
    study = made(tmp_path / "s", blobs())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        study.optimize(callbacks=[Rude()], progress=False)
    assert all(trial.status == "finished" for trial in study.trials)


def test_a_trial_is_stopped_and_others_are_added_from_within(
    tmp_path: Path, blobs: Any
) -> None:
    class Steering(shoal.Callback):
        def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:
            if trial.id == "t001" and epoch == 1:
                study.stop(trial.id)
                study.enqueue({"width": 5, "lr": 0.1}, max_epochs=1)

    study = made(tmp_path / "s", blobs())
    study.optimize(policy="fifo", max_epochs=50, callbacks=[Steering()], progress=False)
    found = {trial.id: trial for trial in study.trials}
    assert found["t001"].status == "retired" and found["t001"].epochs < 10
    assert found["t000"].epochs == 50
    assert found["added1"].status == "finished"


def test_the_run_is_stopped_from_within_and_functions_are_called_at_the_end(
    tmp_path: Path, blobs: Any
) -> None:
    ended = []

    def stop_after_one(study: Any, trial: Any) -> None:
        ended.append((trial.id, trial.status, study.best_trial.id))
        study.stop()

    study = made(tmp_path / "s", blobs())
    study.optimize(
        policy="fifo", max_epochs=30, callbacks=[stop_after_one], progress=False
    )
    assert ended == [("t000", "finished", "t000")]
    assert study.state.stopped and study.trials[1].status == "running"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([Notes], r"give an instance as a callback: Notes\(\), not Notes"),
        (Notes(), r"callbacks= takes a list; got .*: write \[Notes\]"),
        ([3], "a callback has one of on_start, .*; got 3"),
        (
            [type("Keras", (shoal.Callback,), {"on_epoch_end": print})()],
            "Keras has on_epoch_end, which is never called: .*did you mean on_epoch?",
        ),
    ],
)
def test_wrong_callbacks_are_refused_before_any_work(
    tmp_path: Path, blobs: Any, wrong: Any, says: str
) -> None:
    study = made(tmp_path / "s", blobs())
    with pytest.raises(StudyError, match=says):
        study.optimize(callbacks=wrong, progress=False)
    assert not study.folder.journal.exists()
