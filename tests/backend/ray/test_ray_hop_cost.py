"""What a hop costs: loading a state, and its way from slot to slot."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.backend.node.messages import Cut, Trained
from shoal.backend.positions import Positions
from shoal.backend.ray.gangs import OneSlotGangs, Work
from shoal.backend.ray.slot_process import Call, SlotProcess
from shoal.backend.ray.states import with_way
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.trial import Trial, TrialId, Visit
from shoal.train.recipe.unit import Done

A, B = TrialId("a"), TrialId("b")
DONE = Done(
    Visit(0, ShardId("s0"), 0, 0),
    spent={"train": 2.0, "switch": 0.1},
    figures={"switch": 0.05, "rate": 9.0},
)
MADE = Trained(DONE, {}, fetched=1, size=1)


def call(begun: float | None, ended: float) -> Call:
    return Call(0, {}, {}, begun=begun, ended=ended)


@pytest.mark.parametrize(
    ("given", "outcomes", "way"),
    [
        (call(10.0, 12.5), {A: MADE}, 0.4),
        (call(10.0, 15.0), {A: MADE, B: MADE}, 0.4),
        (call(10.0, 12.5), {A: MADE, B: Cut()}, 0.0),
        (call(None, 12.5), {A: MADE}, 0.0),
        (call(10.0, 11.0), {A: MADE}, 0.0),
    ],
    ids=["one", "two share it", "one was cut", "it waited in line", "clocks differ"],
)
def test_the_way_is_what_nothing_else_accounts_for(given, outcomes, way):
    given.measure_way(outcomes)
    assert given.way == pytest.approx(way)


def test_it_is_part_of_the_switch():
    told = with_way(DONE, 0.4)
    assert told.spent == {"train": 2.0, "switch": pytest.approx(0.5)}
    assert told.figures == {"switch": pytest.approx(0.45), "rate": 9.0}
    unmeasured = with_way(Done(DONE.visit), 0.4)
    assert unmeasured.spent == {"switch": 0.4}
    assert unmeasured.figures == {}


class Answers:
    """A slot's process whose calls are answered by hand."""

    def __init__(self) -> None:
        self.given: list[Future[Any]] = []

    def call(self, *_: Any, results: int = 1) -> Any:
        future: Future[Any] = Future()
        self.given.append(future)
        return [SimpleNamespace(future=lambda: future), None, None]


def test_what_a_lane_took_that_left_its_pack_meanwhile_is_no_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both lanes train in the round under way, though what comes of one does not count any more."""
    clock = [10.0]
    monkeypatch.setattr("shoal.backend.ray.slot_process.monotonic", lambda: clock[0])
    monkeypatch.setattr("shoal.backend.ray.gangs.monotonic", lambda: clock[0])
    slot, shard = SlotId("slot0"), ShardId("s0")
    actor = Answers()
    process = SlotProcess(slot, "n", actor, slot=Slot(slot))
    course = Positions(0, {shard: 10})
    ways = []
    states: Any = SimpleNamespace(
        active=set(),
        source=lambda *_, **__: None,
        trained=lambda _, call, *__: ways.append(call.way) or [],
        settle=lambda *_: None,
    )
    fleet: Any = SimpleNamespace(
        follow=lambda ref, then, at_once: (
            ref.future().add_done_callback(at_once),
            ref.future().add_done_callback(then),
        )
    )
    slots: Any = SimpleNamespace(processes={slot: process}, is_current=lambda _: True)
    work = Work(course, fleet, slots, states, lambda _: [], lambda: None)
    gangs = OneSlotGangs(work)
    for name in (A, B):
        trial = Trial(name, 100.0, {}, shards=frozenset([shard]))
        work.submit(trial, lambda _: None)
    both = Gang((Lane(A, (slot,)), Lane(B, (slot,))), shards=(shard,), since=1)
    gangs.wait(both)
    gangs.begin()
    alone = Gang((Lane(A, (slot,)),), shards=(shard,), since=1)
    assert gangs.shrinks(both, alone)
    clock[0] += 5.0
    actor.given[0].set_result({A: MADE, B: MADE})
    assert ways == [pytest.approx(0.4)]
