"""Placing: what is held is kept, lanes stay together, memory is respected."""

from small_studies import follow, nodes, seen, state, table, trial

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Left
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.trial import TrialId
from shoal.policy.width.place import place

FLAT = table((1.0,))
A, B, C = (TrialId(f"t{i}") for i in range(3))


def slots_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {lane.trial: lane.slots for gang in plan.gangs for lane in gang.lanes}


def test_gangs_that_keep_their_width_go_on_and_others_keep_their_slots() -> None:
    known = state([trial(0, 10), trial(1, 10)], nodes(8))
    first = place(seen(known, FLAT), {A: 2, B: 4})
    known = follow(known, first)
    second = place(seen(known, FLAT), {A: 4, B: 4})
    assert next(g for g in second.gangs if B in g.trials) in first.gangs
    grown, before = slots_of(second)[A], slots_of(first)[A]
    assert grown[:2] == before
    assert {s.node for s in known.slots.values() if s.id in grown} == {
        s.node for s in known.slots.values() if s.id in before
    }
    assert next(g for g in second.gangs if A in g.trials).since == known.turn


def test_a_lane_that_shrinks_stays_where_most_of_it_is() -> None:
    known = state([trial(0, 10)], nodes(8))
    wide = Gang((Lane(A, (SlotId("g03"), SlotId("g04"), SlotId("g05"), SlotId("g06"))),))
    known = follow(known, Plan(frozenset([wide])))
    assert slots_of(place(seen(known, FLAT), {A: 3}))[A] == ("g04", "g05", "g06")


def test_a_narrow_lane_takes_the_fullest_node_that_has_room() -> None:
    known = state([trial(0, 10), trial(1, 10), trial(2, 10)], nodes(8))
    known = follow(known, place(seen(known, FLAT), {A: 3}))
    both = slots_of(place(seen(known, FLAT), {A: 3, B: 4, C: 1}))
    assert both[C] == ("g03",)
    assert both[B] == ("g04", "g05", "g06", "g07")


def test_who_is_not_wanted_stops_and_units_with_a_quota_go_on() -> None:
    known = state([trial(0, 10), trial(1, 10), trial(2, 10)], nodes(4))
    unit = Gang((Lane(A, (SlotId("g00"),)),), (ShardId("a"),), quota=5)
    other = Gang((Lane(B, (SlotId("g01"),)),))
    known = follow(known, Plan(frozenset([unit, other])))
    plan = place(seen(known, FLAT), {C: 3})
    assert unit in plan.gangs
    assert slots_of(plan)[C] == ("g01", "g02", "g03")


def test_too_little_memory_leaves_a_power_of_two_or_nothing() -> None:
    small = tuple(Slot(SlotId(f"s{i}"), memory=1.0) for i in range(2))
    known = state([trial(0, 10), trial(1, 10, (4, 4))], (*nodes(3, memory=8.0), *small))
    plan = slots_of(place(seen(known, table((1.0,), memory=4.0)), {A: 4}))
    assert plan == {A: ("g00", "g01")}
    assert slots_of(place(seen(known, table((1.0,), memory=4.0)), {B: 4})) == {}


def test_a_lane_that_lost_a_slot_gets_another() -> None:
    known = state([trial(0, 10)], nodes(4))
    known = follow(known, place(seen(known, FLAT), {A: 2}))
    known = follow(known, known.plan, Left(frozenset([SlotId("g00")])))
    assert slots_of(place(seen(known, FLAT), {A: 2}))[A] == ("g01", "g02")
