"""The automatic choice: it asks when it should, follows the best, and says why."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from shoal.backend.ahead import ahead
from shoal.core.check import check
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Joined, Planned, Submitted
from shoal.core.ports import Policy
from shoal.core.state import State, View, fold, view
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.policy.auto import Auto
from shoal.policy.doubling import Width
from shoal.policy.equi import Equi
from shoal.policy.fifo import Fifo
from shoal.profile.table import Row, Table

TABLE = Table((Row(rates=(10.0, 18.0, 25.0, 32.0)),))


def study(trials: int, slots: int) -> State:
    many = tuple(Slot(SlotId(f"g{i}")) for i in range(slots))
    submitted = [Submitted(Trial(TrialId(f"t{i}"), 1000.0 * (i + 1), widths=(1, 4))) for i in range(trials)]
    return fold(State(), [Joined(many), *submitted])


def seen(state: State, now: Seconds = 0.0) -> View:
    return view(state, now, TABLE.of(state.known))


class Asked:
    """A simulation of given results that counts how often it is asked."""

    def __init__(self, **takes: float) -> None:
        self.takes, self.times = takes, 0

    def __call__(self, look: View, policy: Policy[Any]) -> Seconds:
        self.times += 1
        return self.takes[type(policy).__name__]


CANDIDATES = {"fifo": Fifo(), "equi": Equi(), "width": Width(2)}


def test_the_quickest_is_followed_and_the_memory_says_why() -> None:
    policy = Auto(CANDIDATES, Asked(Fifo=300.0, Equi=100.0, Width=200.0))
    look = seen(study(1, 4))
    plan, memory = policy.decide(look, policy.start())
    check(plan, look)
    assert plan == Equi().decide(look, None)[0]
    assert memory["follows"] == "equi"
    assert memory["why"] == "equi: with 1 trials on 4 slots equi 100 s, width 200 s, fifo 300 s"


def test_the_first_is_followed_unless_another_is_clearly_quicker() -> None:
    policy = Auto(CANDIDATES, Asked(Fifo=100.0, Equi=99.0, Width=inf))
    assert policy.decide(seen(study(1, 4)), policy.start())[1]["follows"] == "fifo"


def test_it_simulates_at_the_start_and_when_slots_or_many_trials_come() -> None:
    simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate)
    memory = policy.decide(seen(study(2, 4)), policy.start())[1]
    assert simulate.times == 3
    assert policy.decide(seen(study(3, 4)), memory)[1] == memory
    assert simulate.times == 3
    policy.decide(seen(study(4, 4)), memory)
    policy.decide(seen(study(2, 3)), memory)
    assert simulate.times == 9


def test_without_work_nothing_is_asked() -> None:
    simulate = Asked()
    policy = Auto(CANDIDATES, simulate)
    assert policy.decide(seen(study(0, 4)), policy.start())[1] == policy.start()
    assert simulate.times == 0


def test_a_change_of_mind_keeps_what_can_be_kept() -> None:
    simulate = Asked(Fifo=10.0, Equi=100.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate)
    state = study(2, 4)
    plan, memory = policy.decide(seen(state), policy.start())
    state = fold(state, [Planned((), tuple(plan.gangs)), Joined((Slot(SlotId("new")),))])
    simulate.takes["Equi"] = 1.0
    after, memory = policy.decide(seen(state), memory)
    check(after, seen(state))
    assert memory["follows"] == "equi"


def test_with_the_simulator_it_finds_the_better_policy() -> None:
    few, many = seen(study(1, 4)), seen(study(8, 2))
    assert ahead(few, Fifo()) == pytest.approx(100.0)
    assert ahead(few, Equi()) == pytest.approx(1000 / 32)
    stuck = replace(few, slots={})
    assert ahead(stuck, Equi()) == inf
    policy = Auto({"fifo": Fifo(), "equi": Equi()}, ahead)
    assert policy.decide(few, policy.start())[1]["follows"] == "equi"
    assert policy.decide(many, policy.start())[1]["follows"] in ("fifo", "equi")
    assert ahead(many, Fifo()) == pytest.approx(36000 / 20, rel=0.2)


def test_no_candidates_are_refused() -> None:
    with pytest.raises(ValueError, match="candidates"):
        Auto({}, ahead)
