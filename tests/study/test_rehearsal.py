"""Before a study begins one batch is tried: that finds mistakes, and leaves nothing."""

import itertools
import os
import random
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, pad
from torch.utils.data import DataLoader, Dataset, TensorDataset

import shoal
from shoal.core.errors import StudyError
from shoal.study import run
from shoal.train.data import columns as cols
from shoal.train.lane.blame import SHOAL
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.recipe.unit import TrialError
from shoal.train.stream.reader import Reader
from shoal.train.tools.error_text import said
from shoal.train.tools.rehearsal import telling_rows
from shoal.train.wide.lane import WideLane


def study_of(recipe: shoal.Recipe, folder: Path, **given: Any) -> shoal.Study:
    """A new study of the recipe."""
    return shoal.create_study(recipe, storage=folder / "s", **given)


def refused(study: shoal.Study, match: str, **given: Any) -> None:
    """The study does not begin."""
    with pytest.raises(StudyError, match=match):
        study.optimize(progress=False, **given)
    assert not study.folder.journal.exists()


def weights_of(study: shoal.Study) -> list[torch.Tensor]:
    """All trained numbers, trial by trial."""
    models = [study.load_model(trial.id) for trial in study.trials]
    return [tensor for model in models for tensor in model.state_dict().values()]


# -- what it leaves ------------------------------------------------------------------------------


class Noting(shoal.Recipe):
    """Draws random numbers everywhere, and keeps things on itself."""

    search_space = {"lr": shoal.grid([0.1, 0.01])}
    metric, mode, max_epochs = "loss", "min", 2
    batch_size = 16

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.numbers = np.random.default_rng(0)

    def data(self) -> shoal.Data:
        x = np.random.default_rng(1).normal(size=(96, 5)).astype("float32")
        return shoal.Data.arrays(x, shards=2, validation=0.25)

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        self.numbers.normal()
        return samples

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(5, 1)

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.calls.append("training_step")
        noise = torch.rand(()) + float(np.random.rand()) + random.random()
        return (model(batch[0]) - noise).square().mean()

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"loss": model(batch[0]).square()[:, 0]}


def test_it_changes_no_result_and_nothing_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = [Noting(), Noting()]
    with_it = study_of(recipes[0], tmp_path / "a")
    with_it.optimize(policy="fifo", progress=False)
    monkeypatch.setattr(run, "check_by_rehearsal", lambda *_: None)
    without = study_of(recipes[1], tmp_path / "b")
    without.optimize(policy="fifo", progress=False)
    assert len(recipes[0].calls) == len(recipes[1].calls) > 0
    assert len({repr(each.numbers.bit_generator.state) for each in recipes}) == 1
    assert all(map(torch.equal, weights_of(with_it), weights_of(without)))


def test_only_a_new_study_is_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(run, "check_by_rehearsal", lambda *_: seen.append(1))
    study = study_of(Noting(), tmp_path)
    study.optimize(max_epochs=1, progress=False)
    study.optimize(max_epochs=1, progress=False)
    study.resume(progress=False)
    study.optimize(max_epochs=2, progress=False)
    assert seen == [1]


# -- what it refuses, and what not ---------------------------------------------------------------


@pytest.mark.parametrize("bad", [4, 8])
def test_one_bad_configuration_is_left_to_its_trial(tmp_path: Path, blobs: Any, bad: int) -> None:
    study = study_of(blobs(fail=bad), tmp_path)
    study.optimize(max_epochs=1, progress=False)
    statuses = {trial.config["width"]: trial.status for trial in study.trials}
    assert statuses[bad].startswith("failed: RuntimeError: no such width")
    assert statuses[12 - bad] == "finished"


def test_a_key_that_only_a_step_reads_must_be_in_the_space(tmp_path: Path, blobs: Any) -> None:
    class Reading(blobs):  # type: ignore[misc,valid-type]
        def training_step(self, model: Any, batch: Any, config: Any) -> Any:
            return super().training_step(model, batch) * config["weight"]

    refused(study_of(Reading(), tmp_path), r"Reading reads config\['weight'\]")


def test_scores_that_few_samples_do_not_have_are_no_mistake(tmp_path: Path, blobs: Any) -> None:
    class Whole(blobs):  # type: ignore[misc,valid-type]
        def validation_epoch(self, outputs: Any) -> Any:
            if len(outputs["accuracy"]) < 30:
                raise ValueError("too few samples for this score")
            return {"accuracy": outputs["accuracy"].mean()}

    study = study_of(Whole(), tmp_path)
    study.optimize(max_epochs=1, progress=False)
    assert {trial.status for trial in study.trials} == {"finished"}


