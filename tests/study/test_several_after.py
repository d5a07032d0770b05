"""What users do with a study of several recipes: the command line, results, going on."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import app

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
    typed("run", file, "--storage", folder, "--space", "lr=0.02", "--max-epochs", "1")
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
        (
            ["--searcher", "pbt(mutate=['recipe.lr'])", "--num-samples", "4"],
            "PBT copies weights",
        ),
    ],
)
def test_mistakes_are_one_line(
    file: Path, tmp_path: Path, more: list[str], words: str
) -> None:
    said = typed("run", file, "--storage", tmp_path / "s", *more, code=2)
    assert words in said and len(said.strip().splitlines()) == 1


def test_classes_are_no_recipes(file: Path, tmp_path: Path) -> None:
    said = typed("run", f"{file}:wrong", "--storage", tmp_path / "s", code=2)
    assert "give an instance, Pictures()" in said
