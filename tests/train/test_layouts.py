"""Parameters that are not contiguous, with optimizers' one-pass kernels, which look at no strides: all lies alike in memory."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from fused_kit import Images, alone, configs, images, lanes, together, weights
from torch import Tensor, nn

from shoal.train.buckets import Buckets
from shoal.train.fused import Fused, Unfusable
from shoal.train.lane import Lane

KERNELS = ["sgd", "momentum", "adam", "adamw"]


class Last(Images):
    """Channels last, and a matrix that lies transposed."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        last = torch.channels_last if config.get("last", True) else torch.contiguous_format
        model = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Conv2d(6, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
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


def pair(optimizer: str, k: int = 1, dtype: torch.dtype = torch.float32) -> tuple[list[Lane], list[Lane]]:
    recipe = Last(dtype)
    return lanes(recipe, configs(k, optimizer=optimizer)), lanes(recipe, configs(k, optimizer=optimizer))


@pytest.mark.parametrize("optimizer", KERNELS)
def test_a_lane_that_takes_up_a_state_goes_on_as_if_undisturbed(optimizer: str) -> None:
    (one,), (other,) = pair(optimizer)
    alone(one, images())
    other.load(compact(one.state()))
    for lane in (one, other):
        alone(lane, images(seed=1))
    assert torch.equal(weights(one), weights(other))


@pytest.mark.parametrize("optimizer", KERNELS)
@pytest.mark.parametrize("hooked", [False, True])
def test_lanes_that_were_stacked_go_on_as_if_undisturbed(optimizer: str, hooked: bool) -> None:
    own, packed = pair(optimizer, 2)
    for one, other in zip(own, packed, strict=True):
        if hooked:  # such optimizers are stepped one by one
            other.optimizer.register_step_pre_hook(lambda *_: None)
        alone(one, images())
        alone(other, images())
    fused = Fused(packed)
    fused._bind()
    fused.loosen()
    for lane in (*own, *packed):
        alone(lane, images(seed=1))
    fused.split()
    for one, other in zip(own, packed, strict=True):
        alone(one, images(seed=2))
        alone(other, images(seed=2))
        assert torch.equal(weights(one), weights(other))
        assert [p.stride() for p in one.model.parameters()] == [p.stride() for p in other.model.parameters()]


@pytest.mark.parametrize("optimizer", KERNELS)
def test_fused_is_alone(optimizer: str) -> None:
    own, packed = pair(optimizer, 3, torch.float64)
    data = images(72, torch.float64)
    fused = Fused(packed)
    together(fused, data)
    fused.split()
    for one, other in zip(own, packed, strict=True):
        alone(one, data, 2)
        alone(other, data)
        assert float((weights(one) - weights(other)).abs().max()) < 1e-8


def test_lanes_of_unlike_layouts_are_refused() -> None:
    recipe = Last()
    with pytest.raises(Unfusable, match="in several ways"):
        Fused(lanes(recipe, [{"lr": 0.1}, {"lr": 0.1, "last": False}]))


def test_sums_over_slots_give_gradients_that_lie_as_the_parameters_do() -> None:
    (lane,), _ = pair("adam")
    (bucket,) = Buckets(list(lane.model.parameters()))._buckets
    for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
        parameter.grad = torch.randn_like(parameter)
        assert view.stride() == parameter.stride()
    flat: Tensor = bucket.collect()
    assert flat.numel() == sum(p.numel() for p in bucket.parameters)
    assert all(torch.equal(v, p.grad) for v, p in zip(bucket.views, bucket.parameters, strict=True) if p.grad is not None)


def test_the_kernels_are_not_used_for_parameters_with_gaps_in_memory() -> None:
    class Gaps(Images):
        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            model = super().configure_model(config)
            model[1].weight = nn.Parameter(torch.randn(16, 100)[:, :64])  # type: ignore[index]
            return model

    (lane,) = lanes(Gaps(), configs(1))
    assert not lane.optimizer.param_groups[0]["fused"]
