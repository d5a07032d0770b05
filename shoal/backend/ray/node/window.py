"""Chunks prepared once for all slots of a node: a window of them, and the processes that fill it.

Guan et al., "FLEET", MLSys 2020, section 3.1, shares one preprocessing stream among the models of a
flotilla, through bounded queues of 2048 samples. Here slots pull. The window makes what is asked
for, before that what it is told will be asked for next, and holds chunks as long as it has room. So
it needs no more memory than that, and nobody waits for a slot that is slow or gone: one that falls
behind the window has its chunks made again. How many feeders: appendix B.3, see `feeders_wanted`.
"""

import asyncio
import os
import platform
from collections import OrderedDict
from collections.abc import Sequence
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, UnserializableException

from shoal.backend.ray.node.chunks import HeldChunk, HeldChunks
from shoal.backend.ray.node.feeder import Key, PreparedChunk
from shoal.backend.ray.node.pool import BackgroundTasks, FeederDemand, FeederPool
from shoal.backend.ray.node.setup import FeederSetup
from shoal.core.cluster import ShardId
from shoal.core.event import Fed
from shoal.core.trial import Seconds

COUNTED = (  # of a window, in this run so far
    "feeders",
    "made",  # chunks
    "served",  # chunks handed out
    "waits",  # of these, not ready when they were asked for
    "waited",  # seconds, of all slots
    "cpu",  # seconds of the feeders' processors
    "bytes",  # of chunks held and being made, at most
    "ahead",  # samples prepared and not asked for yet, at most
)
MOST = ("bytes", "ahead")  # of these: not sums
TELL = 30.0  # seconds between two reports, while there is something new
SHARE = 0.3  # of the node's object store that the window may fill, lest models at rest find no room
CHUNK_FAILED = (
    RayTaskError,
    UnserializableException,
)  # the feeder is as good as before


