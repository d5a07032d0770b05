"""A `ShardRecipe` hops, packs, resumes and replays, whatever its state is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.errors import StudyError
from shoal.core.trial import TrialId
from shoal.study.folder import TrialsFailed
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.recipe.shard import ShardModel, ValueSum, arrays
from shoal.train.tools.check import check_recipe
from shoal.train.tools.verify import compare


class Line(shoal.ShardRecipe):
    """A line is fitted by steps, with noise from NumPy's global generator."""

    search_space = {"lr": shoal.grid([0.01, 0.02, 0.05, 0.1])}
    metric, mode, max_epochs, batch_size = "error", "min", 3, 8

    def data(self) -> shoal.Data:
        x = np.random.default_rng(0).normal(size=(90, 3)).astype("float32")
        y = x @ np.float32([1, 2, 3])
        return shoal.Data.arrays(x=x, y=y, shards=3, validation=0.2)

    def init(self, config: Mapping[str, Any]) -> Any:
        return {"w": np.random.normal(size=3), "steps": 0, "lr": config["lr"]}

    def train_shard(self, state: Any, batches: Iterator[Any], config: Mapping[str, Any]) -> Any:
        total, count = 0.0, 0
        for batch in batches:
            gap = batch["x"] @ state["w"] - batch["y"]
            noise = 0.01 * np.random.normal(size=3)
            state["w"] -= state["lr"] * (batch["x"].T @ gap / len(gap) + noise)
            state["steps"] += 1
            total += float((gap**2).sum())
            count += len(gap)
            batch["x"] += 1.0  # its own copy
        return {"loss": (total, count), "one": (count, count)}

    def validate_shard(self, state: Any, batches: Iterator[Any], config: Mapping[str, Any]) -> Any:
        gaps = [batch["x"] @ state["w"] - batch["y"] for batch in batches]
        every = np.concatenate(gaps)
        return {"error": (float((every**2).sum()), len(every))}

    def save(self, state: Any) -> Any:
        return {"w": state["w"], "steps": state["steps"]}

    def load(self, config: Mapping[str, Any], saved: Any) -> Any:
        return {"w": np.array(saved["w"]), "steps": saved["steps"], "lr": config["lr"]}


def states(study: shoal.Study) -> list[Any]:
    """The trials' last durable states, in order of their names."""
    vault = Checkpoints(study.folder.checkpoints, study.state.run)
    kept = study.state.kept
    return [vault.load(kept[TrialId(trial.id)].name) for trial in study.trials]


def optimized(place: Path, recipe: shoal.Recipe, **options: Any) -> shoal.Study:
    study = shoal.create_study(recipe, storage=place)
    study.optimize(progress=False, **options)
    return study


def test_packed_resumed_and_replayed_it_learns_as_alone(tmp_path: Path) -> None:
    alone = optimized(tmp_path / "alone", Line(), policy="fifo")
    packed = optimized(tmp_path / "packed", Line(), policy="pack")
    cut = shoal.create_study(Line(), storage=tmp_path / "cut")
    cut.optimize(policy="fifo", timeout=0.0, progress=False, checkpoint_every=0.0)
    assert any(trial.status == "running" for trial in cut.trials) or not cut.trials
    cut = shoal.load_study(tmp_path / "cut")
    cut.resume(progress=False)
    for study in (packed, cut):
        assert compare(states(alone), states(study)).equal
        assert [each.scores for each in study.trials] == [each.scores for each in alone.trials]
    assert all(row["equal"] for row in packed.replay())
    assert alone.best_trial.value < 0.05
    state = alone.best_model()
    assert isinstance(state, dict) and state["steps"] == 3 * 9
    assert alone.trials[0].samples == 216.0


def test_hopping_it_equals_its_replay(tmp_path: Path) -> None:
    study = optimized(tmp_path / "s", Line(), policy="hop", state_memory_gb=0.0)
    assert all(row["equal"] and not row["fused"] for row in study.replay())


