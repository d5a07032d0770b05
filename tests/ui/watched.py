"""A study in a process of its own that takes its time, for a page to look at."""

import sys
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import shoal


class Watched(shoal.Recipe):
    """Many minutes in all, so that somebody can do something meanwhile."""

    batch_size = 32
    metric, mode, max_epochs = "accuracy", "max", 4000
    search_space = {"lr": shoal.grid([0.001, 0.003, 0.01, 0.03])}

    def data(self) -> shoal.Data:
        draw = np.random.default_rng(0)
        x = draw.normal(size=(160, 4)).astype("f4")
        y = (x[:, 0] > 0).astype("i8")
        return shoal.Data.arrays(x[:128], y[:128], validation=(x[128:], y[128:]))

    def configure_model(self, config: Any) -> nn.Module:
        return nn.Linear(4, 2)

    def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        sleep(0.02)
        return cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    study = shoal.create_study(Watched(), storage=Path(sys.argv[1]))
    study.optimize(policy="fifo", checkpoint_every=0, progress=False)
