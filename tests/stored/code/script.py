"""A script that begins studies of what it defines itself; it has no guard against an import."""

import sys
from dataclasses import dataclass
from typing import Any

import nets
import torch
from torch import nn

import shoal

FACTOR = {"half": 0.5}
GIVEN = len(sys.argv) - 1  # nothing in the file says what that was


@dataclass
class Sizes:
    """What a variable of the script is an instance of."""

    hidden: int = 4


DEFAULT = Sizes(5)


class Mine(nets.Net):
    """Its code reads variables of the script."""

    def configure_model(self, config: Any) -> nn.Module:
        size = DEFAULT.hidden
        return nn.Sequential(nn.Linear(2, size), nn.ReLU(), nn.Linear(size, 3))

    def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
        rate = config["lr"] * FACTOR["half"] * GIVEN
        return torch.optim.Adam(model.parameters(), lr=rate), self.schedule


shoal.create_study(Mine(), storage=sys.argv[1], seed=7).optimize(
    policy="fifo", device="cpu", progress=False
)
