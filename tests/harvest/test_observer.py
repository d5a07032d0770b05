"""Which nodes are taken and which pilots end: decided from looks alone."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.harvest.observer import MARGIN, Observer, PilotOrders
from shoal.harvest.scheduler import IdleNode, Pilot, Sighting, Waiting

NAMES = ("n1", "n2", "n3", "n4", "n5")


def idle(*names: str, window: float = inf, longest: float = inf) -> dict[str, IdleNode]:
    return {name: IdleNode(name, window, longest) for name in names}


def decisions(observer: Observer, sightings: Sequence[Sighting]) -> list[PilotOrders]:
    memory, found = observer.start(), []
    for sighting in sightings:
        orders, memory = observer.decide(sighting, memory)
        found.append(orders)
    return found


# -- taking -------------------------------------------------------------------------------------


def test_a_node_idle_in_one_look_is_not_taken() -> None:
    looks = [
        Sighting(0, idle("n1", "n2")),
        Sighting(10, idle("n1", "n3")),
        Sighting(20, idle("n1", "n2", "n3")),
    ]
    assert [each.submit for each in decisions(Observer(), looks)] == [
        (),
        (("n1", 60),),
        (("n1", 60), ("n3", 60)),  # nobody told that a pilot for n1 is there
    ]


def test_a_node_newly_idle_is_worth_another_look_soon() -> None:
    taken = (Pilot("7", "n2"),)
    looks = [
        Sighting(0, idle("n1")),
        Sighting(2, idle("n1")),  # taken
        Sighting(12, {}, taken),
        Sighting(22, idle("n2"), taken),  # a pilot just submitted for it
        Sighting(32, idle("n3", window=60), taken),  # too short for anything
        Sighting(42, idle("n4"), taken),
    ]
    again = [True, False, False, False, False, True]
    assert [each.again for each in decisions(Observer(), looks)] == again
    full = Observer(most=1)
    assert not any(each.again for each in decisions(full, looks[3:]))
    at_once = Observer(min_ticks=1)
    assert not any(each.again for each in decisions(at_once, looks))


def test_limits_fit_the_window_the_partition_and_the_wish() -> None:
    nodes = (
        idle("n1", window=300 + MARGIN)
        | idle("n2", window=359 + MARGIN)
        | idle("n3", longest=30)
        | idle("n4")
        | idle("n5", window=119 + MARGIN)  # too short for anything
    )
    (orders,) = decisions(Observer(min_ticks=1, longest=40), [Sighting(0, nodes)])
    assert orders.submit == (("n4", 40), ("n3", 30), ("n1", 5), ("n2", 5))


def test_most_nodes() -> None:
    look = Sighting(0, idle("n1", "n2", "n3"), (Pilot("7", "n4"),))
    (orders,) = decisions(Observer(min_ticks=1, most=2), [look])
    assert orders.submit == (("n1", 60),)


def test_a_pilot_that_never_begins_is_tried_with_half_the_time() -> None:
    """As of a node that a maintenance will take, which no look shows."""
    nodes, waits = idle("n1"), Pilot("7", "n1", running=False, minutes=60)
    looks = [Sighting(10 * tick, nodes, (waits,)) for tick in range(11)]
    found = decisions(
        Observer(min_ticks=1),
        [*looks, Sighting(120, nodes), Sighting(130, nodes, (Pilot("8", "n1"),)),
         Sighting(140, nodes)],
    )  # fmt: skip
    assert [each.cancel for each in found].count(("7",)) == 1
    assert found[10].cancel == ("7",)
    assert found[11].submit == (("n1", 30),)
    assert found[13].submit == (("n1", 60),)  # one began meanwhile


def test_a_pilot_whose_node_was_taken_is_cancelled() -> None:
    waits = (Pilot("7", "n1", running=False),)
    looks = [Sighting(0, idle("n1"), waits), Sighting(10, idle("n2"), waits)]
    assert decisions(Observer(), looks)[1].cancel == ("7",)
    # Seen for the first time, it may be about to begin.
    assert decisions(Observer(), looks[1:])[0].cancel == ()


def test_a_pilot_too_long_for_a_window_that_shows_later_is_cancelled() -> None:
    waits = (Pilot("7", "n1", running=False, minutes=60),)
    looks = [
        Sighting(0, idle("n1"), waits),
        Sighting(10, idle("n1", window=600), waits),
        Sighting(20, idle("n1", window=590)),
    ]
    found = decisions(Observer(), looks)
    assert found[1].cancel == ("7",)
    assert found[2].submit == (("n1", 9),)


def test_pilots_of_a_former_harvest_end() -> None:
    look = Sighting(0, {}, (Pilot("7", "n1", stale=True), Pilot("8", "n2")))
    assert decisions(Observer(), [look])[0].cancel == ("7",)


# -- giving way ---------------------------------------------------------------------------------


def test_with_preemption_no_pilot_is_cancelled_for_others() -> None:
    look = Sighting(0, {}, (Pilot("7", "n1"),), (Waiting("9", 1),))
    assert decisions(Observer(), [look]) == [PilotOrders()]


def test_without_preemption_as_many_pilots_end_as_the_job_needs() -> None:
    pilots = tuple(Pilot(str(number), f"n{number}") for number in (2, 3, 4))
    job = Waiting("9", 2)
    look = Sighting(0, idle("n1"), pilots, (job,))
    (orders,) = decisions(Observer(min_ticks=1, yields=True), [look])
    assert orders == PilotOrders(cancel=("2",))  # and n1 is not taken from the job

    planned = replace(job, planned=frozenset(("n3", "n4")))
    (orders,) = decisions(Observer(min_ticks=1, yields=True), [replace(look, waiting=(planned,))])
    assert orders == PilotOrders((("n1", 60),), ("3", "4"))


def test_without_preemption_nothing_ends_for_a_job_that_could_not_begin_anyway() -> None:
    look = Sighting(0, idle("n1"), (Pilot("2", "n2"),), (Waiting("9", 4),))
    (orders,) = decisions(Observer(min_ticks=1, yields=True), [look])
    assert orders == PilotOrders((("n1", 60),))


def test_without_preemption_two_jobs_do_not_share_a_node() -> None:
    pilots = tuple(Pilot(str(number), f"n{number}") for number in (1, 2, 3))
    look = Sighting(0, {}, pilots, (Waiting("8", 1), Waiting("9", 1)))
    (orders,) = decisions(Observer(yields=True), [look])
    assert orders.cancel == ("1", "2")


# -- whatever is seen ---------------------------------------------------------------------------

windows = st.one_of(st.just(inf), st.floats(0, 7200))
pilots = st.builds(
    Pilot,
    st.sampled_from([str(number) for number in range(10)]),
    st.sampled_from(NAMES),
    st.booleans(),
    st.sampled_from([2, 5, 60, inf]),
    st.booleans(),
)
jobs = st.builds(
    Waiting,
    st.sampled_from([str(number) for number in range(20, 26)]),
    st.integers(1, 6),
    st.frozensets(st.sampled_from(NAMES)),
)


@st.composite
def looks(draw: st.DrawFn) -> list[Sighting]:
    found = []
    for tick in range(draw(st.integers(1, 8))):
        names = draw(st.frozensets(st.sampled_from(NAMES)))
        nodes = {name: IdleNode(name, draw(windows), draw(windows)) for name in names}
        ours = draw(st.lists(pilots, max_size=5, unique_by=lambda each: each.id))
        others = draw(st.lists(jobs, max_size=3, unique_by=lambda each: each.id))
        found.append(Sighting(tick * 40.0, nodes, tuple(ours), tuple(others)))
    return found


observers = st.builds(
    Observer,
    min_ticks=st.integers(1, 3),
    most=st.one_of(st.none(), st.integers(1, 4)),
    longest=st.integers(10, 90),
    shortest=st.integers(1, 10),
    yields=st.booleans(),
)


@given(observers, looks())
def test_what_always_holds(observer: Observer, seen: list[Sighting]) -> None:
    for tick, orders in enumerate(decisions(observer, seen)):
        look = seen[tick]
        names = [node for node, _ in orders.submit]
        assert len(set(names)) == len(names), "one pilot a node"
        assert not {pilot.node for pilot in look.pilots} & set(names)
        assert len(look.pilots) + len(names) <= max(observer.most or inf, len(look.pilots))
        for node, minutes in orders.submit:
            recent = seen[max(0, tick + 1 - observer.min_ticks) : tick + 1]
            assert len(recent) == observer.min_ticks
            assert all(node in each.idle for each in recent)
            assert observer.shortest <= minutes <= observer.longest
            assert minutes * 60 < look.idle[node].window
            assert minutes <= look.idle[node].longest
        assert set(orders.cancel) <= {pilot.id for pilot in look.pilots}
        stale = {pilot.id for pilot in look.pilots if pilot.stale}
        assert stale <= set(orders.cancel)


@given(observers, looks())
def test_pilots_end_for_others_only_where_that_helps(
    observer: Observer, seen: list[Sighting]
) -> None:
    plain = replace(observer, yields=False)
    giving = replace(observer, yields=True)
    for look in seen:
        (without,), (with_,) = decisions(plain, [look]), decisions(giving, [look])
        more = set(with_.cancel) - set(without.cancel)
        nodes = {pilot.node for pilot in look.pilots if pilot.id in more}
        able = nodes | look.idle.keys()
        assert len(more) <= sum(job.nodes for job in look.waiting)
        assert not more or any(
            job.nodes <= len(able & (job.planned or able)) for job in look.waiting
        )


@pytest.mark.parametrize("wrong", [{"min_ticks": 0}, {"most": 0}, {"shortest": 9, "longest": 8}])
def test_wrong_limits_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Observer(**wrong)
