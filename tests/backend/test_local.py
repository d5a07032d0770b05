"""The local backend: its contract, with real training; and what is its own."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shoal.backend.local import Local
from shoal.backend.positions import Positions
from shoal.core.check import PlanError
from shoal.core.cluster import Slot, SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.options import Options
from shoal.testing import Setting, check_backend
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer


def maker(recipe: Any, folder: Path) -> Any:
    data = recipe.data()
    runs = count(1)

    def make(state: State, since: Seconds) -> Local:
        vault = Checkpoints(str(folder), next(runs))
        vault.mark()
        trainer = SlotTrainer(
            recipe, data, vault, TrainerSetup(Options(checkpoint_every=0.0), run=vault.run)
        )
        course = Positions(0, data.sizes, state=state)
        return Local(trainer, course, Slot(SlotId("local"), shards=frozenset(data.shards)), since)

    return make, data


def test_contract(tmp_path: Path, blobs: Any) -> None:
    make, data = maker(blobs(fail=6), tmp_path)
    configs = [{"width": w, "lr": 0.01} for w in (4, 8, 5)]
    check_backend(Setting(make, data.sizes, configs, bad={"width": 6, "lr": 0.01}))


def test_it_says_what_it_cannot_run(tmp_path: Path, blobs: Any) -> None:
    make, _ = maker(blobs(), tmp_path)
    local = make(State(), 0.0)
    name = TrialId("a")
    local.submit(Trial(name, 10.0, {"width": 4, "lr": 0.1}))
    with pytest.raises(PlanError, match="the local backend has one slot"):
        local.change(None, Gang((Lane(name, (SlotId("local"), SlotId("other"))),)))


def test_a_unit_that_is_cut_is_void(tmp_path: Path, blobs: Any) -> None:
    """A gang with a quota that is stopped within its unit leaves no trace of it."""
    from shoal.core.event import Fell
    from shoal.core.plan import solo

    recipe = blobs(shards=1, samples=200)
    make, data = maker(recipe, tmp_path)
    local = make(State(), 0.0)
    trial = Trial(TrialId("a"), 300.0, {"width": 4, "lr": 0.1}, shards=frozenset(data.shards))
    moments = local.moments()
    next(moments)
    local.submit(trial)
    gang = solo(trial.id, SlotId("local"), 0, data.shards[0], float(sum(data.sizes.values())))
    local.change(None, gang)
    next(moments)  # a chunk is trained, the unit is not over
    local.change(gang, None)
    _, events = next(moments)
    assert events == (Fell(trial.id, 0, 0.0),)
    assert local.course.positions[trial.id].visits == ()
