"""Training values as scores, and learning curves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.core.errors import StudyError
from shoal.core.event import Evaluated
from shoal.train.lane.checkpoints import Checkpoints


class Unvalidated(shoal.Recipe):
    """No validation data: trials are ranked by what training steps return."""

    metric, mode, max_epochs = "loss", "min", 3
    search_space = {"lr": shoal.grid([0.5, 0.1, 0.02, 0.0])}
    batch_size = 10
    validation: Any = None
    shards = 3

    def data(self) -> shoal.Data:
        rng = torch.Generator().manual_seed(0)
        x = torch.randn(90, 5, generator=rng)
        y = (x[:, 0] > 0).long()
        return shoal.Data.arrays(
            x.numpy(), y.numpy(), shards=self.shards, validation=self.validation
        )

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(5, 2)

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        logits = model(x)
        right = (logits.argmax(1) == y).float().mean()
        return {"loss": nn.functional.cross_entropy(logits, y), "right": right}


class Validated(Unvalidated):
    validation = 0.2
    metric = "train_loss"

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return nn.functional.cross_entropy(model(x), y, reduction="none")


def scores(study: shoal.Study) -> dict[str, Any]:
    return {trial.id: trial.scores for trial in study.trials}


def made(place: Path, recipe: shoal.Recipe, **given: Any) -> shoal.Study:
    study = shoal.create_study(recipe, storage=place, **given)
    study.optimize(progress=False, policy="hop")
    return study


def test_trials_are_ranked_by_a_training_value(tmp_path: Path) -> None:
    study = made(tmp_path / "s", Unvalidated())
    assert study.best_trial.config["lr"] in (0.5, 0.1)
    still = study.trials[3]
    assert len({values["loss"] for _, values in still.scores}) == 1
    frame = study.trials_dataframe()
    assert {"last.loss", "last.right"} <= set(frame.columns)
    assert all(row["equal"] for row in study.replay())

    by_other = made(tmp_path / "o", Unvalidated(), metric="right", mode="max")
    assert by_other.best_trial.value > 0.8


def test_training_values_do_not_hide_those_of_validation(tmp_path: Path) -> None:
    study = made(tmp_path / "s", Validated())
    _, last = study.trials[0].scores[-1]
    assert set(last) == {"loss", "train_loss", "right"}
    assert study.trials[0].value == last["train_loss"] != last["loss"]


@pytest.mark.parametrize(("one", "other"), [("fifo", "pack"), ("hop", "hop-packs")])
def test_they_are_the_same_under_policies_of_one_order(
    tmp_path: Path, one: str, other: str
) -> None:
    found = []
    for policy in (one, other):
        study = shoal.create_study(Validated(), storage=tmp_path / policy)
        study.optimize(progress=False, policy=policy, fuse=False)
        found.append(scores(study))
    assert found[0] == found[1]


@pytest.mark.parametrize("searcher", ["asha", "hyperband", "pbt", "patience", "median", "optuna"])
def test_searchers_work_with_them(tmp_path: Path, searcher: str) -> None:
    if searcher == "optuna":
        pytest.importorskip("optuna", reason="optuna is optional")
    space = {"lr": shoal.loguniform(1e-3, 0.5)}
    study = shoal.create_study(Unvalidated(), storage=tmp_path / "s", search_space=space)
    study.optimize(searcher, num_samples=None if searcher == "hyperband" else 4, progress=False)
    assert study.best_trial.value < 0.7


def test_learning_curves_are_those_of_the_journal(tmp_path: Path) -> None:
    study = made(tmp_path / "s", Validated())
    frame = study.learning_curves()
    assert list(frame.columns) == ["trial", "epoch", "name", "value", "split"]
    for entry in (line.entry for line in study.lines()):
        if not isinstance(entry, Evaluated):
            continue
        of_epoch = frame[(frame.trial == entry.trial) & (frame.epoch == entry.epoch)]
        for split, name, key in (
            ("train", "loss", "train_loss"),
            ("train", "right", "right"),
            ("validation", "loss", "loss"),
        ):
            rows = of_epoch[(of_epoch.split == split) & (of_epoch.name == name)]
            assert rows.value.item() == pytest.approx(entry.values[key], rel=1e-12)
    assert len(frame) == 4 * 3 * 3


def test_a_plateau_follows_a_training_value(tmp_path: Path) -> None:
    class Plateau(Unvalidated):
        search_space = {"lr": 0.0}

        def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
            optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return optimizer, plateau

    study = made(tmp_path / "s", Plateau())
    name = study.state.kept[study.trials[0].id].name
    saved = Checkpoints(tmp_path / "s" / "checkpoints", 1).load(name)
    assert saved["scheduler"]["best"] == study.trials[0].scores[0][1]["loss"]


def test_a_name_that_no_step_returns_is_refused(tmp_path: Path) -> None:
    study = shoal.create_study(Unvalidated(), storage=tmp_path / "s", metric="accuracy")
    why = (
        "ranked by 'accuracy', and Unvalidated gives no such scores: its data have no "
        "validation part, and training_step returns loss, right"
    )
    with pytest.raises(StudyError, match=why):
        study.optimize(progress=False)
    assert not study.folder.journal.exists()
