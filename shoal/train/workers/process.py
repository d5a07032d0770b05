"""A process that makes chunks for the process that started it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory

from shoal.core.cluster import GiB
from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.recipe.bring import bring
from shoal.train.recipe.unit import RAISED
from shoal.train.stream.stream import Asked, Streams, feeding_streams
from shoal.train.workers.memory import Placed, opened, place_columns, taken


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

    key: Asked
    name: str  # of a new piece of shared memory, if one is needed
    taken: Sequence[str]  # pieces of former chunks that may be used again
    block: Placed | None = None  # what it is made of, if that was prepared already


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a task. Without a place: the chunk could not be made, and why.

    Without a key: the worker is ready, or says why it cannot work.
    """

    key: Asked | None
    placed: Placed | None = None
    why: str = ""


def serve(pipe: Connection, setup: WorkerSetup) -> None:
    """Make chunks until the pipe is closed, or the process at its other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sees to it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        worker = ChunkWorker(setup)
    except RAISED as error:  # it may be the user's, and is told
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
        (recipe, data), self._sent = opened(setup.sent)
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
                block = taken(task.block, last=True)
            of, key = task.key
            made = self._streams.of(of).made(*key, block)
            placed, memory = place_columns(task.name, made, self._free)
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
