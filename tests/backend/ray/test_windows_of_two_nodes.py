"""Windows of two nodes that share chunks: who waits for whom, without Ray."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from window_kit import Nest, key, settled

from shoal.backend.node import window as ray_exchange
from shoal.backend.node.chunk_demand import ChunkDirectory
from shoal.backend.node.window import Window


class Two:
    """Two nodes' windows with room for so many chunks, and a feeder each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, chunks: float) -> None:
        self.nest = Nest(monkeypatch)
        self.directory = ChunkDirectory()
        self.windows: dict[str, Window] = {}
        for node in ("a0" * 28, "b0" * 28):
            window = self.nest.window(count=1, chunks=chunks, node=node)
            self.windows[node] = window
        actors = {f"shoal-feeders--{n}": actor(w) for n, w in self.windows.items()}
        fake = SimpleNamespace(get_actor=actors.__getitem__, put=lambda chunk: chunk)
        monkeypatch.setattr(ray_exchange, "ray", fake)

    async def meet(self) -> None:
        for window in self.windows.values():
            await window.join(actor(self.directory))

    async def work(self) -> None:
        """Feeders make all that they were given, until they have nothing left."""
        await settled()
        while given := [(each, key) for each in self.nest.feeders for key in each.given]:
            for feeder, each in given:
                feeder.done(each)
            await settled()


def actor(of: Any) -> Any:
    """As a handle of an actor, whose methods answer in this process."""

    class Handle:
        def __getattr__(self, name: str) -> Any:
            async def remote(*args: Any) -> Any:
                answer = getattr(of, name)(*args)
                if asyncio.iscoroutine(answer):
                    return await answer
                return answer

            return SimpleNamespace(remote=remote)

    return Handle()


def test_two_windows_without_room_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each needs what the other one made, and has dropped since."""

    async def act() -> None:
        two = Two(monkeypatch, chunks=1)
        await two.meet()
        for shards in (("x", "y"), ("z", "w"), ("y", "x")):
            answers = [
                asyncio.create_task(window.chunk("slot", [key(shard)], 0.001))
                for window, shard in zip(two.windows.values(), shards, strict=True)
            ]
            await two.work()
            for answer in answers:
                assert await asyncio.wait_for(answer, 60.0)

    asyncio.run(act())
