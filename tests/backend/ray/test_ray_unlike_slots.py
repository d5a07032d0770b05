"""Slots of unlike speed: what is measured of them, and orders that are planned by it."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from ray_kit import Bench, Given, Tiny, trials_of
from torch import nn

from shoal.core.event import Planned
from shoal.core.plan import Gang
from shoal.policy.hop.hop import Hop
from shoal.policy.hop.planned import PILOTS
from shoal.profile.measure import believe

pytestmark = pytest.mark.usefixtures("shared_ray")

STEP, SLOWER = 0.02, 4.0


class Unlike(Tiny):
    """The first process that trains is the slow slot: its steps take four times as long.

    Steps also take as long as the model is wide.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        place = self.folder / "slow"
        try:
            with place.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            pass
        factor = 1.0
        if place.read_text() == str(os.getpid()):
            factor = SLOWER
        width = model[0].out_features  # type: ignore[index, union-attr]
        time.sleep(STEP * factor * width / 8)
        return super().training_step(model, batch)


@pytest.mark.nightly  # plans for slots of unlike speed are tested in the simulator
def test_a_slow_slot_is_found_out_and_planned_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Unlike(tmp_path))
    trials = trials_of(bench.data, [4, 8, 12, 16], 3)
    bench.run(Given(trials), Hop("quick4"), slots=2, copies=2)

    slots = believe(bench.state).slots
    one, other = (slots.of(slot) for slot in bench.state.slots)
    ratio = max(one / other, other / one)
    assert 2.0 < ratio < 2 * SLOWER

    memory = bench.state.memory["policy"]
    assert memory.keys() == {trial.id for trial in trials}
    assert PILOTS not in memory
    gangs: list[Gang] = [gang for each in bench.events(Planned) for gang in each.start]
    made = [min(gang.slots) for gang in gangs]
    slow = min(bench.state.slots, key=slots.of)
    assert made.count(slow) < 0.45 * len(made), "the slow slot has the smaller part"
    for trial in trials:
        visits = [visit.shard for visit in bench.state.visits[trial.id]]
        assert visits[4:8] == visits[8:12] == [step[0] for step in memory[trial.id]]
    bench.check_visits(3)
    bench.check_weights()  # as retrained alone, over the same visits
