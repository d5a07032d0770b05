"""Chunks prepared once for all slots of a node: processes that do nothing else, and what a slot asks them with.

Guan et al., "FLEET", MLSys 2020, section 3.1, shares one preprocessing stream among the models of a flotilla. Here slots pull:
a feeder makes a chunk when the first asks for it, and keeps it for the others as long as its window has room. So nobody waits
for a slot that is slow or gone; one that falls behind the window has its chunks made again.
"""

import os
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time
from typing import TYPE_CHECKING, Any
from zlib import crc32

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.backend import ray_data
from shoal.core.cluster import GiB, ShardId
from shoal.core.trial import Seconds

if TYPE_CHECKING:
    from shoal.train.columns import Columns

Key = tuple[ShardId, int, int | None, str]  # shard, number of the chunk, turn (None: of no account), shuffle


@dataclass(frozen=True, slots=True)
class FeederSetup:
    """What a feeder has to know of the study. `window_gb`: of chunks held for others."""

    user: bytes  # (recipe, pace), pickled with their code
    seed: int
    fingerprint: str
    token: str
    cache: str | None
    window_gb: GiB


@dataclass(frozen=True, slots=True)
class Fed:
    """What a feeder did: chunks made and handed out, the processor's seconds for it, bytes held at most."""

    made: int
    served: int
    seconds: Seconds
    most: int


class Feeder:
    """A feeder's process."""

    def __init__(self, setup: FeederSetup) -> None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = "1"
        from shoal.train.stream import feeding

        recipe, _ = pickle.loads(setup.user)
        node = ray.get_runtime_context().get_node_id()
        data = ray_data.shared(ray_data.place(setup.token, node, setup.cache), os.getppid(), recipe.data, setup.fingerprint)
        self._stream = feeding(recipe, data, setup.seed)
        self._room = setup.window_gb * 2**30
        self._held: OrderedDict[Key, tuple[Any, int]] = OrderedDict()  # asked for longest ago first
        self._bytes = self._most = self._made = self._served = 0
        self._begun = process_time()

    def chunk(self, key: Key) -> list[Any]:
        """A reference to the chunk, whose columns are NumPy arrays; in a list, lest Ray fetches it here."""
        self._served += 1
        if key not in self._held:
            made = self._stream.made(*key)
            size = sum(column.nbytes for column in (made.values() if isinstance(made, dict) else made))
            self._held[key] = ray.put(made), size
            self._made += 1
            self._bytes += size
            while self._bytes > self._room and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][1]
            self._most = max(self._most, self._bytes)
        self._held.move_to_end(key)
        return [self._held[key][0]]

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    def fed(self) -> Fed:
        """What was done so far."""
        return Fed(self._made, self._served, process_time() - self._begun, self._most)


class Feed:
    """A slot's way to the feeders of its node. Each chunk is one feeder's, so that it is made once."""

    def __init__(self, feeders: Sequence[Any]) -> None:
        self._feeders = feeders

    def chunk(self, *key: Any) -> "Columns | None":
        """The chunk; None when its feeder is gone: then the slot makes it itself."""
        feeder = self._feeders[crc32(repr(key[:2]).encode()) % len(self._feeders)]
        try:
            (ref,) = ray.get(feeder.chunk.remote(key))
            found: Columns = ray.get(ref)
            return found
        except RayError:
            return None


def start(setup: FeederSetup, node: str, count: int) -> list[Any]:
    """So many feeders on the node; one that dies comes back, without what it held."""
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    how = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": 1, "scheduling_strategy": where}
    made = ray.remote(Feeder)
    return [made.options(name=name(setup.token, node, number), **how).remote(setup) for number in range(count)]


def name(token: str, node: str, number: int) -> str:
    """Of the feeder, in Ray."""
    return f"shoal-feeder-{token}-{node}-{number}"


def find(token: str, node: str, count: int) -> Feed | None:
    """The feeders of the node, if it has any."""
    return Feed([ray.get_actor(name(token, node, number)) for number in range(count)]) if count else None
