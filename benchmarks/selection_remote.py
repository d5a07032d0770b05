"""A store of files that is far away: an HTTP server that sends no faster than it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from selection_task import Tables, held, laid_out, shards, written

PIECE = 4 * 1024


class Traffic:
    """What was sent: bytes of shards, and from when to when."""

    def __init__(self, rate: float) -> None:
        self.rate = rate  # bytes a second to each who asks
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.sent, self.first, self.last = 0, 0.0, 0.0

    def add(self, size: int) -> None:
        with self._lock:
            now = time.perf_counter()
            self.first = self.first or now
            self.last = now
            self.sent += size

    @property
    def seconds(self) -> float:
        """From the first piece to the last one."""
        return self.last - self.first


class Sender(SimpleHTTPRequestHandler):
    """Sends files in pieces, with pauses."""

    def __init__(self, *arguments: Any, traffic: Traffic, **more: Any) -> None:
        self.traffic = traffic
        super().__init__(*arguments, **more)

    def copyfile(self, source: Any, outputfile: Any) -> None:
        while piece := source.read(PIECE):
            outputfile.write(piece)
            self.traffic.add(len(piece))
            time.sleep(len(piece) / self.traffic.rate)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(folder: Path, rate: float) -> Iterator[tuple[str, Traffic]]:
    """The address of the folder's files while they are served, and what was sent."""
    traffic = Traffic(rate)
    handler = partial(Sender, directory=str(folder), traffic=traffic)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", traffic
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Case:
    """Shards that lie at `replicas` nodes each, and otherwise in the store only."""

    way: str
    replicas: int

    def laid_out(self, folder: Path, names: Sequence[str], url: str) -> Tables:
        """Write the files, and say where each node finds what it reads.

        A model that stays needs all shards at its node: those that do not lie there come from the
        store. Models that hop need each shard at one node.
        """
        tables: Tables = {"train": {}, "valid": {}}
        if self.replicas:
            tables = laid_out(folder, names, len(names), self.replicas)
        else:
            held_by_all = written(folder / "all" / "held.npz", *held())
            tables["valid"]["held"] = {"*": held_by_all}
        for number, (x, y) in enumerate(shards(len(names))):
            part = f"s{number}"
            written(folder / "store" / f"{part}.npz", x, y)
            at = tables["train"].setdefault(part, {})
            readers = names if self.way == "copies" else names[number : number + 1]
            for name in readers:
                if not at or self.way == "copies":
                    at.setdefault(name, f"{url}/{part}.npz")
        return tables
