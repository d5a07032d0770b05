"""Samples are read at the nodes that hold them, for a process that may hold none.

Checking, timing and replaying trials needs some shards after another, in one process. Ray's object
store carries their samples there, as much at a time as is read at once.
"""

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.backend.ray import cluster
from shoal.backend.ray.placed.survey import survey_nodes
from shoal.core.cluster import ShardId
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.parts import Index
from shoal.train.data.placed.catalogue import LOCAL, Catalogue
from shoal.train.data.placed.constructor import Survey
from shoal.train.data.placed.source import PlacedFiles
from shoal.train.recipe.pickled import dumps

Answer = tuple[Columns | None, str | None]  # samples, or why there are none


def ask_holder(
    catalogue: Catalogue,
    part: ShardId,
    lost: Collection[str],
    read: Callable[..., Answer],
    *arguments: Any,
) -> tuple[str, Any] | None:
    """Have a holder of the part call `read`: the node's id, and a reference to what it answers.

    None if no holder is in the cluster but those that are lost.
    """
    for node in cluster.live_nodes():
        if node.id not in lost and part in catalogue.at(node.names):
            task = ray.remote(num_cpus=0, max_retries=0)(read)
            there = task.options(scheduling_strategy=cluster.only_at(node.id))
            return node.id, there.remote(*arguments)
    return None


@dataclass
class ClusterHolders:
    """The holders in the cluster at this address. See `train.data.placed.source.Holders`."""

    address: str
    # The sources that were sent, by id, and a reference to each.
    _sent: dict[int, tuple[PlacedFiles, Any]] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return ClusterHolders, (self.address,)

    def read(
        self, source: PlacedFiles, part: ShardId, index: Index | None = None
    ) -> Columns:
        """These samples of the part, from any holder; from another one if that is lost."""
        cluster.join(self.address, None, 1, 0.0)
        lost: dict[str, str] = {}  # why, by the node's id
        sent = self._reference(source)
        while True:
            asked = ask_holder(source.catalogue, part, lost, _read, sent, part, index)
            if asked is None:
                raise DataError(_of_none(source.catalogue, part, lost))
            node, reference = asked
            try:
                columns, why = ray.get(reference)
            except RayError as error:
                cause = error.cause if isinstance(error, RayTaskError) else error
                lost[node] = type(cause).__name__
                continue
            if why is not None:
                raise DataError(why)
            found: Columns = columns
            return found

    def _reference(self, source: PlacedFiles) -> Any:
        """A reference to the pickled source, which is sent once."""
        if id(source) not in self._sent:
            recipe = getattr(
                source.own, "__self__", None
            )  # its reader's code goes along
            self._sent[id(source)] = source, ray.put(dumps((source.at(()), recipe)))
        return self._sent[id(source)][1]


def _of_none(catalogue: Catalogue, part: ShardId, lost: Mapping[str, str]) -> str:
    """Why no holder has read the part. `lost`: why not, by the id of the node that tried."""
    lies = f"{part} lies at {', '.join(catalogue.parts[part])}"
    ended = [
        f"{node.host} ({lost[node.id]})"
        for node in cluster.live_nodes()
        if node.id in lost
    ]
    if not ended:
        return (
            f"{lies}, and none of these nodes is in the cluster: bring one back, then run this "
            "again"
        )
    return (
        f"{lies}, and the process at {', '.join(ended)} ended while it read {part}: either memory "
        "ran out there, or the recipe's read(path) ends its process; read this file by itself "
        "to see which"
    )


def _read(pickled: bytes, part: ShardId, index: Index | None) -> Answer:
    """What runs at a holder: these samples of the part, or why they cannot be read."""
    source, _ = pickle.loads(pickled)
    here = source.at((*cluster.node_here().names, LOCAL))
    try:
        return (here.read(part) if index is None else here.rows(part, index)), None
    except DataError as error:
        return None, str(error)


@contextmanager
def reached(address: str) -> Iterator[Survey]:
    """The cluster's nodes, which look at the shards and read them for this process.

    Raises:
        ConnectionError: no cluster is at the address.
    """
    joined = not ray.is_initialized()
    cluster.join(address, None, 1, 0.0)
    try:
        yield Survey(
            surveyor=partial(survey_nodes, address=address, begun=True),
            names=(),
            holders=ClusterHolders(address),
        )
    finally:
        if joined:
            cluster.leave(own=False, joined=True)
