"""Recipes that are stored as source: of each way to make one, with what they hold of Shoal's."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import sizes
import torch
from torch import nn

import shoal


def points(samples: int = 120) -> tuple[Any, Any]:
    """Three noisy clusters in five dimensions, and to which one each point belongs."""
    rng = np.random.default_rng(3)
    label = rng.integers(0, 3, samples)
    return (rng.normal(size=(samples, 5)) + 2 * np.eye(3, 5)[label]).astype("float32"), label


class Net(shoal.Recipe):
    """It holds a schedule, a search space and an error, all of them of Shoal's kinds."""

    metric, mode, max_epochs, batch_size = "loss", "min", 2, 4

    def __init__(self, held: Any = None) -> None:
        self.schedule = shoal.LRSchedule(sizes.decay, unit="samples")
        self.held = held
        self.search_space = {"width": shoal.grid([sizes.SMALL, sizes.LARGE]), "lr": 0.03}
        self.drawn = shoal.uniform(0, 1), shoal.choice({"a": {"b": shoal.randint(1, 3)}, "c": {}})
        self.error, self.callback = shoal.DataError, shoal.Callback()

    def data(self) -> shoal.Data:
        if self.held is not None:
            data: shoal.Data = self.held
            return data
        x, y = points(40)
        return shoal.Data.arrays(x[:, :2], y, shards=2, validation=0.25)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        width = int(config["width"])
        return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 3))

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(model.parameters(), lr=config["lr"]), self.schedule

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}


class Pickled(Net):
    """It holds arrays, and a function without a name: there is no source of it."""

    def __init__(self) -> None:
        x, y = points()
        tensors = torch.utils.data.TensorDataset(torch.as_tensor(x), torch.as_tensor(y))
        super().__init__(shoal.Data.arrays(x[:, :2], y, shards=2, validation=0.25))
        self.by_name = shoal.Data.arrays(point=x, label=y, shards=2)
        self.dataset = shoal.Data.dataset(tensors, shards=2)
        self.loader = shoal.Data.loader(torch.utils.data.DataLoader(tensors, 8, shuffle=True))
        self.joined = shoal.Data.dataset([{"x": [1.0], "y": n} for n in range(9)], 0.3, shards=2)
        self.ready = lambda: sizes.LARGE


class Sums(shoal.ShardRecipe):
    """A line whose steps are its own."""

    search_space = {"lr": shoal.grid([0.1, 0.01])}
    metric, mode, max_epochs, batch_size = "error", "min", 2, 8

    def data(self) -> shoal.Data:
        x, y = points(40)
        return shoal.Data.arrays(x, y.astype("float32"), shards=2, validation=0.25)

    def init(self, config: Mapping[str, Any]) -> Any:
        return {"line": np.zeros(5)}

    def train_shard(self, state: Any, batches: Any, config: Mapping[str, Any]) -> Any:
        for x, y in batches:
            state["line"] += config["lr"] * (y - x @ state["line"]) @ x / len(y)
        return {}

    def validate_shard(self, state: Any, batches: Any, config: Mapping[str, Any]) -> Any:
        errors = [((y - x @ state["line"]) ** 2).tolist() for x, y in batches]
        return {"error": (sum(map(sum, errors)), sum(map(len, errors)))}

    def save(self, state: Any) -> Any:
        return state

    def load(self, config: Mapping[str, Any], saved: Any) -> Any:
        return {"line": np.array(saved["line"])}


def train(config: Mapping[str, Any], power: int = 1) -> None:
    """A function that reports; what it comes to is known beforehand."""
    at = shoal.restore() or 0
    for epoch in range(at, 3):
        shoal.report(
            {"loss": sizes.decay(config["lr"]) ** power / (1 + epoch)}, checkpoint=epoch + 1
        )


def objective(trial: Any) -> float:
    """As Optuna has them."""
    return float(trial.suggest_categorical("lr", [0.5]) ** 2)


class Outcome(dict[str, Any]):
    """What a model of Hugging Face gives."""

    loss = property(lambda self: self["loss"])


class Line(nn.Module):
    """As a model of Hugging Face: its output has a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 1)

    def forward(self, x: Any, labels: Any) -> Outcome:
        logits = self.line(x)[:, 0]
        return Outcome(loss=nn.functional.mse_loss(logits, labels), logits=logits)


def items() -> list[dict[str, Any]]:
    """A list of dicts, as a Trainer takes it."""
    return [{"x": [n / 9, 1.0], "labels": n / 9} for n in range(10)]


def collated(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch of these items."""
    return {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}


def scores(seen: Any) -> dict[str, float]:
    """As a Trainer's compute_metrics."""
    return {"off": float(np.abs(seen.predictions - seen.label_ids).mean())}