def test_values_of_training_may_be_the_metric(tmp_path: Path, blobs: Any) -> None:
    for name in ("loss", "accuracy"):
        study = study_of(blobs(), tmp_path / name, metric=name)
        study.optimize(max_epochs=1, progress=False)
        assert all(name in trial.scores[-1][1] for trial in study.trials)
    refused(study_of(blobs(), tmp_path, metric="train_loss"), "no metric 'train_loss'")


def test_a_batch_written_to_and_a_setting_of_the_recipe_are_told(
    tmp_path: Path, blobs: Any
) -> None:
    class Writing(blobs):  # type: ignore[misc,valid-type]
        def training_step(self, model: Any, batch: Any) -> Any:
            batch[0].mul_(2)
            return super().training_step(model, batch)

    class Setting(blobs):  # type: ignore[misc,valid-type]
        def training_step(self, model: Any, batch: Any) -> Any:
            self.seen = 1
            return super().training_step(model, batch)

    refused(study_of(Writing(), tmp_path), "a step wrote into its batch")
    refused(study_of(Setting(), tmp_path), "training_step sets self.seen")


def test_with_ray_the_driver_rehearses(tmp_path: Path, blobs: Any) -> None:
    study = study_of(blobs(), tmp_path, metric="acuracy")
    refused(study, "did you mean 'accuracy'", backend="ray", slots=1)


