"""Evaluations within an epoch: `validate_every=0.25`, or every so many optimizer steps."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.backend.local import Local
from shoal.core.errors import StudyError
from shoal.core.event import Evaluated
from shoal.core.trial import TrialId
from shoal.study.checkpoint_retention import Retention
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.tools.verify import differences

POLICIES = ["fifo", "pack", "hop"]


class Normed(shoal.Recipe):
    """Batch norm, dropout, groups of batches, and a smaller last batch: 100 samples, 13 batches."""

    search_space = {"lr": shoal.grid([0.1, 0.01])}
    metric, mode, max_epochs = "loss", "min", 2
    batch_size, accumulate_grad_batches = 8, 2
    shards = 1

    def data(self) -> shoal.Data:
        rng = torch.Generator().manual_seed(0)
        x = torch.randn(125, 5, generator=rng)
        y = (x[:, 0] > 0).long()
        return shoal.Data.arrays(x.numpy(), y.numpy(), shards=self.shards, validation=0.2)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Steady(Normed):
    """As above, without random numbers, so that such trials can be fused."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def made(place: Path, recipe: shoal.Recipe, **options: Any) -> shoal.Study:
    study = shoal.create_study(recipe, storage=place)
    study.optimize(**{"policy": "fifo", "fuse": False, "progress": False, **options})
    return study


def states(study: shoal.Study) -> dict[TrialId, Any]:
    vault = Checkpoints(study.folder.checkpoints, study.state.run)
    kept = study.state.kept
    return {each: vault.load(kept[each].name) for each in kept}


def epochs(study: shoal.Study, trial: int = 0) -> list[float]:
    return [epoch for epoch, _ in study.trials[trial].scores]


@pytest.mark.parametrize("policy", POLICIES)
def test_fractions_that_fall_on_shards(tmp_path: Path, policy: str, blobs: Any) -> None:
    plain = made(tmp_path / "1", blobs(shards=4), policy=policy)
    study = made(tmp_path / "s", blobs(shards=4), policy=policy, validate_every=0.25)
    assert epochs(study) == [number / 4 for number in range(1, 9)]
    assert all(row["equal"] for row in study.replay())
    assert not list(differences(states(study), states(plain)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shards", [1, 2])
def test_they_change_nothing_of_the_training(tmp_path: Path, policy: str, shards: int) -> None:
    recipe = Normed()
    recipe.shards = shards
    plain = made(tmp_path / "plain", recipe, policy=policy)
    for every in (0.3, "3 steps"):
        study = made(tmp_path / str(every), recipe, policy=policy, validate_every=every)
        assert not list(differences(states(study), states(plain)))
        assert all(row["equal"] for row in study.replay())
        ends = dict(study.trials[0].scores)
        for epoch, values in plain.trials[0].scores:
            assert epoch not in ends or ends[epoch] == values
        assert len(ends) == len(study.trials[0].scores) >= 5


def test_a_fraction_is_met_with_the_first_step_that_reaches_it(tmp_path: Path) -> None:
    study = made(tmp_path / "s", Normed(), validate_every=0.3)
    assert epochs(study) == [0.3, 0.6, 0.9, 1.0, 1.3, 1.6, 1.9, 2.0]
    taken = [entry for _, entry in study.lines() if isinstance(entry, Evaluated)]
    assert [entry.epoch for entry in taken[:4]] == [0.3, 0.6, 0.9, 1.0]
    # steps of 16 samples: 0.3 is reached with 32 of 100
    alone = made(tmp_path / "steps", Normed(), validate_every="2 steps")
    assert epochs(alone) == [0.32, 0.64, 0.96, 1.16, 1.48, 1.8, 2.0]
    first, second = study.trials[0].scores[0][1], alone.trials[0].scores[0][1]
    assert first == second


def test_steps_count_over_all_epochs(tmp_path: Path) -> None:
    study = made(tmp_path / "s", Normed(), validate_every="5 steps")
    # 7 steps an epoch, the last one of 4 samples
    assert epochs(study) == [0.8, 1.48, 2.0]
    study = made(tmp_path / "all", Normed(), validate_every="7 steps")
    assert epochs(study) == [1.0, 2.0]


def test_more_evaluations_than_steps(tmp_path: Path) -> None:
    study = made(tmp_path / "s", Normed(), validate_every=0.01, max_epochs=1)
    assert epochs(study) == [0.16, 0.32, 0.48, 0.64, 0.8, 0.96, 1.0]


def test_what_is_dropped_is_no_step(tmp_path: Path) -> None:
    recipe = Normed()
    recipe.drop_last = True  # 12 batches, 6 steps
    study = made(tmp_path / "s", recipe, validate_every="4 steps")
    assert epochs(study) == [0.64, 1.32, 2.0]


def test_scores_are_in_tables_curves_and_the_report(tmp_path: Path) -> None:
    study = made(tmp_path / "s", Normed(), validate_every=0.25)
    frame = study.trials_dataframe()
    assert frame.value[0] == study.trials[0].scores[-1][1]["loss"]
    curves = study.learning_curves()
    one = curves[curves.trial == "t000"]
    for split in ("train", "validation"):
        found = one[(one.split == split) & (one.name == "loss")]
        assert list(found.epoch) == [number / 4 for number in range(1, 9)]
    assert "0.25" in study.report().read_text()
    assert "epoch 0.25: loss" in (study.folder.path / "log.txt").read_text()


def test_training_values_alone_are_scores_too(tmp_path: Path) -> None:
    class Unvalidated(Normed):
        def data(self) -> shoal.Data:
            whole = super().data()
            del whole
            x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0)).numpy()
            return shoal.Data.arrays(x, (x[:, 0] > 0).astype("int64"), shards=1)

    study = made(tmp_path / "s", Unvalidated(), validate_every=0.5)
    assert epochs(study) == [0.5, 1.0, 1.5, 2.0]


