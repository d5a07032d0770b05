import pytest
from simkit import SHARDS, rates, slots, started, state_of, study, trial, view_of

from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Finished, Joined, Left, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import solo
from shoal.core.trial import Trial, TrialId
from shoal.policy.fifo import Fifo
from shoal.policy.reference.baselines import Fixed
from shoal.profile.table import Row, Table
from shoal.testing import check_policy

W = [SlotId(f"w{i}") for i in range(3)]


def test_contract() -> None:
    check_policy(Fifo)


def test_first_come_first_served_over_the_whole_data() -> None:
    view = view_of(started(*map(trial, "dacb")))
    plan, _ = Fifo().decide(view, None)
    assert plan.gangs == {solo(TrialId(t), w, 0) for t, w in zip("dac", W, strict=True)}


def test_gangs_that_run_go_on() -> None:
    state = fold(started(*map(trial, "abcd")), [Planned((), (solo(TrialId("c"), W[1], 0),))])
    plan, _ = Fifo().decide(view_of(state), None)
    assert plan.gangs == {
        solo(TrialId("c"), W[1], 0),
        solo(TrialId("a"), W[0], 1),
        solo(TrialId("b"), W[2], 1),
    }
    full = fold(state, [Planned((), tuple(plan.gangs - state.plan.gangs))])
    assert Fifo().decide(view_of(full), None)[0] is full.plan


def test_small_slots_take_trials_that_fit() -> None:
    table = Table((Row(memory=4.0, config={"big": True}), Row(memory=1.0)))
    at = [Slot(W[0], memory=2.0), Slot(W[1], memory=8.0)]
    state = started(trial("a", big=True), trial("b", big=True), trial("c", big=False), at=at)
    assert Fifo().decide(view_of(state, table), None)[0].gangs == {
        solo(TrialId("c"), W[0], 0),
        solo(TrialId("a"), W[1], 0),
    }


def test_trials_that_need_more_slots_are_left() -> None:
    wide = Trial(TrialId("a"), 30.0, widths=(2, 2), shards=frozenset(SHARDS))
    assert Fifo().decide(view_of(started(wide, trial("b"))), None)[0].gangs == {
        solo(TrialId("b"), W[0], 0)
    }


def test_makespan_is_list_scheduling() -> None:
    lines, _ = study(Fifo(), rates(1.0, 2.0, 3.0, 1.0), at=slots(SHARDS)[:2])
    ends = [(round(time, 6), entry.trial) for time, entry in lines if isinstance(entry, Finished)]
    assert ends == [(15.0, "t001"), (25.0, "t002"), (30.0, "t000"), (55.0, "t003")]


def test_a_trial_that_lost_its_slot_comes_first() -> None:
    state = fold(
        started(*map(trial, "abcd")),
        [Planned((), tuple(solo(TrialId(t), w, 0) for t, w in zip("abc", W, strict=True)))],
    )
    state = fold(state, [Left(frozenset(W[1:])), Joined((Slot(SlotId("new")),))])
    plan, _ = Fifo().decide(view_of(state), None)
    assert plan.gangs - state.plan.gangs == {solo(TrialId("b"), SlotId("new"), 1)}


def test_fixed_runs_each_slot_in_the_order_listed() -> None:
    fixed = Fixed({TrialId("t002"): W[0], TrialId("t000"): W[0], TrialId("t001"): W[1]})
    lines, _ = study(fixed, rates(1.0, 2.0, 3.0), count=3)
    starts = [(time, g.lanes[0]) for time, e in lines if isinstance(e, Planned) for g in e.start]
    assert [(time, lane.trial, lane.slots) for time, lane in starts] == [
        (0.0, "t001", ("w1",)), (0.0, "t002", ("w0",)), (10.0, "t000", ("w0",))
    ]  # fmt: skip


def test_fixed_waits_for_its_slot() -> None:
    fixed = Fixed({TrialId("a"): W[0], TrialId("b"): W[1]})
    here = state_of(Joined((Slot(W[1]),)), Submitted(trial("a")), Submitted(trial("b")))
    assert fixed.decide(view_of(here), None)[0].gangs == {solo(TrialId("b"), W[1], 0)}
    with pytest.raises(ValueError, match="empty assignment"):
        Fixed({})


def test_higher_priority_first_then_the_oldest() -> None:
    from dataclasses import replace

    urgent = [
        trial("a"),
        trial("b", priority=2.0),
        replace(trial("c"), priority=3.0),
        replace(trial("d"), priority=2.0),
    ]
    plan, _ = Fifo().decide(view_of(started(*urgent)), None)
    assert plan.gangs == {solo(TrialId(t), w, 0) for t, w in zip("cbd", W, strict=True)}
