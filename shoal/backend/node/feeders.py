"""The processes that prepare chunks for all slots of a node; `Window` says what each makes."""

import asyncio
import os
import pickle
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from time import monotonic, perf_counter, process_time
from typing import Any

import ray
from ray.exceptions import RayError

from shoal.backend.node.chunk_demand import FeederDemand, Key
from shoal.backend.node.messages import FeederSetup
from shoal.backend.node.process import born, end, limit_threads
from shoal.backend.ray.cluster import only_at
from shoal.core.trial import Seconds
from shoal.train.data import columns as cols


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """A chunk that a feeder made."""

    rows: int
    bytes: int
    seconds: Seconds  # that it took
    cpu: Seconds  # of the feeder's process so far
    pid: int


class Feeder:
    """A process that prepares chunks. `user`: see `FeederSetup.sent`."""

    def __init__(self, setup: FeederSetup, *user: bytes) -> None:
        limit_threads(1)
        # These need torch, which takes seconds. The window that starts feeders does without it.
        from shoal.backend.node import data_copy
        from shoal.train.stream.stream import feeding

        setup = setup.received(user)
        recipe, _, placed = pickle.loads(setup.user)
        node = ray.get_runtime_context().get_node_id()
        folder = data_copy.place(setup.token, node, setup.cache)
        data = data_copy.data_here(recipe, placed, folder, setup.fingerprint)
        self._stream = feeding(recipe, data, setup.seed, setup.data_memory_gb)
        self._begun = process_time()

    def make(self, key: Key) -> tuple[PreparedChunk, Any]:
        """Make the chunk: what it took, and its columns as of `columns.pack_layout`."""
        begin = perf_counter()
        columns = self._stream.array_chunk(*key)
        seconds = perf_counter() - begin
        chunk = PreparedChunk(
            rows=cols.rows(columns),
            bytes=cols.nbytes(columns),
            seconds=seconds,
            cpu=process_time() - self._begun,
            pid=os.getpid(),
        )
        return chunk, cols.apply(columns, cols.pack_layout)

    def pid(self) -> int:
        """The number of this process."""
        return os.getpid()


RESTARTS = 10  # of a feeder: one that cannot even start would be started for ever
# Seconds that a feeder may take for a chunk: at least, in terms of the longest one so far, and for
# its first one, before which it starts and reads data.
PATIENCE: Seconds = 30.0
TIMES = 10.0
LONGEST_START: Seconds = 600.0
TRIES = 3  # feeders that came to nothing, after which no more are started
SPARE: Seconds = 60.0  # that a feeder waits until it is measured to be needed


