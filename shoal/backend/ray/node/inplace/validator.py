"""A node's process that validates models on the parts that lie there, for slots of other nodes.

It trains nothing, so slots that wait for each other's parts cannot wait for ever.
"""

import pickle
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from shoal.backend.ray import cluster
from shoal.backend.ray.node import data as node_data
from shoal.backend.ray.node.process import limit_threads, portable
from shoal.backend.ray.node.setup import SlotSetup
from shoal.core.cluster import ShardId
from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.lane.scoring import Record
from shoal.train.recipe.unit import Tree, TrialError, Unit
from shoal.train.slot.inplace.elsewhere import Records
from shoal.train.slot.station import Station

DATA_GB = 0.5  # for prepared chunks of validation parts


class Validator:
    """Validates models on the parts that lie at its node."""

    def __init__(self, setup: SlotSetup) -> None:
        limit_threads(setup.station.threads)
        recipe, _, placed = pickle.loads(setup.user)
        node = ray.get_runtime_context().get_node_id()
        folder = node_data.place(setup.token, node, setup.cache)
        data = node_data.data_here(recipe, placed, folder, setup.fingerprint)
        station = replace(setup.station, device="cpu", data_memory_gb=DATA_GB, slot_memory_gb=inf)
        self._station = Station(recipe, data, None, station)

    def record(
        self, unit: Unit, state: Tree, parts: Collection[ShardId]
    ) -> Records | BaseException:
        """What the parts give for the model in this state, or why they give nothing."""
        try:
            return self._station.recorded(replace(unit, source=state), parts)
        except (TrialError, DataError, LookupError) as error:
            return portable(error)


class SentModel(NamedTuple):
    """What validators get: a unit without its source, and a reference to the model's state."""

    unit: Unit
    state: Any


class AskedParts(NamedTuple):
    """What a node's validator was asked for: `ref` refers to what these parts give."""

    node: str  # its id
    parts: list[ShardId]
    ref: Any


@dataclass
class ValidatorsElsewhere:
    """Asks the validators of other nodes. See `train.slot.inplace.elsewhere.Elsewhere`."""

    setup: SlotSetup
    data: Data
    _validators: dict[str, Any] = field(default_factory=dict)  # by node

    def open(self) -> None:
        """Start the validators that are asked first: it takes them seconds to be ready."""
        away = [part for part in self.data.validation if not self.data.is_here(part)]
        with suppress(DataError):  # a holder may still come
            for node in self._divided(away, ()):
                self._validator(node)

    def close(self) -> None:
        """End the validators."""
        for validator in self._validators.values():
            ray.kill(validator)

    def _validator(self, node: str) -> Any:
        """The node's validator; whoever needs it first starts it."""
        if node not in self._validators:
            self._validators[node] = started(self.setup, node)
        return self._validators[node]

    def begin(self, unit: Unit, parts: Collection[ShardId]) -> Callable[[], Records]:
        """Send the model to the holders of these parts."""
        model = SentModel(replace(unit, source=None, carry=False), ray.put(unit.source))
        return partial(self._answers, model, self._ask(model, parts, ()), ())

    def _ask(
        self, model: SentModel, parts: Collection[ShardId], lost: Collection[str]
    ) -> list[AskedParts]:
        """Ask holders that are not lost. Raises as `_divided`."""
        made = []
        for node, some in self._divided(parts, lost).items():
            record = self._validator(node).record
            made.append(AskedParts(node, some, record.remote(*model, some)))
        return made

    def _answers(
        self, model: SentModel, asked: Sequence[AskedParts], lost: Collection[str]
    ) -> Records:
        """What the parts gave; what a node owed that was lost meanwhile comes from others."""
        records: dict[ShardId, Record] = {}
        for node, parts, ref in asked:
            try:
                found = ray.get(ref)
            except RayError:
                self._validators.pop(node, None)
                gone = (*lost, node)
                found = self._answers(model, self._ask(model, parts, gone), gone)
            if isinstance(found, BaseException):
                raise found
            records |= found
        return records

    def _divided(
        self, parts: Collection[ShardId], lost: Collection[str]
    ) -> dict[str, list[ShardId]]:
        """The parts by the id of the node that is asked.

        Raises:
            DataError: a part has no holder that is there.
        """
        catalogue = self.data.catalogue
        assert catalogue is not None, "its parts lie at nodes"
        there = [node for node in cluster.live_nodes() if node.id not in lost]
        found: dict[str, list[ShardId]] = {}
        for number, part in enumerate(parts):
            holders = [node.id for node in there if part in catalogue.at(node.names)]
            if not holders:
                raise DataError(
                    f"validation part {part} lies at {', '.join(catalogue.valid[part])}, and none "
                    "of these nodes is in the cluster: bring one back, then resume"
                )
            found.setdefault(holders[number % len(holders)], []).append(part)
        return found


def elsewhere_of(setup: SlotSetup, data: Data) -> ValidatorsElsewhere | None:
    """What a slot needs if validation parts lie at other nodes only; None if all lie here.

    Their validators start now, unless they are there: a fleet starts them beside its slots.
    """
    if all(data.is_here(part) for part in data.validation):
        return None
    elsewhere = ValidatorsElsewhere(setup, data)
    elsewhere.open()
    return elsewhere


def started(setup: SlotSetup, node: str) -> Any:
    """The node's validator, started unless it is there."""
    options = {
        "num_cpus": 0,
        "scheduling_strategy": cluster.only_at(node),
        "name": f"shoal-validator-{setup.token}-{node}",
        "get_if_exists": True,
    }
    return ray.remote(Validator).options(**options).remote(setup)