def test_one_model_for_all_is_refused_where_nothing_is_rehearsed(
    tmp_path: Path, blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with slots of GPUs or of another machine: they would find it at their second trials."""

    class Shared(blobs):  # type: ignore[misc,valid-type]
        one = nn.Linear(5, 3)

        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            return self.one

        def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
            return cross_entropy(model(batch[0]), batch[1])

    monkeypatch.setattr("shoal.study.checks._device", lambda *_: None)
    refused(study_of(Shared(), tmp_path), "which an earlier call returned, too")


def test_large_batches_are_not_rehearsed(tmp_path: Path, blobs: Any) -> None:
    class Large(blobs):  # type: ignore[misc,valid-type]
        batch_size = 10**6

    study = study_of(Large(fail=4), tmp_path, search_space={"width": 4, "lr": 0.1})
    with pytest.raises(shoal.StudyError, match="all of 1 trials failed"):
        study.optimize(num_samples=1, max_epochs=1, progress=False)


# -- what a recipe holds -------------------------------------------------------------------------


class Told:
    """An object that counts."""

    def __init__(self) -> None:
        self._number = 0.0

    def count(self) -> float:
        self._number += 1
        return self._number


def _counted(held: dict[str, Any]) -> float:
    held["steps"]["all"] += 1
    return float(held["steps"]["all"])


def _averaged(held: Any) -> float:
    held += 1
    return float(held.sum())


def _appended(held: Any) -> float:
    held.append(1.0)
    return float(len(held))


def _scaled(held: Any) -> float:
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    scale = float(held.scale(torch.ones(1)))
    held.step(torch.optim.SGD([parameter], lr=0.1))
    held.update()
    return scale


# what a recipe may hold from the beginning, and a number that a step takes from it and changes
HELD: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "list": (list, _appended),
    "deque": (lambda: deque(maxlen=3), _appended),
    "nested counts": (lambda: {"steps": Counter()}, _counted),
    "array": (lambda: np.zeros(3), _averaged),
    "tensor": (lambda: torch.zeros(3), _averaged),
    "object": (Told, Told.count),
    "generator": (lambda: np.random.default_rng(0), lambda held: float(held.random())),
    "torch's generator": (torch.Generator, lambda held: float(torch.rand((), generator=held))),
    "iterator": (lambda: itertools.count(1), lambda held: float(next(held))),
    "list of the class": (list, _appended),
    "scaler": (lambda: torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=2), _scaled),
}


@pytest.mark.parametrize("where", ["training_step", "validation_step"])
@pytest.mark.parametrize("case", HELD)
def test_what_a_recipe_holds_and_steps_change_is_refused(
    tmp_path: Path, blobs: Any, case: str, where: str
) -> None:
    make, change = HELD[case]

    class Holding(blobs):  # type: ignore[misc,valid-type]
        unused: ClassVar[dict[str, int]] = {"a": 1}
        held: Any = make() if "class" in case else None

        def __init__(self) -> None:
            super().__init__()
            if "class" not in case:
                self.held = make()
            self.table = torch.arange(9.0)

        def training_step(self, model: Any, batch: Any) -> Any:
            factor = change(self.held) if where == "training_step" else 1.0
            return super().training_step(model, batch) * (1 + factor)

        def validation_step(self, model: Any, batch: Any) -> Any:
            given = super().validation_step(model, batch)
            factor = change(self.held) if where == "validation_step" else 1.0
            return {name: value * factor for name, value in given.items()}

    told = r"changes what self\.held of Holding holds.*results differ.*model\.name = "
    refused(study_of(Holding(), tmp_path), told)


class Caching(Noting):
    """Keeps what depends on its key alone, and empties what it gathers."""

    scores: ClassVar[list[float]] = []

    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[int, torch.Tensor] = {}
        self.frozen = nn.Linear(5, 5).requires_grad_(False).eval()

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        return samples

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        size = len(batch[0])
        mask = self.masks.setdefault(size, torch.ones(size, 1))
        return model(self.frozen(batch[0]) * mask).square().mean()

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        self.scores.append(1.0)
        return super().validation_step(model, batch)

    def validation_epoch(self, outputs: Any) -> Any:
        self.scores.clear()
        return {"loss": outputs["loss"].mean()}


def test_a_recipe_may_keep_what_changes_no_result(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        study_of(Caching(), tmp_path / "a").optimize(max_epochs=1, progress=False)
    with pytest.warns(UserWarning, match=r"what self\.numbers of Noting holds"):
        study_of(Noting(), tmp_path / "b").optimize(max_epochs=1, progress=False)


def test_weights_that_validation_changes_are_refused(tmp_path: Path, blobs: Any) -> None:
    class Decaying(blobs):  # type: ignore[misc,valid-type]
        def validation_step(self, model: Any, batch: Any) -> Any:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.9)
            return super().validation_step(model, batch)

    class Swapping(Decaying):
        """Scores an average, and puts the weights back."""

        def validation_step(self, model: Any, batch: Any) -> Any:
            kept = [parameter.clone() for parameter in model.parameters()]
            scores = super().validation_step(model, batch)
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), kept, strict=True):
                    parameter.copy_(value)
            return scores

    refused(study_of(Decaying(), tmp_path / "a"), "validation changes the weights")
    study_of(Swapping(), tmp_path / "b").optimize(max_epochs=1, progress=False)


# -- data of every kind --------------------------------------------------------------------------


class Words(Dataset[Any]):
    """Items of unequal lengths, and labels."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return torch.ones(3 + index % 4), index % 3


def padded(items: list[Any]) -> Any:
    rows = [pad(x, (0, 8 - len(x))) for x, _ in items]
    return torch.stack(rows), torch.tensor([y for _, y in items])


class Classes(shoal.Recipe):
    """Sorts samples of whatever data it gets."""

    search_space = {"lr": shoal.grid([0.1, 0.01])}
    metric, mode, max_epochs = "acuracy", "max", 1
    batch_size = 8
    made: Any = None

    def data(self) -> Any:
        return type(self).made()

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(8, 3)

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


def columns() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.ones((40, 8), np.float32), np.arange(40) % 3


def loaders() -> Any:
    tensors = TensorDataset(*map(torch.from_numpy, columns()))
    return DataLoader(tensors, batch_size=4, shuffle=True), DataLoader(tensors)


KINDS = {
    "items with collate": lambda: shoal.Data.dataset(Words(), collate=padded),
    "loaders": loaders,
    "weighted": lambda: shoal.Data.arrays(*columns()).weighted(np.ones(40)),
    "bucketed": lambda: shoal.Data.dataset(Words(), collate=padded).bucketed(0),
    "folds": lambda: shoal.Data.arrays(*columns(), validation=None).folds(4),
}


@pytest.mark.parametrize("kind", KINDS)
def test_data_of_any_kind_that_can_be_read_by_rows_is_rehearsed(tmp_path: Path, kind: str) -> None:
    space = dict(Classes.search_space)
    if kind == "folds":
        space["fold"] = shoal.grid(range(4))
    Classes.made = staticmethod(KINDS[kind])
    refused(study_of(Classes(), tmp_path, search_space=space), "did you mean 'accuracy'")


def test_folds_that_the_data_lacks_are_refused(tmp_path: Path) -> None:
    Classes.made = staticmethod(KINDS["folds"])
    for domain in (shoal.grid(range(5)), shoal.choice([0, 4])):
        space = {**Classes.search_space, "fold": domain}
        study = study_of(Classes(), tmp_path, search_space=space)
        refused(study, r"a whole number from 0 to 3; got 4: .*grid\(range\(4\)\)", num_samples=2)


class Carrying(shoal.Recipe):
    """A recurrent model that hands its state on, and forgets to."""

    search_space = {"lr": shoal.grid([0.1, 0.01])}
    max_epochs, batch_size = 1, 4

    def data(self) -> shoal.Data:
        return shoal.Data.sequence(np.arange(400, dtype=np.float32)[:, None], window=8)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.RNN(1, 1, batch_first=True)

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any, state: Any) -> Any:
        out, _ = model(batch[0], state)
        return mse_loss(out, batch[1])


def test_steps_that_carry_a_state_are_rehearsed(tmp_path: Path) -> None:
    refused(study_of(Carrying(), tmp_path), "must return two things")


