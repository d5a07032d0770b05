"""`shoal data shard`: sizes by the speeds of nodes, given or measured in a study."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from shoal.cli import app
from shoal.core.cluster import Slot, SlotId
from shoal.core.errors import StudyError
from shoal.core.event import Advanced, Ended, Joined, Planned, Submitted
from shoal.core.plan import solo
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Line
from shoal.tools.data import measured_speeds, speeds_of

RATES = {"large": {"a": 100.0, "b": 50.0}, "small": {"a": 4000.0, "b": 2000.0}}


def lines(rates):
    """Trials that trained at these rates on slots of these nodes."""
    nodes = dict.fromkeys(node for by_node in rates.values() for node in by_node)
    slots = [Slot(SlotId(f"at-{node}"), node=node) for node in nodes]
    entries = [Joined(tuple(slots))]
    entries += [Submitted(Trial(TrialId(name), 1e6)) for name in rates]
    for trial, by_node in rates.items():
        for node, rate in by_node.items():
            name = TrialId(trial)
            gang = solo(name, SlotId(f"at-{node}"), len(entries))
            spent = {"train": 2.0, "data": 1.0, "evaluate": 50.0}
            advanced = Advanced({name: 2 * rate}, spent={name: spent})
            entries += [Planned((), (gang,)), advanced, Ended(gang)]
    return [Line(float(n), entry) for n, entry in enumerate(entries)]


def test_speeds_compare_each_trial_with_itself():
    found = measured_speeds(lines({**RATES, "other": {"b": 9.0}}))
    assert found["a"] / found["b"] == pytest.approx(2.0, rel=1e-4)
    assert found["a"] * found["b"] == pytest.approx(1.0, rel=1e-4)


def test_nodes_that_trained_different_models_are_not_compared():
    with pytest.raises(StudyError, match="cannot be compared"):
        measured_speeds(lines({"large": {"a": 100.0}, "small": {"b": 2000.0}}))


def test_given_speeds_are_read_and_others_refused(tmp_path):
    assert speeds_of("a=2, b=1", ["a", "b"]) == {"a": 2.0, "b": 1.0}
    with pytest.raises(StudyError, match="NODE=SPEED"):
        speeds_of("a=fast", ["a"])
    with pytest.raises(StudyError):
        speeds_of(str(tmp_path / "none"), ["a"])


def test_the_command_writes_shards_by_speed(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(600))
    source, folder = str(tmp_path / "x.npy"), str(tmp_path / "out")
    typed = f"data shard {source} {folder} --shards 2 --nodes a,b --proportional a=2,b=1"
    ran = CliRunner().invoke(app, [*typed.split(), "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.output)["rows"] == {"s000": 400, "s001": 200}
    again = CliRunner().invoke(app, typed.split())
    assert again.exit_code == 2 and "a new or an empty folder" in again.output
