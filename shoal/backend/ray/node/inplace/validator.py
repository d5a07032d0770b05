"""A node's process that validates models on the parts that lie there, for slots of other nodes.

It trains nothing, so slots that wait for each other's parts cannot wait for ever.
"""

import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.backend.ray import cluster
from shoal.backend.ray.node import data as node_data
from shoal.backend.ray.node.process import limit_threads, portable
from shoal.backend.ray.node.setup import SlotSetup
from shoal.core.cluster import ShardId
from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
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
        station = replace(
            setup.station, device="cpu", data_memory_gb=DATA_GB, slot_memory_gb=inf
        )
        self._station = Station(recipe, data, None, station)

    def record(
        self, unit: Unit, state: Tree, parts: Collection[ShardId]
    ) -> Records | BaseException:
        """What the parts give for the model in this state, or why they give nothing."""
        try:
            return self._station.recorded(replace(unit, source=state), parts)
        except (TrialError, DataError, LookupError) as error:
            return portable(error)


@dataclass
class ValidatorsElsewhere:
    """Asks the validators of other nodes. See `train.slot.inplace.elsewhere.Elsewhere`."""

    setup: SlotSetup
    data: Data
    _asked: dict[str, Any] = field(default_factory=dict)  # validators, by node

    def begin(self, unit: Unit, parts: Collection[ShardId]) -> Callable[[], Records]:
        """Send the model to the holders of these parts."""
        state = ray.put(unit.source)
        bare = replace(unit, source=None, carry=False)
        asked = {
            node: (some, self._ask(node, bare, state, some))
            for node, some in self._divided(parts, ()).items()
        }

        def finish() -> Records:
            records: dict[ShardId, Any] = {}
            for node, (some, ref) in asked.items():
                records |= self._answer(bare, state, node, some, ref)
            return records

        return finish

    def _answer(
        self, unit: Unit, state: Any, node: str, parts: Sequence[ShardId], ref: Any
    ) -> Mapping[ShardId, Any]:
        """What the parts gave there, or at other holders if that node is lost meanwhile."""
        tried = [node]
        while True:
            try:
                found = ray.get(ref)
                break
            except RayError:
                self._asked.pop(tried[-1], None)
                others = self._divided(parts, tried)
                if len(others) > 1:  # no single node holds all of them
                    return {
                        part: record
                        for other, some in others.items()
                        for part, record in self._answer(
                            unit,
                            state,
                            other,
                            some,
                            self._ask(other, unit, state, some),
                        ).items()
                    }
                (node,) = others
                tried.append(node)
                ref = self._ask(node, unit, state, parts)
        if isinstance(found, BaseException):
            raise found
        records: Mapping[ShardId, Any] = found
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

    def _ask(self, node: str, unit: Unit, state: Any, parts: Sequence[ShardId]) -> Any:
        if node not in self._asked:
            self._asked[node] = _validator(self.setup, node)
        return self._asked[node].record.remote(unit, state, list(parts))


def elsewhere_of(setup: SlotSetup, data: Data) -> ValidatorsElsewhere | None:
    """What a slot needs if validation parts lie at other nodes only; None if all lie here."""
    if all(data.is_here(part) for part in data.validation):
        return None
    return ValidatorsElsewhere(setup, data)


def _validator(setup: SlotSetup, node: str) -> Any:
    """The node's validator; whoever needs it first starts it."""
    options = {
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        "name": f"shoal-validator-{setup.token}-{node}",
        "get_if_exists": True,
    }
    return ray.remote(Validator).options(**options).remote(setup)
