"""A node's window of prepared chunks and a slot's way to it, by themselves: feeders that fail,
that fall behind, and memory.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    RayTaskError,
    UnserializableException,
)
from window_kit import CHUNK, Nest, asks, key, settled

from shoal.backend.node import feed as ray_feed
from shoal.backend.node import feeders as ray_pool
from shoal.backend.node.chunk_demand import COUNTED, FeederDemand
from shoal.backend.node.feed import FeederFeed, Totals
from shoal.backend.node.messages import FeederSetup
from shoal.backend.node.window import Window
from shoal.core.event import Fed
from shoal.train.data import columns as cols

Act = Callable[..., Awaitable[None]]


@pytest.fixture
def nest(monkeypatch: pytest.MonkeyPatch) -> Nest:
    return Nest(monkeypatch)


def test_a_large_recipe_is_sent_in_pieces_that_ray_keeps() -> None:
    recipe = np.random.default_rng(0).bytes(300_000)
    setup = FeederSetup(recipe, 1, "", "", None, 1, 1.0, 2.0, 1)
    sent, *pieces = setup.sent()
    assert len(pieces) > 1 and max(map(len, [sent.user, *pieces])) < 100_000
    assert sent.received(pieces) == setup


def test_no_more_is_made_at_a_time_than_there_is_memory_for(nest: Nest) -> None:
    async def act() -> None:
        window = nest.window(count=3, chunks=2)
        answers = [await asks(window, f"slot{n}", key(f"s{n}")) for n in range(3)]
        assert sum(len(each.given) for each in nest.feeders) == 1, (
            "nobody knows yet how large chunks are"
        )
        for _ in range(3):
            at_it = [each for each in nest.feeders if each.given]
            assert len(at_it) <= 2
            at_it[0].done(next(iter(at_it[0].given)))
            await settled()
        assert [(await answer)[0].key for answer in answers] == [key(f"s{n}") for n in range(3)]
        assert 0 < (await window.fed())[1].figures["bytes"] <= 2 * CHUNK

    asyncio.run(act())


def test_what_is_held_and_made_beyond_the_memory_is_told(nest: Nest) -> None:
    async def act() -> None:
        window = nest.window(count=2, chunks=2)
        for n, size in enumerate([CHUNK, 3 * CHUNK]):
            answer = await asks(window, "slot0", key("s", n))
            next(each for each in nest.feeders if each.given).done(key("s", n), size)
            await answer
        assert (await window.fed())[1].figures["bytes"] == 4 * CHUNK, (
            "the second one was larger than could be known"
        )

    asyncio.run(act())


def test_feeders_of_a_given_number_share_the_memory_for_what_is_prepared(nest: Nest) -> None:
    async def act() -> None:
        nest.window(count=4)

    asyncio.run(act())
    assert [each.setup.data_memory_gb for each in nest.feeders] == [0.5] * 4


def test_a_slot_makes_its_own_where_feeders_are_behind(nest: Nest) -> None:
    async def act() -> None:
        window = nest.window(count="auto")
        pool = window._pool
        feeder = nest.new(pool._setup)
        pool.feeders, pool.idle = [feeder], [feeder]
        first = await asks(window, "slot0", key("a"))
        second = await asks(window, "slot1", key("b"))
        assert await window.chunk("slot2", [key("c")], 0.001) == [], (
            "as many wait as there are feeders"
        )
        third = await asks(window, "slot3", key("b"))
        feeder.done(key("a"))
        await settled()
        feeder.done(key("b"))
        assert [(await each)[0].key for each in (first, second, third)] == [
            key("a"),
            key("b"),
            key("b"),
        ]

    asyncio.run(act())


def test_a_given_number_of_feeders_makes_all(nest: Nest) -> None:
    async def act() -> None:
        window = nest.window(count=1)
        answers = [await asks(window, f"slot{n}", key(f"s{n}")) for n in range(4)]
        assert not any(answer.done() for answer in answers)
        for n in range(4):
            nest.feeders[0].done(key(f"s{n}"))
            await settled()
        assert [(await answer)[0].key for answer in answers] == [key(f"s{n}") for n in range(4)]

    asyncio.run(act())


def test_who_read_a_shard_last_gets_its_next_chunk(nest: Nest) -> None:
    async def act() -> None:
        window = nest.window(count=2)
        window._chunks.largest = CHUNK
        for shard in "ab":
            await asks(window, "slot0", key(shard))
        first, second = nest.feeders
        first.done(key("a"))
        await settled()
        second.done(key("b"))
        await settled()
        await asks(window, "slot0", key("b", 1))
        assert list(second.given) == [key("b", 1)]

    asyncio.run(act())


HEALTHY = [
    UnserializableException("Traceback"),
    RayTaskError("make", "Traceback", ValueError()),
    ZeroDivisionError(),
]


@pytest.mark.parametrize("error", HEALTHY)
def test_a_chunk_that_cannot_be_made_is_left_to_the_slots(nest: Nest, error: Exception) -> None:
    async def act() -> None:
        window = nest.window(count=1)
        answer = await asks(window, "slot0", key("a"))
        nest.feeders[0].failed(key("a"), error)
        assert await asyncio.wait_for(answer, 60.0) == []
        assert await window.chunk("slot1", [key("a")], 0.001) == [], "nor is it tried again"
        answer = await asks(window, "slot0", key("b"))
        nest.feeders[0].done(key("b"))
        assert (await answer)[0].key == key("b")

    asyncio.run(act())
    assert not nest.killed


def test_a_chunk_that_kills_takes_one_feeder_with_it(nest: Nest) -> None:
    async def act() -> None:
        window = nest.window(count=2)
        for shard, left in (("a", []), ("b", None)):
            answer = await asks(window, "slot0", key(shard))
            feeder = next(each for each in nest.feeders if each.given)
            feeder.failed(key(shard), ActorDiedError())
            assert await asyncio.wait_for(answer, 60.0) == left
            assert await window.chunk("slot1", [key(shard)], 0.001) == left
        assert (await window.fed())[1].figures["feeders"] == 0

    asyncio.run(act())
    assert len(nest.killed) == 2, "or they would come back with nobody to ask them"


async def looks(window: Window, times: int, made: float) -> None:
    """A slot prepares chunks of two by itself, each in `made` seconds per sample; it trains on
    them in no time.
    """
    for number in range(times):
        await window.look("slot0", [key("s", number % 2)], 0.0001, (key("s"), made))
        await settled()


def test_the_first_feeder_starts_before_a_slot_asks_and_serves_once_it_is_needed(
    nest: Nest,
) -> None:
    """It takes seconds until it has imported torch and read the recipe."""

    async def act() -> None:
        window = nest.window(count="auto")
        (feeder,) = nest.feeders
        assert (await window.fed())[1].figures["feeders"] == 0, "none is needed yet"
        assert await window.chunk("slot0", [key("s")], 0.0001) is None
        await looks(window, 40, made=0.01)
        assert not window._pool.feeders, "it cannot serve yet"
        feeder.there.set_result(1)
        await looks(window, 10, made=0.01)
        assert nest.feeders[0] is feeder and window._pool.feeders[0] is feeder
        await asks(window, "slot0", key("t"))
        assert key("t") in feeder.given

    asyncio.run(act())
    assert not nest.killed


@pytest.mark.parametrize(("last", "needed"), [(0.01, 1), (1e-7, 0)])
def test_what_slots_prepared_once_and_keep_needs_no_feeder(last: float, needed: int) -> None:
    """The first chunks took long, and the same ones take no time from then on."""
    demand = FeederDemand()
    for slot in ("slot0", "slot1"):
        for number in range(2):
            demand.hear(slot, [key("s", number)], 0.0001)
    for seconds in [0.01] * 3 + [last] * 2:
        demand.prepared(key("s"), seconds)
    assert demand.feeders(cpus=8, threads=1) >= needed
    assert needed or not demand.feeders(cpus=8, threads=1)


@pytest.mark.parametrize(("cheap", "mean"), [(0, 0.0104), (10, 0.0052), (30, 0.0026)])
def test_cheap_chunks_of_validation_count_in_their_share(cheap: int, mean: float) -> None:
    """However many of them were prepared last, they do not hide that training waits."""
    mixed, alike = FeederDemand(), FeederDemand()
    costly = [("s", number, 0, "each") for number in range(10)]
    validation = [("s", number, None, "each") for number in range(cheap)]
    for slot in ("slot0", "slot1"):
        for chunk in (*costly, *validation):
            mixed.hear(slot, [chunk], 0.001)
            alike.hear(slot, [chunk], 0.001)
    for chunk in (*costly, *validation):
        mixed.prepared(chunk, 0.0104 if chunk in costly else 1e-9)
        alike.prepared(costly[0], mean)
    assert mixed.feeders(cpus=16, threads=1) == alike.feeders(cpus=16, threads=1) > 0


def test_a_slot_that_looked_and_asks_wants_the_chunk_once(nest: Nest) -> None:
    """Else slots would seem to want the same chunks."""

    async def act() -> None:
        window = nest.window(count=1)
        await window.look("slot0", [key("s")], 0.0001, None)
        first = asyncio.create_task(window.chunk("slot0", [key("s")], 0.0001, looked=True))
        await settled()
        assert not first.done()
        await asks(window, "slot0", key("s", 1))
        demand = window._demand.of_node()
        assert demand is not None and list(demand.asked) == [key("s"), key("s", 1)]

    asyncio.run(act())


def test_a_feeder_that_is_not_needed_ends(nest: Nest) -> None:
    """Here preparing costs next to nothing. If that changes, one starts as it is needed."""

    async def act() -> None:
        window = nest.window(count="auto")
        await looks(window, 40, made=0.01)  # while it starts, and takes processors
        nest.feeders[0].there.set_result(1)
        await looks(window, 40, made=1e-9)
        assert nest.killed == nest.feeders and len(nest.feeders) == 1
        assert not window._pool.feeders
        await looks(window, 40, made=0.01)
        assert len(nest.feeders) == 2

    asyncio.run(act())
    assert len(nest.killed) == 1


def test_a_feeder_that_nobody_asks_for_ends_after_a_while(
    nest: Nest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_pool, "SPARE", 0.0)

    async def act() -> None:
        nest.window(count="auto")
        await settled()
        assert not nest.killed, "it is still starting"
        nest.feeders[0].there.set_result(1)
        await settled()

    asyncio.run(act())
    assert nest.killed == nest.feeders and len(nest.feeders) == 1


def test_feeders_of_a_given_number_never_end_for_want_of_work(
    nest: Nest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_pool, "SPARE", 0.0)

    async def act() -> None:
        window = nest.window(count=2)
        await looks(window, 40, made=1e-9)

    asyncio.run(act())
    assert len(nest.feeders) == 2 and not nest.killed


def test_a_window_starts_without_torch() -> None:
    """It starts the feeders: they would come seconds later."""
    script = "import sys, shoal.backend.node.window; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_feeders_that_cannot_start_are_given_up(nest: Nest) -> None:
    async def act() -> None:
        window = nest.window(count="auto")
        for number in range(40):
            await window.look("slot0", [key("s", number % 2)], 0.0001, (key("s"), 0.01))
            for feeder in nest.feeders:
                if not feeder.there.done():
                    feeder.there.set_exception(ActorDiedError())
            await settled()

    asyncio.run(act())
    assert len(nest.feeders) == len(nest.killed) == ray_pool.TRIES


class Place:
    """A window that answers as it is told to; `asked`: by which methods."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[str]()

    def __getattr__(self, method: str) -> Any:
        def remote(*_: Any) -> Any:
            self.asked.append(method)
            return self.answers.pop(0)

        return SimpleNamespace(remote=remote)


