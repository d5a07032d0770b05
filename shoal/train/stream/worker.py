"""A process that makes chunks for the one that started it: its own side, and its parent's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory
from threading import Lock
from types import ModuleType

from shoal.core.cluster import GiB
from shoal.core.trial import Seconds
from shoal.engine.process import away_from_folder
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.data import Data
from shoal.train.recipe.recipe_data import bring
from shoal.train.recipe.unit import RAISED
from shoal.train.stream.shared_memory import Placed, open_piece, place_columns, remove, take_columns
from shoal.train.stream.stream import ChunkKey, Streams, feeding_streams

BLOCK = "-b"  # ends the name of a block's piece of memory
PATIENCE: Seconds = 5.0  # until a worker that should end is killed
_main = Lock()


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker needs to make chunks."""

    seed: int
    fingerprint: str
    memory_gb: GiB  # for what it keeps of the data
    sent: Placed  # the recipe, and the data or None


@dataclass(frozen=True, slots=True)
class Task:
    """A chunk to be made."""

    key: ChunkKey
    name: str  # of a new piece of shared memory, if one is needed
    taken: Sequence[str]  # pieces of former chunks that may be used again
    block: Placed | None = None  # what it is made of, if that was prepared already


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a task. Without `placed` the chunk could not be made; `why` says why.

    Without a key: the worker is ready, or says why it cannot work.
    """

    key: ChunkKey | None
    placed: Placed | None = None
    why: str = ""


# -- in the worker's process -------------------------------------------------------------------


def serve(pipe: Connection, setup: WorkerSetup) -> None:
    """Make chunks until the pipe is closed, or the process at its other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sees to it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        worker = ChunkWorker(setup)
    except RAISED as error:  # it may be the user's, and the parent warns of it
        pipe.send(Result(None, why=_line(error)))
        return
    pipe.send(Result(None))
    while True:
        try:
            task: Task = pipe.recv()
            pipe.send(worker.make(task))
        except (EOFError, OSError):
            os._exit(0)  # at once: arrays of the recipe still lie in shared memory


class ChunkWorker:
    """Makes chunks, and puts each in a piece of shared memory."""

    def __init__(self, setup: WorkerSetup) -> None:
        (recipe, data), self._recipe_memory = open_piece(setup.sent)
        if data is None:
            data = bring(recipe)
        self._streams = _streams(recipe, data, setup)
        # Pieces with chunks that the slot may not have taken yet, and others.
        self._open: dict[str, SharedMemory] = {}
        self._free: list[SharedMemory] = []

    def make(self, task: Task) -> Result:
        """The chunk, or why it could not be made."""
        self._free += [self._open.pop(name) for name in task.taken]
        try:
            block = None
            if task.block is not None:
                block = take_columns(task.block, last=True)
            data_key, key = task.key
            chunk = self._streams.of(data_key).array_chunk(*key, block)
            placed, memory = place_columns(task.name, chunk, self._free)
        except RAISED as error:  # the parent makes it again, and raises
            return Result(task.key, why=_line(error))
        self._open[placed.name] = memory
        return Result(task.key, placed)


def _streams(recipe: object, data: Data, setup: WorkerSetup) -> Streams:
    """The streams that make the chunks.

    Raises:
        DataError: it is other data than that of the process which trains.
    """
    if data.fingerprint != setup.fingerprint:
        raise DataError(
            "data() gave other data in a worker than in the process that trains: "
            "it must give the same each time"
        )
    return feeding_streams(recipe, data, setup.seed, setup.memory_gb)  # type: ignore[arg-type]


def _line(error: BaseException) -> str:
    """The error's class, what it says, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


# -- in the process that started it ------------------------------------------------------------


class Worker:
    """A process that makes chunks; `start` starts it anew after it was killed."""

    def __init__(self, spawn: Callable[[], tuple[BaseProcess, Connection]]) -> None:
        self._spawn = spawn
        self.deaths = 0
        self.code: int | None = None  # with which the last process ended
        self.start()

    def start(self) -> None:
        """Start the process. It is not ready at once."""
        self._process, self.pipe = self._spawn()
        self.is_ready = False
        # under way, with the names of their pieces of memory
        self.tasks: dict[ChunkKey, str] = {}
        self.taken: list[str] = []  # pieces that it may use again
        self._pieces: set[str] = set()  # that it made
        # of blocks on their way to it
        self._block_memory: dict[ChunkKey, SharedMemory] = {}

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid or 0

    def give(self, key: ChunkKey, name: str, block: Columns | None = None) -> None:
        """Have the chunk made, in a piece of shared memory of this name.

        `block`: what it is made of, if that was prepared already; the worker keeps it.
        """
        placed = None
        if block is not None:
            with suppress(OSError):  # if there is not so much memory, the worker makes it
                placed, self._block_memory[key] = place_columns(f"{name}{BLOCK}", block)
        task = Task(key, name, tuple(self.taken), placed)
        self.tasks[key] = name
        self.taken.clear()
        try:
            self.pipe.send(task)
        except OSError:
            return  # it is dead, which `receive` finds

    def receive(self) -> Result | None:
        """The worker's next result; None: it is dead."""
        try:
            result: Result = self.pipe.recv()
        except (EOFError, OSError):
            self.deaths += 1
            return None
        if result.key is not None:
            del self.tasks[result.key]
            if result.placed is not None:
                self._pieces.add(result.placed.name)
            if result.key in self._block_memory:
                block = self._block_memory.pop(result.key)
                block.close()
                if result.placed is None:
                    remove(block.name)
        return result

    def end(self) -> None:
        """End the process, which keeps nothing that would be lost."""
        self.pipe.close()
        self._process.terminate()

    def join(self) -> None:
        """Wait until the process is gone, and remove the pieces of memory that it left."""
        self.end()
        self._process.join(PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.code = self._process.exitcode
        for memory in self._block_memory.values():
            memory.close()
        self._block_memory.clear()
        for name in self.tasks.values():
            self._pieces |= {name, f"{name}{BLOCK}"}
        for name in self._pieces:
            remove(name)
        self._pieces.clear()
        self.tasks.clear()


def spawned(setup: WorkerSetup) -> tuple[BaseProcess, Connection]:
    """A new process that makes chunks, and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    pipe, end_of_child = context.Pipe()
    process = context.Process(
        target=serve, args=(end_of_child, setup), name="shoal-worker", daemon=True
    )
    with _without_main(), away_from_folder():
        process.start()
    end_of_child.close()
    return process, pipe


@contextmanager
def _without_main() -> Iterator[None]:
    """Let a new process not run the user's script, which the pickled recipe makes needless.

    Otherwise a script without `if __name__ == "__main__"` would begin anew in each worker.
    """
    with _main:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script
