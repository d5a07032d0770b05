"""The recipe and its data as workers get them: pickled once, in shared memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from shoal.core.cluster import GiB
from shoal.train.data.data import Data
from shoal.train.recipe.pickling import dumps
from shoal.train.recipe.recipe import Recipe
from shoal.train.workers.memory import place
from shoal.train.workers.process import WorkerSetup
from shoal.train.workers.worker import spawned

Start = Callable[[], tuple[BaseProcess, Connection]]


class Sent:
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
