"""A grid of sixteen small networks on scikit-learn's handwritten digits.

shoal run examples/digits.py        (or: python examples/digits.py)
"""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import shoal


class Digits(shoal.Recipe):
    """1797 images of 8 x 8 pixels, ten classes; a stratified sixth is kept for validation."""

    search_space = {
        "width": shoal.grid([64, 128, 256, 512]),
        "lr": shoal.grid([1e-4, 3e-4, 1e-3, 3e-3]),
    }
    metric, mode, max_epochs = "accuracy", "max", 10
    batch_size = 32

    def data(self) -> shoal.Data:
        images, labels = load_digits(return_X_y=True)
        return shoal.Data.arrays(
            (images / 16).astype("float32"),
            labels,
            validation=1 / 6,
            stratify=1,
            shards=4,
        )

    def configure_model(self, config: dict[str, Any]) -> nn.Module:
        h = config["width"]
        return nn.Sequential(
            nn.Linear(64, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 10)
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
        scores = model(images)
        return {
            "accuracy": (scores.argmax(1) == labels).float(),
            "loss": nn.functional.cross_entropy(scores, labels, reduction="none"),
        }


if __name__ == "__main__":
    study = shoal.create_study(Digits(), storage="runs/digits", load_if_exists=True)
    study.optimize()
    print("best:", study.best_trial.config, study.best_trial.value)
    print("report:", study.report())
