"""A trial gets more slots only where that pays, as far as was measured."""

import pytest
from small_studies import follow, nodes, state, trial

from shoal.core.event import Advanced, Measured
from shoal.core.plan import Plan
from shoal.core.ports import Policy
from shoal.core.state import State, View, view
from shoal.core.trial import TrialId
from shoal.policy.width.ask import all_widths, paying
from shoal.policy.width.doubling import Doubling
from shoal.policy.width.equi import Equi, HeSrpt, SrptK, Wrate
from shoal.policy.width.explore import Explore
from shoal.policy.width.waterfill import WaterFill
from shoal.profile.measure import believe

POLICIES = [
    Doubling(),
    Doubling("exact"),
    Doubling("plus-one"),
    Equi(),
    Wrate(),
    HeSrpt(),
    SrptK(),
    WaterFill(),
]
T0 = TrialId("t0")


def seen(known: State, now: float = 0.0) -> View:
    return view(known, now, believe(known))


def measured(**figures: float) -> Measured:
    named = {name.replace("_", "@"): value for name, value in figures.items()}
    return Measured(T0, "kind", named)


def width(plan: Plan) -> int:
    (gang,) = plan.gangs
    return len(gang.lanes[0].slots)


def climbed(policy: Policy[object], true: dict[int, float]) -> list[int]:
    """The widths of one trial on eight slots, each measured as soon as it is had."""
    known, memory = state([trial(0, 1e6)], nodes(8)), policy.start()
    found: list[int] = []
    for now in range(12):
        plan, memory = policy.decide(seen(known, float(now)), memory)
        found.append(width(plan))
        name = "rate" if found[-1] == 1 else f"rate@{found[-1]}"
        told = Measured(T0, "kind", {name: true[found[-1]]})
        known = follow(known, plan, told, Advanced({T0: 100.0}))
    return found


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_slots_that_share_too_few_cores_are_given_back(policy: Policy[object]) -> None:
    true = {w: [0, 100, 98, 60, 50, 45, 40, 35, 30][w] for w in range(1, 9)}
    found = climbed(policy, true)
    assert (found[0], found[1], found[-1]) == (1, 2, 1)
    assert max(found) == 2


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_trial_that_scales_gets_all_slots(policy: Policy[object]) -> None:
    found = climbed(policy, {w: 100.0 * w**0.95 for w in range(1, 9)})
    assert found[0] == 1
    assert found[-1] == 8
    assert found == sorted(found)


def test_a_little_more_for_many_more_slots_does_not_pay() -> None:
    known = state([trial(0, 1e6)], nodes(8))
    known = follow(known, Plan(), measured(rate=100.0, rate_2=170.0, rate_4=175.0))
    (ask,) = paying(seen(known))
    assert ask.widths == (1, 2)
    (ask,) = paying(seen(known), all_widths)
    assert ask.widths == (1, 2, 3)


def test_near_its_end_a_trial_does_not_change() -> None:
    known = state([trial(0, 1000.0)], nodes(8))
    plan, _ = Doubling().decide(seen(known), None)
    fast = measured(rate=100.0, rate_2=200.0, rate_4=390.0, rate_8=700.0, up=6.0)
    known = follow(known, plan, fast)
    wide, _ = Doubling().decide(seen(known), None)
    assert width(wide) == 8, "ten seconds become less than eight"
    known = follow(known, plan, Advanced({T0: 400.0}))
    stay, _ = Doubling().decide(seen(known), None)
    assert width(stay) == 1, "six seconds are left, and a change takes six"


def test_exploring_leaves_out_what_was_measured() -> None:
    known = state([trial(0, 1e6)], nodes(8))
    known = follow(known, Plan(), measured(rate=100.0, rate_4=300.0))
    policy = Explore(400.0)
    plan, memory = policy.decide(seen(known), policy.start())
    assert width(plan) == 2
    known = follow(known, plan, measured(rate_2=190.0))
    plan, memory = policy.decide(seen(known, 3.0), memory)
    assert width(plan) == 8, "two slots were measured long before their time is over"
    known = follow(known, plan, measured(rate_8=200.0))
    plan, _ = policy.decide(seen(known, 5.0), memory)
    assert width(plan) == 4
