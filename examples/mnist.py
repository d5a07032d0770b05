"""Small convolutional networks on 10 000 MNIST images in IDX files.

shoal run examples/mnist.py         (with MNIST_DIR set, or: python examples/mnist.py --data DIR)
"""

import argparse
import os
from typing import Any

import numpy as np
import torch
from torch import nn

import shoal


class Mnist(shoal.Recipe):
    """28 x 28 grey images, ten classes; DIR holds t10k-images-idx3-ubyte.gz and
    t10k-labels-idx1-ubyte.gz.
    """

    search_space = {
        "channels": shoal.grid([8, 16]),
        "lr": shoal.grid([1e-3, 3e-3]),
    }
    metric, mode, max_epochs = "accuracy", "max", 2
    batch_size = 64

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder or os.environ.get("MNIST_DIR", "mnist")

    def data(self) -> shoal.Data:
        base = os.path.join(self.folder, "t10k-{}-ubyte.gz")
        return shoal.Data.idx(
            base.format("images-idx3"),
            base.format("labels-idx1"),
            shards=4,
            validation=0.2,
        )

    def prepare(self, samples: Any) -> Any:
        images, labels = samples
        return (images[:, None].astype(np.float32) / 255, labels.astype(np.int64))

    def configure_model(self, config: dict[str, Any]) -> nn.Module:
        c = config["channels"]
        return nn.Sequential(
            nn.Conv2d(1, c, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.Conv2d(c, 2 * c, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * c),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * c * 49, 10),
        )

    def configure_optimizers(
        self, model: nn.Module, config: dict[str, Any]
    ) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        images, labels = batch
        return {"accuracy": (model(images).argmax(1) == labels).float()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=None, help="the folder with the IDX files")
    parser.add_argument("--storage", default="runs/mnist")
    parser.add_argument("--backend", default="local")
    parser.add_argument("--slots", type=int, default=None)
    args = parser.parse_args()
    study = shoal.create_study(Mnist(args.data), storage=args.storage, load_if_exists=True)
    study.optimize(backend=args.backend, slots=args.slots)
    print("best:", study.best_trial.config, study.best_trial.value)
    print("report:", study.report())
