"""A trial gets more slots only where that pays, as far as was measured."""

from dataclasses import replace

import pytest
from small_studies import follow, nodes, state, trial

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Joined, Measured, Opened, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Plan
from shoal.core.ports import Policy
from shoal.core.state import State, View, view
from shoal.core.trial import TrialId
from shoal.policy.elastic.elastic import Elastic
from shoal.policy.hop.hybrid import Hybrid
from shoal.policy.reference.baselines import HeSrpt, SrptK, Wrate
from shoal.policy.reference.milp import NodeMilp
from shoal.policy.width.ask import all_widths, paying
from shoal.policy.width.doubling import Doubling
from shoal.policy.width.equi import Equi
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
    Elastic(),
    NodeMilp(),
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


def test_a_width_that_was_measured_need_not_be_reached_step_by_step() -> None:
    known = state([trial(0, 1e6)], nodes(8))
    wide = follow(known, Plan(), measured(rate=100.0, rate_4=300.0))
    (ask,) = paying(seen(wide))
    assert ask.widths == (1, 2, 4, 8)
    slow = follow(known, Plan(), measured(rate=100.0, rate_8=90.0))
    (ask,) = paying(seen(slow))
    assert ask.widths == (1, 2), "four slots may pay, once two do"


def hop_widths(*figures: Measured) -> set[int]:
    """The widths with which hybrid begins two trials on four slots, a shard at each."""
    shards = {ShardId(f"s{i}"): 10 for i in range(4)}
    here = [Slot(SlotId(f"w{i}"), shards=frozenset([s])) for i, s in enumerate(shards)]
    trials = [replace(trial(i, 400.0), shards=frozenset(shards)) for i in range(2)]
    events = [Opened(1, shards), Joined(tuple(here)), *map(Submitted, trials), *figures]
    known = fold(State(), events)
    policy = Hybrid()
    plan, _ = policy.decide(seen(known), policy.start())
    return {len(gang.slots) for gang in plan.gangs}


def test_hopping_trials_get_groups_of_slots_only_where_these_pay() -> None:
    assert hop_widths() == {1}, "nothing was measured"
    alone = measured(rate=100.0)
    assert hop_widths(alone) == {1}, "the other trial may be another kind"
    both = alone, replace(alone, trial=TrialId("t1"))
    assert hop_widths(*both) == {2}, "twice as many may pay"
    assert hop_widths(*both, measured(rate_2=90.0)) == {1}
    assert hop_widths(*both, measured(rate_2=190.0)) == {2}


def test_near_its_end_a_trial_does_not_change() -> None:
    known = state([trial(0, 1000.0)], nodes(8))
    plan, _ = Doubling().decide(seen(known), Doubling().start())
    fast = measured(rate=100.0, rate_2=200.0, rate_4=390.0, rate_8=700.0, up=6.0)
    known = follow(known, plan, fast)
    wide, _ = Doubling().decide(seen(known), Doubling().start())
    assert width(wide) == 8, "ten seconds become less than eight"
    known = follow(known, plan, Advanced({T0: 400.0}))
    stay, _ = Doubling().decide(seen(known), Doubling().start())
    assert width(stay) == 1, "six seconds are left, and a change takes six"


def test_what_does_not_pay_is_given_back_only_while_that_repays_itself() -> None:
    known = state([trial(0, 1000.0, (1, 2))], nodes(2))
    policy = Doubling()
    known = follow(known, Plan(), measured(rate=100.0))
    plan, memory = policy.decide(seen(known), policy.start())
    assert width(plan) == 2
    slower = measured(rate=100.0, rate_2=50.0, down=3.0)

    early = follow(known, plan, slower)
    begun, _ = policy.decide(seen(early), memory)
    assert width(begun) == 1
    late = follow(known, plan, slower, Advanced({T0: 800.0}))
    stays, _ = policy.decide(seen(late), memory)
    assert width(stays) == 2, "four seconds are left; alone it would be two, after three without"


def test_only_widths_that_repay_a_change_are_asked_for() -> None:
    """Two slots more would save 5 of 10 s and cost 6; all four are worth the wait."""
    known = state([trial(0, 1000.0, (1, 4))], nodes(4))
    plan, _ = Doubling().decide(seen(known), Doubling().start())
    fast = measured(rate=100.0, rate_2=200.0, rate_4=390.0, up=6.0)
    (ask,) = paying(seen(follow(known, plan, fast)))
    assert ask.widths == (1, 4)


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
