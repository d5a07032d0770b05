"""What a slot measures, and that it waits for its device only while it measures."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import STEPS, Meter


class SomeLane:
    """As much of a lane as timing needs."""

    signature = "some"


def test_the_device_is_waited_for_only_while_steps_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    meter = Meter(torch.device("cuda:1"))
    meter.learn_memory("some", 0)
    lane = cast(TrainingLane, SomeLane())

    def steps(count: int) -> Iterator[int]:
        yield from [8] * count

    assert list(meter.timed(lane, steps(3 * STEPS))) == [8] * 3 * STEPS
    assert waits == [torch.device("cuda:1")] * 2 * STEPS
    assert not meter.wants("some")
    assert list(meter.timed(lane, steps(100))) == [8] * 100
    assert len(waits) == 2 * STEPS