class BackgroundTasks:
    """Tasks that nobody waits for, kept so that they are not collected before they end."""

    def __init__(self) -> None:
        self._tasks: set[Any] = set()

    def start(self, doing: Coroutine[Any, Any, None]) -> None:
        """Run a task to its end, whoever is gone meanwhile."""
        task = asyncio.ensure_future(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class FeederPool:
    """The feeders of a node.

    With `count` "auto" there are none at first. `grow` adds as many as are measured to be needed.
    The first of them starts at once, while slots open, and is a spare until it is needed: to import
    torch and to read the recipe takes seconds, in which slots would have to prepare their own data.
    `changed`: called when feeders that were added are there, or did not come.
    """

    def __init__(
        self,
        setup: FeederSetup,
        node: str,
        demand: FeederDemand,
        tasks: BackgroundTasks,
        changed: Callable[[], None],
    ) -> None:
        self._setup = setup
        self._node = node
        self._demand = demand
        self._tasks = tasks
        self._changed = changed
        self.grows = setup.count == "auto"
        self._failed = 0  # feeders given up
        self._pids: dict[Any, int] = {}
        self._limits: dict[Any, Seconds] = {}  # how long they may take for a chunk
        self._coming: list[Any] = []  # started, and not there yet
        self._spare: list[Any] = []  # there, and not needed yet: one at most
        self.feeders: list[Any] = []
        if setup.count == "auto":
            self._start(1, self._hold_spare)
        else:
            self.feeders = [self._new() for _ in range(setup.count)]
        self.idle = list(self.feeders)

    @property
    def complete(self) -> bool:
        """Whether all feeders that were started are there."""
        return not self._coming

    def take(self, *preferred: Any) -> Any:
        """Take an idle feeder: the first of the preferred ones that is idle, else any."""
        chosen = self.idle[0]
        for feeder in preferred:
            if feeder in self.idle:
                chosen = feeder
                break
        self.idle.remove(chosen)
        return chosen

    def rest(self, feeder: Any) -> None:
        """Count the feeder as idle, unless it was lost."""
        if feeder in self.feeders:
            self.idle.append(feeder)

    def lose(self, feeder: Any) -> None:
        """Give up a feeder that died more often than chance will have it, or never came to be."""
        self.feeders.remove(feeder)
        self._give_up(feeder)

    async def answered(self, feeder: Any, answer: Any) -> PreparedChunk:
        """What the feeder answers when it is asked for a chunk.

        Raises:
            TimeoutError: it answers nothing, for far longer than it took before.
        """
        begin = monotonic()
        limit = self._limits.get(feeder, LONGEST_START)
        chunk: PreparedChunk = await asyncio.wait_for(answer, limit)
        self._pids[feeder] = chunk.pid
        took = TIMES * (monotonic() - begin)
        self._limits[feeder] = max(PATIENCE, took, self._limits.get(feeder, 0.0))
        return chunk

    def grow(self, cpus: int) -> None:
        """Add feeders if more are needed; without need the spare one ends.

        First one, then as many again as there are, each time measured anew.
        """
        if not self.grows or not self.complete or self._failed >= TRIES:
            return

        more = self._demand.feeders(cpus, self._setup.threads) - len(self.feeders)
        if more <= 0:
            if self._demand.settled:
                self._end_spare()
            return

        if self._spare:
            self._add(self._spare.pop())
            self._demand.forget()
            self._changed()
        else:
            self._start(min(more, max(1, len(self.feeders))), self._add)

    def _start(self, count: int, then: Callable[[Any], None]) -> None:
        """Start so many feeders. `then`: called with each of them when it is there."""
        self._coming = [self._new() for _ in range(count)]
        for feeder in list(self._coming):
            self._tasks.start(self._greet(feeder, then))

    def _add(self, feeder: Any) -> None:
        """Have the feeder serve from now on."""
        self.feeders.append(feeder)
        self.idle.append(feeder)

    def _hold_spare(self, feeder: Any) -> None:
        """Hold the feeder, which is not needed yet, for a while."""
        self._spare = [feeder]
        self._tasks.start(self._end_spare_in_time())

    async def _end_spare_in_time(self) -> None:
        """End the spare feeder after a while: it takes memory, and idle slots do not need it."""
        await asyncio.sleep(SPARE)
        self._end_spare()

    def _end_spare(self) -> None:
        """End the spare feeder, if there is one."""
        for feeder in self._spare:
            ray.kill(feeder)
        self._spare = []

    def _new(self) -> Any:
        """Start a feeder. If it dies it comes back, and gets the chunk again that it was at."""
        feeders = 1
        if self._setup.count != "auto":
            feeders = self._setup.count
        memory = self._setup.data_memory_gb / feeders
        options = {
            "num_cpus": 0,
            "max_restarts": RESTARTS,
            "max_task_retries": 2,
            "scheduling_strategy": only_at(self._node),
        }
        actor = ray.remote(Feeder).options(**options)
        return actor.remote(*replace(self._setup, data_memory_gb=memory).sent())

    async def _greet(self, feeder: Any, then: Callable[[Any], None]) -> None:
        """Wait until the feeder is there; until then slots prepare their own data, as before.

        What they measure meanwhile does not count: its start took processors from them.
        """
        try:
            await feeder.pid.remote()
            then(feeder)
        except RayError:
            self._give_up(feeder)

        self._coming.remove(feeder)
        if self.complete:
            self._demand.forget()
        if self.feeders:
            self._changed()

    def _give_up(self, feeder: Any) -> None:
        """End the feeder, lest it comes back with nobody to ask it."""
        self._failed += 1
        ray.kill(feeder)
        pid = self._pids.get(feeder)
        if pid is not None:
            end(pid, born(pid))  # one that stands still does not hear Ray