def test_samples_that_show_mistakes_are_in_the_batch() -> None:
    x = np.zeros((50, 3), np.float32)
    x[31, 1] = np.inf
    y = np.full(50, 2)
    y[40], y[7] = 9, -1
    assert set(telling_rows((x, y))) == {31, 40, 7}


def test_a_rare_label_without_an_output_is_found(tmp_path: Path) -> None:
    x, y = columns()
    y = y * 0
    y[37] = 3
    Classes.made = staticmethod(lambda: shoal.Data.arrays(x, y, validation=(x, y)))
    refused(study_of(Classes(), tmp_path), "labels must lie between 0 and")


def test_code_beside_the_package_is_the_users() -> None:
    place = f"{Path(SHOAL)}_of_mine{os.sep}recipe.py"
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", place, "exec"), {})
    assert "recipe.py, line 1" in said(caught.value)


class Selfless(shoal.Recipe):
    """A method lacks self, another one is called with too little."""

    def training_step(model: Any, batch: Any) -> Any:  # type: ignore[override]  # noqa: N805
        return model(batch)

    def blend(self, some: Any, others: Any) -> Any:
        return some + others


@pytest.mark.parametrize(
    ("call", "is_hinted"),
    [
        (lambda: Selfless().training_step(1, 2), True),  # type: ignore[call-arg]
        (lambda: Selfless().blend(1), False),  # type: ignore[call-arg]
        (weights_of, False),
    ],
)
def test_self_is_named_only_where_a_recipes_method_lacks_it(call: Any, is_hinted: bool) -> None:
    with pytest.raises(TypeError, match="positional argument") as caught:
        call()
    assert ("methods is self" in said(caught.value)) is is_hinted


# -- the smallest batches ------------------------------------------------------------------------


class Normed(Noting):
    """Normalizes over the batch; 72 training samples in two shards of 36."""

    batch_size = 7  # a rest of one

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


@pytest.mark.parametrize("policy", ["fifo", "pack"])
def test_a_trial_that_fails_on_a_last_batch_says_what_helps(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "check_by_rehearsal", lambda *_: None)
    study = study_of(Normed(), tmp_path)
    with pytest.raises(StudyError, match="1 sample instead of 7: set drop_last = True"):
        study.optimize(policy=policy, progress=False)


def test_so_does_a_wide_one() -> None:
    orders = Orders()
    cpu = torch.device("cpu")
    lane = TrainingLane(Normed(), {"lr": 0.1}, seed=0, device=cpu, epoch=72.0)
    chunk = (torch.ones(8, 5),)
    wide = WideLane(lane, orders)
    wide.begin(Reader(lambda at: (piece for piece in [cols.cut(chunk, at, 8)]), 8))
    with pytest.raises(TrialError, match="1 sample instead of 7: set drop_last = True"):
        list(wide.run(Seat("t", 1, 0, 1)))


@pytest.mark.parametrize("change", [{"drop_last": True}, {"batch_size": 6}])
def test_what_helps_against_a_last_batch_of_one_helps(
    tmp_path: Path, change: Mapping[str, Any]
) -> None:
    class Other(Normed):
        pass

    for name, value in change.items():
        setattr(Other, name, value)
    study = study_of(Other(), tmp_path)
    study.optimize(progress=False)
    assert [trial.status for trial in study.trials] == ["finished"] * 2


def test_a_loss_that_few_samples_make_nan_is_found(tmp_path: Path) -> None:
    class Spread(Noting):
        batch_size = 7

        def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
            made = model(batch[0])
            return (made / made.detach().std()).mean()  # NaN of one sample

    refused(study_of(Spread(), tmp_path), r"not finite \(NaN\) on few samples; .*drop")


def test_a_pass_of_one_small_batch_has_no_rest(tmp_path: Path) -> None:
    class Wrong(Normed):
        batch_size = 99

        def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
            raise RuntimeError("never")

    with pytest.raises(StudyError) as caught:
        study_of(Wrong(), tmp_path).optimize(progress=False)
    assert "never" in str(caught.value)
    assert "drop_last" not in str(caught.value)


def test_the_smallest_batch_of_a_validation_is_tried(tmp_path: Path) -> None:
    class Squeezing(Noting):  # 65 samples to validate on, 4 * 16 at once
        def data(self) -> shoal.Data:
            x = np.ones((80, 5), np.float32)
            return shoal.Data.arrays(x, validation=(np.ones((65, 5), np.float32),))

        def validation_step(self, model: nn.Module, batch: Any) -> Any:
            return {"loss": torch.stack(list(model(batch[0]).squeeze()))}

    refused(study_of(Squeezing(), tmp_path), r"validation_step raised .*float32 \(1, 5\)")
