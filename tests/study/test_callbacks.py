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
from shoal.core.errors import StudyError

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
    return shoal.create_study(recipe, storage=folder, search_space=ONE, load_if_exists=True, **more)


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


def test_a_trial_is_stopped_and_others_are_added_from_within(tmp_path: Path, blobs: Any) -> None:
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
    study.optimize(policy="fifo", max_epochs=30, callbacks=[stop_after_one], progress=False)
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


# -- models ------------------------------------------------------------------------------------


Weights = dict[str, Any]
Seen = dict[tuple[str, float], Weights]


def weights_of(model: Any) -> Weights:
    return {name: each.clone() for name, each in model.state_dict().items()}


def agree(some: Weights, others: Weights, rounding: float = 0.0) -> bool:
    return some.keys() == others.keys() and all(
        torch.allclose(some[name], others[name], rtol=rounding, atol=rounding) for name in some
    )


class TakesModels(shoal.Callback):
    """The weights that it saw, by trial and epoch; at a trial's end of "end"."""

    def __init__(self) -> None:
        self.epochs: Seen = {}
        self.ends: dict[str, Weights | None] = {}

    def on_epoch(
        self, study: Any, trial: Any, epoch: float, values: Any, model: Any = None
    ) -> None:
        self.epochs[trial.id, epoch] = weights_of(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(9.0)  # it is the callback's own

    def on_trial_end(self, study: Any, trial: Any, model: Any = None) -> None:
        self.ends[trial.id] = None if model is None else weights_of(model)


class LoadsModels(TakesModels):
    """The same, loaded from the study, which the run does not know beforehand."""

    def on_epoch(  # type: ignore[override]
        self, study: Any, trial: Any, epoch: float, values: Any
    ) -> None:
        super().on_epoch(study, trial, epoch, values, study.load_model(trial))

    def on_trial_end(self, study: Any, trial: Any) -> None:  # type: ignore[override]
        super().on_trial_end(study, trial, study.load_model(trial))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, blobs: Any) -> Seen:
    """The weights of trials that were trained alone for so many epochs."""
    seen: Seen = {}
    for epochs in (1, 2, 3):
        study = made(tmp_path_factory.mktemp("alone"), blobs())
        study.optimize(policy="fifo", max_epochs=epochs, fuse=False, progress=False)
        for trial in study.trials:
            seen[trial.id, epochs] = weights_of(study.load_model(trial))
    return seen


@pytest.mark.parametrize("callback", [TakesModels, LoadsModels])
@pytest.mark.parametrize(
    ("options", "rounding"),
    [
        ({"policy": "fifo"}, 0.0),
        ({"policy": "pack", "fuse": False}, 0.0),
        ({"policy": "pack"}, 1e-4),
        ({"policy": "pack", "fuse": False, "checkpoint_every": 0}, 0.0),
        ({"policy": "fifo", "state_memory_gb": 1e-9, "max_checkpoint_gb": 1e-9}, 0.0),
    ],
)
def test_they_get_the_model_of_the_epoch_they_are_told_of(
    tmp_path: Path, blobs: Any, alone: Seen, callback: Any, options: Any, rounding: float
) -> None:
    seen = callback()
    study = made(tmp_path / "s", blobs())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "checkpoints take .* more than")
        warnings.filterwarnings("error", ".* of the callback ")
        study.optimize(max_epochs=3, callbacks=[seen], progress=False, **options)
    assert seen.epochs.keys() == alone.keys()
    for at, weights in alone.items():
        assert agree(seen.epochs[at], weights, rounding)
    for trial in study.trials:
        last = weights_of(study.load_model(trial))
        assert agree(seen.epochs[trial.id, 3], last)
        assert agree(seen.ends[trial.id], last)


def test_models_of_trials_that_are_taken_out_or_fail(tmp_path: Path, blobs: Any) -> None:
    """One fails in its first epoch, another one is stopped before anything of it is durable."""

    class Stops(TakesModels):
        def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:  # type: ignore[override]
            if trial.id == "t001":
                study.stop(trial.id)

    seen, ended = Stops(), {}

    def plain(study: Any, trial: Any, model: Any) -> None:
        ended[trial.id] = None if model is None else weights_of(model)

    space = {"width": shoal.grid([4, 8]), "lr": 0.01}
    study = shoal.create_study(blobs(fail=4), storage=tmp_path, search_space=space)
    study.optimize(policy="fifo", max_epochs=50, callbacks=[seen, plain], progress=False)
    assert [trial.status.partition(":")[0] for trial in study.trials] == ["failed", "retired"]
    assert seen.ends["t000"] is None and ended["t000"] is None
    stopped, plainly = seen.ends["t001"], ended["t001"]
    assert stopped and plainly and agree(stopped, plainly)


def test_other_trials_are_loaded_from_within(tmp_path: Path, blobs: Any) -> None:
    """Also those that are about to become durable with others."""
    loaded: list[str] = []

    class Loads(shoal.Callback):
        def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:
            if trial.id == "t001":
                study.load_model("t000"), study.load_model("t000", "best")
                loaded.append(trial.id)

        def on_end(self, study: Any) -> None:
            study.best_model()
            loaded.append("best")

    study = made(tmp_path / "s", blobs())
    study.optimize(policy="fifo", callbacks=[Loads()], progress=False)
    assert loaded == ["t001", "t001", "best"]


class AtStart(shoal.Callback):
    def on_start(self, study: Any, model: Any = None) -> None:
        """There is none."""


@pytest.mark.parametrize(
    ("callback", "options", "says"),
    [
        (AtStart(), {}, "on_start of the callback AtStart names `model`"),
        (
            TakesModels(),
            {"validate_every": 0.5},
            "asks for evaluations within a pass .*TakesModels names `model`.*multiple of 0.333",
        ),
        (TakesModels(), {"validate_every": "3 steps"}, "within a pass"),
    ],
)
def test_where_there_is_no_model_it_is_refused_before_any_work(
    tmp_path: Path, blobs: Any, callback: Any, options: Any, says: str
) -> None:
    study = made(tmp_path / "s", blobs())
    with pytest.raises(StudyError, match=says):
        study.optimize(callbacks=[callback], progress=False, **options)
    assert not study.folder.journal.exists()


def test_functions_have_no_model_but_their_checkpoints_are_there(tmp_path: Path) -> None:
    def function(config: Any) -> None:
        for epoch in range(2):
            shoal.report({"score": float(epoch)}, checkpoint={"epoch": epoch})

    found: list[Any] = []

    class Loads(shoal.Callback):
        def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:
            found.append((epoch, study.checkpoint(trial)))

    study = shoal.create_study(
        function, storage=tmp_path, metric="score", mode="max", search_space={}
    )
    with pytest.raises(StudyError, match=r"what a function trains .* study.checkpoint"):
        study.optimize(callbacks=[TakesModels()], progress=False)
    study.optimize(callbacks=[Loads()], progress=False)
    assert found == [(1, {"epoch": 0}), (2, {"epoch": 1})]


def test_a_state_that_cannot_be_had_is_said_with_the_remedy(tmp_path: Path, blobs: Any) -> None:
    class Within(LoadsModels):
        """Evaluated within visits."""

    study = made(tmp_path / "s", blobs())
    with pytest.warns(UserWarning, match="within a pass over a shard.*validate_every=1"):
        study.optimize(validate_every=0.1, callbacks=[Within()], policy="fifo", progress=False)
