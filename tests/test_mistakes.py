"""Typical mistakes: each gives one clear error before a trial trains, and the page shows it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.study.code.recipe_file import load_module, recipe_class
from shoal.tools.outcome import as_typed

PAGE = Path(__file__).parents[1] / "docs" / "mistakes.md"
SOURCE = """
import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import shoal


class Seen:
    def update(self, predictions, targets):
        pass

    def reset(self):
        pass

    def compute(self):
        return np.zeros(2)


class Net(shoal.Recipe):
    search_space = {"lr": shoal.grid([0.1, 0.01])}
    metric, mode = "accuracy", "max"
    max_epochs = 1
    batch_size = 16

    def data(self):
        y = np.arange(64) % 3
        x = np.ones((64, 5), np.float32)
        return shoal.Data.arrays(x, y, shards=2, validation=0.25)

    def configure_model(self, config):
        return nn.Linear(5, 3)

    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y)

    def validation_step(self, model, batch):
        x, y = batch
        return {"accuracy": (model(x).argmax(1) == y).float()}
"""
NO_RECIPE = "a model is no recipe; got Linear"


class Mistake(NamedTuple):
    """A line of the right recipe, what is written instead, and what the error says."""

    right: str
    wrong: str
    said: str


MISTAKES: Mapping[str, Mistake] = {
    "The model does not fit the samples": Mistake(
        "nn.Linear(5, 3)",
        "nn.Linear(7, 3)",
        "the batch: float32 (16, 5), int64 (16,); the sizes of the model's layers must fit",
    ),
    "Labels that are not whole numbers": Mistake(
        "np.arange(64) % 3",
        "(np.arange(64) % 3).astype('float32')",
        "labels of classes must be whole numbers",
    ),
    "More classes than outputs": Mistake(
        "nn.Linear(5, 3)", "nn.Linear(5, 2)", "labels must lie between 0 and"
    ),
    "A loss that is a plain number": Mistake(
        "F.cross_entropy(model(x), y)",
        "F.cross_entropy(model(x), y).item()",
        "training_step must return the loss",
    ),
    "An optimizer of another model": Mistake(
        "torch.optim.SGD(model.parameters()",
        "torch.optim.SGD(self.configure_model(config).parameters()",
        "are not the model's",
    ),
    "One model for all trials": Mistake(
        "def configure_model(self, config):\n        return nn.Linear(5, 3)",
        "one = nn.Linear(5, 3)\n    def configure_model(self, config):\n        return self.one",
        "configure_model returned 'weight' (3, 5), which an earlier call returned, too",
    ),
    "A loss of another model": Mistake(
        "F.cross_entropy(model(x), y)",
        "F.cross_entropy(self.configure_model({})(x), y)",
        "compute it with the model that training_step gets",
    ),
    "Numbers that are not finite": Mistake(
        "np.ones((64, 5), np.float32)",
        "np.where(y[:, None] == 2, np.nan, np.ones((64, 5), np.float32))",
        "the data holds numbers that are not finite",
    ),
    "A last batch of one sample": Mistake(
        "nn.Linear(5, 3)",
        "nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))\n\n    batch_size = 23",
        "with 1 sample instead of 23: set drop_last = True",
    ),
    "A score of another shape": Mistake(
        "(model(x).argmax(1) == y).float()",
        "(model(x).argmax(1, keepdim=True) == y[:, None]).float()",
        "accuracy: got shape (16, 1) for 16 samples: give it flattened, .reshape(-1)",
    ),
    "A misspelt metric": Mistake(
        'mode = "accuracy"', 'mode = "acuracy"', "did you mean 'accuracy'?"
    ),
    "A misspelt attribute": Mistake(
        "batch_size = 16", "batchsize = 16", "did you mean 'batch_size'?"
    ),
    "An attribute in the place of a dimension": Mistake(
        'lr=config["lr"]',
        "lr=self.lr)\n\n    lr = (0.1",
        "Net has an attribute 'lr' of its own and reads that, not the 'lr' of the search space",
    ),
    "A key that the search space lacks": Mistake(
        'config["lr"]', 'config["rate"]', "reads config['rate']"
    ),
    "A setting out of range": Mistake("batch_size = 16", "batch_size = -16", "batch_size"),
    "No validation data": Mistake(
        "validation=0.25", "validation=None", "its data have no validation part"
    ),
    "Data that is no shoal.Data": Mistake(
        "shoal.Data.arrays(x, y, shards=2, validation=0.25)", "x, y", "must return shoal.Data"
    ),
    "A generator on the recipe": Mistake(
        "max_epochs = 1",
        "max_epochs = 1\n    numbers = (n for n in range(9))",
        "its attribute 'numbers' (generator) cannot be pickled",
    ),
    "An open file on the recipe": Mistake(
        "max_epochs = 1",
        "max_epochs = 1\n    notes = open(os.devnull, 'w')",
        "its attribute 'notes' (TextIOWrapper) cannot be pickled",
    ),
    "A tuple for a range": Mistake(
        "shoal.grid([0.1, 0.01])", "(0.01, 0.1)", "write shoal.uniform(low, high)"
    ),
    "A list for the search space": Mistake(
        '{"lr": shoal.grid([0.1, 0.01])}', "[0.1, 0.01]", "search_space must be a dict"
    ),
}

# As people make them who come from other tools. The page does not show these.
FURTHER: Mapping[str, Mistake] = {
    "a step without return": Mistake("return F.cross_entropy(", "F.cross_entropy(", "got NoneType"),
    "a step without self": Mistake("training_step(self, model", "training_step(model", "is self"),
    "data without self": Mistake("data(self)", "data()", "is self"),
    "data that raises": Mistake("np.arange(64) % 3", "np.arange('a')", "data raised TypeError"),
    "a score that is a text": Mistake(
        "(model(x).argmax(1) == y).float()", "'good'", "accuracy: got str"
    ),
    "columns of two lengths": Mistake("np.ones((64, 5)", "np.ones((60, 5)", "got 0: 60, 1: 64"),
    "classes from 1": Mistake("% 3", "% 3 + 1", "labels must lie between 0 and"),
    "float64": Mistake("np.float32", "np.float64", "one kind of number"),
    "a model moved by hand": Mistake(
        "nn.Linear(5, 3)",
        "nn.Linear(5, 3).to('cuda')",
        "Shoal moves the model and batches to the trial's device: leave out .cuda()",
    ),
    "a class for a model": Mistake("nn.Linear(5, 3)", "nn.Linear", "must return a torch.nn.Module"),
    "batches of one sample under batch norm": Mistake(
        "nn.Linear(5, 3)",
        "nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))\n\n    batch_size = 1",
        "batch norm needs more than one sample in a batch",
    ),
    "scores compared across samples": Mistake(
        "(model(x).argmax(1) == y).float()",
        "(model(x).argmax(1, keepdim=True) == y).float()",
        "shapes (n, 1) and (n,) were compared",
    ),
    "a value of training for each sample": Mistake(
        "return F.cross_entropy(model(x), y)",
        'return {"loss": F.cross_entropy(model(x), y), "rows": x[:, 0]}',
        "rows: got shape (16,): give its .mean()",
    ),
    "a score for each class": Mistake(
        "def validation_step",
        """def validation_epoch(self, outputs):
        return {"accuracy": torch.zeros(3)}

    def validation_step""",
        "accuracy: got shape (3,): give its mean, or each of its numbers",
    ),
    "a metric object that gives a number for each class": Mistake(
        "def validation_step",
        """def configure_metrics(self, config):
        return {"seen": Seen()}

    def validation_step(self, model, batch):
        return {"seen": (model(batch[0]), batch[1])}

    def scored_before""",
        "seen: got shape (2,): give its mean, or each of its numbers",
    ),
    "no model": Mistake(
        "return nn.Linear(5, 3)", "nn.Linear(5, 3)", "must return a torch.nn.Module"
    ),
    "a name that is not there": Mistake(
        "nn.Linear(5, 3)", "nn.Linear(5, three)", "raised NameError"
    ),
    "an attribute of the configuration": Mistake('config["lr"]', "config.lr", "write config['lr']"),
    "a batch larger than a shard, dropped": Mistake(
        "batch_size = 16", "batch_size, drop_last = 99, True", "drop_last leaves nothing to train"
    ),
    "another word for max": Mistake('"max"', '"maximal"', 'mode must be "min" or "max"'),
    "an unknown value": Mistake(
        "shoal.grid([0.1, 0.01])", "print", "a configuration holds bool, int"
    ),
}


def written(folder: Path, mistake: Mistake) -> Path:
    """A file with a recipe that has the mistake."""
    assert mistake.right in SOURCE
    file = folder / "net.py"
    file.write_text(SOURCE.replace(mistake.right, mistake.wrong))
    return file


def trained(recipe: shoal.Recipe, storage: Path) -> shoal.Study:
    """The recipe's study, through."""
    study = shoal.create_study(recipe, storage=storage)
    study.optimize(progress=False)
    return study


