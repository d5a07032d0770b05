"""Parameters that are not contiguous, with optimizers' one-pass kernels, which look at no
strides: all lies alike in memory.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from fused_kit import Images, alone, configs, images, lanes, weights
from torch import Tensor, nn

from shoal.train.fuse.fused import Fused, Unfusable
from shoal.train.lane.lane import TrainingLane
from shoal.train.wide.buckets import Buckets

KERNELS = ["sgd", "momentum", "adam", "adamw"]


class Last(Images):
    """Channels last, and a matrix that lies transposed."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        last = torch.channels_last if config.get("last", True) else torch.contiguous_format
        model = nn.Sequential(
            nn.Conv2d(1, 6, 3),
            nn.Tanh(),
            nn.Conv2d(6, 8, 3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        ).to(dtype=self.dtype, memory_format=last)
        model[5].weight = nn.Parameter(model[5].weight.detach().mT.contiguous().mT)
        return model


def compact(tree: Any) -> Any:
    """The state as another process gets it."""
    if isinstance(tree, dict):
        return {key: compact(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(compact(value) for value in tree)
    return np.array(tree, order="C") if isinstance(tree, np.ndarray) else tree


def pair(
    optimizer: str, k: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[list[TrainingLane], list[TrainingLane]]:
    recipe = Last(dtype)
    return lanes(recipe, configs(k, optimizer=optimizer)), lanes(
        recipe, configs(k, optimizer=optimizer)
    )


@pytest.mark.parametrize("optimizer", KERNELS)
def test_a_lane_that_takes_up_a_state_goes_on_as_if_undisturbed(optimizer: str) -> None:
    (one,), (other,) = pair(optimizer)
    alone(one, images())
    other.load(compact(one.state()))
    for lane in (one, other):
        alone(lane, images(seed=1))
    assert torch.equal(weights(one), weights(other))


def test_lanes_whose_parameters_are_not_contiguous_are_not_fused() -> None:
    with pytest.raises(Unfusable, match="not contiguous"):
        Fused(lanes(Last(), configs(2)))


def test_sums_over_slots_give_gradients_that_lie_as_the_parameters_do() -> None:
    (lane,), _ = pair("adam")
    (bucket,) = Buckets(list(lane.model.parameters()))._buckets
    for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
        parameter.grad = torch.randn_like(parameter)
        assert view.stride() == parameter.stride()
    flat: Tensor = bucket.collect()
    assert flat.numel() == sum(p.numel() for p in bucket.parameters)
    assert all(
        torch.equal(v, p.grad)
        for v, p in zip(bucket.views, bucket.parameters, strict=True)
        if p.grad is not None
    )


def test_the_kernels_are_not_used_for_parameters_with_gaps_in_memory() -> None:
    class Gaps(Images):
        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            model = super().configure_model(config)
            model[1].weight = nn.Parameter(torch.randn(16, 100)[:, :64])  # type: ignore[index]
            return model

    (lane,) = lanes(Gaps(), configs(1))
    assert not lane.optimizer.param_groups[0]["fused"]
