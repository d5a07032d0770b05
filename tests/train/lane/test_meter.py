"""What a slot measures, and that it waits for its device only while it measures."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import STEPS, Meter, all_reduce_figures


class SomeLane:
    """As much of a lane as timing needs."""

    signature, bytes = "some", 0
    settings = SimpleNamespace(batch_size=8, accumulate_grad_batches=1, batch_per_slot=False)
    parameters = (torch.nn.Parameter(torch.zeros(4)),)


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


def test_of_48_batches_the_last_20_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLEET's appendix B.3: the clock goes on by 1 second for the first 28 batches, by 2 for the
    next ten, by 3 for the last ten, and by 4 for batches after these.
    """
    meter = Meter(torch.device("cpu"))
    meter.learn_memory("some", 0)
    clock = [0.0]
    monkeypatch.setattr(meter, "now", lambda: clock[0])

    def steps() -> Iterator[int]:
        for seconds in [1.0] * 28 + [2.0] * 10 + [3.0] * 10 + [4.0] * 40:
            clock[0] += seconds
            yield 8

    lane = cast(TrainingLane, SomeLane())
    assert len(list(meter.timed(lane, steps()))) == 88
    meter.conclude(lane)
    assert meter.step("some") == 2.5
    assert meter.news("some") == {
        "step": 2.5,
        "rate": 8 / 2.5,
        "memory": 0.0,
        "transient": 0.0,
        "model": 16 / 2**30,
        "batch": 8.0,
    }


def test_it_tells_what_several_slots_would_sum_in_a_step() -> None:
    settings = {"batch_size": 8, "accumulate_grad_batches": 3, "batch_per_slot": False}
    frozen = torch.nn.Parameter(torch.zeros(9), requires_grad=False)
    lane: Any = SimpleNamespace(
        settings=SimpleNamespace(**settings),
        parameters=[torch.nn.Parameter(torch.zeros(4)), frozen],
    )
    assert all_reduce_figures(lane) == {"model": 16 / 2**30, "batch": 24.0}
    lane.settings.batch_per_slot = True
    assert all_reduce_figures(lane) == {}, "samples of a step grow with the width"
