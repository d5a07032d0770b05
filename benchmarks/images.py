"""The images that benchmarks of searches train on, and MLP-3 over the space of Pack's Table 3."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import shoal

MNIST = Path(__file__).resolve().parents[2] / "shared" / "data" / "mnist10k"
SPACE = {  # 1056 configurations
    "batch_size": shoal.choice([20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70]),
    "optimizer": shoal.choice(["Adam", "SGD", "Adagrad", "Momentum"]),
    "lr": shoal.choice([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1]),
    "activation": shoal.choice(["Sigmoid", "Leaky ReLU", "Tanh", "ReLU"]),
}
# One graph: what usually is searched once a network is chosen.
RATES = {
    "batch_size": shoal.choice([32]),
    "optimizer": shoal.choice(["Adam"]),
    "lr": shoal.loguniform(1e-4, 1e-2),
    "weight_decay": shoal.loguniform(1e-6, 1e-2),
    "seed": shoal.choice(list(range(8))),
    "activation": shoal.choice(["ReLU"]),
}
SPACES = {"table3": SPACE, "rates": RATES}
ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "Sigmoid": nn.Sigmoid,
    "Leaky ReLU": nn.LeakyReLU,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
}
WIDTH = 64


@lru_cache(maxsize=1)
def images() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], str]:
    """Rows in [0, 1], labels, and what they are: MNIST's 10 000 test images if they are at
    hand, else scikit-learn's digits.
    """
    if not MNIST.exists():
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return (
            (x / 16).astype("float32"),
            y.astype("int64"),
            f"scikit-learn's 1797 digits (no {MNIST.name} in ../shared/data)",
        )
    x = np.frombuffer(
        gzip.decompress((MNIST / "t10k-images-idx3-ubyte.gz").read_bytes()), "uint8", offset=16
    )
    y = np.frombuffer(
        gzip.decompress((MNIST / "t10k-labels-idx1-ubyte.gz").read_bytes()), "uint8", offset=8
    )
    return ((x.reshape(len(y), -1) / 255).astype("float32"), y.astype("int64"), "mnist10k")


def divided(most: int | None) -> tuple[Any, Any, Any, Any]:
    """Training images and labels (at most so many), validation images and labels: the last
    fifth.
    """
    x, y, _ = images()
    cut = len(x) * 4 // 5
    return x[: min(cut, most or cut)], y[: min(cut, most or cut)], x[cut:], y[cut:]


def network(config: Mapping[str, Any], inputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before in (inputs, WIDTH, WIDTH):
        layers += [nn.Linear(before, WIDTH), ACTIVATIONS[config["activation"]]()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def optimizer(config: Mapping[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    kinds = {"Adam": torch.optim.Adam, "Adagrad": torch.optim.Adagrad}
    rates = {"lr": config["lr"], "weight_decay": config.get("weight_decay", 0.0)}
    if config["optimizer"] in kinds:
        return kinds[config["optimizer"]](model.parameters(), **rates)
    return torch.optim.SGD(
        model.parameters(), momentum=0.9 if config["optimizer"] == "Momentum" else 0.0, **rates
    )


class Mlp3(shoal.Recipe):
    """MLP-3 on the images; `most`: training images."""

    def __init__(self, most: int | None = None, shards: int | None = None) -> None:
        self.most, self.shards = most, shards

    def data(self) -> shoal.Data:
        x, y, u, v = divided(self.most)
        return shoal.Data.arrays(x, y, shards=self.shards, validation=(u, v))

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return network(config, divided(1)[2].shape[1])

    def configure_optimizers(
        self, model: nn.Module, config: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        return optimizer(config, model)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}
