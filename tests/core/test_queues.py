"""What runs and who queues, kept by change: the same as counted anew from the tables."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_kit import ENTRIES
from simkit import SHARDS, slots, started, trial, view_of

from shoal.core import plan as plans
from shoal.core import queues
from shoal.core.cluster import SlotId
from shoal.core.event import Joined, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Plan, solo
from shoal.core.queues import Queue
from shoal.core.state import State
from shoal.core.trial import TrialId
from shoal.policy import Fifo, Hop, Pack
from shoal.policy.idle import idle_slots, idle_trials
from shoal.testing import World, worlds


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(ENTRIES, max_size=3), max_size=12),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from([0, 3, 1000]),
)
def test_who_waits_is_as_counted_anew(
    batches: list[Any], asked: int, cut: int, spread: int
) -> None:
    """Whenever it was first asked, and however often the queues get a new base."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "SPREAD", spread)
        states = [State()]
        for number, batch in enumerate(batches):
            if number >= asked:
                assert states[-1].queues and states[-1].plan
            states.append(fold(states[-1], batch))
        # Two states that go on from one do not know of each other.
        states += [fold(states[min(cut, len(batches))], batch) for batch in batches]
        for before, state in pairwise(states):
            check(state)
            stop, start = state.plan.since(before.plan)
            assert stop == before.plan.gangs - state.plan.gangs
            assert start == state.plan.gangs - before.plan.gangs


def test_a_gang_may_be_planned_before_its_trial_and_slot_are_known() -> None:
    gang = solo(TrialId("a"), SlotId("w0"), 0)
    states = [State()]
    for entry in (Planned((), (gang,)), Submitted(trial("a")), Joined(slots(SHARDS))):
        assert states[-1].queues
        states.append(fold(states[-1], [entry]))
        check(states[-1])


def check(state: State) -> None:
    idle, waiting = state.queues.idle, state.queues.waiting
    assert list(idle) == [name for name in state.slots if name not in state.busy]
    assert list(waiting) == [name for name in state.trials if name not in state.running]
    assert (len(idle), len(waiting)) == (len(list(idle)), len(list(waiting)))
    assert state.plan.gangs == frozenset(state.gangs)


@settings(max_examples=40, deadline=None)
@given(worlds(), st.sampled_from([Hop(), Pack(), Fifo()]), st.sampled_from([2, 64]))
def test_plans_know_what_changed_since_each(world: World, policy: Any, longest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "LONGEST", longest)
        lines, _, _ = world.run(policy)
        state, seen = State(), [State().plan]
        for line in lines:
            state = fold(state, [line.entry])
            check(state)
            for before in (*seen[-4:], seen[0]):
                stop, start = state.plan.since(before)
                assert stop == before.gangs - state.plan.gangs
                assert start == state.plan.gangs - before.gangs
            seen.append(state.plan)


A, B, C = (solo(name, "slot", 1) for name in "abc")  # type: ignore[arg-type]
SOME = st.sets(st.sampled_from([A, B, C]))


@given(SOME, SOME, SOME, SOME, SOME)
def test_a_plan_made_of_another_is_what_the_sets_say(
    first: Any, start: Any, stop: Any, more: Any, less: Any
) -> None:
    before = Plan(frozenset(first))
    after = before.but(start, stop)
    last = after.but(more, less, wake_at=3.0)
    wanted = (frozenset(first) - stop) | start
    assert after == Plan(wanted) and hash(after) == hash(Plan(wanted))
    assert last == Plan((wanted - less) | more, 3.0)
    for gang in (A, B, C):
        assert (gang in before.but(start, stop)) == (gang in wanted)
    for old in (before, after, Plan()):
        assert last.since(old) == (old.gangs - last.gangs, last.gangs - old.gangs)


def test_a_view_with_other_tables_is_counted_anew() -> None:
    """Whoever hands a policy fewer trials or other gangs need not know of the queues."""
    seen = view_of(started(trial("a"), trial("b")))
    assert idle_trials(seen) == ["a", "b"] and len(idle_slots(seen)) == 3
    fewer = {name: each for name, each in seen.trials.items() if name == "b"}
    assert idle_trials(replace(seen, trials=fewer)) == ["b"]
    (gang,) = Fifo().decide(replace(seen, trials=fewer), None)[0].gangs
    ran = replace(seen, running={gang.trials[0]: gang}, busy={"w0": gang})
    assert idle_trials(ran) == ["a"]
    assert [slot.id for slot in idle_slots(ran)] == ["w1", "w2"]


def test_who_comes_back_stands_where_it_stood() -> None:
    line: Queue[str] = Queue("abcd")
    line.leave("b")
    later = line.copy()
    later.leave("c")
    later.add("e")
    later.come("b")
    later.remove("a")
    later.add("a")
    assert "".join(line) == "acd" and "".join(later) == "bdea"
