"""A decision asks no more of ten thousand waiting trials than of a few hundred."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Ended, Finished, Joined, Measured, Opened, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.overlay import Overlay
from shoal.core.plan import Gang
from shoal.core.ports import Policy
from shoal.core.profile import Cost
from shoal.core.state import State, View, view
from shoal.core.trial import Trial, TrialId
from shoal.policy import Auto, Fifo, Pack, PacksAsTrials
from shoal.profile.measure import Believer, believe

SHARDS = {ShardId("all"): 100}
SIGNATURES = "0123456789ab0000", "ba98765432100000"
FIGURES = {"rate": 100.0, "step": 0.76, "fused:8": 1.2, "fused:32": 2.0, "memory": 0.1}


class Counting:
    """A profile that counts what it is asked."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.asked: Counter[str] = Counter()

    def rates(self, gang: Gang) -> Any:
        self.asked["rates"] += 1
        return self.inner.rates(gang)

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        self.asked["curve"] += 1
        return self.inner.curve(trial, upto)  # type: ignore[no-any-return]

    def cost(self, trial: TrialId) -> Cost:
        self.asked["cost"] += 1
        return self.inner.cost(trial)  # type: ignore[no-any-return]

    def switch(self, before: Gang | None, after: Gang | None) -> float:
        self.asked["switch"] += 1
        return self.inner.switch(before, after)  # type: ignore[no-any-return]


def waiting(count: int, priority: float = 1.0) -> State:
    """So many trials of two forms, two of them measured, and a slot."""
    trials = [
        Trial(
            TrialId(f"t{i:05d}"),
            100.0,
            {"lr": i / count, "depth": i % 2},
            shards=frozenset(SHARDS),
            priority=priority,
        )
        for i in range(count)
    ]
    measured = [
        Measured(trial.id, name, FIGURES) for trial, name in zip(trials, SIGNATURES, strict=False)
    ]
    slot = Slot(SlotId("g0"), shards=frozenset(SHARDS))
    return fold(State(), [Opened(1, SHARDS), Joined((slot,)), *map(Submitted, trials), *measured])


def asked(policy: Policy[Any], state: State) -> tuple[Counter[str], View]:
    profile = Counting(believe(state))
    seen = view(state, 0.0, profile)
    policy.decide(seen, policy.start())
    return profile.asked, seen


def auto() -> Auto:
    return Auto({"pack": Pack(fuse=True), "fifo": Fifo()}, lambda view, policy: 1.0, share=0.0)


@pytest.mark.parametrize("make", [lambda: Pack(fuse=True), Pack, Fifo])
def test_no_more_is_asked_where_more_wait(make: Any) -> None:
    few, _ = asked(make(), waiting(600))
    many, _ = asked(make(), waiting(5000))
    assert many == few
    assert sum(few.values()) < 3000


@pytest.mark.parametrize("make", [lambda: Pack(fuse=True), Fifo, auto])
def test_waiting_trials_are_not_gone_through(make: Any) -> None:
    """The table of trials is read from its beginning, never made whole."""
    state = waiting(3000)
    policy = make()
    if isinstance(policy, Auto):
        memory = policy.start() | {
            "follows": "pack",
            "of": 1,
            "known": 3000,
            "figures": {"rate": 1.0},
        }
        memory |= {"slots": _members(state)}
    else:
        memory = policy.start()
    assert state.queues  # as at the moment before
    state = fold(state, [Finished(TrialId("t00000"))])
    policy.decide(view(state, 0.0, believe(state)), memory)
    assert isinstance(state.trials, Overlay)
    assert state.trials._whole is None


def _members(state: State) -> str:
    from shoal.policy.auto import _members as members

    return members(view(state, 0.0, believe(state)))


def test_the_oldest_of_equal_priority_first() -> None:
    """One priority for all is none."""
    state = waiting(600, priority=2.0)
    assert len(state.ranked) == 600
    _, seen = asked(Fifo(), state)
    plan, _ = Fifo().decide(seen, None)
    assert [gang.trials for gang in plan.gangs] == [("t00000",)]


def test_what_hopping_packs_remember_does_not_grow() -> None:
    """Memories are journalled: one of all trials, at each change, would take the square of them."""
    policy = PacksAsTrials(Fifo())
    few, many = (
        policy.decide(view(state, 0.0, believe(state)), policy.start())[1]
        for state in map(waiting, (600, 3000))
    )
    assert len(str(many)) <= len(str(few)) * 1.1


def test_a_pack_that_runs_stays_in_sight() -> None:
    """Also where others go before its trials by now."""
    policy = PacksAsTrials(Fifo())
    state = waiting(600)
    plan, memory = policy.decide(view(state, 0.0, believe(state)), policy.start())
    urgent = [
        Trial(TrialId(f"u{i}"), 100.0, priority=2.0, shards=frozenset(SHARDS)) for i in range(900)
    ]
    state = fold(state, [Planned((), tuple(plan.gangs)), *map(Submitted, urgent)])
    again, _ = policy.decide(view(state, 1.0, believe(state)), memory)
    assert again.gangs == plan.gangs


def test_packs_of_many_are_full() -> None:
    state = waiting(3000)
    plan, _ = Pack(fuse=True).decide(view(state, 0.0, believe(state)), "")
    (gang,) = plan.gangs
    assert len(gang.lanes) == 32
    assert len({state.known[t].config["depth"] for t in gang.trials}) == 1


def test_no_slot_stands_idle_for_want_of_trials_looked_at() -> None:
    state = waiting(3000)
    slots = tuple(Slot(SlotId(f"g{i}"), shards=frozenset(SHARDS)) for i in range(64))
    state = fold(state, [Joined(slots)])
    plan, _ = Pack(fuse=True).decide(view(state, 0.0, believe(state)), "")
    assert len(plan.gangs) == 64
    assert all(len(gang.lanes) == 32 for gang in plan.gangs)


def test_ranked_is_an_index_of_trials() -> None:
    trial = Trial(TrialId("a"), 1.0, {"priority": 3.0})
    state = fold(State(), [Submitted(trial), Submitted(Trial(TrialId("b"), 1.0))])
    assert dict(state.ranked) == {"a": 3.0}
    assert not fold(state, [Finished(TrialId("a"))]).ranked


def test_what_is_learnt_by_and_by_is_what_is_learnt_at_once() -> None:
    """Also where a configuration's signature changes, and keys turn out not to matter."""
    believer, state = Believer(), waiting(40)
    names = ["a" * 12 + "0000", "a" * 12 + "1111", "b" * 16]
    for i in [3, 4, 5, 9, 8, 4, 20, 21, 3]:
        name = names[(i * i) % 3]
        trial = TrialId(f"t{i:05d}")
        state = fold(state, [Measured(trial, name, {"rate": 10.0 + i})])
        by_and_by, at_once = believer(state), believe(state)
        for trial in state.known:
            assert by_and_by.cost(trial) == at_once.cost(trial)
            assert by_and_by.curve(trial, 2) == at_once.curve(trial, 2)


def test_ended_gangs_leave_no_trace() -> None:
    state = waiting(600)
    plan, memory = Pack(fuse=True).decide(view(state, 0.0, believe(state)), "")
    (gang,) = plan.gangs
    state = fold(state, [Planned((), (gang,)), *map(Finished, gang.trials), Ended(gang)])
    again, _ = Pack(fuse=True).decide(view(state, 1.0, believe(state)), memory)
    assert not {t for g in again.gangs for t in g.trials} & set(gang.trials)
