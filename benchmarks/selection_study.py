"""The two ways of `model_selection.py` that are Shoal's: hopping, and whole copies of the data.

Each run is a process of its own, which `model_selection.py` starts; it prints what it found.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from selection_task import (
    BATCHES,
    CONFIGS,
    RATES,
    SEED,
    correct,
    emulate,
    named,
    network,
    optimizer,
)
from torch import nn

import shoal
from shoal.core.event import Advanced, Evaluated, Finished, Planned
from shoal.train.recipe.recipe import Recipe

POLICIES = {"hop": "hop", "copies": "fifo"}
Found = dict[str, Any]


class Selected(Recipe):
    """Trains on the catalogue's shards. What its processes read, and their peaks, are noted.

    `notes`: a folder. `asleep`: whether steps take the time of the device.
    """

    def __init__(self, catalogue: Path, notes: Path, asleep: bool = True) -> None:
        self.catalogue, self.notes, self.asleep = catalogue, notes, asleep

    def data(self) -> shoal.Data:
        return shoal.Data.shards(self.catalogue, cache=str(self.notes / "cache"))

    def read(self, path: Path) -> Any:
        with (self.notes / f"read-{os.getpid()}").open("a") as lines:
            lines.write(f"{Path(path).stat().st_size}\n")
        with np.load(path) as file:
            return file["x"], file["y"]

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return network()

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return optimizer(model, config)

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if self.asleep:
            emulate(len(batch[0]))
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        (self.notes / f"peak-{os.getpid()}").write_text(str(peak))
        return {"accuracy": correct(model, batch)}


def run(args: argparse.Namespace) -> Found:
    """One study, in the cluster at that address."""
    notes = args.folder / "notes"
    notes.mkdir()
    study = study_of(args, Selected(args.catalogue, notes))
    study.optimize(
        policy=POLICIES[args.run],
        max_epochs=args.epochs,
        backend="ray",
        address=args.address,
        slots=args.slots,
        feeders=0,
        checkpoint_every=1e9,
        progress=False,
    )
    checkpoints = args.folder / "study" / "checkpoints"
    saved = [file.stat().st_size for file in checkpoints.rglob("*") if file.is_file()]
    return told(study, args.slots, args.epochs) | {
        "saved": sum(saved),
        "read": sum(sum(numbers(file)) for file in notes.glob("read-*")),
        "peak": max(sum(numbers(file)) for file in notes.glob("peak-*")),
        "curves": curves(study),
    }


def study_of(args: argparse.Namespace, recipe: Selected) -> Any:
    space = {"batch_size": shoal.grid(list(BATCHES)), "lr": shoal.grid(list(RATES))}
    return shoal.create_study(
        recipe,
        storage=args.folder / "study",
        metric="accuracy",
        mode="max",
        search_space=space,
        seed=SEED,
        load_if_exists=True,
    )


def numbers(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


def told(study: Any, slots: int, epochs: int) -> Found:
    """What the journal says: seconds, by what slots did, and bytes that went between them."""
    lines, known = study.lines(), study.state.known
    begin = next(line.time for line in lines if isinstance(line.entry, Planned))
    end = max(line.time for line in lines if isinstance(line.entry, Finished))
    spent: Counter[str] = Counter()
    by_batch: Counter[int] = Counter()
    moved = 0
    for line in lines:
        if isinstance(line.entry, Advanced):
            moved += sum(line.entry.moved.values())
            for trial, seconds in line.entry.spent.items():
                spent.update(seconds)
                by_batch[known[trial].config["batch_size"]] += sum(seconds.values())
    took = end - begin
    shares = {name: each / (slots * took) for name, each in spent.items()}
    each = slots * epochs * len(RATES)
    return {
        "seconds": took,
        "shares": shares,
        "sent": moved,
        "seconds_by_batch": {str(b): by_batch[b] / each for b in BATCHES},
    }


def curves(study: Any) -> dict[str, list[float]]:
    """The accuracy of each configuration after each epoch."""
    known = study.state.known
    found: dict[str, list[float]] = {named(config): [] for config in CONFIGS}
    for line in study.lines():
        if isinstance(line.entry, Evaluated):
            name = named(known[line.entry.trial].config)
            found[name].append(line.entry.values["accuracy"])
    return found


def replayed(args: argparse.Namespace) -> bool:
    """Whether each trial learns the same alone, bit for bit, in its order of shards."""
    recipe = Selected(args.local, args.folder / "notes", asleep=False)
    return all(row["equal"] for row in study_of(args, recipe).replay())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", choices=POLICIES)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--address")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--catalogue", type=Path)
    parser.add_argument("--local", type=Path, help="to replay with")
    args = parser.parse_args()
    found = run(args)
    if args.local:
        found["replayed"] = replayed(args)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
