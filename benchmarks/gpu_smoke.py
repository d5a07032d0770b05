"""Whether Shoal works on this device at all, in seconds. The first item of `gpu.py`.

    python benchmarks/gpu_smoke.py [--device cuda]

- lane: a trial trains alone, and learns.
- fused: four models that make their steps as one have the weights of each trained alone.
- checkpoint: a study's best model is loaded and scores as recorded; the study goes on from there.
- memory: of two trials in 1 GiB the one that has no room fails and says why; the other finishes.

Prints a line of JSON for each, with "ok". On a CPU, the stand-in, the last trial raises the error
itself.
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
from gpu_memory import LAYERS, ShortOnCpu, Sized
from packing_nets import NETS, Images, configs
from packing_ways import Lanes
from torch import Tensor, nn

import shoal

STEPS, BATCH, MODELS = 10, 32, 4
CLOSE = 1e-4  # weights after ten steps of Adam at a rate of 1e-3, which move them by 1e-2


def clusters(seed: int, count: int) -> tuple[Any, Any]:
    """Samples and the number of each one's cluster."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    return (rng.normal(size=(count, 8)) + 3 * np.eye(3, 8)[y]).astype("float32"), y


class Clusters(shoal.Recipe):
    """Three clusters, which a small net tells apart after an epoch."""

    metric, mode = "accuracy", "max"
    batch_size = BATCH

    def data(self) -> shoal.Data:
        return shoal.Data.arrays(*clusters(0, 960), validation=clusters(1, 240))

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


def lane(device: str, folder: Path) -> dict[str, Any]:
    """A trial alone."""
    study = shoal.create_study(Clusters(), storage=folder / "study", search_space={"lr": 1e-2})
    study.optimize(max_epochs=3, policy="fifo", device=device, progress=False)
    (trial,) = study.trials
    accuracy = trial.value or 0.0
    good = trial.status == "finished" and accuracy > 0.8
    return {"ok": good, "status": trial.status, "accuracy": accuracy}


def fused(device: str, folder: Path) -> dict[str, Any]:
    """The weights of models fused, against those of each alone, after one pass of SGD.

    Not of Adam, whose first steps make as much of a gradient that is nothing but rounding.
    """
    net = "MLP-3 x64"
    recipe = Images(NETS[net].shape, STEPS * BATCH)
    given = [{**config, "lr": 0.1, "optimizer": "SGD"} for config in configs(net, MODELS, BATCH)]
    alone, as_one = (Lanes(recipe, given, how, device) for how in ("sequential", "fused"))
    first = weights(alone)
    gap = apart(first, weights(as_one))
    moved = apart(first, weights(alone))  # by a second pass: what a lost one would show
    why = as_one.unfusable()
    good = why is None and gap < CLOSE and moved > 10 * CLOSE
    return {"ok": good, "apart": gap, "moved": moved, "not_fused": why}


def weights(lanes: Lanes) -> list[Tensor]:
    """All models' weights after one more pass, and where they were trained is checked."""
    lanes.visit()
    if lanes.how == "fused":
        lanes.parted()
    found = []
    for trial in lanes.trials:
        for weight in lanes.trainer.lanes.get(trial.id).lane.model.parameters():
            if weight.device.type != lanes.device:
                raise RuntimeError(f"trained on {weight.device}, not on {lanes.device}")
            found.append(weight.detach().double().cpu().clone())
    return found


def apart(some: list[Tensor], others: list[Tensor]) -> float:
    """The largest difference."""
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


def checkpoint(device: str, folder: Path) -> dict[str, Any]:
    """The best model from its file, and one more epoch from there."""
    space = {"lr": shoal.grid([1e-2, 3e-3])}
    options: dict[str, Any] = {"policy": "fifo", "device": device, "progress": False}
    study = shoal.create_study(Clusters(), storage=folder / "study", search_space=space)
    study.optimize(max_epochs=1, **options)
    recorded = study.best_trial.value
    x, y = clusters(1, 240)
    with torch.inference_mode():
        chosen = study.best_model().cpu()(torch.from_numpy(x)).argmax(1).numpy()
    loaded = float((chosen == y).mean())
    again = shoal.create_study(
        Clusters(), storage=folder / "study", search_space=space, load_if_exists=True
    )
    again.optimize(max_epochs=2, **options)
    epochs = [trial.epochs for trial in again.trials]
    good = recorded is not None and abs(loaded - recorded) < 0.01
    good = good and [float(each) for each in epochs] == [2.0, 2.0]
    return {"ok": good, "recorded": recorded, "loaded": loaded, "epochs": epochs}


def memory(device: str, folder: Path) -> dict[str, Any]:
    """Two trials of which one has no room."""
    space = {"layers": shoal.grid([2, 16 * LAYERS])}
    recipe = Sized() if device != "cpu" else ShortOnCpu()
    study = shoal.create_study(recipe, storage=folder / "study", search_space=space)
    limit = {} if device == "cpu" else {"slot_memory_gb": 1.0}
    study.optimize(policy="fifo", device=device, progress=False, **limit)
    small, large = (trial.status for trial in study.trials)
    good = small == "finished" and large.startswith("failed") and "memory" in large.lower()
    return {"ok": good, "small": small, "large": large}


CASES = {"lane": lane, "fused": fused, "checkpoint": checkpoint, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = case(args.device, Path(folder))
            except Exception as error:  # noqa: BLE001 - the next case says more about the device
                traceback.print_exc()
                said = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"case": name, **said}), flush=True)


if __name__ == "__main__":
    main()
