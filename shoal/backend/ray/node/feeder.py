"""The processes that prepare chunks for all slots of a node; `Window` says what each makes."""

import os
import pickle
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import ray

from shoal.backend.ray.node.process import limit_threads
from shoal.backend.ray.node.setup import FeederSetup
from shoal.backend.ray.node.sharing.directory import Key
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
        from shoal.backend.ray.node import data as node_data
        from shoal.train.stream.stream import feeding

        setup = setup.received(user)
        recipe, _, placed = pickle.loads(setup.user)
        node = ray.get_runtime_context().get_node_id()
        folder = node_data.place(setup.token, node, setup.cache)
        data = node_data.data_here(recipe, placed, folder, setup.fingerprint)
        self._stream = feeding(recipe, data, setup.seed, setup.data_memory_gb)
        self._begun = process_time()

    def make(self, key: Key) -> tuple[PreparedChunk, Any]:
        """What the chunk took, and its columns as of `columns.laid`."""
        begin = perf_counter()
        made = self._stream.made(*key)
        seconds = perf_counter() - begin
        about = PreparedChunk(
            rows=cols.rows(made),
            bytes=cols.nbytes(made),
            seconds=seconds,
            cpu=process_time() - self._begun,
            pid=os.getpid(),
        )
        return about, cols.apply(made, cols.laid)

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()