def test_searches_with_rungs_and_warm_starts(tmp_path: Path) -> None:
    space = {"lr": shoal.loguniform(1e-3, 0.1)}
    study = shoal.create_study(Line(), storage=tmp_path / "s", search_space=space)
    study.optimize(shoal.ASHA(max_epochs=4), num_samples=6, progress=False)
    assert {trial.epochs for trial in study.trials} > {4.0}
    name = study.clone(study.best_trial.id, {"lr": 0.001}, max_epochs=6)
    study.resume(progress=False)
    copy = next(trial for trial in study.trials if trial.id == name)
    assert copy.epochs == 6.0 and study.load_model(name)["lr"] == 0.001


def test_the_check_and_a_wrong_validation() -> None:
    recipe = Line()
    found = check_recipe(recipe, recipe.data(), {"lr": 0.1}, neighbour={"lr": 0.2})
    assert found["ok"] and len(found["checks"]) == 5

    class Changing(Line):
        def validate_shard(self, state: Any, batches: Any, config: Any) -> Any:
            state["w"] += 1.0
            return super().validate_shard(state, batches, config)

    found = check_recipe(Changing(), recipe.data(), {"lr": 0.1})
    assert [name for name, passed, _ in found["checks"] if not passed] == [
        "validation changes nothing"
    ]


def test_bytes_are_kept_as_they_are(tmp_path: Path) -> None:
    class Raw(Line):
        def save(self, state: Any) -> bytes:
            return state["w"].tobytes() + bytes(range(256))

        def load(self, config: Any, saved: Any) -> Any:
            assert isinstance(saved, bytes) and saved[24:] == bytes(range(256))
            return {"w": np.frombuffer(saved[:24]).copy(), "steps": 0, **config}

    study = optimized(tmp_path / "s", Raw(), policy="fifo")
    assert all(row["equal"] for row in study.replay())
    assert np.abs(study.best_model()["w"] - [1, 2, 3]).max() < 0.2


def test_the_last_batch_can_be_dropped(tmp_path: Path) -> None:
    class Dropping(Line):
        drop_last = True

    study = optimized(tmp_path / "s", Dropping(), policy="fifo", max_epochs=1)
    assert study.best_model()["steps"] == 9  # three shards of 24 samples
    Dropping.batch_size = 16
    study = optimized(tmp_path / "t", Dropping(), policy="fifo", max_epochs=1)
    assert study.best_model()["steps"] == 3
    assert study.trials[0].samples == 72.0


# -- what is refused -----------------------------------------------------------------------------


def test_settings_of_steps_are_refused_before_the_first_line(tmp_path: Path) -> None:
    class Clipped(Line):
        gradient_clip_val = 1.0

    study = shoal.create_study(Clipped(), storage=tmp_path / "s")
    with pytest.raises(StudyError, match="Clipped sets gradient_clip_val"):
        study.optimize(progress=False)
    assert not study.folder.journal.exists()
    space = {"lr": 0.1, "batch_size": "max"}
    study = shoal.create_study(Line(), storage=tmp_path / "s", search_space=space)
    with pytest.raises(StudyError, match='batch_size="max" is for a Recipe'):
        study.optimize(progress=False)


def test_several_slots_are_refused(tmp_path: Path) -> None:
    study = shoal.create_study(Line(), storage=tmp_path / "s")
    with pytest.raises(StudyError, match="a ShardRecipe trains on one slot"):
        study.optimize(widths=(1, 2), progress=False)


class Blind(Line):
    """Nothing is validated."""

    metric = "loss"
    validate_shard = shoal.ShardRecipe.validate_shard


@pytest.mark.parametrize("metric", ["error", "train_loss"])
def test_without_validate_shard_only_training_gives_a_metric(tmp_path: Path, metric: str) -> None:
    study = shoal.create_study(Blind(), storage=tmp_path / "s", metric=metric)
    why = "it has no validate_shard, and train_shard returns loss, one"
    with pytest.raises(StudyError, match=why):
        study.optimize(progress=False)


