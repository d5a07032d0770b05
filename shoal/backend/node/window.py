"""A node's window: it holds prepared chunks for the node's slots, and has feeders make more."""

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from statistics import median, median_low
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, UnserializableException

from shoal.backend.node.chunk_demand import FeederDemand, Key, WindowCounts, varies
from shoal.backend.node.feeders import BackgroundTasks, FeederPool, PreparedChunk
from shoal.backend.node.messages import FeederSetup, window_name
from shoal.core.cluster import ShardId
from shoal.core.event import Fed
from shoal.core.trial import Samples, Seconds


@dataclass(eq=False, slots=True)
class HeldChunk:
    """A prepared chunk in the window."""

    ref: Any  # where it lies in the object store
    bytes: int
    rows: int
    served: bool = False  # to a slot that asked for it


class HeldChunks:
    """Chunks by their keys, the one wanted longest ago first. `room`: bytes for all of them."""

    def __init__(self, room: float) -> None:
        self.room = room
        self.largest = 0  # bytes of a chunk, at most so far
        self._chunks: OrderedDict[Key, HeldChunk] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._chunks

    def get(self, key: Key) -> HeldChunk | None:
        """The chunk; None if it is not held."""
        return self._chunks.get(key)

    def put(self, key: Key, chunk: HeldChunk, others: int) -> tuple[int, Samples]:
        """Hold one more chunk, and drop some if there is no room for it.

        Returns the bytes of all chunks before some are dropped, with so many `others` that are
        being made, and the samples that no slot asked for yet.
        """
        self._chunks[key] = chunk
        self.largest = max(self.largest, chunk.bytes)
        most = self.bytes() + others * self.largest
        self.clear(0)
        return most, sum(chunk.rows for chunk in self.unserved())

    def want(self, keys: Iterable[Key]) -> None:
        """Note that these are wanted now: others are dropped first, and the last one last."""
        for key in keys:
            if key in self._chunks:
                self._chunks.move_to_end(key)

    def bytes(self) -> int:
        """Bytes of all chunks held."""
        return sum(chunk.bytes for chunk in self._chunks.values())

    def unserved(self) -> list[HeldChunk]:
        """The chunks that no slot asked for yet."""
        return [chunk for chunk in self._chunks.values() if not chunk.served]

    def too_much(self, making: int) -> bool:
        """Whether so many chunks may not be made at a time, for want of memory.

        One at a time always may; before the first is made, nobody knows how large chunks are.
        """
        return making > 1 and making * (self.largest or self.room) > self.room

    def too_far_ahead(self, making: int) -> bool:
        """Whether chunks made early would leave no room for what others are still to take."""
        waiting = sum(chunk.bytes for chunk in self.unserved())
        return waiting + making * self.largest > self.room / 2

    def clear(self, more: int) -> None:
        """Drop chunks, longest unwanted first, until there is room for so many bytes more.

        With `more` 0 the last chunk stays, however large it is.
        """
        total = self.bytes() + more
        fewest = int(more == 0)
        while len(self._chunks) > fewest and total > self.room:
            _, dropped = self._chunks.popitem(last=False)
            total -= dropped.bytes


