"""Many tiny trials in a process of their own, which a test kills."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import shoal


class TinyTrials(shoal.Recipe):
    """Two epochs of two steps each."""

    batch_size = 8
    metric, mode, max_epochs = "accuracy", "max", 2

    def __init__(self, trials: int) -> None:
        self.search_space = {"lr": shoal.grid([0.001 * (n + 1) for n in range(trials)])}

    def data(self) -> shoal.Data:
        draw = np.random.default_rng(0)
        x = draw.normal(size=(24, 4)).astype("f4")
        y = (x[:, 0] > 0).astype("i8")
        return shoal.Data.arrays(x[:16], y[:16], validation=(x[16:], y[16:]))

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(4, 2)

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


def main(folder: str, trials: str, policy: str) -> None:
    torch.set_num_threads(1)
    study = shoal.create_study(TinyTrials(int(trials)), storage=folder, load_if_exists=True)
    study.optimize(policy=policy, progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
