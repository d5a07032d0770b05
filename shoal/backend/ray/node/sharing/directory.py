"""What the windows of all nodes know of each other."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

from shoal.core.cluster import ShardId
from shoal.core.trial import Seconds

# Of a chunk, as of `train.stream`. To import that would take a new process some seconds.
Key = tuple[ShardId, int, int | None, str]
MOST = 100_000  # chunks whose makers are known
FORGOTTEN = 60.0  # seconds after which a node that says nothing does not count


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """What the slots of a node need."""

    train: Sequence[Seconds]  # of each slot, for a sample
    asked: Sequence[Key]  # lately, once for each time


@dataclass(frozen=True, slots=True)
class ClusterDemand:
    """What the slots of several nodes need together."""

    train: Sequence[Seconds]  # of each slot, for a sample
    different: float  # chunks to be made for each chunk asked for, in (0, 1]
    nodes: int

    @classmethod
    def of(cls, demands: Iterable[NodeDemand]) -> "ClusterDemand":
        """The demand of these nodes, each of which asked for something."""
        demands = list(demands)
        train = [seconds for each in demands for seconds in each.train]
        asked = [key for each in demands for key in each.asked]
        return cls(train, len(set(asked)) / len(asked), len(demands))


class ChunkDirectory:
    """Knows which node makes which chunk. It runs in a process of its own, one for the cluster.

    If it dies it comes back and knows nothing. Then chunks are made again, and that is all.
    """

    def __init__(self) -> None:
        self._makers: OrderedDict[Key, str] = OrderedDict()
        # By shard and number: the node that has what `prepare` made of that chunk.
        self._homes: dict[tuple[ShardId, int], str] = {}
        self._demands: dict[str, tuple[float, NodeDemand]] = {}  # and when they came

    def maker(self, key: Key, node: str) -> str:
        """The node that makes the chunk.

        It is the one that made it for another pass, or else the one that asks first.
        """
        maker = self._makers.get(key) or self._homes.get(key[:2], node)
        self._note(key, maker)
        return maker

    def take(self, key: Key, node: str) -> None:
        """This node makes the chunk, since the one that should does not."""
        self._note(key, node)

    def _note(self, key: Key, node: str) -> None:
        self._makers[key] = node
        self._homes[key[:2]] = node
        if len(self._makers) > MOST:
            self._makers.popitem(last=False)

    def demand(self, node: str, demand: NodeDemand) -> ClusterDemand:
        """Note what the node's slots need; returns what all nodes' slots do."""
        now = monotonic()
        self._demands[node] = (now, demand)
        recent = [told for at, told in self._demands.values() if at > now - FORGOTTEN]
        return ClusterDemand.of(recent)
