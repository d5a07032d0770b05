"""What validation_step may return, and what its scores are."""

from typing import Any

import numpy as np
import pytest
import torch
from device_kit import HERE
from torch import nn
from train_kit import Linear, blobs

from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.scoring import EVALUATION_BATCHES, evaluate
from shoal.train.stream.stream import Stream


def scores(outcome: Any, rows: int = 75) -> dict[str, float]:
    """Those of a recipe whose validation_step returns `outcome(losses of the samples)`."""

    class Scored(Linear):
        def validation_step(self, model: nn.Module, batch: Any) -> Any:
            x, y = batch
            return outcome(nn.functional.cross_entropy(model(x), y, reduction="none"))

    lane = TrainingLane(Scored(), {}, seed=3, device=HERE, epoch=90.0)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(rows, 6)).astype("f4"))
    return evaluate(lane, [(x, torch.from_numpy(rng.integers(0, 3, rows)))])


@pytest.mark.parametrize(
    "outcome",
    [
        lambda losses: {"loss": losses.mean()},
        lambda losses: {"loss": float(losses.mean())},
        lambda losses: {"loss": np.float32(losses.mean())},
        lambda losses: losses.mean(),
        lambda losses: losses,
    ],
    ids=["scalar", "float", "numpy", "scalar alone", "tensor alone"],
)
def test_a_batchs_mean_counts_for_all_its_samples(outcome: Any) -> None:
    """75 samples in batches of 32, 32 and 11: the mean of means would be another number."""
    assert 75 % (EVALUATION_BATCHES * Linear.batch_size)
    expected = scores(lambda losses: {"loss": losses})
    assert scores(outcome) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("outcome", "got"),
    [
        (lambda losses: {"x": losses.reshape(-1, 1)}, r"x: got shape \(3, 1\) for 3 samples"),
        (lambda losses: {"x": losses[:2]}, r"x: got shape \(2,\) for 3 samples"),
        (lambda losses: losses[:2], r"loss: got shape \(2,\) for 3 samples"),
        (lambda losses: {"x": "good"}, "x: got str"),
        (lambda losses: None, "got NoneType"),
        (lambda losses: 0.5, "got float"),
    ],
)
def test_anything_else_is_refused_with_the_rule(outcome: Any, got: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"validation_step must return.*{got}"):
        scores(outcome, rows=3)


def test_the_chunks_of_a_stream_make_one_mean() -> None:
    data = blobs(chunk=7, validation=0.25)
    lane = TrainingLane(Linear(), {}, seed=3, device=HERE, epoch=90.0)
    chunks = list(Stream(Linear(), data, seed=3, device=HERE, memory_gb=1.0).validation())
    x = torch.cat([chunk[0] for chunk in chunks])
    y = torch.cat([chunk[1] for chunk in chunks])
    expected = (lane.model(x).argmax(1) == y).float().mean()
    assert evaluate(lane, chunks)["accuracy"] == pytest.approx(float(expected))
