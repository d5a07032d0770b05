"""How a window finds out which node makes a chunk, and brings it from there."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from shoal.backend.node import window as ray_exchange
from shoal.backend.node.chunk_demand import (
    ChunkDirectory,
    ClusterDemand,
    FeederDemand,
    NodeDemand,
    WindowCounts,
)
from shoal.backend.node.feeders import PreparedChunk
from shoal.backend.node.window import ChunkExchange

BYTES = 1000


def key(number: int, turn: int | None = None) -> Any:
    return "s", number, turn, "once"


def at_once(method: Callable[..., Any]) -> Any:
    """As a method of an actor, whose answers are there at once."""

    async def answer(*args: Any) -> Any:
        return method(*args)

    return SimpleNamespace(remote=answer)


class Sent:
    """A reference to a chunk. `sending`: seconds that it takes to come."""

    def __init__(self, clock: list[float], sending: float) -> None:
        self.clock, self.sending = clock, sending

    def __await__(self) -> Any:
        self.clock[0] += self.sending
        return asyncio.sleep(0, result="the chunk").__await__()


class Nodes:
    """Two nodes, of which the other one hands out what `has` has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sending: float = 0.0) -> None:
        self.clock = [100.0]
        self.has: Callable[[Any], Any] = lambda _: ([Sent(self.clock, sending)], BYTES, 8)
        self.directory = ChunkDirectory()
        window = SimpleNamespace(hand=at_once(self._hand))
        fake = SimpleNamespace(get_actor=lambda _: window, put=lambda chunk: chunk)
        monkeypatch.setattr(ray_exchange, "ray", fake)
        monkeypatch.setattr(ray_exchange, "monotonic", lambda: self.clock[0])
        self.counts = WindowCounts()
        self.exchange = ChunkExchange("", "here", self.counts)

    def _hand(self, key: Any) -> Any:
        return self.has(key)

    def meet(self) -> None:
        """From now on the nodes share chunks."""
        methods = ("maker", "take", "demand")
        asked = {each: at_once(getattr(self.directory, each)) for each in methods}
        self.exchange.join(SimpleNamespace(**asked))

    def makers(self, *keys: Any) -> list[str | None]:
        async def act() -> list[str | None]:
            return [await self.exchange.maker(each) for each in keys]

        return asyncio.run(act())

    def brought(self, key: Any) -> Any:
        return asyncio.run(self.exchange.brought(key, "there"))


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(monkeypatch)


def test_who_asks_first_makes_the_chunk(nodes: Nodes) -> None:
    assert nodes.directory.maker(key(0), "there") == "there"
    assert nodes.makers(key(0)) == [None], "it knows of no other node yet"
    nodes.meet()
    assert nodes.makers(key(0), key(1)) == ["there", None]
    assert nodes.directory.maker(key(1), "there") == "here"


def test_who_prepared_a_chunk_makes_it_for_all_passes(nodes: Nodes) -> None:
    nodes.meet()
    nodes.directory.maker(key(0, turn=0), "there")
    assert nodes.makers(key(0, turn=1), key(1, turn=1)) == ["there", None]


def test_a_chunk_that_the_other_node_does_not_have_is_made_here(nodes: Nodes) -> None:
    def died(_: Any) -> Any:
        raise ActorDiedError

    nodes.meet()
    for number, has in enumerate([lambda _: None, died]):
        nodes.directory.maker(key(number), "there")
        nodes.has = has
        assert nodes.brought(key(number)) is None
        assert nodes.makers(key(number)) == [None]
        assert nodes.directory.maker(key(number), "there") == "here"
    assert nodes.counts.fed(0).figures["received"] == 0


def test_what_is_brought_is_counted(nodes: Nodes) -> None:
    nodes.meet()
    held = nodes.brought(key(0))
    assert (held.ref, held.bytes, held.rows) == ("the chunk", BYTES, 8)
    figures = nodes.counts.fed(0).figures
    assert (figures["received"], figures["received_bytes"]) == (1, BYTES)


