"""One worker as the process that started it sees it."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Lock
from types import ModuleType

from shoal.core.trial import Seconds
from shoal.train.stream.feed import Key
from shoal.train.workers.memory import remove
from shoal.train.workers.process import Result, Task, WorkerSetup, serve

PATIENCE: Seconds = 5.0  # until a worker that should end is killed
_main = Lock()


def spawned(setup: WorkerSetup) -> tuple[BaseProcess, Connection]:
    """A new process that makes chunks, and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(
        target=serve, args=(there, setup), name="shoal-worker", daemon=True
    )
    with _without_main():
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
        self.tasks: dict[
            Key, str
        ] = {}  # under way, with the names of their pieces of memory
        self.taken: list[str] = []  # pieces that it may close

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid or 0

    def give(self, key: Key, name: str) -> None:
        """Have the chunk made, in a piece of shared memory of this name."""
        task = Task(key, name, tuple(self.taken))
        self.tasks[key] = name
        self.taken.clear()
        try:
            self.pipe.send(task)
        except OSError:
            return  # it is dead, which `heard` finds

    def heard(self) -> Result | None:
        """What the worker says; None: it is dead."""
        try:
            result: Result = self.pipe.recv()
        except (EOFError, OSError):
            self.deaths += 1
            return None
        if result.key is not None:
            del self.tasks[result.key]
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
        for name in self.tasks.values():
            remove(name)
        self.tasks.clear()
