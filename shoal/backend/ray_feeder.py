"""Chunks prepared once for all slots of a node: a window of them, the processes that fill it, and how a slot asks for one.

Guan et al., "FLEET", MLSys 2020, section 3.1, shares one preprocessing stream among the models of a flotilla, through bounded
queues of 2048 samples. Here slots pull. The window makes what is asked for, before that what it is told will be asked for next,
and holds chunks as long as it has room. So it needs no more memory than that, and nobody waits for a slot that is slow or gone:
one that falls behind the window has its chunks made again. How many feeders: appendix B.3, see `feeders_wanted`.
"""

import asyncio
import os
import pickle
import platform
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from time import monotonic, perf_counter, process_time
from typing import Any, Literal

import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError, UnserializableException
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.backend import ray_data
from shoal.backend.ray_process import fetched
from shoal.core.cluster import GiB, ShardId
from shoal.core.event import Fed
from shoal.core.trial import Samples, Seconds
from shoal.profile.fleet import feeders_wanted
from shoal.train import columns as cols
from shoal.train.columns import Columns

Key = tuple[ShardId, int, int | None, str]  # as of `train.stream`
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
KNOWN = 5  # chunks to be prepared before their times count for anything
RECENT = 15  # chunks whose median time does
FORGOTTEN = 60.0  # seconds after which a slot that asks for nothing does not count
TELL = 30.0  # seconds between two reports, while there is something new
RESTARTS = 10  # of a feeder: one that cannot even start would be started for ever
TRIES = 3  # feeders that came to nothing, after which no more are started
SHARE = 0.3  # of the node's object store that the window may fill, lest models at rest find no room


@dataclass(frozen=True, slots=True)
class FeederSetup:
    """What the feeders of a node have to know of the study."""

    user: bytes  # (recipe, pace), pickled with their code
    seed: int
    fingerprint: str
    token: str
    cache: str | None
    count: int | Literal["auto"]
    window_gb: GiB  # of chunks held for others
    data_memory_gb: GiB  # for what `prepare` makes: of all feeders where their number is given, else of each
    threads: int  # of each slot

    @classmethod
    def of(cls, at: Any) -> "FeederSetup":
        """From a slot's."""
        window, kept = at.stream_memory_gb, at.data_memory_gb
        return cls(at.user, at.seed, at.fingerprint, at.token, at.cache, at.feeders, window, kept, at.threads)


@dataclass(frozen=True, slots=True)
class Made:
    """A chunk that a feeder made. `cpu`: seconds of its process so far."""

    rows: int
    bytes: int
    seconds: Seconds
    cpu: Seconds
    pid: int


class Feeder:
    """A process that prepares chunks."""

    def __init__(self, setup: FeederSetup) -> None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = "1"
        from shoal.train.stream import feeding

        recipe, _ = pickle.loads(setup.user)
        node = ray.get_runtime_context().get_node_id()
        data = ray_data.shared(ray_data.place(setup.token, node, setup.cache), os.getppid(), recipe.data, setup.fingerprint)
        self._stream = feeding(recipe, data, setup.seed, setup.data_memory_gb)
        self._begun = process_time()

    def make(self, key: Key) -> tuple[Made, Any]:
        """The chunk, its columns as of `columns.laid`, and what it took."""
        begin = perf_counter()
        made = self._stream.made(*key)
        about = Made(cols.rows(made), cols.nbytes(made), perf_counter() - begin, process_time() - self._begun, os.getpid())
        return about, cols.apply(made, cols.laid)

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()


@dataclass(eq=False, slots=True)
class _Held:
    """A chunk in the window."""

    ref: Any
    bytes: int
    rows: int
    asked: bool = False


class _Slot:
    """What a slot told: when last, its seconds per sample, and what it wants next."""

    def __init__(self) -> None:
        self.heard = 0.0
        self.trained: Seconds | None = None
        self.coming: Sequence[Key] = ()


