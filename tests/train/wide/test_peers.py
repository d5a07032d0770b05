"""How often a wide lane waits for its device."""

import torch
from train_kit import Linear, blobs, planned, trainer, trial

from shoal.train.lane.measure import STEPS
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.recipe.unit import Unit

CPU = torch.device("cpu")


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
