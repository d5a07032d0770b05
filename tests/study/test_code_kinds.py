"""Each way of making a recipe is stored, and found again by another process: with its files, and
without them.
"""

import json
import shutil
from pathlib import Path

import code_kit as kit
import pytest

import shoal

PICKLED = {
    "array": "Mine.more (ndarray) is no plain data",
    "local": "was made within a function",
    "lambda": "was made within a function, or is a lambda",
}


def made(folder: Path) -> list[str]:
    """The studies that the program made."""
    kit.written(folder)
    return kit.python(folder, "script.py", "--scale", "0.8").split()


def manifest(folder: Path, name: str) -> dict:
    text = (folder / "runs" / name / "recipe" / "recipe.json").read_text()
    return json.loads(text)["recipe"]


@pytest.mark.slow
def test_another_process_goes_on_with_each_kind_of_recipe(tmp_path: Path) -> None:
    names = made(tmp_path)
    for name in names:
        found = manifest(tmp_path, name)
        assert found["kind"] == ("pickle" if name in PICKLED else "source"), name
        assert PICKLED.get(name, "") in (found["why"] or ""), name
    stored = manifest(tmp_path, "class")
    assert [each["name"] for each in stored["modules"]] == [
        "late",
        "net",
        "parts",
        "parts.layers",
        "parts.sizes",
        "shoal_recipe_script",
    ]
    assert set(stored["versions"]) >= {"python", "shoal", "torch", "numpy"}
    shutil.copytree(tmp_path / "runs", tmp_path / "copies")
    outcomes = json.loads(kit.python(tmp_path, "-c", kit.AGAIN, *names))
    assert set(outcomes) == set(names) and all(ok for _, ok in outcomes.values())

    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "copies").rename(tmp_path / "runs")
    for name in kit.FILES:
        (tmp_path / name).unlink()
    shutil.rmtree(tmp_path / "parts")
    left = [name for name in names if name != "local"]  # it imports net by name
    again = json.loads(kit.python(tmp_path, "-c", kit.AGAIN, *left))
    for name in left:
        if name != "objective":  # draws
            assert again[name] == pytest.approx(outcomes[name]), name
    assert manifest(tmp_path, "class") == stored, "it is stored as it was"


EDITED = """
import warnings
import shoal
from torch import nn
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    recipe = shoal.load_study("runs/class").recipe
assert any("script.py has changed since" in str(each.message) for each in caught)
rate = recipe.configure_optimizers(nn.Linear(2, 2), {"lr": 1.0}).defaults["lr"]
assert rate == 0.5 * 0.8 * 2, rate
"""


def test_an_edited_script_runs_as_it_is_now_and_no_more_of_it(tmp_path: Path) -> None:
    """Its new definitions need an import that was not there; the rest of it is not run."""
    kit.written(tmp_path)
    script = tmp_path / "script.py"
    begin, end = script.read_text().split("MADE = {")
    loop = end.split("for name", 1)[1].partition("\nshoal.create_study")[0]
    script.write_text(f'{begin}MADE = {{"class": Mine()}}\nfor name{loop}\n')
    kit.python(tmp_path, "script.py", "--scale", "0.8")
    text = script.read_text()
    assert "return value *" in text
    text = text.replace("import argparse", "import argparse\nimport math")
    text = text.replace("return value *", "return math.sqrt(4) * doubled(value) / 2 *")
    text = text.replace("@dataclass", "def doubled(value):\n    return 2 * value\n\n\n@dataclass")
    script.write_text(text + "\nraise SystemExit('the whole script ran')\n")
    kit.python(tmp_path, "-c", EDITED)


ELSEWHERE = """
import shoal
study = shoal.load_study("runs/module")
study.extend("t000", 2)
study.extend("t001", 2)
study.optimize(progress=False, max_epochs=2, {options})
assert [trial.status for trial in study.trials] == ["finished"] * 2, study.trials
assert all(row["verdict"] in ("equal", "agrees") for row in study.replay())
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", ["workers=1", 'backend="ray", slots=2'])
def test_other_processes_get_the_texts_of_modules_that_are_gone(
    tmp_path: Path, options: str
) -> None:
    if "ray" in options:
        pytest.importorskip("ray", reason="pip install 'shoal[ray]'")
    kit.written(tmp_path)
    begin = 'import net, shoal\nshoal.create_study(net.Net(), storage="runs/module")'
    (tmp_path / "begin.py").write_text(f"{begin}.optimize(progress=False)\n")
    kit.python(tmp_path, "begin.py")
    for name in (*kit.FILES, "begin.py"):
        (tmp_path / name).unlink()
    kit.python(tmp_path, "-c", ELSEWHERE.format(options=options))


LIGHTNING = """
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def loader():
    x = torch.arange(32.0).reshape(16, 2) / 32
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


