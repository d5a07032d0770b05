"""A study for tests of harvesting: small models, whose steps take some time."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import shoal


class Slow(shoal.Recipe):
    """Steps take as many seconds as the file SHOAL_TEST_STEP says, until it is gone. The weights
    are of 64 bits: rounding stays small on several slots, too.
    """

    search_space = {"width": shoal.grid([4, 5, 6, 7])}
    metric, mode, max_epochs, batch_size = "accuracy", "max", 6, 16

    def data(self) -> shoal.Data:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(320, 8))
        return shoal.Data.arrays(x, x[:, :3].argmax(1), shards=2, validation=0.2)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        width = config["width"]
        return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 3)).double()

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        with suppress(OSError):
            time.sleep(float(Path(os.environ.get("SHOAL_TEST_STEP", "")).read_text()))
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}
