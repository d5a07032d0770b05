"""A small recipe with everything that a state must carry (dropout, batch norm, momentum,
schedules), and ways to run it.
"""

import pickle
from collections.abc import Generator, Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from device_kit import HERE
from torch import nn

from shoal.core.cluster import ShardId
from shoal.core.trial import Trial, TrialId, Visit
from shoal.options import Options
from shoal.train.data.data import Data
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.recipe.recipe import LRSchedule, Recipe
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import Done, Part, SlotTrainer, Unit

OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "plain": lambda p: torch.optim.SGD(p, lr=0.1),
}
SCHEDULES = {
    "none": lambda o: None,
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4),
    "steps": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 2]),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10.0),
    "epochs": lambda o: LRSchedule(lambda epoch: 1 / (1 + epoch)),
    "samples": lambda o: LRSchedule(lambda samples: 0.99 ** (samples / 10), unit="samples"),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=100),
    "each step": lambda o: {
        "scheduler": torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.95**step),
        "interval": "step",
    },
}


class Small(Recipe):
    batch_size = 8

    def __init__(self, **settings: Any) -> None:
        for name, value in settings.items():
            setattr(self, name, value)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
        )

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        optimizer = OPTIMIZERS[config.get("optimizer", "adam")](model.parameters())
        return optimizer, SCHEDULES[config.get("schedule", "none")](optimizer)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y = batch
        return {"accuracy": (model(x).argmax(1) == y).float()}


class Linear(Small):
    """Nothing random, nothing but a gradient: for arithmetic."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(6, 3)


def blobs(samples: int = 120, shards: int = 3, chunk: int | None = None, **options: Any) -> Data:
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, samples)
    x = (rng.normal(size=(samples, 6)) + 2 * np.eye(3, 6)[y]).astype(np.float32)
    data = Data.arrays(x, y, shards=shards, **{"validation": 0.25, **options})
    if chunk is not None:
        data.chunk = chunk
    return data


def trial(name: str = "a", **config: Any) -> Trial:
    return Trial(TrialId(name), 1e6, config)


def planned(data: Data, epochs: int) -> list[Visit]:
    return [Visit(epoch, shard, epoch, 0) for epoch in range(epochs) for shard in data.shards]


def drive(generator: Generator[Part, None, Done]) -> tuple[list[Part], Done]:
    parts = []
    while True:
        try:
            parts.append(next(generator))
        except StopIteration as stop:
            return parts, stop.value


def go(
    trainer: SlotTrainer,
    what: Trial,
    plan: Iterable[Visit],
    made: tuple[Visit, ...] = (),
    **first: Any,
) -> tuple[Visit, ...]:
    """Make the visits, evaluating at each epoch's end; `first`: fields of the first unit."""
    shards = len(trainer.context.data.shards)
    for visit in plan:
        evaluate = (len(made) + 1) % shards == 0
        _, done = drive(trainer.train(Unit(what, made, visit, **{"evaluate": evaluate, **first})))
        made, first = (*made, done.visit), {}
    return made


def trainer_setup(**named: Any) -> TrainerSetup:
    """The setup with these fields, and options, by name."""
    known = {each.name for each in fields(Options)} - {"device"}
    options = {name: named.pop(name) for name in [*named] if name in known}
    return TrainerSetup(Options(**options), **named)


def trainer(
    recipe: Recipe, data: Data, vault: Checkpoints | None = None, **options: Any
) -> SlotTrainer:
    named = {"seed": 3, "run": 1, "metric": "accuracy", "device": str(HERE), **options}
    return SlotTrainer(recipe, data, vault, trainer_setup(**named))


def even_pace(_: Trial, samples: float) -> float:
    """Every pass of a trial counts a second, whatever the clock says."""
    return 1.0


def copied(tree: Any) -> Any:
    """The state as another process would get it: its own memory, which cannot be written to."""
    if isinstance(tree, Mapping):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [copied(value) for value in tree]
    if isinstance(tree, np.ndarray):
        tree = tree.copy()
        tree.flags.writeable = False
    return tree


S0, S1, S2 = (ShardId(f"s00{i}") for i in range(3))


def rows_are_rows(data: Data) -> None:
    """Some rows are those of the whole part, in any order, also where the data travelled."""
    assert data.by_rows
    for each in (data, pickle.loads(pickle.dumps(data))):
        for part in (*data.shards, *data.validation):
            whole = data.read(part)
            index = np.random.default_rng(1).permutation(data.size(part))[:5]
            some = each.rows(part, index)
            names = list(whole) if isinstance(whole, dict) else range(len(whole))
            for name in names:
                assert np.array_equal(whole[name][index], some[name])
                assert whole[name].dtype == some[name].dtype