def got(ref: Any) -> Any:
    if isinstance(ref, BaseException):
        raise ref
    return ref


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get", got)
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: (refs, []))


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("lost", [None, ActorDiedError()])
def test_a_slot_looks_for_feeders_again_after_they_were_gone(lost: Any) -> None:
    chunk = cols.apply((np.arange(3),), cols.pack_layout)
    looks = [False, True, True, lost, False, True, True]
    window = Place(*looks, [chunk], [], [chunk])
    feed = FeederFeed(window, 0, waits=False)
    had = [feed.chunk([key("a")], None) is not None for _ in range(8)]
    assert window.asked == [*["look"] * 3, "chunk", *["look"] * 3, *["chunk"] * 3], (
        "what a look says of quick chunks is known by the next one"
    )
    assert had == [False] * 5 + [True, False, True], (
        "feeders that are behind are there all the same"
    )


@pytest.mark.usefixtures("local")
def test_a_slot_that_takes_long_for_a_chunk_hears_at_once_of_feeders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, waited = [0.0], list[float]()
    monkeypatch.setattr(ray_feed, "monotonic", lambda: now[0])
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: (waited.append(timeout), (refs, []))[1])
    window = Place(False, True, [cols.apply((np.arange(3),), cols.pack_layout)])
    feed = FeederFeed(window, 0, waits=False)
    assert feed.chunk([key("a")], None) is None
    now[0] += 2.0
    feed.made(key("a"), 0.01)
    assert feed.chunk([key("b")], None) is not None
    assert window.asked == ["look", "look", "chunk"]
    assert 0.0 < max(waited[:-1]) <= ray_feed.WORTH * 2.0


