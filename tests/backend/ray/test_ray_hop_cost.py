"""What a hop costs: loading a state, and its way from slot to slot."""

import pytest

from shoal.backend.ray.node.outcomes import Cut, Trained
from shoal.backend.ray.slots import Call
from shoal.backend.ray.states import with_way
from shoal.core.cluster import ShardId
from shoal.core.trial import TrialId, Visit
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