@pytest.mark.parametrize(("sending", "shared"), [(0.05, True), (0.2, False)])
def test_chunks_are_sent_where_that_is_cheaper_than_preparing(
    monkeypatch: pytest.MonkeyPatch, sending: float, shared: bool
) -> None:
    nodes = Nodes(monkeypatch, sending)
    nodes.meet()
    for number in range(4):
        nodes.directory.maker(key(number), "there")
    nodes.exchange.made(key(0), PreparedChunk(8, BYTES, 0.1, 0.1, 1))
    assert nodes.makers(key(0)) == ["there"], "at a gigabit a second"
    nodes.brought(key(0))
    assert nodes.makers(key(1)) == ["there"], "the first one connects"
    nodes.brought(key(1))
    assert nodes.makers(key(2)) == ["there" if shared else None]
    nodes.clock[0] += ray_exchange.MEASURED + 1
    assert nodes.makers(key(3)) == ["there"], "it is measured again now and then"


def test_cheap_chunks_say_nothing_of_costly_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may have made many chunks of validation last."""
    nodes = Nodes(monkeypatch, sending=0.05)
    nodes.meet()
    augmented = key(0, turn=1), key(1, turn=1), key(2, turn=1)
    cheap = key(3), key(4)
    for each in (*augmented, *cheap):
        nodes.directory.maker(each, "there")
    nodes.exchange.made(key(5, turn=1), PreparedChunk(8, BYTES, 0.1, 0.1, 1))
    for number in range(20):
        nodes.exchange.made(key(10 + number), PreparedChunk(8, BYTES, 0.001, 0.001, 1))
    for each in augmented[:2]:
        nodes.brought(each)
    assert nodes.makers(augmented[2], *cheap) == ["there", None, None]


def test_a_directory_that_is_silent_is_left_alone(nodes: Nodes) -> None:
    asked: list[Any] = []

    async def silent(*args: Any) -> Any:
        asked.append(args)
        raise ActorDiedError

    nodes.exchange.join(SimpleNamespace(maker=SimpleNamespace(remote=silent)))
    assert nodes.makers(key(0), key(1)) == [None, None]
    assert len(asked) == 1
    nodes.clock[0] += ray_exchange.MEASURED + 1
    nodes.makers(key(2))
    assert len(asked) == 2


def test_feeders_come_where_several_nodes_read_one_stream(nodes: Nodes) -> None:
    """A node with one slot needs none by itself, for the slot prepares beside training."""
    nodes.meet()
    demand = FeederDemand()
    for _ in range(5):
        demand.prepared(key(0), 0.01)
    for number in range(4):
        demand.hear("slot", [key(number)], 0.012)
    of_node = demand.of_node()
    assert of_node is not None and demand.feeders(cpus=4, threads=1) == 0

    nodes.directory.demand("there", NodeDemand([0.012], of_node.asked))
    nodes.clock[0] += 10.0
    asyncio.run(nodes.exchange.learn(demand))
    assert demand.together == ClusterDemand([0.012, 0.012], 0.5, 2)
    assert demand.feeders(cpus=4, threads=1) == 1

    nodes.directory.demand("there", NodeDemand([0.02], of_node.asked))
    asyncio.run(nodes.exchange.learn(demand))
    assert demand.together.train == [0.012, 0.012], "it was asked just now"


def test_a_node_that_makes_its_own_chunks_counts_its_own_slots_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes(monkeypatch, sending=0.2)
    nodes.meet()
    demand = FeederDemand()
    for number in range(2):
        demand.hear("slot", [key(number)], 0.012)
    nodes.directory.demand("there", NodeDemand([0.012], [key(0)]))
    asyncio.run(nodes.exchange.learn(demand))
    assert demand.together is not None and demand.together.nodes == 2

    nodes.exchange.made(key(0), PreparedChunk(8, BYTES, 0.1, 0.1, 1))
    for number in range(2):
        nodes.brought(key(number))
    nodes.clock[0] += 10.0
    asyncio.run(nodes.exchange.learn(demand))
    assert demand.together is None, "sending takes longer than preparing"
