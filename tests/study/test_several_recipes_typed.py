"""Studies of several recipes by name: the command line, results, going on."""

import signal
import sys
from pathlib import Path
from typing import Any

import killed_at
import preloaded
import pytest
import torch
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.core.errors import StudyError
from shoal.study.code.recipe_file import load_module

TWO = """
import numpy as np
import shoal
import torch
from torch import nn


def draw(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


class Pictures(shoal.Recipe):
    metric, mode, max_epochs = "accuracy", "max", 2
    search_space = {"width": shoal.grid([2, 3]), "lr": 0.01}

    def data(self):
        x = draw(60, 1, 6, 6)
        return shoal.Data.arrays(x, (x.sum((1, 2, 3)) > 0).astype("int64"), validation=0.2)

    def configure_model(self, config):
        width = config["width"]
        return nn.Sequential(nn.Conv2d(1, width, 3), nn.Flatten(), nn.Linear(16 * width, 2))

    def configure_optimizers(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model, batch):
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


class Table(shoal.Recipe):
    metric, mode, max_epochs, batch_size = "loss", "min", 2, 8
    search_space = {"lr": shoal.grid([0.1, 0.01])}

    def data(self):
        x = draw(50, 4)
        return shoal.Data.arrays(x, x.sum(1, keepdims=True), validation=0.2)

    def configure_model(self, config):
        return nn.Linear(4, 1)

    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def validation_step(self, model, batch):
        return {"loss": ((model(batch[0]) - batch[1]) ** 2)[:, 0]}


recipes = {"pictures": Pictures(), "table": Table()}
some = {"table": Table()}
wrong = {"pictures": Pictures, "table": Table()}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two recipes, and a dict of them."""
    path = tmp_path_factory.mktemp("two") / "two.py"
    path.write_text(TWO)
    return path


def typed(*args: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(each) for each in args])
    assert done.exit_code == code, done.output
    return done.output


def test_the_command_line_takes_a_dict_of_recipes(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    space = ("--space", "lr=0.02", "--max-epochs", "1")
    said = typed("run", file, "--storage", folder, *space)
    assert "best_by_recipe   gives the best trial of each recipe in Python" in said
    trials = shoal.load_study(folder).trials
    assert [each.config["recipe"] for each in trials] == ["pictures"] * 2 + ["table"]
    assert {each.config["lr"] for each in trials} == {0.02}
    typed("add", folder, "recipe=table", "lr=0.5", "--max-epochs", "2")
    typed("resume", folder)
    assert "4 finished" in typed("status", folder)
    assert "4 of 4 trials equal" in typed("replay", folder)


def test_the_check_is_of_each(file: Path) -> None:
    said = typed("check", file)
    assert "FAIL" not in said
    assert "pictures: repeats itself" in said and "table: repeats itself" in said
    assert "pictures" not in typed("check", f"{file}:some")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--space", "recipe='cube'"], "got 'cube'"),
        (["--searcher", "pbt(mutate=['recipe.lr'])", "--num-samples", "4"], "PBT copies weights"),
    ],
)
def test_mistakes_are_one_line(file: Path, tmp_path: Path, more: list[str], words: str) -> None:
    said = typed("run", file, "--storage", tmp_path / "s", *more, code=2)
    # a run that reads the data first says so, with its time in brackets
    lines = [line for line in said.strip().splitlines() if not line.startswith("[")]
    assert words in said and len(lines) == 1


def test_classes_are_no_recipes(file: Path, tmp_path: Path) -> None:
    said = typed("run", f"{file}:wrong", "--storage", tmp_path / "s", code=2)
    assert "give an instance, Pictures()" in said


@pytest.fixture(scope="module")
def study(file: Path, tmp_path_factory: pytest.TempPathFactory) -> shoal.Study:
    """Both recipes, of which one wants much accuracy and the other little loss."""
    made = shoal.create_study(
        load_module(file).recipes, storage=tmp_path_factory.mktemp("s") / "both"
    )
    made.optimize(policy="pack(grouping=random)", checkpoint_every=0, progress=False)
    return made