class Line(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.lr, self.line = lr, nn.Linear(2, 1)

    def training_step(self, batch, at):
        return nn.functional.mse_loss(self.line(batch[0]), batch[1])

    def validation_step(self, batch, at):
        self.log("loss", nn.functional.mse_loss(self.line(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)
"""
HUGGINGFACE = """
import torch
from torch import nn


class Outcome(dict):
    loss = property(lambda self: self["loss"])


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)

    def forward(self, x, labels):
        logits = self.line(x)[:, 0]
        return Outcome(loss=nn.functional.mse_loss(logits, labels), logits=logits)


def items():
    return [{"x": [n / 9, 1.0], "labels": n / 9} for n in range(10)]


def collated(rows):
    return {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}
"""
KERAS = """
import keras
import numpy as np
import shoal


class Lines(shoal.ShardRecipe):
    def data(self):
        x = np.linspace(0, 1, 16, dtype="float32").reshape(8, 2)
        return shoal.Data.arrays(x, x.sum(1), shards=2, validation=0.25)

    def init(self, config):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(config["lr"]), "mse")
        return model

    def train_shard(self, model, batches, config):
        losses = [float(model.train_on_batch(*b)) for b in batches]
        return {"loss": (sum(losses), len(losses))}

    def validate_shard(self, model, batches, config):
        losses = [float(model.test_on_batch(*b)) for b in batches]
        return {"loss": (sum(losses), len(losses))}

    def save(self, model):
        return [*map(np.asarray, model.get_weights())]

    def load(self, config, state):
        model = self.init(config)
        model.set_weights([*state])
        return model
"""
ADAPTED = {
    "lightning": (LIGHTNING, "shoal.lightning(code.Line, train=code.loader, valid=code.loader)"),
    "transformers": (
        HUGGINGFACE,
        "shoal.huggingface(code.Line, code.items(), code.items(), code.collated, "
        "{'per_device_train_batch_size': 4}, metric='eval_loss', mode='min')",
    ),
    "keras": (KERAS, "code.Lines()"),
}
BEGIN = """
import shoal, {module} as code
recipe = {made}
study = shoal.create_study(recipe, storage="runs/adapted", metric="{metric}", mode="min",
                           search_space={{"{lr}": shoal.grid([0.1, 0.01])}})
study.optimize(max_epochs=1, progress=False)
"""
GO_ON = """
import shoal
study = shoal.load_study("runs/adapted")
study.clone("t000", warm_start=False)
study.resume(progress=False)
assert [trial.status for trial in study.trials] == ["finished"] * 3, study.trials
assert study.trials[0].value == study.trials[2].value
assert all(row["verdict"] in ("equal", "agrees") for row in study.replay())
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", ADAPTED)
def test_adapted_recipes_are_source_too(tmp_path: Path, library: str) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    text, made_by = ADAPTED[library]
    (tmp_path / "code_of_mine.py").write_text(text)
    lr = "learning_rate" if library == "transformers" else "lr"
    metric = "eval_loss" if library == "transformers" else "loss"
    begin = BEGIN.format(module="code_of_mine", made=made_by, metric=metric, lr=lr)
    (tmp_path / "begin.py").write_text(begin)
    kit.python(tmp_path, "begin.py")
    assert manifest(tmp_path, "adapted")["kind"] == "source"
    for name in ("begin.py", "code_of_mine.py"):
        (tmp_path / name).unlink()
    kit.python(tmp_path, "-c", GO_ON)


def test_a_users_own_names_are_not_taken_for_those_of_adapted_recipes(
    blobs: type, tmp_path: Path
) -> None:
    """Recipes of other libraries' code have methods of these names, and functions `run`."""
    recipe = blobs()
    recipe.named, recipe.renew, recipe.brought = 1, 2, 3
    recipe.run, recipe.function = 4, 5
    study = shoal.create_study(recipe, storage=tmp_path / "study")
    study.optimize(policy="fifo", max_epochs=1, progress=False)
    assert vars(shoal.load_study(tmp_path / "study").recipe)["function"] == 5
