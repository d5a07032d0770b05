"""A window's dealings with the windows of other nodes (docs/decisions/0033)."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from statistics import median
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError

from shoal.backend.ray.node.chunks import HeldChunk
from shoal.backend.ray.node.feeder import PreparedChunk
from shoal.backend.ray.node.setup import window_name
from shoal.backend.ray.node.sharing.counts import WindowCounts
from shoal.backend.ray.node.sharing.demand import FeederDemand
from shoal.backend.ray.node.sharing.directory import ClusterDemand, Key
from shoal.core.trial import Seconds

# Seconds that a byte takes between two nodes, until it is measured: a gigabit a second.
STATED: Seconds = 8e-9
RECENT = 15  # chunks whose median time counts
MEASURED: Seconds = 60.0  # how long a measured time of sending counts
ANSWERS: Seconds = 10.0  # in which the directory answers, if at all
# Within this time another node hands out a chunk, or this one makes it.
PATIENCE: Seconds = 30.0
EVERY: Seconds = 5.0  # seconds between two reports of what the node's slots need


class ChunkExchange:
    """Finds the node that makes a chunk, and brings the chunk from there.

    `ChunkDirectory` says which node that is: one that needed the chunk, too. So nothing is sent
    that only one node needs. Nor is anything sent while sending a byte takes longer than preparing
    it, as measured here.

    `token`: of the run. Before `join` all chunks are made here.
    """

    def __init__(self, token: str, node: str, counts: WindowCounts) -> None:
        self._token = token
        self._node = node
        self._counts = counts
        self._directory: Any = None
        self._silent_until = 0.0  # the directory, by the monotonic clock
        self._reported = 0.0  # what the slots need, when
        self._windows: dict[str, Any] = {}
        self._taken: set[Key] = set()  # chunks that another node should have had
        self._preparing: deque[Seconds] = deque(maxlen=RECENT)  # for a byte
        # For a byte, and when that was measured.
        self._sending: deque[tuple[float, Seconds]] = deque(maxlen=RECENT)

    def join(self, directory: Any) -> None:
        """There are other nodes, and this is where they meet."""
        self._directory = directory

    async def maker(self, key: Key) -> str | None:
        """The other node that makes the chunk; None: it is to be made here."""
        if key in self._taken:
            self._taken.discard(key)
            return None
        if not self._pays():
            return None
        maker: str | None = await self._told(lambda: self._directory.maker.remote(key, self._node))
        if maker == self._node:
            return None
        return maker

    async def brought(self, key: Key, node: str) -> HeldChunk | None:
        """The chunk from the node that makes it; None: it is to be made here, after all."""
        try:
            return await asyncio.wait_for(self._fetched(key, node), PATIENCE)
        except Exception:  # noqa: BLE001 whatever it was, nobody may wait for ever
            self._windows.pop(node, None)
            self._taken.add(key)
            await self._told(lambda: self._directory.take.remote(key, self._node))
            return None

    def made(self, chunk: PreparedChunk) -> None:
        """A feeder of this node made a chunk."""
        self._preparing.append(chunk.seconds / max(1, chunk.bytes))

    async def learn(self, demand: FeederDemand) -> None:
        """Find out now and then what the slots of all nodes need together.

        For feeders of this node may make the chunks of the others. While each node makes its own,
        only its own slots count.
        """
        now = monotonic()
        own = demand.own()
        if own is None or now < self._reported + EVERY:
            return
        if not self._pays():
            demand.together = None
            return
        self._reported = now
        found: ClusterDemand | None = await self._told(
            lambda: self._directory.demand.remote(self._node, own)
        )
        demand.together = found

    def _pays(self) -> bool:
        """Whether there is another node, and sending a chunk is cheaper than making it again."""
        now = monotonic()
        if self._directory is None or now < self._silent_until:
            return False
        if not self._preparing:
            return True
        recent = [took for at, took in self._sending if at > now - MEASURED]
        return median(self._preparing) > median(recent or [STATED])

    async def _fetched(self, key: Key, node: str) -> HeldChunk:
        """The chunk, copied into this node's memory.

        Raises:
            LookupError: the node does not have it.
            ValueError, RayError: there is no such node any more.
        """
        if node not in self._windows:
            self._windows[node] = ray.get_actor(window_name(self._token, node))
        handed = await self._windows[node].hand.remote(key)
        if handed is None:
            raise LookupError(f"node {node} does not have {key}")
        (ref,), size, rows = handed
        begin = monotonic()
        columns = await ref
        now = monotonic()
        self._sending.append((now, (now - begin) / max(1, size)))
        self._counts.add(received=1, received_bytes=size)
        # A copy of this node's own: the other one is then free to drop what it made.
        return HeldChunk(ray.put(columns), size, rows)

    async def _told(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What the directory says; None if it does not. Then it is left alone for a while."""
        try:
            return await asyncio.wait_for(ask(), ANSWERS)
        except (RayError, OSError):
            self._silent_until = monotonic() + MEASURED
            return None
