"""A finished study that goes on: more epochs, more of a grid, more samples, a wider space."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_study import same_weights

import shoal
from shoal.core.errors import StudyError
from shoal.core.event import Advanced

LR = shoal.loguniform(1e-3, 1e-1)


def opened(folder: Path, recipe: Any, **more: Any) -> shoal.Study:
    return shoal.create_study(recipe, storage=folder, load_if_exists=True, **more)


def scores(study: shoal.Study) -> dict[str, Any]:
    return {trial.id: trial.scores for trial in study.trials}


@pytest.mark.parametrize("policy", ["fifo", "hop", "auto"])
def test_more_epochs_equal_as_many_at_once(tmp_path: Path, blobs: Any, policy: str) -> None:
    study = opened(tmp_path / "s", blobs())
    options = {"policy": policy, "fuse": False, "progress": False}
    study.optimize(max_epochs=3, **options)
    longer = opened(tmp_path / "s", blobs())
    longer.optimize(max_epochs=6, **options)
    assert {trial.epochs for trial in longer.trials} == {6}
    at_once = opened(tmp_path / "at once", blobs())
    at_once.optimize(max_epochs=6, **options)
    assert same_weights(longer, at_once)
    assert scores(longer) == scores(at_once)
    assert all(row["equal"] for row in longer.replay())
    with pytest.raises(StudyError, match=r"begun with seed=0, and is opened with seed=5"):
        opened(tmp_path / "s", blobs(), seed=5).replay()


def test_a_study_goes_on_again_and_again_also_where_it_was_stopped(
    tmp_path: Path, blobs: Any
) -> None:
    options = {"policy": "fifo", "progress": False}
    study = opened(tmp_path / "s", blobs())
    study.optimize(max_epochs=2, **options, timeout=0.0)
    assert not study.state.ended
    study.optimize(max_epochs=4, **options)
    study.enqueue({"width": 5, "lr": 0.01}, max_epochs=2)
    study.extend("t001", 5)
    loaded = shoal.load_study(tmp_path / "s")
    loaded.optimize(max_epochs=5, **options)
    own = {trial.id: trial.epochs for trial in loaded.trials}
    assert own == {**dict.fromkeys(("t000", "t001", "t002", "t003"), 5), "added1": 2}
    loaded.extend("t002", 7)
    loaded.resume(progress=False)
    assert loaded.trials[2].epochs == 7
    loaded.optimize(max_epochs=6, **options)
    assert [trial.epochs for trial in loaded.trials] == [6, 6, 7, 6, 2]
    loaded.optimize(max_epochs=8, **options)
    own = {trial: 8 if trial != "added1" else 2 for trial in own}
    assert {trial.id: trial.epochs for trial in loaded.trials} == own


def test_a_grid_grows_and_only_the_new_ones_run(tmp_path: Path, blobs: Any) -> None:
    def grid(widths: list[int], lrs: list[float]) -> shoal.Study:
        space = {"width": shoal.grid(widths), "lr": shoal.grid(lrs)}
        return opened(tmp_path / "s", blobs(), search_space=space)

    grid([4, 8], [1e-2]).optimize(progress=False)
    before = grid([4, 8], [1e-2]).state
    study = grid([2, 4, 8], [1e-1, 1e-2])
    study.optimize(progress=False)
    configs = {trial.id: (trial.config["width"], trial.config["lr"]) for trial in study.trials}
    assert configs == {
        "t000": (4, 1e-2),
        "t001": (8, 1e-2),
        "t002": (2, 1e-1),
        "t003": (2, 1e-2),
        "t004": (4, 1e-1),
        "t005": (8, 1e-1),
    }
    assert study.state.visits["t000"] == before.visits["t000"]
    assert study.state.kept["t001"] == before.kept["t001"], "they were not trained again"
    study.resume(progress=False)
    grid([2, 4, 8, 16], [1e-1, 1e-2]).optimize(progress=False)
    assert len(study.trials) == 8
    with pytest.raises(StudyError, match="trial t001 has width=8, which the new one"):
        grid([2, 4], [1e-1, 1e-2]).optimize(progress=False)


def test_a_grid_grows_by_values_and_epochs_at_once_within_another_searcher(
    tmp_path: Path, blobs: Any
) -> None:
    opened(tmp_path / "s", blobs()).optimize("patience", progress=False)
    space = {"width": shoal.grid([4, 8, 9]), "lr": shoal.grid([1e-2, 1e-3])}
    study = opened(tmp_path / "s", blobs(), search_space=space)
    study.optimize("patience", max_epochs=3, progress=False)
    assert [trial.epochs for trial in study.trials] == [3] * 6
    assert len({tuple(trial.config.items()) for trial in study.trials}) == 6


@pytest.mark.parametrize("searcher", ["random", "optuna", "asha(reduction_factor=2)"])
def test_a_wider_space_and_more_samples_leave_earlier_trials_as_they_are(
    tmp_path: Path, blobs: Any, searcher: str
) -> None:
    narrow = {"width": 4, "lr": shoal.uniform(0.01, 0.02)}
    wide = {"width": shoal.choice([4, 6]), "lr": shoal.uniform(0.001, 0.9)}
    study = opened(tmp_path / "s", blobs(), search_space=narrow)
    study.optimize(searcher, num_samples=3, progress=False)
    before = {trial.id: trial.config for trial in study.trials}
    study = opened(tmp_path / "s", blobs(), search_space=wide)
    study.optimize(searcher, num_samples=9, progress=False)
    after = {trial.id: trial.config for trial in study.trials}
    assert len(after) == 9
    assert {name: after[name] for name in before} == before
    new = [config for name, config in after.items() if name not in before]
    assert any(config["width"] == 6 or config["lr"] > 0.02 for config in new)
    with pytest.raises(StudyError, match=r"space: trial t00\d has (width|lr)=.*could not give"):
        opened(tmp_path / "s", blobs(), search_space=narrow).optimize(
            searcher, num_samples=12, progress=False
        )


@pytest.mark.parametrize(
    ("searcher", "was", "most"),
    [
        ("halving(reduction_factor=2)", 2, 4),
        ("halving(reduction_factor=2)", 3, 4),
        ("asha(reduction_factor=2)", 2, 4),
        ("asha(reduction_factor=2)", 3, 4),
        ("asha(reduction_factor=2, stopping=True)", 2, 4),
        ("pbt", 2, 4),
        ("pbt(perturbation_interval=2)", 3, 4),
        ("optuna", 1, 2),
        ("median(grace_period=3)", 2, 3),
    ],
)
def test_searchers_that_compare_go_on_to_more_epochs(
    tmp_path: Path, blobs: Any, searcher: str, was: int, most: int
) -> None:
    space = {"width": 4, "lr": LR}
    options = {"num_samples": 4, "progress": False, "policy": "fifo"}
    study = opened(tmp_path / "s", blobs(), search_space=space)
    study.optimize(searcher, max_epochs=was, **options)
    assert max(trial.epochs for trial in study.trials) == was
    study.optimize(searcher, max_epochs=most, **options)
    assert max(trial.epochs for trial in study.trials) == most
    assert all(trial.status in ("finished", "retired") for trial in study.trials)
    if searcher.startswith("halving"):
        at_once = opened(tmp_path / "at once", blobs(), search_space=space)
        at_once.optimize(searcher, max_epochs=most, **options)
        epochs = [trial.epochs for trial in at_once.trials]
        assert [trial.epochs for trial in study.trials] == epochs


@pytest.mark.parametrize(
    ("former", "latter", "why"),
    [
        ({}, {"max_epochs": 1}, "max_epochs: 2, now 1: trials were asked for more"),
        ({}, {"searcher": "random", "num_samples": 4}, "searcher: 'grid', now 'random'"),
        (
            {"searcher": "hyperband(reduction_factor=2)"},
            {"searcher": "hyperband(reduction_factor=2)", "max_epochs": 4},
            "max_epochs: 2, now 4: its brackets begin at max_epochs / reduction_factor",
        ),
        (
            {"searcher": "asha", "num_samples": 2},
            {"searcher": "asha(reduction_factor=2)", "num_samples": 2},
            "reduction_factor: 3, now 2: earlier trials were chosen, compared or stopped by it",
        ),
        (
            {"searcher": "patience(epochs=2)"},
            {"searcher": "patience(epochs=3)"},
            "epochs: 2, now 3: earlier trials were chosen, compared or stopped by it",
        ),
    ],
)
def test_what_would_make_the_past_untrue_is_refused_field_by_field(
    tmp_path: Path, blobs: Any, former: dict[str, Any], latter: dict[str, Any], why: str
) -> None:
    study = opened(tmp_path / "s", blobs())
    study.optimize(progress=False, **former)
    size = study.folder.journal.stat().st_size
    with pytest.raises(StudyError) as caught:
        study.optimize(progress=False, **latter)
    assert why in str(caught.value)
    assert study.folder.journal.stat().st_size == size


def test_a_changed_seed_or_grid_of_random_search_is_refused(tmp_path: Path, blobs: Any) -> None:
    space = {"width": shoal.grid([4, 8]), "lr": LR}
    options = {"num_samples": 1, "progress": False}
    opened(tmp_path / "s", blobs(), search_space=space).optimize(**options)
    other = opened(tmp_path / "s", blobs(), search_space=space, seed=1)
    with pytest.raises(StudyError, match="seed: 0, now 1: configurations and initial"):
        other.optimize(**options)
    space["width"] = shoal.grid([4, 8, 16])
    with pytest.raises(StudyError, match="num_samples of each combination"):
        opened(tmp_path / "s", blobs(), search_space=space).optimize(**options)


SPACE = {"width": 4, "lr": 0.01}


def scheduled(blobs: Any, make: Any) -> Any:
    class Scheduled(blobs):  # type: ignore[misc,valid-type]
        search_space = SPACE

        def configure_optimizers(self, model: Any, config: Any) -> Any:
            optimizer = super().configure_optimizers(model, config)
            return optimizer, make(optimizer)

    return Scheduled()


class ReadsEpochs:
    """Its learning rates depend on how long trials train."""

    def configure_optimizers(self, model: Any, config: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        epochs = self.max_epochs  # type: ignore[attr-defined]
        return optimizer, shoal.LRSchedule(lambda epoch: 1 - epoch / epochs / 9)


def test_schedules_that_were_made_for_fewer_epochs_are_said(tmp_path: Path, blobs: Any) -> None:
    rates = torch.optim.lr_scheduler
    with_rates = partial(scheduled, blobs)

    def said(name: str, recipe: Any) -> list[str]:
        study = opened(tmp_path / name, recipe)
        study.optimize(max_epochs=2, progress=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            study.optimize(max_epochs=3, progress=False)
        return [str(each.message) for each in caught]

    (cosine,) = said("cosine", with_rates(lambda o: rates.CosineAnnealingLR(o, T_max=2)))
    assert "1 trials are to go on from 2 to 3 epochs" in cosine
    assert "CosineAnnealingLR(T_max=2)" in cosine
    (own,) = said("own", type("Own", (ReadsEpochs, blobs), {"search_space": SPACE})())
    assert "a configure_optimizers that reads max_epochs" in own
    assert not said("steps", with_rates(lambda o: rates.StepLR(o, 2)))
    assert not said("warm", with_rates(lambda o: rates.LinearLR(o, total_iters=1)))
    with pytest.raises(StudyError, match="cannot grow with OneCycleLR"):
        said("one", with_rates(lambda o: rates.OneCycleLR(o, 0.1, total_steps=18)))


def test_trials_whose_weights_are_gone_cannot_go_on(tmp_path: Path, blobs: Any) -> None:
    study = opened(tmp_path / "s", blobs())
    study.optimize(progress=False)
    for path in (tmp_path / "s" / "checkpoints").rglob("*"):
        if path.is_file() and path.name != "RUN":
            path.unlink()
    with pytest.raises(StudyError, match="4 trials cannot go on, .*checkpoints are gone"):
        study.optimize(max_epochs=3, progress=False)


def counts(config: dict[str, Any]) -> None:
    """Counts from its checkpoint, up to what the configuration says."""
    count = (shoal.restore() or {"count": 0})["count"]
    while count < config["most"]:
        count += 1
        shoal.report({"loss": 1 / count}, checkpoint={"count": count})


def test_functions_that_returned_are_done_and_others_go_on(tmp_path: Path) -> None:
    study = shoal.create_study(
        counts, storage=tmp_path / "s", metric="loss", search_space={"most": shoal.grid([2, 9])}
    )
    study.optimize(max_epochs=4, progress=False)
    assert [trial.epochs for trial in study.trials] == [2, 4]
    study.optimize(max_epochs=6, progress=False)
    assert [trial.epochs for trial in study.trials] == [2, 6]
    assert [values["loss"] for _, values in study.trials[1].scores] == [
        1 / (n + 1) for n in range(6)
    ]


def test_a_study_gives_its_data_unless_that_changed(tmp_path: Path, blobs: Any) -> None:
    class Table(blobs):  # type: ignore[misc,valid-type]
        def data(self) -> shoal.Data:
            return shoal.Data.csv(tmp_path / "t.csv", label="y", encode={"kind": "onehot"})

    pytest.importorskip("pyarrow", reason="pip install pyarrow")
    rows = [f"{'abcde'[n % 5]},{n % 3}" for n in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["kind,y", *rows]))
    (tmp_path / "new.csv").write_text("kind\nb\ne")
    opened(tmp_path / "s", Table()).optimize(max_epochs=1, progress=False)
    study = shoal.load_study(tmp_path / "s")
    new = study.data().encode(tmp_path / "new.csv")
    assert new.tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
    (tmp_path / "t.csv").write_text("\n".join(["kind,y", "c,1", *rows]))
    with pytest.raises(StudyError, match="the data changed since this study was"):
        study.data()
    function = shoal.create_study(lambda config: None, storage=tmp_path / "f")
    with pytest.raises(StudyError, match="only recipes can do this"):
        function.data()


@pytest.mark.parametrize("policy", ["fifo", "pack", "hop"])
def test_failed_trials_are_tried_again_when_the_recipe_is_repaired(
    tmp_path: Path, blobs: Any, policy: str
) -> None:
    options = {"policy": policy, "fuse": False, "progress": False}
    study = opened(tmp_path / "s", blobs(fail=8))
    study.optimize(**options)
    broken = [trial.id for trial in study.trials if trial.status.startswith("failed")]
    assert len(broken) == 2
    repaired = opened(tmp_path / "s", blobs())
    repaired.optimize(**options)  # nobody asked for them
    assert sum(t.status.startswith("failed") for t in repaired.trials) == 2
    with pytest.raises(StudyError, match="try it again with retry_failed=True"):
        repaired.extend(broken[0], 9)
    assert (tmp_path / "s" / "trials" / broken[0] / "error.txt").exists()
    repaired.optimize(**options, max_epochs=3, retry_failed=True)
    assert {(t.status, t.epochs) for t in repaired.trials} == {("finished", 3.0)}
    assert not (tmp_path / "s" / "trials" / broken[0] / "error.txt").exists()
    at_once = opened(tmp_path / "at once", blobs())
    at_once.optimize(**options, max_epochs=3)
    assert same_weights(repaired, at_once)
    assert all(row["equal"] for row in repaired.replay())


class Late(shoal.Recipe):
    """Fails in its last epoch, while `broken`."""

    search_space = {"lr": shoal.grid([1e-2, 1e-3])}
    max_epochs, batch_size = 3, 16
    broken = False

    def __init__(self, blobs: Any) -> None:
        self.data = blobs().data
        self.configure_optimizers = blobs().configure_optimizers

    def configure_model(self, config: Any) -> Any:
        return torch.nn.Linear(5, 3)

    def training_step(self, model: Any, batch: Any, epoch: int) -> Any:
        if self.broken and epoch == 2:
            raise RuntimeError("too late.")
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_a_failed_study_goes_on_from_durable_states(tmp_path: Path, blobs: Any) -> None:
    options = {"policy": "fifo", "progress": False, "checkpoint_every": 0}
    recipe = Late(blobs)
    recipe.broken = True
    study = opened(tmp_path / "s", recipe)
    reasons = r"all of 2 trials failed: RuntimeError: too late. \(2 trials\).*retry_failed=True"
    for _ in range(2):  # the second run finds them failed
        with pytest.raises(StudyError, match=reasons):
            study.optimize(**options)
    (gone,) = (tmp_path / "s" / "checkpoints" / "t001").glob("*.pt")
    gone.unlink()
    recipe.broken = False
    before = len(study.lines())
    with pytest.warns(UserWarning, match="stay failed, because their checkpoints are gone .t001."):
        study.resume(progress=False, retry_failed=True)
    assert [t.status.partition(":")[0] for t in study.trials] == ["finished", "failed"]
    entries = [line.entry for line in study.lines()[before:]]
    visits = [v for each in entries if isinstance(each, Advanced) for v in each.visits.values()]
    assert len(visits) == 3, "the last epoch, of three shards"
    assert study.clone("t001", warm_start=False) == "t001-c1"
    assert study.replay(["t000"])[0]["equal"]


def test_another_metric_has_to_be_one_that_trials_have(tmp_path: Path, blobs: Any) -> None:
    opened(tmp_path / "s", blobs()).optimize(progress=False)
    before = (tmp_path / "s" / "journal.jsonl").read_bytes()
    with pytest.raises(StudyError, match="no trial .* 'acuracy'; they have accuracy, loss: run"):
        opened(tmp_path / "s", blobs(), metric="acuracy").optimize(progress=False)
    assert (tmp_path / "s" / "journal.jsonl").read_bytes() == before
    study = opened(tmp_path / "s", blobs(), metric="loss", mode="min")
    study.optimize(progress=False)
    assert shoal.load_study(tmp_path / "s").best_trial.value == min(
        trial.metrics["loss"] for trial in study.trials
    )
