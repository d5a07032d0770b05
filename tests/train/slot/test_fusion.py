"""Fusion: what is told of how much time fusing saves."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shoal.train.fuse.gauge import TRIES
from shoal.train.lane.measure import Meter
from shoal.train.slot.fusion import Fusion
from shoal.train.slot.passes import BatchGroup, Pass
from shoal.train.stream.stream import Batches


def test_what_a_round_changes_of_other_widths_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try of 8 was disturbed; by comparing it with 4 again, the figures of both
    change.
    """
    meter, told = Meter(torch.device("cpu")), dict[str, float]()
    monkeypatch.setattr(meter, "step", lambda signature: 2.0)
    monkeypatch.setattr(meter, "tell", lambda signature, **figures: told.update(figures))
    fusion, lane = Fusion(meter, paced=False), SimpleNamespace(signature="s")
    passes: list[Any] = [Pass(None, lane, None) for _ in range(8)]  # type: ignore[arg-type]
    group, costs = (
        BatchGroup(passes, Batches(8), "graph", "mix"),
        {1: 1.0, 8: 3.0, 4: 1.2, 2: 0.8},
    )
    for _ in range(3):
        while (trying := fusion.trying(group)) is not None:
            width, _ = trying
            fusion.timed(group, width, [[costs[width]] * TRIES])
        ratios = fusion.gauge.ratios("graph")
        assert told == {
            f"fused:{width}": pytest.approx(2.0 * width * ratio) for width, ratio in ratios.items()
        }
        costs[8] = 1.7
    assert ratios[8] < ratios[4]
