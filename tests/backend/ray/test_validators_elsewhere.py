"""Asking for what validation parts give, while nodes that hold them are lost."""

from functools import partial
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import RayError

from shoal.backend.node import validator
from shoal.backend.ray import cluster
from shoal.backend.ray import fleet as ray_fleet
from shoal.backend.ray.cluster import Node
from shoal.core.trial import Trial, Visit
from shoal.train.data.catalogue import Catalogue
from shoal.train.data.columns import DataError
from shoal.train.recipe.unit import Unit

VALID = {"v0": {"a": "v0", "b": "v0"}, "v1": {"a": "v1", "c": "v1"}}
UNIT = Unit(Trial("t", 1.0), (), Visit(0, "s0", 0, 0), source={"state": 1})


@pytest.fixture
def validators(monkeypatch):
    """What each node's validator gives; the nodes in `lost` give nothing."""
    asked, lost = [], set()

    def started(setup, node):
        asked.append((node, ()))

        def remote(unit, state, parts):
            asked.append((node, tuple(parts)))
            return node, parts

        return SimpleNamespace(record=SimpleNamespace(remote=remote))

    def get(ref):
        node, parts = ref
        if node in lost:
            raise RayError(f"{node} is lost")
        return {part: [(1, {"by": node})] for part in parts}

    nodes = [SimpleNamespace(id=name, names=(name,)) for name in "abc"]
    monkeypatch.setattr(validator, "started", started)
    monkeypatch.setattr(cluster, "live_nodes", lambda: nodes)
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "get", get)
    catalogue = Catalogue({"s0": {"d": "s0"}}, VALID)
    data = SimpleNamespace(
        catalogue=catalogue, validation=("v0", "v1"), is_here=lambda part: part == "v1"
    )
    return validator.ValidatorsElsewhere(None, data), asked, lost


def test_other_holders_give_what_a_lost_node_owed(validators):
    elsewhere, asked, lost = validators
    lost.add("a")
    finish = elsewhere.begin(UNIT, ["v0", "v1"])
    assert finish()["v0"] == [(1, {"by": "b"})]
    assert ("a", ("v0",)) in asked and ("b", ("v0",)) in asked


def test_no_lost_node_is_asked_twice(validators):
    elsewhere, asked, lost = validators
    lost |= {"a", "b", "c"}
    with pytest.raises(DataError, match="v0 lies at a, b"):
        elsewhere.begin(UNIT, ["v0", "v1"])()
    assert len([node for node, parts in asked if "v0" in parts]) == 2


def test_validators_start_while_the_slot_opens(validators):
    """Those of parts that do not lie here, where no fleet has started them."""
    elsewhere, asked, _ = validators
    opened = validator.elsewhere_of(elsewhere.setup, elsewhere.data)
    assert asked == [("a", ())]
    opened.begin(UNIT, ["v0"])()
    assert asked == [("a", ()), ("a", ("v0",))]


def test_a_fleet_starts_validators_beside_its_slots(validators, monkeypatch):
    """A slot that starts them has imported torch before: its first model would wait for that."""
    elsewhere, asked, _ = validators
    catalogue = elsewhere.data.catalogue
    here = SimpleNamespace(catalogue=catalogue, validation=("v0", "v1"), is_here=lambda part: False)
    killed = []
    fake = SimpleNamespace(kill=killed.append, is_initialized=lambda: True)
    monkeypatch.setattr(ray_fleet, "ray", fake)
    monkeypatch.setattr(validator, "ray", fake)
    fleet = ray_fleet.RayFleet.__new__(ray_fleet.RayFleet)
    fleet._data = SimpleNamespace(at=lambda names: here)
    fleet._elsewhere_of = partial(validator.elsewhere_of, elsewhere.setup)
    fleet._validators = {}
    fleet._windows = SimpleNamespace(close=list)
    fleet._shelf = "no folder"
    monkeypatch.setattr(fleet, "leave", list)
    fleet.serve([Node("d", "d", 2, ("d",))])
    assert asked == [("a", ()), ("c", ())]
    fleet.close([], [])
    assert len(killed) == 2


def test_a_slot_opens_while_no_holder_is_there(validators, monkeypatch):
    elsewhere, asked, _ = validators
    monkeypatch.setattr(cluster, "live_nodes", list)
    assert validator.elsewhere_of(elsewhere.setup, elsewhere.data) is not None
    assert not asked
