"""One worker as the process that started it sees it."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory
from threading import Lock
from types import ModuleType

from shoal.core.trial import Seconds
from shoal.engine.process import away_from_folder
from shoal.train.data.columns import Columns
from shoal.train.stream.stream import Asked
from shoal.train.workers.memory import Placed, place_columns, remove
from shoal.train.workers.process import Result, Task, WorkerSetup, serve

BLOCK = "-b"  # ends the name of a block's piece of memory
PATIENCE: Seconds = 5.0  # until a worker that should end is killed
_main = Lock()


def spawned(setup: WorkerSetup) -> tuple[BaseProcess, Connection]:
    """A new process that makes chunks, and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, setup), name="shoal-worker", daemon=True)
    with _without_main(), away_from_folder():
        process.start()
    there.close()
    return process, here


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
        self.tasks: dict[Asked, str] = {}
        self.taken: list[str] = []  # pieces that it may use again
        self._pieces: set[str] = set()  # that it made
        # blocks on their way to it
        self._lent: dict[Asked, SharedMemory] = {}

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid or 0

    def give(self, key: Asked, name: str, block: Columns | None = None) -> None:
        """Have the chunk made, in a piece of shared memory of this name.

        `block`: what it is made of, if that was prepared already; the worker keeps it.
        """
        placed = None
        if block is not None:
            placed = self._lend(key, f"{name}{BLOCK}", block)
        task = Task(key, name, tuple(self.taken), placed)
        self.tasks[key] = name
        self.taken.clear()
        try:
            self.pipe.send(task)
        except OSError:
            return  # it is dead, which `heard` finds

    def _lend(self, key: Asked, name: str, block: Columns) -> Placed | None:
        """Put the block in shared memory; None: there is not so much, and the worker makes it."""
        try:
            placed, self._lent[key] = place_columns(name, block)
        except OSError:
            return None
        return placed

    def heard(self) -> Result | None:
        """What the worker says; None: it is dead."""
        try:
            result: Result = self.pipe.recv()
        except (EOFError, OSError):
            self.deaths += 1
            return None
        if result.key is not None:
            del self.tasks[result.key]
            if result.placed is not None:
                self._pieces.add(result.placed.name)
            if result.key in self._lent:
                self._end_loan(self._lent.pop(result.key), result)
        return result

    def _end_loan(self, block: SharedMemory, result: Result) -> None:
        """Let go of a block's piece, which a worker that could not take it over has left."""
        block.close()
        if result.placed is None:
            remove(block.name)

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
        for memory in self._lent.values():
            memory.close()
        self._lent.clear()
        for name in self.tasks.values():
            self._pieces |= {name, f"{name}{BLOCK}"}
        for name in self._pieces:
            remove(name)
        self._pieces.clear()
        self.tasks.clear()
