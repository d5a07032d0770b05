"""A slot's workers: which of them makes which chunk, and what becomes of their ends."""

from __future__ import annotations

import pickle
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Lock
from typing import Any

from shoal.core.cluster import GiB
from shoal.core.errors import warn
from shoal.core.trial import Samples, Seconds
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.data import Data
from shoal.train.recipe.pickling import dumps
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.recipe.settings import DataKey
from shoal.train.stream.shared_memory import place, take_columns
from shoal.train.stream.stream import ChunkKey, Key
from shoal.train.stream.worker import Worker, WorkerSetup, spawned

Start = Callable[[], tuple[BaseProcess, Connection]]
START: Seconds = 2.0  # about what it takes until a worker is ready
WORTH: Seconds = 0.005  # of a chunk that takes less, a worker would save nothing
EACH = 2  # tasks that a worker has at a time: one to make, and the next
LOOK = 4  # times as many chunks are looked at, for those whose blocks an idle worker keeps


@dataclass(frozen=True, slots=True)
class PoolSetup:
    """How a slot's workers are to be."""

    seed: int
    count: int
    # for what all of them and the slot keep of the data
    memory_gb: GiB
    # start as soon as a chunk takes some milliseconds; otherwise, once making chunks here has taken
    # as long as starting a worker does
    at_once: bool


class Workers:
    """Processes that make a slot's chunks, a few ahead of training.

    They give what this process would make, to the last bit. They are started only where making a
    chunk takes `WORTH` seconds or more. Until they are ready, and for what they cannot make, the
    slot makes its chunks itself: so an error of the recipe is raised there.
    """

    def __init__(self, recipe: Recipe, data: Data, setup: PoolSetup) -> None:
        self.most = EACH * setup.count  # chunks that are made or ready at a time
        self.ahead: Samples = self.most * data.chunk
        if data.by_rows:
            self.ahead *= LOOK
        self._setup = setup
        self._data = data
        self._chunk = data.chunk
        self._recipe = recipe
        # called with the number of processes that share `memory_gb`, when there are to be several
        self.on_start: Callable[[int], None] = _nothing
        # gives up what the slot keeps to make a chunk of, once a worker makes that chunk
        self.pop_block: Callable[[ChunkKey], Columns | None] = _no_block
        self.chunks_taken = 0  # chunks that workers made and the slot took
        self._slot_seconds: Seconds = 0.0  # by the slot, on chunks that it made itself
        self._sent_recipe: SentRecipe | None = None
        self._workers: list[Worker] = []
        self._ready: OrderedDict[ChunkKey, Columns] = OrderedDict()
        self._refused: set[ChunkKey] = set()  # could not be made by a worker
        self._homes: dict[Any, Worker] = {}  # who made a block before, and may have kept it
        self._why = ""  # why a worker could not make a chunk
        self._is_warned = False  # of that
        self._is_off = False  # workers cannot work here
        self._names = f"shoal{secrets.token_hex(5)}"
        self._count = 0  # of tasks so far
        self._lock = Lock()

    # -- what the slot asks ----------------------------------------------------------------------

    def of(self, key: DataKey) -> KeyFeed:
        """Where trials with this data key ask for their chunks."""
        return KeyFeed(self, key)

    def chunk(self, keys: Sequence[ChunkKey]) -> Columns | None:
        """The first of these chunks; None: the slot has to make it. The others are wanted next.

        Raises:
            DataError: a worker was killed twice.
        """
        with self._lock:
            if not self._workers:
                return None
            self._listen(0)
            first = keys[0]
            while any(worker.is_ready for worker in self._workers):
                if first in self._ready or first in self._refused:
                    break
                self._give_out(keys, awaited=first)
                self._listen(None)
            chunk = self._ready.pop(first, None)
            self.chunks_taken += chunk is not None
            self._refused.discard(first)
            self._give_out(keys[1:])
            return chunk

    def made(self, seconds: Seconds) -> None:
        """The slot made a chunk in so many seconds per sample. Starts the workers if that pays."""
        chunk_seconds = seconds * self._chunk
        with self._lock:
            self._slot_seconds += chunk_seconds
            if self._why:
                self._warn_of_refusal()
            enough = self._setup.at_once or self._slot_seconds >= START
            if enough and chunk_seconds >= WORTH and not self._workers and not self._is_off:
                self._start()

    @property
    def pids(self) -> list[int]:
        """The processes, for tests and for people who look."""
        return [worker.pid for worker in self._workers]

    def ready(self) -> int:
        """How many of them can make chunks now."""
        with self._lock:
            self._listen(0)
            return sum(worker.is_ready for worker in self._workers)

    def close(self) -> None:
        """End the processes, and free the memory that they share with this one."""
        with self._lock:
            self._is_off = True
            self._end()

    # -- the processes ---------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the processes; they are ready some seconds later."""
        setup = self._setup
        try:
            self._sent_recipe = SentRecipe(self._recipe, self._data, f"{self._names}-0")
        except OSError as error:
            self._give_up(f"no shared memory ({error})")
            return
        except Exception as error:  # noqa: BLE001 - no trial fails for want of a worker
            self._give_up(f"they cannot be sent the recipe ({error})")
            return
        share = setup.memory_gb / (setup.count + 1)
        if overrides(self._recipe, "augment"):
            # What is varied in each pass is kept by the workers, else by the slot.
            self.on_start(setup.count + 1)
        start = self._sent_recipe.starter(setup.seed, self._data.fingerprint, share)
        try:
            for _ in range(setup.count):
                self._workers.append(Worker(start))
        except Exception as error:  # noqa: BLE001 - a daemonic process may have no children
            self._give_up(f"no process can be started here ({error})")

    def _end(self) -> None:
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.join()
        self._workers = []
        self._homes.clear()
        self._ready.clear()
        if self._sent_recipe is not None:
            self._sent_recipe.free()
            self._sent_recipe = None

    def _give_up(self, why: str) -> None:
        """Do without workers from now on."""
        self._is_off = True
        self._end()
        warn(f"chunks are made in this process alone, for workers cannot make them: {why}")

    def _warn_of_refusal(self) -> None:
        """Warn once that a worker could not make a chunk that this process could make."""
        if not self._is_warned:
            warn(f"a worker could not make a chunk, which this process then made: {self._why}")
        self._is_warned = True
        self._why = ""

    # -- tasks -----------------------------------------------------------------------------------

    def _give_out(self, keys: Sequence[ChunkKey], awaited: ChunkKey | None = None) -> None:
        """Have the chunks made that are neither ready nor under way, as far as there is room.

        `awaited`: training waits for it, so that it needs no room.
        """
        under_way = {key for worker in self._workers for key in worker.tasks}
        known = under_way | self._refused | self._ready.keys()
        wanted = [key for key in keys if key not in known]
        coming = len(under_way) + min(len(wanted), self.most)
        for key in [*self._ready]:
            if len(self._ready) + coming <= self.most:
                break
            if key not in keys:  # not wanted any more; the oldest go first
                del self._ready[key]
        room = self.most - len(under_way) - len(self._ready)
        for anew in (False, True):
            for key in list(wanted):
                if room < 1 and key != awaited:
                    break
                worker = self._choose(key, anew)
                if worker is not None:
                    room -= 1
                    wanted.remove(key)
                    self._count += 1
                    worker.give(key, f"{self._names}-{self._count}", self.pop_block(key))
                    self._homes[home_of(key, self._data)] = worker

    def _choose(self, key: ChunkKey, anew: bool) -> Worker | None:
        """Who is to make the chunk. None: it waits until its worker has time.

        `anew`: a worker that has nothing to do makes it, though another keeps its block.
        """
        ready = [worker for worker in self._workers if worker.is_ready]
        if not ready:
            return None
        home = self._homes.get(home_of(key, self._data))
        idle = min(ready, key=lambda worker: len(worker.tasks))
        if home in ready and (len(home.tasks) < EACH or not self._data.by_rows):
            return home
        if home in ready and (idle.tasks or not anew):
            return None
        if len(idle.tasks) >= EACH:
            return None
        return idle

    # -- results ---------------------------------------------------------------------------------

    def _listen(self, timeout: Seconds | None) -> None:
        """Take what workers say; wait for it for so long, None: until one says something."""
        pipes: dict[Any, Worker] = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(pipes), timeout):
            worker = pipes[pipe]
            result = worker.receive()
            if result is None:
                self._revive(worker)
            elif result.key is None:
                worker.is_ready = not result.why
                if result.why:
                    self._give_up(result.why)
            elif result.placed is None:
                self._refused.add(result.key)
                self._why = self._why or result.why
            else:
                self._ready[result.key] = take_columns(result.placed)
                worker.taken.append(result.placed.name)
            if not self._workers:
                return

    def _revive(self, worker: Worker) -> None:
        """Start a worker again that was killed.

        Raises:
            DataError: that happened to it before.
        """
        worker.join()
        if worker.deaths > 1:
            code = worker.code
            self._is_off = True
            self._end()
            raise DataError(
                f"a worker process was killed twice (exit code {code}): if memory is short, use "
                "fewer workers, or workers=0; then resume"
            )
        try:
            worker.start()
        except Exception as error:  # noqa: BLE001 - as in `_start`
            self._give_up(f"no process can be started any more ({error})")


