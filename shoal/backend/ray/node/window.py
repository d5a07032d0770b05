"""Chunks prepared once for all slots of a node: a window of them, and the processes that fill it.

Guan et al., "FLEET", MLSys 2020, section 3.1, shares one preprocessing stream among the models of a
flotilla, through bounded queues of 2048 samples. Here slots pull. The window makes what is asked
for, before that what it is told will be asked for next, and holds chunks as long as it has room. So
it needs no more memory than that, and nobody waits for a slot that is slow or gone: one that falls
behind the window has its chunks made again. How many feeders: appendix B.3, see `feeders_wanted`.
"""

import asyncio
import os
from collections.abc import Sequence
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, UnserializableException

from shoal.backend.ray.node.chunks import AwaitedChunks, HeldChunk, HeldChunks
from shoal.backend.ray.node.feeder import PreparedChunk
from shoal.backend.ray.node.pool import BackgroundTasks, FeederPool
from shoal.backend.ray.node.setup import FeederSetup
from shoal.backend.ray.node.sharing.counts import WindowCounts
from shoal.backend.ray.node.sharing.demand import FeederDemand
from shoal.backend.ray.node.sharing.directory import Key
from shoal.backend.ray.node.sharing.exchange import ChunkExchange
from shoal.core.cluster import ShardId
from shoal.core.event import Fed
from shoal.core.trial import Samples, Seconds

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
        self._counts = WindowCounts()
        self._exchange = ChunkExchange(setup.token, node, self._counts)

        self._making: set[Key] = set()
        # Chunks that could not be made: slots find out by themselves why.
        self._broken: set[Key] = set()
        self._wanted = AwaitedChunks()
        # By shard and number: the feeder that has what `prepare` made of that chunk.
        self._homes: dict[tuple[ShardId, int], Any] = {}
        # The feeder that was given a chunk of the shard last.
        self._readers: dict[ShardId, Any] = {}

        self._news = asyncio.Event()
        if self._pool.feeders:
            self._news.set()

    # -- what slots ask ----------------------------------------------------------------

    async def chunk(
        self,
        slot: str,
        keys: Sequence[Key],
        trained: Seconds | None,
        told: bool = False,
    ) -> list[Any] | None:
        """A reference to the first key's chunk, in a list, lest Ray fetches it.

        The list is empty if the slot is to make the chunk. None: it is to make those that follow,
        too, for there are no feeders. Then see `FeederFeed`. `told`: by a look, just before.
        """
        key = keys[0]
        if not told:
            self._hear(slot, keys, trained)
        if not self._pool.feeders:
            return None

        held = self._chunks.get(key)
        if key in self._broken or (held is None and self._behind(key)):
            return []

        if held is None:
            held = await self._made(key)
        if held is None:
            return [] if self._pool.feeders else None

        held.asked = True
        self._chunks.want(keys[::-1])
        self._counts.add(served=1)
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

        `made`: seconds per sample that its last chunk took. Returns whether there are feeders to
        ask instead.
        """
        if made is not None:
            self._demand.prepared(made)
        self._hear(slot, keys, trained)
        return bool(self._pool.feeders)

    def _hear(self, slot: str, keys: Sequence[Key], trained: Seconds | None) -> None:
        """Note what the slot wants, and start feeders if that takes more of them."""
        self._demand.hear(slot, keys, trained)
        if self._pool.grows:
            self._tasks.start(self._exchange.learn(self._demand))
        self._pool.grow(self._cpus)

    async def _made(self, key: Key) -> HeldChunk | None:
        """The chunk, once a feeder has made it; None if none did."""
        begin = monotonic()
        coming = self._wanted.coming(key)
        self._dispatch()
        held = await coming
        self._counts.add(waits=1, waited=monotonic() - begin)
        return held

    def _behind(self, key: Key) -> bool:
        """Whether a slot makes a chunk sooner that nobody asked for yet.

        So it is while feeders whose number is still to be found have enough to do.
        """
        if key in self._wanted or key in self._making or not self._pool.grows:
            return False
        waiting = set(self._wanted) - self._making
        return len(waiting) >= len(self._pool.feeders)

    # -- what windows of other nodes ask -----------------------------------------------

    async def hand(self, key: Key) -> tuple[list[Any], int, Samples] | None:
        """A reference to the chunk as of `chunk`, its bytes and samples; None: nobody makes it."""
        if key in self._broken or not self._pool.feeders:
            return None
        held = self._chunks.get(key)
        if held is None:
            coming = self._wanted.coming(key, elsewhere=True)
            self._dispatch()
            held = await coming
        if held is None:
            return None
        return [held.ref], held.bytes, held.rows

    # -- what the driver asks ----------------------------------------------------------

    async def join(self, directory: Any) -> None:
        """There are windows at other nodes. `directory`: see `ChunkDirectory`."""
        self._exchange.join(directory)

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
                if self._fed() == self._counts.told:
                    continue
            self._news.clear()
            self._counts.told = self._fed()
            return os.getpid(), self._counts.told

    async def pids(self) -> tuple[int, list[int]]:
        """This process, and the feeders'."""
        feeders = [await feeder.pid.remote() for feeder in self._pool.feeders]
        return os.getpid(), feeders

    def _fed(self) -> Fed:
        """What the feeders did so far."""
        return self._counts.fed(len(self._pool.feeders))

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
            feeder = self._pool.take(self._homes.get(key[:2]), self._readers.get(key[0]))
            self._homes[key[:2]] = feeder
            self._readers[key[0]] = feeder
            self._making.add(key)
            self._chunks.clear(len(self._making) * self._chunks.largest)
            self._tasks.start(self._obtain(feeder, key))

    def _next(self) -> Key | None:
        """The chunk to make next; None if there is none, or no memory for one."""
        making = len(self._making) + 1
        if self._chunks.too_much(making):
            # A chunk for another node is made all the same: the two may wait for each other.
            if len(self._pool.idle) < len(self._pool.feeders):
                return None
            return self._wanted.next_elsewhere(self._making)

        wanted = self._wanted.next(self._making)
        if wanted is not None:
            return wanted
        if self._chunks.too_far_ahead(making):
            return None

        for key in self._demand.coming():
            if not (key in self._chunks or key in self._making or key in self._broken):
                return key
        return None

    async def _obtain(self, feeder: Any, key: Key) -> None:
        """Have the feeder make the chunk, unless another node makes it: then bring it here."""
        maker = await self._exchange.maker(key)
        if maker is None:
            await self._make(feeder, key)
            return

        self._pool.rest(feeder)
        self._dispatch()
        held = await self._exchange.brought(key, maker)
        if held is not None:
            self._hold(key, held)
            self._answer(key, held)
        self._making.discard(key)
        self._dispatch()

    async def _make(self, feeder: Any, key: Key) -> None:
        """Have the feeder make the chunk, and answer the slots that wait for it."""
        held = None
        try:
            held = await self._asked_of(feeder, key)
        except Exception as error:  # noqa: BLE001 whatever it was, nobody may wait for ever
            self._broken.add(key)
            gone = isinstance(error, RayError | TimeoutError)
            if gone and not isinstance(error, CHUNK_FAILED):
                self._pool.lose(feeder)
                self._news.set()

        self._making.discard(key)
        self._pool.rest(feeder)
        self._answer(key, held)
        self._dispatch()

    async def _asked_of(self, feeder: Any, key: Key) -> HeldChunk:
        """The chunk, made by the feeder and held from now on."""
        about, ref = feeder.make.options(num_returns=2).remote(key)
        made: PreparedChunk = await self._pool.answered(feeder, about)
        self._demand.prepared(made.seconds / made.rows)
        self._exchange.made(made)
        self._counts.spent(made.pid, made.cpu)
        self._counts.add(made=1)
        held = HeldChunk(ref, made.bytes, made.rows)
        self._hold(key, held)
        return held

    def _hold(self, key: Key, held: HeldChunk) -> None:
        """Hold one chunk more."""
        size, ahead = self._chunks.put(key, held, len(self._making) - 1)
        self._counts.most(bytes=size, ahead=ahead)

    def _answer(self, key: Key, held: HeldChunk | None) -> None:
        """Tell those who wait for the chunk; if no feeder is left, all who wait for any."""
        self._wanted.answer(key, held)
        if not self._pool.feeders:
            self._wanted.answer_none()


def _resources(node: str) -> dict[str, float]:
    """What Ray knows of the node's CPUs and memory."""
    for each in ray.nodes():
        if each["NodeID"] == node:
            resources: dict[str, float] = each["Resources"]
            return resources
    raise LookupError(f"node {node} is not in the cluster")