class Window:
    """A node's prepared chunks, and the feeders that make them, in a process of its own. All methods run in one thread."""

    def __init__(self, setup: FeederSetup) -> None:
        self._setup, self._node = setup, ray.get_runtime_context().get_node_id()
        resources = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == self._node)
        self._cpus = int(resources.get("CPU", 1))
        self._room = min(setup.window_gb * 2**30, SHARE * resources.get("object_store_memory", 2**62))
        self._feeders = [self._new() for _ in range(0 if setup.count == "auto" else setup.count)]
        self._idle = list(self._feeders)
        self._coming: list[Any] = []  # not there yet
        self._homes: dict[tuple[ShardId, int], Any] = {}  # by shard and number: the feeder that has what `prepare` made of it
        self._readers: dict[ShardId, Any] = {}  # the feeder that was given a chunk of the shard last
        self._held: OrderedDict[Key, _Held] = OrderedDict()  # wanted longest ago first
        self._making: set[Key] = set()
        self._broken: set[Key] = set()  # whose making failed: slots find out by themselves
        self._failed = 0  # feeders given up
        self._wanted: OrderedDict[Key, asyncio.Future[_Held | None]] = OrderedDict()
        self._slots: dict[str, _Slot] = {}
        self._asked: deque[Key] = deque(maxlen=256)  # lately, one for each time
        self._times: deque[Seconds] = deque(maxlen=RECENT)  # per sample prepared, lately, as things are now
        self._largest = 0
        self._cpu: dict[int, Seconds] = {}  # by process
        self._figures = dict.fromkeys(COUNTED, 0.0)
        self._told, self._news = self._fed(), asyncio.Event()
        self._tasks: set[Any] = set()
        self._count(feeders=len(self._feeders))
        if self._feeders:
            self._news.set()

    async def chunk(self, slot: str, keys: Sequence[Key], trained: Seconds | None) -> list[Any] | None:
        """A reference to the first key's chunk (in a list, lest Ray fetches it); empty: make it yourself.

        None: and so with those that follow, there are no feeders. Then see `Feed`.
        """
        key = keys[0]
        self._hear(slot, key, keys[1:], trained)
        if not self._feeders:
            return None
        held, begin = self._held.get(key), monotonic()
        if key in self._broken or (held is None and self._behind(key)):
            return []
        if held is None:
            coming = self._wanted.setdefault(key, asyncio.get_running_loop().create_future())
            self._dispatch()
            held = await asyncio.shield(coming)
            self._count(waits=1, waited=monotonic() - begin)
        if held is None:
            return [] if self._feeders else None
        held.asked = True
        for wanted in keys[::-1]:
            if wanted in self._held:
                self._held.move_to_end(wanted)
        self._count(served=1)
        self._dispatch()
        return [held.ref]

    async def look(self, slot: str, keys: Sequence[Key], trained: Seconds | None, made: Seconds | None) -> bool:
        """A slot that prepares its own data tells what it does; whether there are feeders to ask instead."""
        if made is not None:
            self._times.append(made)
        self._hear(slot, keys[0], keys[1:], trained)
        return bool(self._feeders)

    def _behind(self, key: Key) -> bool:
        """Whether a slot is sooner through with a chunk that nobody asked for yet than feeders that were to find their number."""
        new = key not in self._wanted and key not in self._making
        return new and self._setup.count == "auto" and len(self._wanted.keys() - self._making) >= len(self._feeders)

    async def fed(self) -> tuple[int, Fed]:
        """This process, and what it did so far: figures as `COUNTED`. See `Totals`."""
        return os.getpid(), self._fed()

    async def news(self) -> tuple[int, Fed]:
        """The same, when the number of feeders has changed, or something else has and some time went by."""
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
        return os.getpid(), [await feeder.pid.remote() for feeder in self._feeders]

    # -- how many --------------------------------------------------------------------------------------------------------

    def _hear(self, slot: str, key: Key, coming: Sequence[Key], trained: Seconds | None) -> None:
        at = self._slots.setdefault(slot, _Slot())
        at.heard, at.trained, at.coming = monotonic(), trained or at.trained, coming
        self._asked.append(key)
        if self._setup.count == "auto" and not self._coming and len(self._times) >= KNOWN and self._failed < TRIES:
            self._grow()

    def _live(self) -> list[_Slot]:
        return [at for at in self._slots.values() if monotonic() - at.heard < FORGOTTEN]

    def _grow(self) -> None:
        """Start feeders if more are wanted: one, then as many again as there are, each time measured anew."""
        slots = self._live()
        train = [at.trained for at in slots if at.trained]
        if len(train) < len(slots) or len(self._asked) < 2 * len(slots):
            return
        most = max(1, self._cpus - len(slots) * self._setup.threads)
        made = len(set(self._asked)) / len(self._asked)
        more = feeders_wanted(max(median(self._times), 1e-9), train, made, most) - len(self._feeders)
        if more > 0:
            self._coming = [self._new() for _ in range(min(more, max(1, len(self._feeders))))]
            for feeder in list(self._coming):
                self._keep(self._greet(feeder))

    def _new(self) -> Any:
        """A feeder; if it dies it comes back, and is given what it was at again."""
        where = NodeAffinitySchedulingStrategy(self._node, soft=False)
        made = ray.remote(Feeder).options(num_cpus=0, max_restarts=RESTARTS, max_task_retries=2, scheduling_strategy=where)
        count = 1 if self._setup.count == "auto" else self._setup.count
        return made.remote(replace(self._setup, data_memory_gb=self._setup.data_memory_gb / count))

    async def _greet(self, feeder: Any) -> None:
        """It counts once it is there: until then slots prepare their own data, as they did."""
        try:
            await feeder.pid.remote()
            self._feeders.append(feeder)
            self._idle.append(feeder)
            self._count(feeders=1)
        except RayError:
            self._give_up(feeder)
        self._coming.remove(feeder)
        if not self._coming:
            self._times.clear()
            self._news.set()
        self._dispatch()

    def _give_up(self, feeder: Any) -> None:
        self._failed += 1
        ray.kill(feeder)

    def _keep(self, doing: Coroutine[Any, Any, None]) -> None:
        """See that it is done, whoever is gone meanwhile."""
        task = asyncio.ensure_future(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- making ----------------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give idle feeders what is asked for, and before it is, what will be next."""
        while self._idle and (key := self._next()) is not None:
            rather = self._homes.get(key[:2]), self._readers.get(key[0])
            feeder = next((each for each in rather if each in self._idle), self._idle[0])
            self._idle.remove(feeder)
            self._homes[key[:2]] = self._readers[key[0]] = feeder
            self._making.add(key)
            self._clear(len(self._making) * self._largest)
            self._keep(self._make(feeder, key))

    def _next(self) -> Key | None:
        if self._making and (len(self._making) + 1) * (self._largest or self._room) > self._room:
            return None
        for key in self._wanted:
            if key not in self._making:
                return key
        waiting = sum(held.bytes for held in self._held.values() if not held.asked)
        if waiting + (len(self._making) + 1) * self._largest > self._room / 2:
            return None  # or it would have no room for what others are still to take
        coming = (key for slot in self._live() for key in slot.coming)
        return next((k for k in coming if not (k in self._held or k in self._making or k in self._broken)), None)

    async def _make(self, feeder: Any, key: Key) -> None:
        held: _Held | None = None
        try:
            about, ref = feeder.make.options(num_returns=2).remote(key)
            made: Made = await about
            held = self._held[key] = _Held(ref, made.bytes, made.rows)
            self._took(made)
        except (RayTaskError, UnserializableException):
            self._broken.add(key)
        except RayError:  # it died more often than chance will have it, or never came to be
            self._broken.add(key)
            self._feeders.remove(feeder)
            self._give_up(feeder)
            self._count(feeders=-1)
            self._news.set()
        except Exception:  # noqa: BLE001 whatever it was, nobody may wait for ever
            self._broken.add(key)
        self._making.discard(key)
        if feeder in self._feeders:
            self._idle.append(feeder)
        self._answer(key, held)
        self._dispatch()

    def _answer(self, key: Key, held: _Held | None) -> None:
        """To those who wait for it; where no feeder is left nobody needs to wait for anything."""
        for each in [key] if self._feeders else list(self._wanted):
            waiting = self._wanted.pop(each, None)
            if waiting is not None:
                waiting.set_result(held if each == key else None)

    def _took(self, made: Made) -> None:
        self._times.append(made.seconds / made.rows)
        self._largest = max(self._largest, made.bytes)
        self._cpu[made.pid] = made.cpu
        held = sum(each.bytes for each in self._held.values()) + (len(self._making) - 1) * self._largest
        self._clear(0)
        ahead = sum(each.rows for each in self._held.values() if not each.asked)
        most = {"bytes": max(self._figures["bytes"], held), "ahead": max(self._figures["ahead"], ahead)}
        self._figures |= {"cpu": sum(self._cpu.values()), **most}
        self._count(made=1)

    def _clear(self, more: int) -> None:
        """Drop chunks, those wanted longest ago first, until there is room for so many bytes more."""
        total = sum(held.bytes for held in self._held.values())
        while self._held and total + more > self._room and (more or len(self._held) > 1):
            total -= self._held.popitem(last=False)[1].bytes

    def _count(self, **more: float) -> None:
        for name, each in more.items():
            self._figures[name] += each

    def _fed(self) -> Fed:
        return Fed(platform.node(), dict(self._figures))


class Feed:
    """A slot's way to its node's window. While there are no feeders it only tells, and waits for no answer.

    `ahead`: see `train.stream.Feed`.
    """

    def __init__(self, window: Any, ahead: Samples, waits: bool) -> None:
        self.ahead, self._window, self._name = ahead, window, str(os.getpid())
        self._waits = self._there = waits
        self._answer: Any = None
        self._made: Seconds | None = None

    def chunk(self, keys: Sequence[Key], trained: Seconds | None) -> Columns | None:
        """The chunk; None where the slot is to make it: there are no feeders, or they failed or are behind."""
        try:
            if not self._there:
                self._there = self._look(keys, trained)
                return None
            found = fetched(self._window.chunk.remote(self._name, keys, trained))
            if found:
                chunk: Columns = cols.apply(fetched(found[0]), cols.unlaid)
                return chunk
            self._there = self._waits if found is None else True
        except RayError:
            self._there = self._waits
        return None

    def made(self, seconds: Seconds) -> None:
        """See `train.stream.Feed`."""
        self._made = seconds

    def _look(self, keys: Sequence[Key], trained: Seconds | None) -> bool:
        """Tell the window; whether the answer to what was told before says that there are feeders."""
        if self._answer is not None and not ray.wait([self._answer], timeout=0)[0]:
            return False
        answer, self._answer = self._answer, self._window.look.remote(self._name, keys, trained, self._made)
        self._made = None
        return answer is not None and bool(ray.get(answer))


def start(setup: FeederSetup, node: str) -> Any:
    """The node's window; one that dies comes back, without what it held."""
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    how = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": where, "name": _name(setup.token, node)}
    return ray.remote(Window).options(**how).remote(setup)


def find(token: str, node: str, count: int | Literal["auto"], ahead: Samples) -> Feed | None:
    """A slot's way to the window of its node, if that has one."""
    return Feed(ray.get_actor(_name(token, node)), ahead, waits=count != "auto") if count else None


class Totals:
    """What each node's feeders did in this run: a window that came back counts from 0."""

    def __init__(self) -> None:
        self._told: dict[str, dict[int, Fed]] = {}  # by node, and process of its window

    def take(self, pid: int, fed: Fed) -> Fed:
        """The totals, now that this process told this."""
        told = self._told.setdefault(fed.node, {})
        told[pid] = fed
        each = {name: [one.figures[name] for one in told.values()] for name in COUNTED}
        totals = {name: max(figures) if name in MOST else sum(figures) for name, figures in each.items()}
        return Fed(fed.node, totals | {"feeders": fed.figures["feeders"]})


def fed(windows: Iterable[Any]) -> list[tuple[int, Fed]]:
    """What the feeders of each did so far, of those that answer at once, as of `Window.fed`."""
    refs = [window.fed.remote() for window in windows]
    ready = ray.wait(refs, num_returns=len(refs), timeout=2.0)[0] if refs else []
    told: list[tuple[int, Fed]] = []
    for ref in ready:
        with suppress(RayError):
            told.append(ray.get(ref))
    return told


def gone(error: BaseException | None) -> bool:
    """Whether a window's error means that it will not come back."""
    return error is not None and not isinstance(error, ActorUnavailableError)


def _name(token: str, node: str) -> str:
    return f"shoal-feeders-{token}-{node}"
