"""Windows of prepared chunks without Ray: their feeders do what a test says."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.backend.node import feeders as ray_pool
from shoal.backend.node import window as ray_window
from shoal.backend.node.feeders import PreparedChunk
from shoal.backend.node.messages import FeederSetup
from shoal.backend.node.window import Window

CHUNK = 100  # bytes
NODE = "a0" * 28


class Reference:
    """To a chunk."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def __await__(self) -> Any:
        return asyncio.sleep(0, result=self.key).__await__()


class Fake:
    """A feeder whose chunks are done when the test says so. `given`: what it was asked for."""

    def __init__(self, setup: FeederSetup) -> None:
        self.setup = setup
        self.given: dict[Any, asyncio.Future[PreparedChunk]] = {}
        self.there: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.make = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._make))
        self.pid = SimpleNamespace(remote=lambda: self.there)

    def _make(self, key: Any) -> Any:
        self.given[key] = asyncio.get_running_loop().create_future()
        return self.given[key], Reference(key)

    def done(self, key: Any, size: int = CHUNK) -> None:
        self.given.pop(key).set_result(PreparedChunk(8, size, 0.8, 1.0, 1))

    def failed(self, key: Any, error: BaseException) -> None:
        self.given.pop(key).set_exception(error)


class Nest:
    """Where windows find their feeders, and what became of these."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.feeders: list[Fake] = []
        self.killed: list[Fake] = []
        self.node = NODE  # of the windows that are made now
        remote = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.new))
        here = SimpleNamespace(get_node_id=lambda: self.node)
        fake = SimpleNamespace(
            remote=lambda _: remote,
            nodes=lambda: [{"NodeID": self.node, "Resources": {"CPU": 8.0}}],
            kill=self.killed.append,
            get_runtime_context=lambda: here,
        )
        monkeypatch.setattr(ray_window, "ray", fake)
        monkeypatch.setattr(ray_pool, "ray", fake)

    def window(self, count: Any, chunks: float = 100.0, node: str = NODE) -> Window:
        """The node's, with room for so many chunks."""
        self.node = node
        room = chunks * CHUNK / 2**30
        return Window(FeederSetup(b"", 1, "", "", None, count, room, 2.0, 1))

    def new(self, setup: FeederSetup, *user: bytes) -> Fake:
        self.feeders.append(Fake(setup.received(user)))
        return self.feeders[-1]


def key(shard: str, number: int = 0) -> Any:
    return shard, number, None, "once"


async def asks(window: Window, slot: str, *keys: Any) -> "asyncio.Task[Any]":
    """The slot's question, put."""
    task = asyncio.create_task(window.chunk(slot, keys, 0.001))
    await settled()
    return task


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