class AwaitedChunks:
    """Chunks that somebody waits for; who asked first comes first."""

    def __init__(self) -> None:
        self._futures: OrderedDict[Key, asyncio.Future[HeldChunk | None]] = OrderedDict()
        self._elsewhere: set[Key] = set()  # those that other nodes wait for

    def __iter__(self) -> Iterator[Key]:
        return iter(self._futures)

    def coming(self, key: Key, elsewhere: bool = False) -> asyncio.Future[HeldChunk | None]:
        """The chunk, once it is there; None if it does not come.

        `elsewhere`: another node waits for it.
        """
        loop = asyncio.get_running_loop()
        if elsewhere:
            self._elsewhere.add(key)
        return asyncio.shield(self._futures.setdefault(key, loop.create_future()))

    def next(self, making: Set[Key]) -> Key | None:
        """The chunk to make next; `making`: those that are being made."""
        return next((key for key in self._futures if key not in making), None)

    def next_elsewhere(self, making: Set[Key]) -> Key | None:
        """The chunk to make next of those that other nodes wait for."""
        waiting = (key for key in self._futures if key in self._elsewhere - making)
        return next(waiting, None)

    def answer(self, key: Key, chunk: HeldChunk | None) -> None:
        """Tell those who wait for the chunk."""
        self._elsewhere.discard(key)
        waiting = self._futures.pop(key, None)
        if waiting is not None:
            waiting.set_result(chunk)

    def answer_none(self) -> None:
        """Tell those who wait for any chunk that none comes."""
        for key in list(self._futures):
            self.answer(key, None)


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
        # For a byte: of chunks that vary, and of the others.
        self._preparing: dict[bool, deque[Seconds]] = {}
        # For a byte, and when that was measured.
        self._sending: deque[tuple[float, Seconds]] = deque(maxlen=RECENT)

    def join(self, directory: Any) -> None:
        """Share chunks with other nodes, which meet at this directory."""
        self._directory = directory

    async def maker(self, key: Key) -> str | None:
        """The other node that makes the chunk; None: it is to be made here."""
        if key in self._taken:
            self._taken.discard(key)
            return None
        if not self._pays(varies(key)):
            return None
        maker: str | None = await self._ask_directory(
            lambda: self._directory.maker.remote(key, self._node)
        )
        if maker == self._node:
            return None
        return maker

    async def brought(self, key: Key, node: str) -> HeldChunk | None:
        """The chunk from the node that makes it; None: it is to be made here, after all."""
        try:
            return await asyncio.wait_for(self._fetch(key, node), PATIENCE)
        except Exception:  # noqa: BLE001 whatever it was, nobody may wait for ever
            self._windows.pop(node, None)
            self._taken.add(key)
            await self._ask_directory(lambda: self._directory.take.remote(key, self._node))
            return None

    def made(self, key: Key, chunk: PreparedChunk) -> None:
        """Note how long a feeder of this node took to make a chunk."""
        preparing = self._preparing.setdefault(varies(key), deque(maxlen=RECENT))
        preparing.append(chunk.seconds / max(1, chunk.bytes))

    async def learn(self, demand: FeederDemand) -> None:
        """Find out now and then what the slots of all nodes need together.

        For feeders of this node may make the chunks of the others. While each node makes its own,
        only its own slots count.
        """
        now = monotonic()
        node_demand = demand.of_node()
        if node_demand is None or now < self._reported + EVERY:
            return
        kinds = self._preparing or (False,)  # one that was never made says nothing
        if not any(map(self._pays, kinds)):
            demand.together = None
            return
        self._reported = now
        demand.together = await self._ask_directory(
            lambda: self._directory.demand.remote(self._node, node_demand)
        )

    def _pays(self, kind: bool) -> bool:
        """Whether there is another node, and sending such a chunk is cheaper than to make it."""
        now = monotonic()
        if self._directory is None or now < self._silent_until:
            return False
        preparing = self._preparing.get(kind)
        if preparing is None:
            return True
        recent = [took for time, took in self._sending if time > now - MEASURED]
        # One slow sending says little: the first one connects, and a node may be busy for a moment.
        return median(preparing) > median_low([STATED, *recent])

    async def _fetch(self, key: Key, node: str) -> HeldChunk:
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

    async def _ask_directory(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What the directory says; None if it does not. Then it is left alone for a while."""
        try:
            return await asyncio.wait_for(ask(), ANSWERS)
        except (RayError, OSError):
            self._silent_until = monotonic() + MEASURED
            return None


TELL = 30.0  # seconds between two reports, while there is something new
SHARE = 0.3  # of the node's object store that the window may fill, lest models at rest find no room
CHUNK_FAILED = (RayTaskError, UnserializableException)  # the feeder is as good as before


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
        self, slot: str, keys: Sequence[Key], trained: Seconds | None, looked: bool = False
    ) -> list[Any] | None:
        """A reference to the first key's chunk, in a list, lest Ray fetches it.

        The list is empty if the slot is to make the chunk. None: it is to make those that follow,
        too, for there are no feeders. Then see `FeederFeed`. `looked`: it has called `look` just
        before.
        """
        key = keys[0]
        if not looked:
            self._hear(slot, keys, trained)
        if not self._pool.feeders:
            return None

        chunk = self._chunks.get(key)
        if key in self._broken or (chunk is None and self._behind(key)):
            return []

        if chunk is None:
            chunk = await self._wait_for(key)
        if chunk is None:
            return [] if self._pool.feeders else None

        chunk.served = True
        self._chunks.want(keys[::-1])
        self._counts.add(served=1)
        self._dispatch()
        return [chunk.ref]

    async def look(
        self,
        slot: str,
        keys: Sequence[Key],
        trained: Seconds | None,
        last_chunk: tuple[Key, Seconds] | None,
    ) -> bool:
        """Note what a slot does that prepares its own data; whether there are feeders instead.

        `last_chunk`: the last that it made, and the seconds per sample that it took.
        """
        if last_chunk is not None:
            self._demand.prepared(*last_chunk)
        self._hear(slot, keys, trained)
        return bool(self._pool.feeders)

    def _hear(self, slot: str, keys: Sequence[Key], trained: Seconds | None) -> None:
        """Note what the slot wants, and start feeders if that takes more of them."""
        self._demand.hear(slot, keys, trained)
        if self._pool.grows:
            self._tasks.start(self._exchange.learn(self._demand))
        self._pool.grow(self._cpus)

    async def _wait_for(self, key: Key) -> HeldChunk | None:
        """The chunk, once a feeder has made it; None if none did."""
        begin = monotonic()
        coming = self._wanted.coming(key)
        self._dispatch()
        chunk = await coming
        self._counts.add(waits=1, waited=monotonic() - begin)
        return chunk

    def _behind(self, key: Key) -> bool:
        """Whether a slot makes a chunk sooner than feeders do, if nobody asked for it yet.

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
        chunk = self._chunks.get(key)
        if chunk is None:
            coming = self._wanted.coming(key, elsewhere=True)
            self._dispatch()
            chunk = await coming
        if chunk is None:
            return None
        return [chunk.ref], chunk.bytes, chunk.rows

    # -- what the driver asks ----------------------------------------------------------

    async def join(self, directory: Any) -> None:
        """Share chunks with windows at other nodes. `directory`: see `ChunkDirectory`."""
        self._exchange.join(directory)

    async def fed(self) -> tuple[int, Fed]:
        """This process, and what it did so far: figures as `COUNTED`. See `Totals`."""
        return os.getpid(), self._fed()

    async def news(self) -> tuple[int, Fed]:
        """As `fed`, once the number of feeders has changed, or other figures have for a while."""
        while True:
            try:
                await asyncio.wait_for(self._news.wait(), TELL)
            except TimeoutError:
                if self._fed() == self._counts.reported:
                    continue
            self._news.clear()
            self._counts.reported = self._fed()
            return os.getpid(), self._counts.reported

    async def pids(self) -> tuple[int, list[int]]:
        """This process, and the feeders'."""
        feeders = [await feeder.pid.remote() for feeder in self._pool.feeders]
        return os.getpid(), feeders

    def _fed(self) -> Fed:
        """What the feeders did so far."""
        return self._counts.fed(len(self._pool.feeders))

    # -- making ------------------------------------------------------------------------

    def _on_pool(self) -> None:
        """Go on with the feeders that are there, as some came or failed to come."""
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
        chunk = await self._exchange.brought(key, maker)
        if chunk is not None:
            self._hold(key, chunk)
            self._answer(key, chunk)
        self._making.discard(key)
        self._dispatch()

    async def _make(self, feeder: Any, key: Key) -> None:
        """Have the feeder make the chunk, and answer the slots that wait for it."""
        chunk = None
        try:
            chunk = await self._ask_feeder(feeder, key)
        except Exception as error:  # noqa: BLE001 whatever it was, nobody may wait for ever
            self._broken.add(key)
            feeder_lost = isinstance(error, RayError | TimeoutError)
            if feeder_lost and not isinstance(error, CHUNK_FAILED):
                self._pool.lose(feeder)
                self._news.set()

        self._making.discard(key)
        self._pool.rest(feeder)
        self._answer(key, chunk)
        self._dispatch()

    async def _ask_feeder(self, feeder: Any, key: Key) -> HeldChunk:
        """The chunk, made by the feeder and held from now on."""
        answer, ref = feeder.make.options(num_returns=2).remote(key)
        prepared: PreparedChunk = await self._pool.answered(feeder, answer)
        self._demand.prepared(key, prepared.seconds / prepared.rows)
        self._exchange.made(key, prepared)
        self._counts.spent(prepared.pid, prepared.cpu)
        self._counts.add(made=1)
        chunk = HeldChunk(ref, prepared.bytes, prepared.rows)
        self._hold(key, chunk)
        return chunk

    def _hold(self, key: Key, chunk: HeldChunk) -> None:
        """Hold one chunk more."""
        size, ahead = self._chunks.put(key, chunk, len(self._making) - 1)
        self._counts.most(bytes=size, ahead=ahead)

    def _answer(self, key: Key, chunk: HeldChunk | None) -> None:
        """Tell those who wait for the chunk; if no feeder is left, all who wait for any."""
        self._wanted.answer(key, chunk)
        if not self._pool.feeders:
            self._wanted.answer_none()


def _resources(node: str) -> dict[str, float]:
    """The node's CPUs and memory, as Ray knows them."""
    for each in ray.nodes():
        if each["NodeID"] == node:
            resources: dict[str, float] = each["Resources"]
            return resources
    raise LookupError(f"node {node} is not in the cluster")
