"""What is timed of units that several slots train, and how often that waits for the device."""

from types import SimpleNamespace
from typing import Any

import torch
from train_kit import Linear, blobs, planned, trainer, trial

from shoal.train.lane.measure import STEPS, Meter
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.recipe.unit import Unit
from shoal.train.slot.gang_units import StepTimes


def test_steps_are_timed_until_there_are_enough() -> None:
    """To look at the time is to wait for a GPU: later steps are not timed."""
    data = blobs(samples=800, shards=1, validation=None)
    held = trainer(Linear(), data)
    looks = []
    now = held.context.meter.now
    held.context.meter.now = lambda: looks.append(1) or now()  # type: ignore[method-assign]
    visits = planned(data, 2)
    held.gang.run(Unit(trial(), (), visits[0]), Seat(trial().id, 1, 0, 1), Orders())
    assert 800 // Linear.batch_size > STEPS
    assert STEPS <= len(looks) <= STEPS + 5
    looks.clear()
    made = visits[0]._replace(samples=800)
    held.gang.run(Unit(trial(), (made,), visits[1]), Seat(trial().id, 1, 0, 1), Orders())
    assert not looks


def test_links_that_a_lane_measured_are_told_once() -> None:
    meter = Meter(torch.device("cpu"))
    links = [{"latency": 1e-4, "transfer": 2.0}, {}]
    wide: Any = SimpleNamespace(
        lane=SimpleNamespace(signature="some"),
        widths=[(0, 1)],
        changes=SimpleNamespace(take=list),
        take_links=lambda: links.pop(0),
    )
    times = StepTimes(meter)
    times.report(wide)
    assert meter.news("some") == {"latency": 1e-4, "transfer": 2.0}
    times.report(wide)
    assert meter.news("some") == {}