@pytest.mark.parametrize("name", [*MISTAKES, *FURTHER])
def test_a_mistake_is_one_error_before_any_trial_trains(tmp_path: Path, name: str) -> None:
    mistake = {**MISTAKES, **FURTHER}[name]
    file = written(tmp_path, mistake)
    storage = tmp_path / "study"
    recipe = recipe_class(load_module(file))()
    with pytest.raises((shoal.StudyError, ValueError)) as caught:
        trained(recipe, storage)
    assert mistake.said in str(caught.value)
    assert not (storage / "journal.jsonl").exists()

    done = CliRunner().invoke(app, ["run", str(file), "--storage", str(storage)])
    assert done.exit_code in (1, 2)
    assert f"error: {as_typed(str(caught.value))}" in done.output
    assert "Traceback" not in done.output
    assert not (storage / "journal.jsonl").exists()


def test_the_page_names_these_mistakes_and_what_is_said() -> None:
    parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    shown = {part.split("\n", 1)[0]: " ".join(part.split()) for part in parts}
    assert list(shown) == [*MISTAKES, "A model for a recipe", "The rehearsal"]
    for name, mistake in MISTAKES.items():
        assert mistake.said in shown[name], name
        assert "Instead:" in shown[name], name
    assert NO_RECIPE in shown["A model for a recipe"]


def test_the_right_recipe_trains(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    recipe = recipe_class(load_module(file))()
    study = trained(recipe, tmp_path / "study")
    assert [trial.status for trial in study.trials] == ["finished"] * 2


def test_a_model_is_no_recipe(tmp_path: Path) -> None:
    from torch import nn

    with pytest.raises(shoal.StudyError, match=NO_RECIPE):
        shoal.create_study(nn.Linear(5, 3), storage=tmp_path / "study")
