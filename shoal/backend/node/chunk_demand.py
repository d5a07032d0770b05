"""Which chunks slots ask for, which node makes each, and how many feeders that takes."""

import platform
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic

from shoal.core.cluster import ShardId
from shoal.core.event import Fed
from shoal.core.trial import Seconds
from shoal.profile.fleet import feeders_wanted

COUNTED = (  # of a window, in this run so far
    "feeders",
    "made",  # chunks
    "served",  # chunks handed out
    "waits",  # of these, not ready when they were asked for
    "waited",  # seconds, of all slots
    "cpu",  # seconds of the feeders' processors
    "bytes",  # of chunks held and being made, at most
    "ahead",  # samples prepared and not asked for yet, at most
    "received",  # chunks that another node's feeders made
    "received_bytes",
)
LARGEST = ("bytes", "ahead")  # of these: not sums


class WindowCounts:
    """The figures of one window's process."""

    def __init__(self) -> None:
        self._figures = dict.fromkeys(COUNTED, 0.0)
        self._cpu: dict[int, Seconds] = {}  # of each feeder, by its process
        self.reported = self.fed(0)  # when the driver last heard of them

    def add(self, **more: float) -> None:
        """Add what was done to the figures."""
        for name, amount in more.items():
            self._figures[name] += amount

    def most(self, **figures: float) -> None:
        """Raise the figures to these, where they were lower."""
        for name, figure in figures.items():
            self._figures[name] = max(self._figures[name], figure)

    def spent(self, pid: int, cpu: Seconds) -> None:
        """Note the seconds of a feeder's processor so far."""
        self._cpu[pid] = cpu
        self._figures["cpu"] = sum(self._cpu.values())

    def fed(self, feeders: int) -> Fed:
        """All figures. `feeders`: how many there are now."""
        figures = self._figures | {"feeders": float(feeders)}
        return Fed(platform.node(), figures)


# Of a chunk, as of `train.stream`. To import that would take a new process some seconds.
Key = tuple[ShardId, int, int | None, str]


def varies(key: Key) -> bool:
    """Whether each pass has a chunk of its own: in its order, and augmented.

    What is prepared once, as validation is, may cost nearly nothing beside such chunks.
    """
    return key[2] is not None


MOST_MAKERS = 100_000  # chunks whose makers are known
NODE_FORGOTTEN = 60.0  # seconds after which a node that says nothing does not count


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
        keys = [key for each in demands for key in each.asked]
        return cls(train, len(set(keys)) / len(keys), len(demands))


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
        """Note that this node makes the chunk, as the one that should does not."""
        self._note(key, node)

    def _note(self, key: Key, node: str) -> None:
        self._makers[key] = node
        self._homes[key[:2]] = node
        if len(self._makers) > MOST_MAKERS:
            self._makers.popitem(last=False)

    def demand(self, node: str, demand: NodeDemand) -> ClusterDemand:
        """Note what the node's slots need; returns what all nodes' slots do."""
        now = monotonic()
        self._demands[node] = (now, demand)
        since = now - NODE_FORGOTTEN
        return ClusterDemand.of([each for time, each in self._demands.values() if time > since])


KNOWN = 5  # chunks to be prepared before their times count for anything
LAST = 3  # of them, whose median time counts if it is less: what is prepared once may be over
RECENT = 15  # chunks whose median time counts
FORGOTTEN = 60.0  # seconds after which a slot that asks for nothing does not count


@dataclass(eq=False, slots=True)
class SlotDemand:
    """What a slot needs, as it said last."""

    heard: float = 0.0  # when, by the monotonic clock
    trained: Seconds | None = None  # seconds of training per sample
    coming: Sequence[Key] = ()  # the chunks that it will ask for next


class FeederDemand:
    """What the slots of a node ask for, and how fast it is prepared."""

    def __init__(self) -> None:
        # Seconds per sample prepared, lately, with the feeders that there are now: of chunks that
        # vary, and of the others.
        self._times: dict[bool, deque[Seconds]] = {}
        self._slots: dict[str, SlotDemand] = {}
        self._recent_keys: deque[Key] = deque(maxlen=256)  # lately, one for each time
        # What the slots of all nodes need, if they share chunks.
        self.together: ClusterDemand | None = None

    def hear(self, slot: str, keys: Sequence[Key], trained: Seconds | None) -> None:
        """Note that the slot asks for the first of these chunks, and will ask for the others."""
        demand = self._slots.setdefault(slot, SlotDemand())
        demand.heard = monotonic()
        demand.trained = trained or demand.trained
        demand.coming = keys[1:]
        self._recent_keys.append(keys[0])

    def prepared(self, key: Key, seconds: Seconds) -> None:
        """Note how many seconds per sample the chunk took."""
        self._times.setdefault(varies(key), deque(maxlen=RECENT)).append(seconds)

    def forget(self) -> None:
        """Forget what was measured, as there are other feeders now."""
        self._times.clear()

    def coming(self) -> Iterator[Key]:
        """The chunks that slots will ask for next."""
        for slot in self._live():
            yield from slot.coming

    @property
    def settled(self) -> bool:
        """Whether so many chunks were prepared that more would not change what is needed."""
        return self._count() >= RECENT

    def _count(self) -> int:
        """The chunks whose times count."""
        return sum(map(len, self._times.values()))

    def _seconds_to_prepare(self) -> Seconds:
        """Seconds per sample of what is asked for, each kind in its share."""
        kinds = [varies(key) for key in set(self._recent_keys)]
        shares = {kind: kinds.count(kind) for kind in self._times}
        if not any(shares.values()):  # what was prepared is asked for no more
            shares = dict.fromkeys(self._times, 1)
        lately = {
            kind: min(median(times), median(list(times)[-LAST:]))
            for kind, times in self._times.items()
        }
        seconds = sum(shares[kind] * lately[kind] for kind in lately) / sum(shares.values())
        return max(seconds, 1e-9)

    def feeders(self, cpus: int, threads: int) -> int:
        """The feeders that the slots need on a node of so many CPUs; 0 if not known yet.

        `threads`: CPUs that each slot takes itself.
        """
        node = self.of_node()
        if self._count() < KNOWN or node is None:
            return 0

        most = max(1, cpus - len(node.train) * threads)
        cluster = self.together or ClusterDemand.of([node])
        wanted = feeders_wanted(
            self._seconds_to_prepare(), cluster.train, cluster.different, most * cluster.nodes
        )
        return min(most, -(-wanted // cluster.nodes))

    def of_node(self) -> NodeDemand | None:
        """What the node's slots need; None if that is not known yet."""
        slots = self._live()
        train = [slot.trained for slot in slots if slot.trained]
        if len(train) < len(slots) or len(self._recent_keys) < 2 * len(slots):
            return None
        return NodeDemand(train, tuple(self._recent_keys))

    def _live(self) -> list[SlotDemand]:
        """The slots that asked for something lately."""
        since = monotonic() - FORGOTTEN
        return [slot for slot in self._slots.values() if slot.heard > since]