class PowerCutError(Exception):
    """Ends a run as a kill does: nothing more is written down."""


def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the run after an evaluation within the second epoch."""
    real = Local._work
    seen: list[Any] = []

    def work(self: Local, run: Any) -> Any:
        if seen:
            raise PowerCutError
        events = real(self, run)
        evaluated = [event for event in events if isinstance(event, Evaluated)]
        seen.extend(event for event in evaluated if event.epoch == 1.6)
        return events

    monkeypatch.setattr(Local, "_work", work)


@pytest.mark.parametrize("policy", ["fifo", "pack"])
def test_a_killed_study_evaluates_no_point_twice(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"policy": policy, "validate_every": 0.3, "checkpoint_every": 0}
    whole = made(tmp_path / "whole", Normed(), **options)
    with monkeypatch.context() as patched:
        cut(patched)
        with pytest.raises(PowerCutError):
            made(tmp_path / "cut", Normed(), **options)
    study = shoal.load_study(tmp_path / "cut")
    assert epochs(study)[-1] == 1.6
    study.resume(progress=False)
    assert not list(differences(states(study), states(whole)))
    for one, other in zip(study.trials, whole.trials, strict=True):
        assert one.scores == other.scores
    curves = study.learning_curves()
    assert not curves.duplicated(["trial", "epoch", "name", "split"]).any()
    assert len(curves) == len(whole.learning_curves())


def test_a_search_with_rungs_goes_by_whole_epochs(tmp_path: Path) -> None:
    recipe = Normed()
    recipe.search_space = {"lr": shoal.loguniform(1e-3, 1.0)}
    options = {"searcher": "halving(grace_period=1)", "num_samples": 4, "max_epochs": 2}
    plain = made(tmp_path / "plain", recipe, **options)
    study = made(tmp_path / "s", recipe, validate_every=0.25, **options)
    assert [each.epochs for each in study.trials] == [each.epochs for each in plain.trials]


def test_a_plateau_sees_the_ends_of_epochs(tmp_path: Path) -> None:
    class Plateau(Normed):
        search_space = {"lr": 0.0}

        def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return optimizer, plateau

    plain = made(tmp_path / "plain", Plateau(), max_epochs=3)
    for every in (0.4, "5 steps"):
        study = made(tmp_path / f"{every}", Plateau(), max_epochs=3, validate_every=every)
        assert not list(differences(states(study), states(plain)))
        assert all(row["equal"] for row in study.replay())


def test_a_recipe_may_say_it(tmp_path: Path) -> None:
    recipe = Normed()
    recipe.validate_every = "4 steps"  # type: ignore[misc]
    assert epochs(made(tmp_path / "own", recipe)) == [0.64, 1.16, 1.8, 2.0]
    assert epochs(made(tmp_path / "told", recipe, validate_every=2)) == [2.0]


def test_a_recipe_may_not_say_never(tmp_path: Path) -> None:
    recipe = Normed()
    recipe.validate_every = 0  # type: ignore[misc]
    with pytest.raises(StudyError, match="validate_every is a number of epochs"):
        made(tmp_path / "s", recipe)


def test_other_tools_are_told_of_it(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna", reason="optuna is not installed")
    study = made(tmp_path / "s", Normed(), validate_every=0.5, loggers=["csv"], optuna_log=True)
    with (study.folder.path / "csv" / "scores.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["trial"] == "t000"]
    assert [float(row["epoch"]) for row in rows] == [0.5, 1.0, 1.5, 2.0]
    assert [float(row["loss"]) for row in rows] == [
        values["loss"] for _, values in study.trials[0].scores
    ]
    file = optuna.storages.journal.JournalFileBackend(str(study.folder.path / "optuna.log"))
    storage = optuna.storages.JournalStorage(file)
    trials = optuna.load_study(study_name=None, storage=storage).trials
    assert trials[0].intermediate_values == {
        int(epoch): values["loss"] for epoch, values in study.trials[0].scores if epoch.is_integer()
    }


@pytest.mark.slow
def test_on_two_slots_of_ray(tmp_path: Path) -> None:
    every = "5 steps"
    recipe = Normed()
    recipe.shards = 2
    alone = made(tmp_path / "alone", recipe, validate_every=every)
    ray = {"backend": "ray", "slots": 2, "validate_every": every}
    study = made(tmp_path / "ray", recipe, **ray)
    assert not list(differences(states(study), states(alone)))
    assert [each.scores for each in study.trials] == [each.scores for each in alone.trials]
    hopped = made(tmp_path / "hop", recipe, policy="hop", **ray)
    assert all(row["equal"] for row in hopped.replay())
    assert epochs(hopped) == epochs(alone)


def test_only_whole_visits_can_be_the_best_state() -> None:
    retention = Retention(None, lambda config: ("loss", "min"))  # type: ignore[arg-type]
    retention._learn(Evaluated(TrialId("a"), 0.6, {"loss": 1.0}))
    assert not retention._scored


@pytest.mark.parametrize(
    ("recipe", "options", "why"),
    [
        (Normed, {"validate_every": 0}, "validate_every is a number of epochs"),
        (Normed, {"validate_every": "5"}, None),
        (Normed, {"validate_every": "5 epochs"}, "or of optimizer steps, as"),
        (
            Normed,
            {"validate_every": 0.3, "backend": "ray", "slots": 2, "widths": (1, 2)},
            r"validate_every=0.3 asks for .* a trial may have 2 slots.*multiple of 1 epochs",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, recipe: Any, options: Any, why: str | None
) -> None:
    study = shoal.create_study(recipe(), storage=tmp_path / "s")
    if why is None:
        study.optimize(policy="fifo", progress=False, **options)
        return
    with pytest.raises(StudyError, match=why):
        study.optimize(progress=False, **options)
    assert not study.folder.journal.exists()


def test_a_function_evaluates_itself(tmp_path: Path) -> None:
    def train(config: Any) -> None:
        shoal.report({"loss": 1.0})

    study = shoal.create_study(train, storage=tmp_path / "s", metric="loss")
    with pytest.raises(StudyError, match="a function is evaluated when it calls"):
        study.optimize(n_trials=1, max_epochs=1, validate_every=0.5, progress=False)
