"""Callbacks and loggers with slots of Ray: they run in the process that called optimize."""

import csv
import os
import warnings
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from torch import nn

import shoal

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_ray")]


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


def test_on_two_slots_a_trial_is_stopped_and_scores_are_logged(tmp_path: Path, blobs: Any) -> None:
    class Slower(blobs):  # type: ignore[misc]
        def training_step(self, model: Any, batch: Any) -> Any:
            if model[0].out_features == 8:  # it is to be stopped long before it is through
                sleep(0.05)
            return super().training_step(model, batch)

    called = Steering()
    space = {"width": shoal.grid([4, 8]), "lr": 0.01}
    study = shoal.create_study(Slower(), storage=tmp_path / "s", search_space=space)
    study.optimize(
        policy="fifo",
        backend="ray",
        slots=2,
        max_epochs=40,
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


class TakesModels(shoal.Callback):
    """The weights that it saw, by trial and epoch; at a trial's end of epoch None."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, float | None], dict[str, Any]] = {}

    def on_epoch(
        self, study: Any, trial: Any, epoch: float, values: Any, model: Any = None
    ) -> None:
        self.seen[trial.id, epoch] = model.state_dict()
        sleep(0.2)  # the slots make two epochs meanwhile, which are told at one moment

    def on_trial_end(self, study: Any, trial: Any, model: Any = None) -> None:
        self.seen[trial.id, None] = model.state_dict()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "rounding"),
    [({"policy": "fifo"}, 0.0), ({"policy": "doubling", "widths": (2, 2)}, 1e-4)],
)
def test_they_get_the_model_of_the_epoch_they_are_told_of(
    tmp_path: Path, blobs: Any, options: Any, rounding: float
) -> None:
    """On one slot and on two, whose slots go on with the next epoch meanwhile."""

    class Plain(blobs):  # type: ignore[misc]
        search_space = {"width": shoal.grid([4, 8]), "lr": 0.01}

        def configure_model(self, config: Any) -> nn.Module:
            return nn.Linear(5, 3)  # equal on two slots, as it draws nothing

        def training_step(self, model: nn.Module, batch: Any) -> Any:
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

    taken = TakesModels()
    study = shoal.create_study(Plain(shards=1), storage=tmp_path / "s")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".* of the callback ")
        study.optimize(
            backend="ray", slots=2, max_epochs=4, callbacks=[taken], progress=False, **options
        )
    assert len(taken.seen) == 10
    for epochs in (1, 2, 3, 4):
        alone = shoal.create_study(Plain(shards=1), storage=tmp_path / f"alone{epochs}")
        alone.optimize(policy="fifo", fuse=False, max_epochs=epochs, progress=False)
        for trial in alone.trials:
            seen = taken.seen[trial.id, epochs]
            for name, weight in alone.load_model(trial).state_dict().items():
                assert torch.allclose(seen[name], weight, rtol=rounding, atol=rounding)
    for trial in study.trials:
        for name, weight in study.load_model(trial).state_dict().items():
            assert torch.equal(taken.seen[trial.id, 4][name], weight)
            assert torch.equal(taken.seen[trial.id, None][name], weight)


class LoadsModels(shoal.Callback):
    """It asks for what its slot has not kept."""

    def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:
        study.load_model(trial)


@pytest.mark.nightly
def test_a_state_that_no_slot_kept_is_said_with_the_remedy(tmp_path: Path, blobs: Any) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    says = "the state of t.* after 1 epochs is at its slot.*let on_epoch name an argument `model`"
    with pytest.warns(UserWarning, match=says):
        study.optimize(backend="ray", slots=2, callbacks=[LoadsModels()], progress=False)
    assert {trial.status for trial in study.trials} == {"finished"}
