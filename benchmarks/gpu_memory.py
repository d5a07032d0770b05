"""What trials take of a GPU's memory, and what happens when it is short. Part of `gpu.py`.

    python benchmarks/gpu_memory.py check|probe|largest|short|all [--device cuda]

- check: `shoal check` for nets with convolutions and batch norm.
- probe: what Shoal measured that a trial takes, beside what a plain loop allocates at most.
- largest: the batch that `batch_size="max"` finds in 2 GiB, and in 8 GiB.
- short: eight models that fit alone but not together, and one that never fits, in 1 GiB: the eight
  finish, the ninth fails and says why.

Each prints one line of JSON with "ok"; all: each of them. On a CPU, the stand-in, memory has no
such limit: there the ninth model raises the error itself, and the eight may go together.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packing_nets import NETS, Images
from torch import Tensor, nn

import shoal
from shoal.core.event import Measured
from shoal.train.tools.check import check_recipe

BATCH, STEPS = 64, 8
CHECKED = ("CNN, 3x32x32", "MobileNet-like", "ResNet-18")
PROBED = ("MLP-3 x1024", "CNN, 3x32x32", "ResNet-18")
WIDTH, LAYERS = 2048, 8  # 32 million parameters: with gradients and Adam 0.5 GiB


class Sized(shoal.Recipe):
    """Square layers; the number of them is the configuration's."""

    batch_size = BATCH
    metric = "loss"
    max_epochs = 1

    def data(self) -> shoal.Data:
        rows = np.random.default_rng(0).normal(size=(STEPS * BATCH, WIDTH)).astype("float32")
        return shoal.Data.arrays(rows, validation=(rows[:BATCH],))

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            *(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(config["layers"]))
        )

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(model.parameters(), lr=config.get("lr", 1e-4))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]).square().mean()

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": model(batch[0]).square().mean(1)}


class ShortOnCpu(Sized):
    """The stand-in: narrow layers, and the model with the most of them has no room."""

    def data(self) -> shoal.Data:
        rows = np.random.default_rng(0).normal(size=(STEPS * BATCH, 16)).astype("float32")
        return shoal.Data.arrays(rows, validation=(rows[:BATCH],))

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(config["layers"])))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        if isinstance(model, nn.Sequential) and len(model) > LAYERS:
            raise torch.OutOfMemoryError("the stand-in's GPU has no room for that")
        return super().training_step(model, batch)


def check(device: str) -> dict[str, Any]:
    """`shoal check` of several nets."""
    found: dict[str, Any] = {}
    for net in CHECKED if device != "cpu" else CHECKED[:2]:
        recipe = Images(NETS[net].shape, STEPS * BATCH)
        config = {"net": net, "batch_size": 32, "lr": 1e-3}
        neighbour = {**config, "lr": 3e-3}
        checks = check_recipe(recipe, recipe.data(), config, neighbour=neighbour, device=device)
        failed = [f"{name}: {text}" for name, passed, text in checks["checks"] if not passed]
        found[net] = failed or "ok"
    return {"ok": all(each == "ok" for each in found.values()), **found}


def probe(device: str) -> dict[str, Any]:
    """GiB that Shoal measured, and that a plain loop allocates."""
    found: dict[str, Any] = {}
    for net in PROBED if device != "cpu" else PROBED[:1]:
        recipe = Images(NETS[net].shape, STEPS * BATCH)
        measured = measured_memory(recipe, net, device)
        plain = plain_memory(recipe, net, device)
        found[net] = {"measured_GiB": measured, "plain_GiB": plain}
    enough = [each["measured_GiB"] >= 0.9 * each["plain_GiB"] for each in found.values()]
    return {"ok": all(enough), **found}


def measured_memory(recipe: Images, net: str, device: str) -> float:
    """What a study's journal says of a trial of this net."""
    config = {"net": net, "batch_size": BATCH, "lr": 1e-3}
    with tempfile.TemporaryDirectory() as folder:
        study = shoal.create_study(recipe, storage=Path(folder) / "study", search_space=config)
        study.optimize(num_samples=1, max_epochs=2, policy="fifo", device=device, progress=False)
        entries = [line.entry for line in study.lines()]
    figures = [entry.figures for entry in entries if isinstance(entry, Measured)]
    return max((each["memory"] for each in figures if "memory" in each), default=0.0)


def plain_memory(recipe: Images, net: str, device: str) -> float:
    """The most that a plain loop has allocated at once; 0 on a CPU, which does not say."""
    if device == "cpu":
        return 0.0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = NETS[net].make().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        x = torch.rand(BATCH, *recipe.shape, device=device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            model(x), torch.zeros(BATCH, dtype=torch.long, device=device)
        ).backward()
        optimizer.step()
    torch.cuda.synchronize()
    return float((torch.cuda.max_memory_allocated() - before) / 2**30)


class Noted(Images):
    """Notes the batch of each model that is built; the last one is the batch that was found."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        BATCHES.append(config["batch_size"])
        return super().configure_model(config)


BATCHES: list[int] = []


def largest(device: str) -> dict[str, Any]:
    """The batch that is found for one net in little and in more memory; more must not give less."""
    found: dict[str, Any] = {}
    for gib in (2.0, 8.0):
        recipe = Noted(NETS["CNN, 3x32x32"].shape, 4096 if device != "cpu" else 64)
        config = {"net": "CNN, 3x32x32", "batch_size": "max", "lr": 1e-3}
        options: dict[str, Any] = {"policy": "fifo", "device": device, "slot_memory_gb": gib}
        with tempfile.TemporaryDirectory() as folder:
            study = shoal.create_study(recipe, storage=Path(folder) / "study", search_space=config)
            study.optimize(num_samples=1, max_epochs=1, progress=False, **options)
            status = study.trials[0].status
        found[f"{gib:g} GiB"] = BATCHES[-1] if status == "finished" else status
    values = list(found.values())
    numbers = all(isinstance(value, int) for value in values)
    return {"ok": numbers and values[0] <= values[1], **found}


def short(device: str) -> dict[str, Any]:
    """Eight trials that have no room together, and one that has none at all."""
    recipe = Sized() if device != "cpu" else ShortOnCpu()
    space = {"layers": LAYERS, "lr": shoal.grid([1e-4 * (1 + i) for i in range(8)])}
    with tempfile.TemporaryDirectory() as folder:
        study = shoal.create_study(recipe, storage=Path(folder) / "study", search_space=space)
        options: dict[str, Any] = {"policy": "pack", "device": device, "progress": False}
        if device != "cpu":
            options["slot_memory_gb"] = 1.0
        study.optimize(**options)
        study.enqueue({"layers": 16 * LAYERS, "lr": 1e-4}, max_epochs=1)
        study.optimize(**options)
        statuses = [trial.status for trial in study.trials]
    fine = [status == "finished" for status in statuses[:-1]]
    refused = statuses[-1].startswith("failed") and "memory" in statuses[-1].lower()
    return {
        "ok": all(fine) and len(fine) == 8 and refused,
        "finished": sum(fine),
        "ninth": statuses[-1],
    }


# Limits of memory are the process's: what has none comes first.
CASES = {"probe": probe, "check": check, "largest": largest, "short": short}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=(*CASES, "all"))
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in CASES if args.case == "all" else [args.case]:
        try:
            said = CASES[name](args.device)
        except Exception as error:  # noqa: BLE001 - the other cases say something, too
            traceback.print_exc()
            said = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"case": name, **said}), flush=True)


if __name__ == "__main__":
    main()