@pytest.mark.usefixtures("local")
def test_a_slot_of_given_feeders_goes_on_asking() -> None:
    window = Place(None, ActorDiedError(), None)
    feed = FeederFeed(window, 0, waits=True)
    assert [feed.chunk([key("a")], None) for _ in range(3)] == [None] * 3
    assert window.asked == ["chunk"] * 3


@pytest.mark.usefixtures("local")
def test_without_the_object_store_the_slot_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        FeederFeed(Place([BrokenPipeError("Broken pipe")]), 0, waits=True).chunk([key("a")], None)


def test_a_window_that_comes_back_does_not_take_from_the_totals() -> None:
    def told(**figures: float) -> Fed:
        return Fed("here", dict.fromkeys(COUNTED, 0.0) | figures)

    totals = Totals()
    totals.take(1, told(feeders=2, made=5, bytes=900, ahead=7))
    totals.take(1, told(feeders=2, made=9, bytes=900, ahead=7))
    totals.take(2, told(feeders=0))
    got = totals.take(2, told(feeders=1, made=3, bytes=400, ahead=8)).figures
    assert (got["feeders"], got["made"], got["bytes"], got["ahead"]) == (1, 12, 900, 8)
    assert totals.take(3, Fed("there", told(made=1).figures)).figures["made"] == 1


def test_a_window_is_given_up_where_it_cannot_come_back() -> None:
    assert ray_feed.gone(ActorUnschedulableError("its node is gone"))
    assert ray_feed.gone(ActorDiedError())
    assert not ray_feed.gone(ActorUnavailableError("it restarts", None))
    assert not ray_feed.gone(None)