class Window:
    """A node's prepared chunks, and the feeders that make them, in a process of its own.

    All methods run in one thread. `user`: see `FeederSetup.sent`.
    """

    def __init__(self, setup: FeederSetup, *user: bytes) -> None:
        setup = setup.received(user)
        node = ray.get_runtime_context().get_node_id()
        resources = _resources(node)
        self._cpus = int(resources.get("CPU", 1))
        store = resources.get("object_store_memory", 2**62)
        self._chunks = HeldChunks(min(setup.window_gb * 2**30, SHARE * store))
        self._demand = FeederDemand()
        self._tasks = BackgroundTasks()
        self._pool = FeederPool(setup, node, self._demand, self._tasks, self._on_pool)

        self._making: set[Key] = set()
        # Chunks that could not be made: slots find out by themselves why.
        self._broken: set[Key] = set()
        self._wanted: OrderedDict[Key, asyncio.Future[HeldChunk | None]] = OrderedDict()
        # By shard and number: the feeder that has what `prepare` made of that chunk.
        self._homes: dict[tuple[ShardId, int], Any] = {}
        # The feeder that was given a chunk of the shard last.
        self._readers: dict[ShardId, Any] = {}

        self._cpu: dict[int, Seconds] = {}  # of each feeder, by its process
        self._figures = dict.fromkeys(COUNTED, 0.0)
        self._told = self._fed()
        self._news = asyncio.Event()
        if self._pool.feeders:
            self._news.set()

    # -- what slots ask ----------------------------------------------------------------

    async def chunk(
        self, slot: str, keys: Sequence[Key], trained: Seconds | None
    ) -> list[Any] | None:
        """A reference to the first key's chunk, in a list, lest Ray fetches it.

        The list is empty if the slot is to make the chunk. None: it is to make those that follow,
        too, for there are no feeders. Then see `FeederFeed`.
        """
        key = keys[0]
        self._hear(slot, keys, trained)
        if not self._pool.feeders:
            return None

        held = self._chunks.get(key)
        if key in self._broken or (held is None and self._behind(key)):
            return []

        if held is None:
            held = await self._made(key)
        if held is None:
            return self._without_chunk()

        held.asked = True
        self._chunks.want(keys[::-1])
        self._count(served=1)
        self._dispatch()
        return [held.ref]

    async def look(
        self,
        slot: str,
        keys: Sequence[Key],
        trained: Seconds | None,
        made: Seconds | None,
    ) -> bool:
        """A slot that prepares its own data tells what it does.

        Returns whether there are feeders to ask instead.
        """
        if made is not None:
            self._demand.times.append(made)
        self._hear(slot, keys, trained)
        return bool(self._pool.feeders)

    def _hear(self, slot: str, keys: Sequence[Key], trained: Seconds | None) -> None:
        """Note what the slot wants, and start feeders if that takes more of them."""
        self._demand.hear(slot, keys, trained)
        self._pool.grow(self._cpus)

    async def _made(self, key: Key) -> HeldChunk | None:
        """The chunk, once a feeder has made it; None if none did."""
        begin = monotonic()
        loop = asyncio.get_running_loop()
        coming = self._wanted.setdefault(key, loop.create_future())
        self._dispatch()
        held = await asyncio.shield(coming)
        self._count(waits=1, waited=monotonic() - begin)
        return held

    def _without_chunk(self) -> list[Any] | None:
        """The answer to a slot whose chunk no feeder made."""
        if self._pool.feeders:
            return []
        return None

    def _behind(self, key: Key) -> bool:
        """Whether a slot makes a chunk sooner that nobody asked for yet.

        So it is while feeders whose number is still to be found have enough to do.
        """
        if key in self._wanted or key in self._making or not self._pool.grows:
            return False
        waiting = self._wanted.keys() - self._making
        return len(waiting) >= len(self._pool.feeders)

    # -- what the driver asks ----------------------------------------------------------

    async def fed(self) -> tuple[int, Fed]:
        """This process, and what it did so far: figures as `COUNTED`. See `Totals`."""
        return os.getpid(), self._fed()

    async def news(self) -> tuple[int, Fed]:
        """The same, when the number of feeders has changed.

        When only other figures have, some time passes first.
        """
        while True:
            try:
                await asyncio.wait_for(self._news.wait(), TELL)
            except TimeoutError:
                if self._fed() == self._told:
                    continue
            self._news.clear()
            self._told = self._fed()
            return os.getpid(), self._told

    async def pids(self) -> tuple[int, list[int]]:
        """This process, and the feeders'."""
        feeders = [await feeder.pid.remote() for feeder in self._pool.feeders]
        return os.getpid(), feeders

    def _fed(self) -> Fed:
        """What the feeders did so far."""
        figures = self._figures | {"feeders": float(len(self._pool.feeders))}
        return Fed(platform.node(), figures)

    # -- making ------------------------------------------------------------------------

    def _on_pool(self) -> None:
        """Feeders that were started are there, or will never be."""
        if self._pool.complete:
            self._news.set()
        self._dispatch()

    def _dispatch(self) -> None:
        """Give idle feeders what is asked for, and before it is, what will be next."""
        while self._pool.idle:
            key = self._next()
            if key is None:
                return
            feeder = self._pool.take(
                self._homes.get(key[:2]), self._readers.get(key[0])
            )
            self._homes[key[:2]] = feeder
            self._readers[key[0]] = feeder
            self._making.add(key)
            self._chunks.clear(len(self._making) * self._chunks.largest)
            self._tasks.start(self._make(feeder, key))

    def _next(self) -> Key | None:
        """The chunk to make next; None if there is none, or no memory for one."""
        making = len(self._making) + 1
        if self._chunks.too_much(making):
            return None

        for key in self._wanted:
            if key not in self._making:
                return key

        if self._chunks.too_far_ahead(making):
            return None

        for key in self._demand.coming():
            if not (key in self._chunks or key in self._making or key in self._broken):
                return key

        return None

    async def _make(self, feeder: Any, key: Key) -> None:
        """Have the feeder make the chunk, and answer the slots that wait for it."""
        held = None
        try:
            held = await self._asked_of(feeder, key)
        except Exception as error:  # noqa: BLE001 whatever it was, nobody may wait for ever
            self._broken.add(key)
            if isinstance(error, RayError) and not isinstance(error, CHUNK_FAILED):
                self._pool.lose(feeder)
                self._news.set()

        self._making.discard(key)
        self._pool.rest(feeder)
        self._answer(key, held)
        self._dispatch()

    async def _asked_of(self, feeder: Any, key: Key) -> HeldChunk:
        """The chunk, made by the feeder and held from now on."""
        about, ref = feeder.make.options(num_returns=2).remote(key)
        made: PreparedChunk = await about
        held = HeldChunk(ref, made.bytes, made.rows)
        self._chunks.put(key, held)
        self._took(made)
        return held

    def _answer(self, key: Key, held: HeldChunk | None) -> None:
        """Tell those who wait for the chunk; if no feeder is left, all who wait for any."""
        answered = [key]
        if not self._pool.feeders:
            answered = list(self._wanted)
        for each in answered:
            waiting = self._wanted.pop(each, None)
            if waiting is None:
                continue
            if each == key:
                waiting.set_result(held)
            else:
                waiting.set_result(None)

    def _took(self, made: PreparedChunk) -> None:
        """Count what a chunk took, and drop others if there is no room for it."""
        self._demand.times.append(made.seconds / made.rows)
        self._cpu[made.pid] = made.cpu
        others = len(self._making) - 1
        held = self._chunks.bytes() + others * self._chunks.largest
        self._chunks.clear(0)
        ahead = sum(chunk.rows for chunk in self._chunks.unasked())
        self._figures["cpu"] = sum(self._cpu.values())
        self._figures["bytes"] = max(self._figures["bytes"], held)
        self._figures["ahead"] = max(self._figures["ahead"], ahead)
        self._count(made=1)

    def _count(self, **more: float) -> None:
        """Add to the figures."""
        for name, each in more.items():
            self._figures[name] += each


def _resources(node: str) -> dict[str, float]:
    """What Ray knows of the node's CPUs and memory."""
    for each in ray.nodes():
        if each["NodeID"] == node:
            resources: dict[str, float] = each["Resources"]
            return resources
    raise LookupError(f"node {node} is not in the cluster")
