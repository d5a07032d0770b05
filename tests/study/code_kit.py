"""A program that makes a study of each kind of recipe, and one that goes on with all of them."""

import os
import sys
from pathlib import Path

import preloaded

ROOT = Path(__file__).resolve().parents[2]

# A package beside the script: what a recipe's module imports, one of them only when it is called.
FILES = {
    "parts/__init__.py": "",
    "parts/layers.py": "from .sizes import HIDDEN\n",
    "parts/sizes.py": "HIDDEN = 3\n",
    "late.py": "def rate(config):\n    return config['lr']\n",
    "net.py": """
import numpy as np
import torch
from torch import nn

import shoal
from parts.layers import HIDDEN


class Net(shoal.Recipe):
    search_space = {"lr": shoal.grid([0.1, 0.01])}
    metric, mode, max_epochs = "loss", "min", 1

    def __init__(self, act=nn.ReLU, sizes=(24, 2), share=np.float32(0.25), more=None):
        self.act, self.sizes, self.share, self.more = act, sizes, share, more

    def data(self):
        x = np.random.default_rng(0).normal(size=self.sizes).astype("float32")
        y = (x.sum(1) > 0).astype("int64")
        return shoal.Data.arrays(x, y, shards=2, validation=float(self.share))

    def configure_model(self, config):
        return nn.Sequential(nn.Linear(2, HIDDEN), self.act(), nn.Linear(HIDDEN, 2))

    def configure_optimizers(self, model, config):
        import late

        return torch.optim.SGD(model.parameters(), lr=late.rate(config))

    def training_step(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model, batch):
        logits = model(batch[0])
        return {"loss": nn.functional.cross_entropy(logits, batch[1], reduction="none")}


def train(config):
    shoal.report({"loss": config["lr"]})


def objective(trial):
    return trial.suggest_float("lr", 0.1, 0.9) ** 2


recipes = {"one": Net(), "other": Net(act=nn.Tanh)}
""",
    # It has no guard: whoever imports it as a whole begins all studies again.
    "script.py": """
import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

import net
import shoal

parser = argparse.ArgumentParser()
parser.add_argument("--scale", type=float)
args = parser.parse_args()
FACTOR = {"half": 0.5}


def scaled(value):
    return value * FACTOR["half"] * args.scale


@dataclass
class Sizes:
    hidden: int = 4


DEFAULT = Sizes(5)


class Mine(net.Net):
    def configure_model(self, config):
        size = DEFAULT.hidden
        return nn.Sequential(nn.Linear(2, size), self.act(), nn.Linear(size, 2))

    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=scaled(config["lr"]))


def train(config, power=1):
    shoal.report({"loss": scaled(config["lr"]) ** power})


def local():
    class Local(Mine):
        pass

    return Local()


LR = {"lr": shoal.grid([0.1, 0.01])}
MADE = {
    "class": Mine(),
    "attributes": Mine(nn.Tanh, (32, 2), more={"a": (1, {2}), "p": Path("x"), 3: DEFAULT}),
    "module": net.Net(),
    "function": train,
    "module-function": net.train,
    "partial": partial(train, power=2),
    "objective": net.objective,
    "several": {"one": Mine(), "other": net.Net()},
    "array": Mine(more=np.arange(3)),
    "local": local(),
    "lambda": lambda config: shoal.report({"loss": config["lr"]}),
}
for name, recipe in MADE.items():
    space = {} if name in ("objective", "several") else {"search_space": LR}
    metric = "value" if name == "objective" else "loss"
    study = shoal.create_study(recipe, storage=f"runs/{name}", metric=metric, mode="min", **space)
    samples = 2 if name == "objective" else None
    study.optimize(num_samples=samples, max_epochs=1, progress=False)
shoal.create_study(
    command="echo loss={lr}", storage="runs/command",
    metric="loss", mode="min", search_space=LR,
).optimize(progress=False)
loop = shoal.create_study(storage="runs/loop", search_space=LR)
loop.tell(loop.ask(), 0.5)
print(*MADE, "command", "loop")
""",
}

AGAIN = """
import json, sys, warnings
import shoal
found = {}
for name in sys.argv[1:]:
    study = shoal.load_study(f"runs/{name}")
    if name == "loop":
        study.tell(study.ask(), 0.25)
        found[name] = [study.best_value, True]
        continue
    known = len(study.trials)
    if name in ("objective", "lambda", "function", "module-function", "partial", "command"):
        study.enqueue({"lr": 0.5})
    elif name == "several":
        study.clone("t000", warm_start=False)
    else:
        study.clone("t000", {"lr": 0.05}, warm_start=False)
        study.extend("t001", 2)
    study.resume(progress=False)
    assert len(study.trials) == known + 1, name
    assert all(t.status == "finished" for t in study.trials), (name, study.trials)
    rows = study.replay() if study.state.kept else []
    agrees = all(row["verdict"] in ("equal", "agrees") for row in rows)
    found[name] = [study.best_value, agrees]
print(json.dumps(found))
"""


def written(folder: Path) -> Path:
    """The files of the program, in a new folder."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def python(folder: Path, *arguments: str) -> str:
    """What another Python prints there."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = preloaded.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
