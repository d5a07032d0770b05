"""Steady throughput of a wide lane against torch's DistributedDataParallel.

    python benchmarks/wide.py [--quick]

At widths 1 and 2 a small CNN is trained, each process on a core. At widths 4 and 8 the compute is
emulated: a step sleeps for each of its rows, in forward and between the layers of backward.
The gradients and their sums over gloo on loopback are real everywhere.

"shoal" is a trial on that many slots of the `ray` backend, as a study trains it. "ddp" is a plain
loop, one process for each rank, with its rows of each batch cut from memory. Both train all the
while in one run: each takes a turn of some steps, and its processes wait while the other has its
turn. The first turn of each is left out. The ratio of a width is the median over the rounds of
DDP's samples/s over Shoal's.

    python benchmarks/wide.py --curve

Emulated clusters (`papers/emulated_links.py`) instead: the greatest error of what a trial is
believed to make at widths 1 to 16 when it was measured at one or two of them, with the links
between the nodes and without. Nothing is timed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from threading import Thread
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
from common import write
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import shoal

ROWS = 32  # of a batch, for each rank
PER_ROW = 0.001  # emulated seconds
LAYERS, SIDE = 4, 256  # of the emulated model
PATIENCE = 240.0  # seconds until a turn that does not end counts as a hang
WIDTHS = {1: "CNN", 2: "CNN", 4: "emulated", 8: "emulated"}
WAYS = ("ddp", "shoal")
LINKS = ("latency", "transfer", "rings")  # figures of the links between nodes


@dataclass(frozen=True)
class Task:
    """What both ways train, `turns` times `steps` steps of it."""

    net: str
    width: int
    steps: int
    turns: int

    @property
    def batch(self) -> int:
        return ROWS * self.width

    @property
    def samples(self) -> int:
        return self.batch * (self.steps * self.turns + 1)  # one step ends the last turn

    def data(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        rng = np.random.default_rng(0)
        shape = (1, 16, 16) if self.net == "CNN" else (SIDE,)
        x = rng.standard_normal((self.samples, *shape), dtype=np.float32)
        return x, rng.integers(0, 10, self.samples)

    def model(self) -> nn.Module:
        if self.net == "CNN":
            return nn.Sequential(
                *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(512, 10)),
            )
        return Emulated()


class Emulated(nn.Module):
    """Layers that take the time of a device: a third of it forward, the rest backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIDE, SIDE) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        share = PER_ROW * len(x) / LAYERS
        for layer in self.layers:
            sleep(share / 3)
            x = layer(x)
            x.register_hook(lambda _: sleep(share * 2 / 3))
        return x


# -- turns ---------------------------------------------------------------------------------------


@dataclass
class Turns:
    """The steps of one process of a way: it waits for its turns, and notes when they ended.

    A turn begins when the file that says so is there.
    """

    folder: Path
    way: str
    steps: int
    made: int = 0

    def step(self) -> None:
        """A step begins."""
        if self.made % self.steps == 0:
            self.end()
            wait_for(self.folder / f"{self.way}-{self.made // self.steps}")
        self.made += 1

    def end(self) -> None:
        """Note that the turn so far is over."""
        turn = self.made // self.steps - 1
        (self.folder / f"{self.way}-{turn}-{os.getpid()}-ended").touch()


def wait_for(path: Path) -> None:
    until = monotonic() + PATIENCE
    while not path.exists():
        if monotonic() > until:
            raise TimeoutError(f"{path.name} did not come within {PATIENCE:g} s")
        sleep(0.002)


def wait_for_all(folder: Path, name: str, count: int) -> None:
    """Wait until so many processes have ended that turn."""
    until = monotonic() + PATIENCE
    while len(list(folder.glob(f"{name}-*-ended"))) < count:
        if monotonic() > until:
            raise TimeoutError(f"{name} did not end within {PATIENCE:g} s")
        sleep(0.002)


def take_turns(task: Task, folder: Path) -> dict[str, list[float]]:
    """Let the ways take their turns; returns the seconds of each turn but the first."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for way in WAYS:
        wait_for_all(folder, f"{way}--1", task.width)
    for turn in range(task.turns):
        order = WAYS if turn % 2 else WAYS[::-1]
        for way in order:
            begin = monotonic()
            (folder / f"{way}-{turn}").touch()
            wait_for_all(folder, f"{way}-{turn}", task.width)
            if turn:
                seconds[way].append(monotonic() - begin)
    for way in WAYS:
        (folder / f"{way}-{task.turns}").touch()
    return seconds


# -- Shoal ---------------------------------------------------------------------------------------


class Lane(shoal.Recipe):
    """The task as a recipe."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task = task
        self.folder = folder
        self.batch_size = task.batch
        self.driver = os.getpid()  # which rehearses a step

    def data(self) -> shoal.Data:
        return shoal.Data.arrays(*self.task.data(), shards=1, validation=None)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        model: Any = self.task.model()
        model.turns = Turns(self.folder, "shoal", self.task.steps)
        return model

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def training_step(self, model: Any, batch: Any) -> Tensor:
        if os.getpid() != self.driver:
            model.turns.step()
        x, y = batch
        return cross_entropy(model(x), y)


