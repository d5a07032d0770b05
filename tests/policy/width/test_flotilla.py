"""Flotillas and their places: the worked examples."""

import pytest
from asks import ask
from hypothesis import given
from hypothesis import strategies as st
from small_studies import follow, nodes, seen, state, table, trial

from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Finished
from shoal.core.trial import TrialId
from shoal.policy.width.ask import Ask
from shoal.policy.width.flotilla import Flotilla, create_flotilla
from shoal.policy.width.place import assign, spread

ALONE = (100.0, 52.0, 30.0, 90.0, 21.0)


def five(most: int) -> list[Ask]:
    return [
        ask(i, 1.0, {m: r * m * 0.95 ** (m - 1) for m in range(1, most + 1)})
        for i, r in enumerate(ALONE)
    ]


def test_flotillas_of_five_models() -> None:
    assert create_flotilla(five(8), 8, 20.0) == {"t0": 1, "t1": 2, "t2": 4, "t3": 1}
    assert create_flotilla(five(4), 4, 20.0) == {"t0": 1, "t1": 2, "t3": 1}


def test_what_is_left_over_goes_to_the_slowest() -> None:
    assert create_flotilla(
        [ask(0, 1, {1: 10.0, 2: 18.0, 3: 24.0}), ask(1, 1, {1: 9.0, 2: 17.0, 3: 23.0})],
        5,
        20.0,
    ) == {
        "t0": 2,
        "t1": 3,
    }


def test_the_guard_gives_no_slot_that_makes_slower() -> None:
    falling = [ask(0, 1, {1: 10.0, 2: 12.0, 3: 11.0, 4: 9.0})]
    assert create_flotilla(falling, 4, 20.0) == {"t0": 2}
    assert create_flotilla(falling, 4, 20.0, guard=False) == {"t0": 4}  # as printed


def test_order_in_which_members_join() -> None:
    """The nearest pace first, whatever the order in which they are given."""
    assert list(create_flotilla(five(8)[::-1], 8, 20.0)) == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize(("rate", "joins"), [(88.0, False), (89.0, True)])
def test_paces_differ_by_the_papers_share_at_most(rate: float, joins: bool) -> None:
    """20 of 176 images/s, where no delta is given."""
    both = [ask(0, 1, {1: 100.0}), ask(1, 1, {1: rate})]
    assert ("t1" in create_flotilla(both, 2)) == joins


THREE = [trial(0, 100, (3, 3)), trial(1, 100, (3, 3)), trial(2, 100, (2, 2))]


@pytest.mark.parametrize("memory", [float("inf"), 8.0])
def test_lanes_are_placed_by_algorithm_3_also_where_memory_is_finite(
    memory: float,
) -> None:
    """Best fit would part the third lane: 1/3 + 1/3 + 2/2 instead of 1/3 + 2/3 + 1/2 by eq. 4."""
    known = state(THREE, nodes(8, memory=memory))
    plan, _ = Flotilla(delta=99.0).decide(seen(known, table((1.0, 2.0, 3.0), memory=4.0)), {})
    lanes = {lane.trial: lane.slots for gang in plan.gangs for lane in gang.lanes}
    assert lanes == {
        "t0": ("g00", "g01", "g02"),
        "t1": ("g03", "g04", "g05"),
        "t2": ("g06", "g07"),
    }


def test_no_lane_is_placed_where_it_has_no_room() -> None:
    slots = (
        *nodes(4, memory=8.0),
        *(Slot(SlotId(f"s{i}"), "small", memory=1.0) for i in range(4)),
    )
    known = state(THREE, slots)
    plan, _ = Flotilla(delta=99.0).decide(seen(known, table((1.0, 2.0, 3.0), memory=4.0)), {})
    assert not {s for gang in plan.gangs for s in gang.slots if s.startswith("s")}


def test_it_forms_again_when_rates_arrive() -> None:
    """Trials that nobody has measured look alike; once they are measured they do not go
    together.
    """
    policy = Flotilla(together=True)
    known = state([trial(0, 100, (1, 4)), trial(1, 100, (1, 4))], nodes(2))
    alike, apart = (
        table((10.0, 20.0, 30.0, 40.0)),
        table((10.0, 20.0, 30.0, 40.0), (2.0, 4.0)),
    )
    plan, memory = policy.decide(seen(known, alike), policy.start())
    (gang,) = plan.gangs
    assert len(gang.lanes) == 2
    known = follow(known, plan)
    again, memory = policy.decide(seen(known, alike), memory)
    assert again.gangs == plan.gangs
    again, memory = policy.decide(seen(known, apart), memory)
    assert [gang.trials for gang in again.gangs] == [("t0",)]
    known = follow(known, again)
    settled, _ = policy.decide(seen(known, apart), memory)
    assert settled.gangs == again.gangs, "once"