def home_of(chunk_key: ChunkKey, data: Data) -> Any:
    """What a worker keeps of a chunk: its block, or the whole shard."""
    key, (shard, number, _, _) = chunk_key
    if data.by_rows:
        return key, shard, number
    return key, shard


def _nothing(_count: int) -> None:
    """Nobody shares the memory."""


def _no_block(_key: ChunkKey) -> Columns | None:
    """The slot keeps nothing."""
    return None


class KeyFeed:
    """Where a stream of trials with one data key asks the slot's workers: a `Feed`."""

    def __init__(self, workers: Workers, key: DataKey) -> None:
        self.ahead = workers.ahead
        self._workers = workers
        self._key = key

    def of(self, key: DataKey) -> KeyFeed:
        """See `Feed`."""
        return KeyFeed(self._workers, key)

    def chunk(self, keys: Sequence[Key], trained: Seconds | None) -> Columns | None:
        """See `Feed`.

        Raises:
            DataError: a worker was killed twice.
        """
        return self._workers.chunk([(self._key, key) for key in keys])

    def made(self, key: Key, seconds: Seconds) -> None:
        """See `Feed`."""
        self._workers.made(seconds)


class SentRecipe:
    """The recipe and its data in shared memory.

    Raises:
        OSError: there is not so much shared memory.
    """

    def __init__(self, recipe: Recipe, data: Data, name: str) -> None:
        buffers: list[pickle.PickleBuffer] = []
        try:
            blob = dumps((recipe, data), buffers.append)
        except (TypeError, AttributeError, pickle.PicklingError):
            buffers = []
            blob = dumps((recipe, None), buffers.append)  # workers build their own
        self._placed, self._memory = place(name, blob, buffers)

    def starter(self, seed: int, fingerprint: str, memory_gb: GiB) -> Start:
        """Starts a worker, each time it is called."""
        return partial(spawned, WorkerSetup(seed, fingerprint, memory_gb, self._placed))

    def free(self) -> None:
        """Free the shared memory; no worker can be started any more."""
        self._memory.close()
        self._memory.unlink()