def in_shoal(task: Task, folder: Path) -> None:
    study = shoal.create_study(Lane(task, folder), storage=folder / "study", search_space={})
    study.optimize(
        policy=f"width(slots={task.width})",
        widths=(task.width, task.width),
        num_samples=1,
        max_epochs=1,
        backend="ray",
        slots=task.width,
        progress=False,
    )


# -- DDP -----------------------------------------------------------------------------------------


def of_ddp(task: Task, folder: Path, rank: int) -> None:
    """One rank's process."""
    torch.set_num_threads(1)
    model: Any = task.model()
    if task.width > 1:
        store = torch.distributed.FileStore(str(folder / "store"), task.width)
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=task.width)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = map(torch.from_numpy, task.data())
    turns = Turns(folder, "ddp", task.steps)
    for start in range(rank * ROWS, task.samples, task.batch):
        turns.step()
        rows = slice(start, start + ROWS)
        optimizer.zero_grad()
        loss = cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()


# -- the table -----------------------------------------------------------------------------------


def measured(task: Task) -> dict[str, Any]:
    """A row of the table."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ranks = [
            context.Process(target=of_ddp, args=(task, folder, rank), daemon=True)
            for rank in range(task.width)
        ]
        found: dict[str, dict[str, list[float]]] = {}
        driver = Thread(target=lambda: found.update(seconds=take_turns(task, folder)), daemon=True)
        for each in [*ranks, driver]:
            each.start()
        in_shoal(task, folder)
        for each in [*ranks, driver]:
            each.join(PATIENCE)
    seconds = found["seconds"]
    rates = {way: task.batch * task.steps / median(took) for way, took in seconds.items()}
    ratios = [s / d for s, d in zip(seconds["shoal"], seconds["ddp"], strict=True)]
    return {
        "width": task.width,
        "compute": task.net,
        **{f"{way} samples/s": round(rate) for way, rate in rates.items()},
        "ddp_over_shoal": round(median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


def curve_errors() -> None:
    """How far beliefs of unmeasured widths are off in emulated clusters."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "papers"))
    from emulated_links import CLUSTERS, worst

    from shoal.core.trial import Trial, TrialId
    from shoal.profile.measure import Belief

    trial = TrialId("a")
    known = {trial: Trial(trial, 1, {})}
    rows = []
    for name, cluster in CLUSTERS.items():
        for widths in ((1,), (1, 2), (1, 4)):
            links = {k: v for k, v in cluster.figures(1, 2).items() if k in LINKS}
            rates = {k: v for k, v in cluster.figures(*widths).items() if k not in LINKS}
            errors = []
            for figures in (rates | links, rates):
                belief = Belief({"s": figures}, {trial: "s"}, known)
                errors.append(round(worst(cluster, belief.curve(trial, 16)), 3))
            rows.append(
                {
                    "cluster": name,
                    "measured at": " and ".join(map(str, widths)),
                    "error with links": errors[0],
                    "without": errors[1],
                }
            )
    wide = [row for row in rows if row["measured at"] != "1"]
    ratios = {
        "curve_error": max(row["error with links"] for row in wide),
        "curve_error_without": max(row["without"] for row in wide),
        "curve_error_alone": max(row["error with links"] for row in rows),
    }
    write("wide-curve", rows, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--curve", action="store_true")
    asked = parser.parse_args()
    if asked.curve:
        curve_errors()
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    turns = 3 if asked.quick else 9
    rows = []
    for width in asked.widths:
        steps = 300 if WIDTHS[width] == "CNN" else 50
        if asked.quick:
            steps //= 5
        rows.append(measured(Task(WIDTHS[width], width, steps, turns)))
        print(rows[-1], flush=True)
    most = max(row["ddp_over_shoal"] for row in rows)
    name = "wide-quick" if asked.quick else "wide"
    write(name, rows, {"ddp_over_shoal": most})


if __name__ == "__main__":
    main()