@pytest.mark.parametrize(
    ("widths", "places", "score"),
    [
        ([3, 3, 2], [range(3), range(3, 6), range(6, 8)], 1.5),
        ([3, 2, 3], [range(3), range(6, 8), range(3, 6)], 1.5),
        ([1, 1, 3, 3], [range(3, 4), range(7, 8), range(3), range(4, 7)], 8 / 3),
        (
            [4, 3, 1, 2, 2, 5, 3],
            [
                range(4),
                range(5, 8),
                range(4, 5),
                range(10, 12),
                range(8, 10),
                range(15, 20),
                range(12, 15),
            ],
            3.3167,
        ),
        ([1, 2, 1], [range(1), range(1, 3), range(3, 4)], 2.5),
    ],
)
def test_places(widths: list[int], places: list[range], score: float) -> None:
    assert assign(widths, 4) == places
    assert spread(assign(widths, 4), 4) == pytest.approx(score, abs=1e-4)


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 6))
def test_places_are_consecutive_and_disjoint(widths: list[int], per_node: int) -> None:
    places = assign(widths, per_node)
    assert [len(p) for p in places] == widths
    assert sorted(i for p in places for i in p) == list(range(sum(widths)))


@pytest.mark.parametrize(("alpha", "again"), [(0.75, False), (0.76, True)])
def test_a_new_flotilla_where_fewer_slots_than_alpha_are_busy(alpha: float, again: bool) -> None:
    """Three of four slots are busy once t1 has ended: that is enough where alpha asks for 0.75."""
    policy = Flotilla(alpha=alpha)
    rates = ((10.0, 20.0, 30.0), (10.0, 20.0), (2.0, 2.1))
    known = state([trial(0, 9, (3, 4)), trial(1, 9, (1, 1)), trial(2, 9, (1, 4))], nodes(4))
    plan, memory = policy.decide(seen(known, table(*rates)), policy.start())
    assert {gang.trials for gang in plan.gangs} == {("t0",), ("t1",)}
    known = follow(known, plan, Finished(TrialId("t1")))
    plan, _ = policy.decide(seen(known, table(*rates)), memory)
    assert (plan.gangs != known.plan.gangs) == again


@pytest.mark.parametrize(("left", "again"), [(16, False), (15, True)])
def test_the_papers_alpha(left: int, again: bool) -> None:
    """Of twenty slots: 0.8 of them, where no alpha is given."""
    policy, rates = Flotilla(), table((10.0,))
    known = state([trial(i, 9, (1, 1)) for i in range(21)], nodes(20))
    plan, memory = policy.decide(seen(known, rates), policy.start())
    ended = [Finished(TrialId(f"t{i}")) for i in range(20 - left)]
    known = follow(known, plan, *ended)
    plan, _ = policy.decide(seen(known, rates), memory)
    assert (plan.gangs != known.plan.gangs) == again


def test_delta_is_the_greatest_difference_of_paces() -> None:
    both = [ask(0, 1, {1: 100.0}), ask(1, 1, {1: 80.0})]
    assert list(create_flotilla(both, 2, 20.0)) == ["t0", "t1"]
    assert list(create_flotilla(both, 2, 19.9)) == ["t0"]


@pytest.mark.parametrize("together", [False, True])
def test_lanes_keep_their_own_pace_unless_they_are_to_advance_together(
    together: bool,
) -> None:
    known = state([trial(0, 100, (1, 1)), trial(1, 100, (1, 1))], nodes(2))
    policy = Flotilla(together=together)
    plan, _ = policy.decide(seen(known, table((10.0,))), policy.start())
    gangs = {("t0", "t1")} if together else {("t0",), ("t1",)}
    assert {gang.trials for gang in plan.gangs} == gangs


def test_nodes_without_the_memory_are_left_out_of_algorithm_3() -> None:
    small = tuple(Slot(SlotId(f"s{i}"), "a", memory=1.0) for i in range(4))
    known = state(THREE, (*small, *nodes(8, memory=8.0)))
    plan, _ = Flotilla(delta=99.0).decide(seen(known, table((1.0, 2.0, 3.0), memory=4.0)), {})
    lanes = {lane.trial: lane.slots for gang in plan.gangs for lane in gang.lanes}
    assert lanes["t2"] == ("g06", "g07") and lanes["t1"] == ("g03", "g04", "g05")


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="profile is one of alone, printed, never"):
        Flotilla(profile="sometimes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scope"):
        Flotilla("everywhere")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="alpha"):
        Flotilla(alpha=0)
