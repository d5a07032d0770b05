"""The means of an epoch's training values: part of the state, so that they hop and are resumed."""

from pathlib import Path
from typing import Any

import pytest
from train_kit import Small, blobs, copied, drive, planned, trainer, trial

from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.recipe.unit import Done, Unit
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.tools.verify import differences

DATA = blobs(chunk=13)


def units(at: Any, sources: Any) -> tuple[list[Done], Any]:
    """Two epochs, each unit at the trainer that `at()` gives; what came of the scored ones."""
    visits: tuple[Any, ...] = ()
    scored = []
    source = None
    where: SlotTrainer = at()
    for visit in planned(DATA, 2):
        evaluate = visit.shard == DATA.shards[-1]
        unit = Unit(trial(), visits, visit, source=source, evaluate=evaluate)
        _, done = drive(where.train(unit))
        visits = (*visits, done.visit)
        assert bool(done.trained) == evaluate
        if evaluate:
            scored.append(done)
        source = sources(where)
        state = copied(where.state(trial().id))
        where = at()
    return scored, state


def test_they_hop_and_are_resumed(tmp_path: Path) -> None:
    here = trainer(Small(), DATA)
    alone, state = units(lambda: here, lambda _: None)
    assert alone[0].trained["loss"] > alone[1].trained["loss"] > 0

    hopped, other = units(lambda: trainer(Small(), DATA), lambda at: copied(at.state(trial().id)))
    assert [done.trained for done in hopped] == [done.trained for done in alone]
    assert not list(differences(state, other))

    vault = Checkpoints(tmp_path, 1)
    vault.mark()
    resumed, other = units(lambda: trainer(Small(), DATA, vault), lambda at: at.keep(trial().id))
    assert [done.trained for done in resumed] == [done.trained for done in alone]
    assert not list(differences(state, other))


def test_they_are_means_over_the_epochs_samples() -> None:
    """Of all steps, whatever the lane reported in between."""
    here = trainer(Small(), DATA)
    visits: tuple[Any, ...] = ()
    total, count = 0.0, 0.0
    for visit in planned(DATA, 1):
        unit = Unit(trial(), visits, visit, evaluate=visit.shard == DATA.shards[-1])
        parts, done = drive(here.train(unit))
        visits = (*visits, done.visit)
        for part in parts:
            values, samples = part.values.get("loss", (0.0, 0.0))
            total, count = total + values, count + samples
    assert count == 90
    assert done.trained["loss"] == pytest.approx(total / count, rel=1e-12)