def test_what_training_returns_counts_as_scores(tmp_path: Path) -> None:
    study = optimized(tmp_path / "s", Line(), policy="fifo")
    trial = study.trials[0]
    assert [epoch for epoch, _ in trial.scores] == [1.0, 2.0, 3.0]
    assert [sorted(values) for _, values in trial.scores] == [["error", "loss", "one"]] * 3
    curves = study.learning_curves()
    rows = curves[(curves.trial == trial.id) & (curves.name == "loss")]
    assert set(rows.split) == {"train"}
    told = [values["loss"] for _, values in trial.scores]
    assert list(rows.value) == pytest.approx(told, rel=1e-12)
    assert set(curves[curves.name == "error"].split) == {"validation"}
    packed = optimized(tmp_path / "pack", Line(), policy="pack", checkpoint_every=0)
    assert packed.trials[0].scores == trial.scores


def test_trials_can_be_ranked_by_what_training_returns(tmp_path: Path) -> None:
    study = optimized(tmp_path / "s", Blind())
    values = {trial.id: trial.scores[-1][1]["loss"] for trial in study.trials}
    assert study.best_value == min(values.values())
    assert len(study.trials_dataframe()["value"].dropna()) == 4


@pytest.mark.parametrize("every", [0.25, "2 steps"])
def test_within_a_visit_nothing_is_evaluated(tmp_path: Path, every: Any) -> None:
    study = shoal.create_study(Line(), storage=tmp_path / "s")
    with pytest.raises(StudyError, match="train_shard makes a whole pass by itself"):
        study.optimize(validate_every=every, progress=False)
    study.optimize(validate_every=1 / 3, progress=False)
    first = [epoch for epoch, _ in study.trials[0].scores][:3]
    assert first == pytest.approx([1 / 3, 2 / 3, 1.0])


@pytest.mark.parametrize(
    ("method", "returned", "match"),
    [
        ("train_shard", 1.0, r"train_shard must return \{name: \(sum, count\)\}"),
        ("train_shard", {"loss": 1.0}, "loss: got 1.0"),
        ("train_shard", {"loss": (1.0, 0)}, "loss: got the count 0.0"),
        ("train_shard", {"loss": (float("nan"), 3)}, "diverged"),
        ("validate_shard", {"error": 1.0}, "validate_shard must return"),
        ("save", object(), "must return bytes, or nested dicts"),
        ("save", {"names": np.array(["text"])}, "must return bytes, or nested dicts"),
    ],
)
def test_wrong_results_fail_the_trials(
    tmp_path: Path, method: str, returned: Any, match: str
) -> None:
    wrong = type("Wrong", (Line,), {method: lambda *_: returned})
    study = shoal.create_study(wrong(), storage=tmp_path / "s")
    with pytest.raises((StudyError, TrialsFailed), match=match):
        study.optimize(policy="fifo", progress=False)


def test_the_recipe_may_not_be_written_to(tmp_path: Path) -> None:
    class Storing(Line):
        def train_shard(self, state: Any, batches: Any, config: Any) -> Any:
            self.kept = state
            return super().train_shard(state, batches, config)

    study = shoal.create_study(Storing(), storage=tmp_path / "s")
    with pytest.raises((StudyError, TrialsFailed), match=r"sets self\.kept"):
        study.optimize(policy="fifo", progress=False)


def test_a_raising_trial_ends_alone(tmp_path: Path) -> None:
    class Raising(Line):
        def train_shard(self, state: Any, batches: Any, config: Any) -> Any:
            found = super().train_shard(state, batches, config)
            if config["lr"] == 0.02 and state["steps"] > 9:
                raise RuntimeError("no such luck")
            return found

    study = optimized(tmp_path / "s", Raising(), policy="pack")
    assert [trial.status[:6] for trial in study.trials] == ["finish", "failed", "finish", "finish"]


def test_what_stands_for_the_state() -> None:
    model = ShardModel(Line(), {"lr": 0.1})
    assert model.bytes == 24 and "(3,)" in model.form
    batch = arrays((np.zeros(3),))
    assert isinstance(batch, tuple)
    assert ValueSum(1.0, 2.0).total == 1.0
