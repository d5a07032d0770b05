"""The simulator with undivided data, wide lanes, and several lanes in a gang."""

import pytest
from simkit import SHARDS, alone, kinds, moments, rates, slots, study, trial

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import SlotId
from shoal.core.event import Advanced, Commanded, Ended, Event, Fell, Finished, Kept, Left
from shoal.core.plan import Gang, Lane, solo
from shoal.core.trial import Trial, TrialId
from shoal.policy.fifo import Fifo
from shoal.profile.table import Row, Table
from shoal.search.trace import Trace

A, B = TrialId("a"), TrialId("b")
W = [SlotId(f"w{i}") for i in range(3)]
S = list(SHARDS)


def whole(name: str, samples: float = 100.0) -> Trial:
    return Trial(TrialId(name), samples)


def test_undivided_data_counts_progress_at_every_moment() -> None:
    found = alone(
        Table((Row((10.0,)),)),
        solo(A, W[0], 0),
        whole("a"),
        shards={},
        script=[(3.0, Commanded("x")), (4.0, Commanded("x"))],
    )
    advanced = [
        (now, [e.samples[A] for e in events if isinstance(e, Advanced)])
        for now, events in found[1:]
    ]
    assert advanced == [(3.0, [30.0]), (4.0, [10.0]), (10.0, [60.0])]
    assert kinds(found[-1][1]) == ["Advanced", "Measured", "Evaluated", "Kept", "Finished"]


def test_undivided_data_is_kept_by_interval_and_falls_back_to_it() -> None:
    script: list[tuple[float, Event]] = [(7.0, Left(frozenset({W[0]})))]
    found = alone(
        Table((Row((10.0,)),)),
        solo(A, W[0], 0),
        whole("a"),
        shards={},
        checkpoint_every=3.0,
        script=script,
    )
    assert [(now, e.samples) for now, events in found for e in events if isinstance(e, Kept)] == [
        (3.0, 30.0),
        (6.0, 60.0),
    ]
    assert found[-1][1][-1] == Fell(A, 0, 60.0)


def test_resizing_keeps_progress_and_charges_the_switch() -> None:
    table = Table((Row((10.0, 20.0), switch=1.0),))
    sim = Sim(table.of, slots(SHARDS))
    one, two = solo(A, W[0], 0), Gang((Lane(A, (W[0], W[1])),), since=1)

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            sim.submit(whole("a"))
            sim.change(None, one)
            sim.wake(4.0)
        elif now == 4.0:
            sim.change(one, two)

    found = moments(sim, act)
    assert found[-1][0] == pytest.approx(4.0 + 1.0 + 60.0 / 20.0)


def test_a_wide_lane_shrinks_when_a_slot_is_lost() -> None:
    table = Table((Row((10.0, 20.0)),))
    gang = Gang((Lane(A, (W[0], W[1])),))
    found = alone(table, gang, whole("a"), shards={}, script=[(2.0, Left(frozenset({W[1]})))])
    assert found[-1][0] == pytest.approx(2.0 + 60.0 / 10.0)
    assert not any(isinstance(e, Fell) for _, events in found for e in events), (
        "its other slot holds the state"
    )
    divided = alone(table, gang, trial("a", 30.0), script=[(0.25, Left(frozenset({W[0]})))])
    assert divided[-1][0] == pytest.approx(0.25 + 25.0 / 10.0), "and the visit under way goes on"


def test_lanes_on_one_slot_share_it_and_one_is_faster_when_the_other_has_finished() -> None:
    pack = Gang((Lane(A, (W[0],)), Lane(B, (W[0],))))
    found = alone(Table((Row((10.0,)),)), pack, whole("a", 50.0), whole("b", 100.0), shards={})
    ends = {e.trial: now for now, events in found for e in events if isinstance(e, Finished)}
    assert ends == {A: pytest.approx(10.0), B: pytest.approx(15.0)}


def test_a_slot_builds_evaluates_and_saves_its_lanes_one_after_the_other() -> None:
    """While one lane is evaluated, the others wait: a pack saves nothing of these costs."""
    table = Table((Row((10.0,), build=1.0, evaluate=2.0, save=0.5),))
    trials = [trial("a", 60.0), trial("b", 60.0)]
    pack = Gang((Lane(A, (W[0],)), Lane(B, (W[0],))))
    found = alone(table, pack, *trials)
    # built, trained at half the speed, evaluated after each of two epochs, saved at the end
    assert found[-1][0] == pytest.approx(2 * 1.0 + 60 / 5.0 + 2 * 2 * 2.0 + 2 * 0.5)
    apart = Gang((Lane(A, (W[0],)), Lane(B, (W[1],))))
    found = alone(table, apart, *trials)
    assert found[-1][0] == pytest.approx(1.0 + 60 / 10.0 + 2 * 2.0 + 0.5)


def test_lanes_on_one_slot_share_the_seconds_in_which_they_train() -> None:
    """As on the real backends: what all of them spent is what the slot was at work."""
    table = Table((Row((10.0,)),))
    pack = Gang((Lane(A, (W[0],)), Lane(B, (W[0],))))
    found = alone(table, pack, trial("a", 30.0), trial("b", 60.0))
    trained = {A: 0.0, B: 0.0}
    for _, events in found:
        for event in events:
            if isinstance(event, Advanced):
                for name, spent in event.spent.items():
                    trained[name] += spent.get("train", 0.0)
    assert trained == {A: pytest.approx(3.0), B: pytest.approx(3.0 + 3.0)}


def test_a_gang_of_several_ends_when_all_its_lanes_have_their_quota() -> None:
    table = Table((Row((10.0,), {"x": 0}), Row((5.0,), {"x": 1})))
    gang = Gang((Lane(A, (W[0],)), Lane(B, (W[0],))), (S[0],), 10.0)
    found = alone(table, gang, trial("a", 10.0, x=0), trial("b", 20.0, x=1))
    ended = [(now, e.gang) for now, events in found for e in events if isinstance(e, Ended)]
    assert ended == [(pytest.approx(3.0), gang)], "both report before one leaves"
    lost = alone(
        table,
        gang,
        trial("a", 10.0, x=0),
        trial("b", 20.0, x=1),
        script=[(1.0, Left(frozenset({W[0]})))],
    )
    assert not any(isinstance(e, Ended) for _, events in lost for e in events)


def test_a_quota_of_whole_data_ends_at_a_visit() -> None:
    found = alone(rates(10.0), solo(A, W[0], 0, None, 15.0), trial("a", 60.0, x=0))
    assert [(now, type(e)) for now, events in found for e in events if isinstance(e, Ended)] == [
        (2.0, Ended)
    ]


def test_trials_may_be_longer_than_the_data_or_shorter() -> None:
    for samples, visits in ((5.0, 1), (10.0, 1), (11.0, 2), (65.0, 7)):
        _, state = study(Fifo(), rates(1.0), searcher=Trace([(0.0, {"x": 0}, samples)]))
        assert len(state.visits[TrialId("t000")]) == visits
