"""One model alone: a step in Shoal against a plain PyTorch loop and Lightning's Trainer.

    python benchmarks/step.py [--rounds 7] [--nets MLP CNN transformer]

It prints a table and writes benchmarks/results/step.json. All train the same model with Adam on one
thread, in batches of 32 of data in memory, in another order in each epoch. Nothing is validated.

What counts, in milliseconds a step:

- Shoal: `study.optimize` with one trial, from the decision to start it to its last line in the
  journal. That is the model, its training, its checkpoint and the journal.
- the plain loop: the model and its training. `plain_fused`: with Adam's fused kernel, which torch
  has to be asked for.
- Lightning: from `on_train_start` to `on_train_end`, with logger, checkpoints and progress off. It
  gets batches that are cut as in the plain loop, without a DataLoader.

`…_first_ms`: the same for a training of one step. It tells what a training costs however long it
is: the model, its first step, and in Shoal the checkpoint and the journal.

The ways take turns in each round. The least of the rounds counts.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import Any

import lightning
import numpy as np
import torch
from common import write
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import shoal
from shoal.core.event import Planned

BATCH = 32
CLASSES = 10
RATE = 1e-3


class Attending(nn.Module):
    """A small transformer over rows of 16 numbers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inward = nn.Linear(16, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.outward = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outward(self.encoder(self.inward(x)).mean(1))
        return out


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Linear(256, CLASSES),
    )


@dataclass(frozen=True)
class Net:
    """`shape`: of one sample. `batches`: of an epoch."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batches: int
    epochs: int

    @property
    def steps(self) -> int:
        return self.batches * self.epochs


NETS = {
    "MLP": Net(mlp, (20,), 500, 4),
    "CNN": Net(cnn, (1, 16, 16), 200, 3),
    "transformer": Net(Attending, (8, 16), 100, 3),
}


@dataclass(frozen=True)
class Task:
    """A net and its data."""

    net: Net
    x: Tensor
    y: Tensor

    @staticmethod
    def of(net: Net) -> Task:
        rng = np.random.default_rng(0)
        count = BATCH * net.batches
        x = torch.from_numpy(rng.normal(size=(count, *net.shape)).astype("float32"))
        return Task(net, x, torch.from_numpy(rng.integers(0, CLASSES, count)))

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """An epoch's batches, in a new order."""
        order = torch.randperm(len(self.x))
        for at in range(0, len(order), BATCH):
            rows = order[at : at + BATCH]
            yield self.x[rows], self.y[rows]


# -- ways: each gives the seconds of all steps ---------------------------------------------------


class Alone(shoal.Recipe):
    """The task as a recipe."""

    batch_size, shuffle = BATCH, "each"

    def __init__(self, task: Task) -> None:
        self.task = task

    def data(self) -> shoal.Data:
        return shoal.Data.arrays(self.task.x, self.task.y, validation=None)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return self.task.net.make()

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(model.parameters(), lr=RATE)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(model(x), y)


def in_shoal(task: Task) -> float:
    with tempfile.TemporaryDirectory() as place:
        study = shoal.create_study(Alone(task), storage=f"{place}/study")
        study.optimize(policy="fifo", max_epochs=task.net.epochs, progress=False)
        assert study.trials[0].status == "finished", study.trials[0].status
        lines = study.lines()
    started = next(
        line.time for line in lines if isinstance(line.entry, Planned) and line.entry.start
    )
    return lines[-1].time - started


def plain(task: Task, fused: bool | None = None) -> float:
    begin = perf_counter()
    model = task.net.make()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=fused)
    for _ in range(task.net.epochs):
        for x, y in task.batches():
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    return perf_counter() - begin


def plain_fused(task: Task) -> float:
    return plain(task, fused=True)


class Module(lightning.LightningModule):
    """The task as Lightning has it; it takes the time of its training."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.net.make()
        self.seconds = 0.0

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=RATE)

    def training_step(self, batch: Any, _: int) -> Tensor:
        x, y = batch
        return cross_entropy(self.model(x), y)

    def on_train_start(self) -> None:
        self.seconds = -perf_counter()

    def on_train_end(self) -> None:
        self.seconds += perf_counter()


class Loader:
    """An epoch's batches for each iteration."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __len__(self) -> int:
        return self._task.net.batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._task.batches()


def in_lightning(task: Task) -> float:
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=task.net.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module(task)
    trainer.fit(module, Loader(task))
    return module.seconds


WAYS: Mapping[str, Callable[[Task], float]] = {
    "shoal": in_shoal,
    "plain": plain,
    "plain_fused": plain_fused,
    "lightning": in_lightning,
}


# -- the table -----------------------------------------------------------------------------------


def least(task: Task, rounds: int) -> dict[str, float]:
    """Milliseconds of the task in each way, the least of the rounds."""
    seconds = dict.fromkeys(WAYS, inf)
    for _ in range(rounds):
        for way, train in WAYS.items():
            seconds[way] = min(seconds[way], train(task))
    return {way: 1e3 * took for way, took in seconds.items()}


def measured(name: str, rounds: int) -> dict[str, Any]:
    """A row of the table: milliseconds of a step in each way, and ratios."""
    net = NETS[name]
    first = least(Task.of(replace(net, batches=1, epochs=1)), rounds)
    whole = least(Task.of(net), rounds)
    steps = {f"{way}_ms": round(took / net.steps, 4) for way, took in whole.items()}
    firsts = {f"{way}_first_ms": round(took, 2) for way, took in first.items()}
    ours = whole.pop("shoal")
    ratios = {f"{way}_over_shoal": round(took / ours, 3) for way, took in whole.items()}
    return {"net": name, "steps": net.steps, **steps, **firsts, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    rows = [measured(name, asked.rounds) for name in asked.nets]
    names = ("plain_over_shoal", "plain_fused_over_shoal", "lightning_over_shoal")
    ratios = {name: min(row[name] for row in rows) for name in names}
    write("step", rows, ratios, packages=("lightning",))


if __name__ == "__main__":
    main()
