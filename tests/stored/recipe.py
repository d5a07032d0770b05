"""The recipes of the stored studies: small models of three noisy clusters, which train in
milliseconds.
"""

import os
from collections.abc import Mapping
from time import sleep
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal import (
    Data,
    DataError,
    LRSchedule,
    Recipe,
    choice,
    grid,
    loguniform,
    randint,
    uniform,
)

# environment variable: seconds that a step takes longer, so that a study can be cut off in its
# middle
SLOW = "STORED_SLOW"


def clusters(shards: int, samples: int, seed: int) -> Data:
    """Three noisy clusters in five dimensions."""
    if samples < shards:
        raise DataError(f"{shards} shards need {shards} samples at least; got {samples}")
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, samples)
    point = (rng.normal(size=(samples, 5)) + 2 * np.eye(3, 5)[label]).astype("float32")
    return Data.arrays(point, label, shards=shards, validation=0.25, seed=1)


class Clusters(Recipe):
    """A perceptron with one hidden layer. `fail` raises in trials of that width, `diverge`
    makes their loss nan.
    """

    search_space = {"width": grid([3, 5]), "lr": grid([0.03, 0.003])}
    metric, mode, max_epochs = "accuracy", "max", 2
    batch_size = 16
    nan_patience = 3

    def __init__(
        self,
        shards: int = 3,
        samples: int = 120,
        fail: int | None = None,
        diverge: int | None = None,
    ) -> None:
        self.shards, self.samples, self.fail, self.diverge = (
            shards,
            samples,
            fail,
            diverge,
        )

    def data(self) -> Data:
        return clusters(self.shards, self.samples, seed=3)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        width = int(config.get("width", 4))
        return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 3))

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        if config.get("optimizer") == "sgd":
            return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
        optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
        return optimizer, LRSchedule(lambda epoch: 1.0 / (1.0 + 0.25 * epoch))

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        sleep(float(os.environ.get(SLOW, "0")))
        width = model[0].out_features
        if width == self.fail:
            raise RuntimeError(f"{width} is no width")
        logits = model(batch[0])
        loss = nn.functional.cross_entropy(logits, batch[1])
        if width == self.diverge:
            loss = loss * float("nan")
        return {"loss": loss, "confidence": logits.detach().softmax(1).amax(1).mean()}

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        logits = model(batch[0])
        cross_entropy = nn.functional.cross_entropy(logits, batch[1], reduction="none")
        return {
            "accuracy": (logits.argmax(1) == batch[1]).float(),
            "cross_entropy": cross_entropy,
        }


class Drawn(Clusters):
    """With a space that is drawn from, and compared by a value that no two trials share."""

    search_space = {
        "width": choice([3, 4, 5]),
        "lr": loguniform(1e-3, 1e-1),
        "smoothing": uniform(0.0, 0.2),
        "seed": randint(0, 100),
    }
    metric, mode, max_epochs = "cross_entropy", "min", 4

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        sleep(float(os.environ.get(SLOW, "0")))
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Holding(Clusters):
    """It makes its data once and holds it, so that the pickled recipe holds it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.made = clusters(self.shards, self.samples, seed=4)

    def data(self) -> Data:
        return self.made


class Wide(Clusters):
    """Without dropout, in float64: a trial on two slots differs from one on one slot by
    rounding alone.
    """

    search_space = {"width": grid([3, 5])}
    batch_size = 10

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, config["width"]), nn.Tanh(), nn.Linear(config["width"], 3)
        ).double()

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        sleep(float(os.environ.get(SLOW, "0")))
        return nn.functional.cross_entropy(model(batch[0].double()), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        return {"accuracy": (model(batch[0].double()).argmax(1) == batch[1]).float()}
