from collections.abc import Iterable
from dataclasses import replace

import pytest
from simkit import SHARDS, started, trial, view_of

from shoal.core.check import PlanError, check
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Planned
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane, Plan, solo
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.profile.table import Row, Table

S0, S1 = list(SHARDS)[:2]
W0, W1, W2 = (SlotId(f"w{i}") for i in range(3))
A, B, C = (TrialId(x) for x in "abc")


def looking(running: Iterable[Gang] = (), table: Table = Table(), memory: float = 8.0) -> View:
    at = [Slot(SlotId(f"w{i}"), memory=memory, shards=frozenset({s})) for i, s in enumerate(SHARDS)]
    state = started(*map(trial, "abc"), at=at)
    return view_of(fold(state, [Planned((), tuple(running))]), table)


def plan(*gangs: Gang) -> Plan:
    return Plan(frozenset(gangs))


def test_a_plan_that_can_run() -> None:
    view = looking()
    check(plan(solo(A, W0, 1, S0, 10.0), solo(B, W1, 1)), view)
    check(plan(), view)


@pytest.mark.parametrize(
    ("gangs", "why"),
    [
        ([solo(A, W0, 1), solo(B, W0, 1)], "slot w0 is in"),
        ([solo(A, W0, 1), solo(A, W1, 1)], "trial a is in"),
        ([solo(TrialId("x"), W0, 1)], "no work left"),
        ([solo(A, SlotId("w9"), 1)], "which is not here"),
        ([solo(A, W0, 1, S1, 10.0)], "lies at none of its slots"),
        ([solo(A, W0, 1, ShardId("zz"), 10.0)], "lies at none of its slots"),
    ],
)
def test_plans_that_cannot_run(gangs: list[Gang], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        check(plan(*gangs), looking())


def test_against_what_runs() -> None:
    runs = solo(A, W0, 0)
    view = looking([runs])
    with pytest.raises(PlanError, match="slot w0 is in"):
        check(plan(runs, solo(B, W0, 1)), view)
    with pytest.raises(PlanError, match="trial a is in"):
        check(plan(runs, solo(A, W1, 1)), view)
    check(plan(solo(B, W0, 1)), view)  # in its place
    check(plan(solo(A, W1, 1)), view)  # moved


def test_memory_of_lanes_that_meet_on_a_slot() -> None:
    table = Table((Row(memory=5.0),))
    pack = Gang((Lane(A, (W0,)), Lane(B, (W0,))), since=1)
    with pytest.raises(PlanError, match=r"needs 10 GiB on slot w0, which has 8 GiB"):
        check(plan(pack), looking(table=table))
    check(plan(Gang((Lane(A, (W0,)), Lane(B, (W1,))), since=1)), looking(table=table))
    check(plan(pack), looking(table=table, memory=10.0))


def test_a_unit_is_not_cut_short() -> None:
    unit = solo(A, W0, 0, S0, 10.0)
    with pytest.raises(PlanError, match="has a quota and ends by itself"):
        check(plan(), looking([unit]))
    with pytest.raises(PlanError, match="has a quota"):
        check(plan(solo(A, W0, 1, S0, 10.0)), looking([unit]))
    with pytest.raises(PlanError, match="has a quota"):  # the same shard, but another trial's
        check(plan(replace(unit, lanes=(Lane(B, (W0,)),))), looking([unit]))
    check(plan(unit, solo(B, W1, 1)), looking([unit]))
    check(
        plan(replace(unit, lanes=(Lane(A, (W0, W2)),))), looking([unit])
    )  # wider, and goes on with the unit
