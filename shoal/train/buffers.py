"""A model's buffers, remembered and put back: a model may write to them, and put others in their place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Buffers(NamedTuple):
    """What a model's buffers were: each module's own, and the values of each."""

    places: list[tuple[dict[str, Tensor | None], dict[str, Tensor | None]]]
    values: list[tuple[Tensor, Tensor]]

    def put_back(self) -> None:
        """Make them that again: the same tensors with the same values."""
        for box, held in self.places:
            box.clear()
            box.update(held)
        with torch.no_grad():
            for buffer, was in self.values:
                buffer.copy_(was)


def buffers(model: nn.Module) -> Buffers:
    """What they are now."""
    places = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    return Buffers(places, [(buffer, buffer.clone()) for buffer in model.buffers()])
