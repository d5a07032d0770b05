"""`shoal data shard`: sizes by the speeds of nodes, given or measured in a study."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from shoal.cli import app
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Advanced, Joined, Planned
from shoal.core.plan import solo
from shoal.core.trial import TrialId
from shoal.engine.journal import Line
from shoal.study.folder import StudyError
from shoal.tools.data.speeds import measured_speeds, speeds_of

RATES = {"large": {"a": 100.0, "b": 50.0}, "small": {"a": 4000.0, "b": 2000.0}}


def lines():
    """Two trials on two nodes, of which a is twice as fast; a third one trained on b only."""
    slots = {name: Slot(SlotId(name), node=f"{name}") for name in ("a", "b")}
    entries = [Joined(tuple(slots.values()))]
    for trial, rates in {**RATES, "other": {"b": 9.0}}.items():
        for slot, rate in rates.items():
            name = TrialId(trial)
            entries.append(Planned((), (solo(name, SlotId(slot), 0),)))
            spent = {"train": 2.0, "data": 1.0, "evaluate": 50.0}
            entries.append(Advanced({name: 3 * rate}, spent={name: spent}))
    return [Line(float(n), entry) for n, entry in enumerate(entries)]


def test_speeds_compare_each_trial_with_itself():
    found = measured_speeds(lines())
    assert found["a"] / found["b"] == pytest.approx(2.0)


def test_given_speeds_are_read_and_others_refused(tmp_path):
    assert speeds_of("a=2, b=1", ["a", "b"]) == {"a": 2.0, "b": 1.0}
    with pytest.raises(StudyError, match="NODE=SPEED"):
        speeds_of("a=fast", ["a"])
    with pytest.raises(StudyError):
        speeds_of(str(tmp_path / "none"), ["a"])


def test_the_command_writes_shards_by_speed(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(600))
    source, folder = str(tmp_path / "x.npy"), str(tmp_path / "out")
    typed = (
        f"data shard {source} {folder} --shards 2 --nodes a,b --proportional a=2,b=1"
    )
    ran = CliRunner().invoke(app, [*typed.split(), "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.output)["rows"] == {"s000": 400, "s001": 200}
    again = CliRunner().invoke(app, typed.split())
    assert again.exit_code == 2 and "a new or an empty folder" in again.output