def test_each_trial_is_ranked_by_its_own_metric(study: shoal.Study) -> None:
    for trial in study.trials:
        name = {"pictures": "accuracy", "table": "loss"}[str(trial.config["recipe"])]
        values = [scores[name] for _, scores in trial.scores]
        choose = {"accuracy": max, "loss": min}[name]
        assert (trial.value, trial.best_value) == (values[-1], choose(values))
    best = study.best_by_recipe
    pictures, table = study.trials[:2], study.trials[2:]
    assert best["pictures"].value == max(each.value for each in pictures)
    assert best["table"].value == min(each.value for each in table)
    with pytest.raises(StudyError, match=r"do not compare: pictures accuracy \(max\), ta"):
        _ = study.best_trial


def test_status_and_report_have_the_best_of_each(study: shoal.Study) -> None:
    best, folder = study.best_by_recipe, study.folder.path
    said = typed("status", folder)
    assert f"best     accuracy {best['pictures'].value:.5g}"[:20] in said
    assert f"{best['table'].id}  recipe=table" in said
    said = typed("status", folder.parent)
    assert "best accuracy" in said and f"({best['table'].id})" in said
    page = study.report().read_text()
    assert "<h3>pictures</h3>" in page and "<h3>table</h3>" in page
    assert "highest accuracy of pictures" in page and "lowest loss of table" in page


def test_the_best_weights_are_those_of_the_best_score(study: shoal.Study) -> None:
    again = shoal.load_study(study.folder.path)
    for name, trial in again.best_by_recipe.items():
        part = study.recipe.parts[name]  # type: ignore[attr-defined]
        held = study.data().of[name]  # type: ignore[attr-defined]
        batch = [torch.as_tensor(x) for x in held.read(next(iter(held.validation)))]
        found = part.validation_step(again.load_model(trial, which="best"), batch)
        (value,) = (each.mean().item() for each in found.values())
        assert value == pytest.approx(trial.best_value, abs=1e-6)


@pytest.mark.slow
def test_schedules_watch_the_metric_of_their_recipe(file: Path, tmp_path: Path) -> None:
    module = load_module(file)

    class Watching(module.Table):  # type: ignore[name-defined, misc]
        max_epochs = 6

        def configure_optimizers(self, model: Any, config: Any) -> Any:
            made = super().configure_optimizers(model, config)
            plan = torch.optim.lr_scheduler.ReduceLROnPlateau(made, patience=0, threshold=0.5)
            return {"optimizer": made, "lr_scheduler": plan}

    def weights(recipe: Any, name: str) -> Any:
        made = shoal.create_study(recipe, storage=tmp_path / name)
        made.optimize(policy="fifo", progress=False, max_epochs=6)
        assert all(row["equal"] for row in made.replay())
        return made.load_model(made.trials[-1]).weight

    both = {"pictures": module.Pictures(), "table": Watching()}
    assert torch.equal(weights(both, "both"), weights(Watching(), "alone"))


def test_searches_that_compare_need_one_metric(file: Path, tmp_path: Path) -> None:
    study = shoal.create_study(load_module(file).recipes, storage=tmp_path / "s")
    with pytest.raises(StudyError, match="ASHA compares trials"):
        study.optimize("asha", num_samples=4, max_epochs=2, progress=False)
    assert not study.folder.journal.exists()


def test_one_name_with_two_meanings_is_no_common_metric(file: Path, tmp_path: Path) -> None:
    module = load_module(file)
    module.Pictures.metric = "loss"  # of which more is better there
    study = shoal.create_study(
        {"a": module.Pictures(), "b": module.Table()}, storage=tmp_path / "s"
    )
    assert study.metric is None


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(file: Path, tmp_path: Path) -> None:
    folder, epochs = tmp_path / "s", ["--max-epochs", "40"]
    policy = ["--policy", "pack(grouping=random)", "--no-fuse", "--checkpoint-every", "0"]
    run = ["run", str(file), *policy, *epochs, "--storage", str(folder)]
    command = [sys.executable, "-m", "shoal.cli", *run]
    killed = preloaded.run(killed_at.command("Kept", 4, command), timeout=120)
    assert killed.returncode == -signal.SIGKILL
    study = shoal.load_study(folder)
    assert len(study.state.kept) == 4 and not study.state.ended
    typed("resume", folder)
    assert {trial.epochs for trial in study.trials} == {40.0}
    alone = shoal.create_study(load_module(file).Table(), storage=tmp_path / "alone")
    alone.optimize(policy="fifo", max_epochs=40, progress=False)
    for own, trial in zip(alone.trials, study.trials[2:], strict=True):
        one, other = alone.load_model(own), study.load_model(trial)
        assert torch.equal(one.weight, other.weight)
    assert "4 of 4 trials equal" in typed("replay", folder)
