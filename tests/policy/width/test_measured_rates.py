"""Policies of changeable width go by the rates that were measured, once there are any."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from small_studies import believed, follow, nodes, state, table, trial, widths_of

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Joined, Measured, Opened, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Plan
from shoal.core.ports import Policy
from shoal.core.profile import Profile
from shoal.core.state import State, view
from shoal.core.trial import TrialId
from shoal.policy.elastic.elastic import Elastic
from shoal.policy.hop.hybrid import Hybrid
from shoal.policy.reference.baselines import HeSrpt, SrptK, Wrate
from shoal.policy.reference.milp import NodeMilp
from shoal.policy.width.ask import all_widths, paying
from shoal.policy.width.doubling import Doubling
from shoal.policy.width.equi import Equi
from shoal.policy.width.explore import Explore
from shoal.policy.width.flotilla import Flotilla
from shoal.policy.width.waterfill import WaterFill
from shoal.profile.measure import believe

Rates = Mapping[TrialId, Sequence[float]]
SLOTS = 8
# Samples/s by width. The second scales well, the first not at all beyond two slots.
TRUE = {
    TrialId("t0"): (100.0, 190.0, 180.0, 170.0, 160.0, 150.0, 140.0, 130.0),
    TrialId("t1"): (40.0, 78.0, 115.0, 152.0, 188.0, 224.0, 260.0, 295.0),
}
POLICIES = [Doubling(), Doubling("plus-one"), Equi(), WaterFill(), Flotilla()]


def begin() -> State:
    return state([trial(0, 1e7, (1, SLOTS)), trial(1, 1e7, (1, SLOTS))], nodes(SLOTS))


def timed(plan: Plan, rates: Rates) -> list[Measured]:
    """What the slots tell of a visit that each lane of the plan made."""
    found = []
    for name, width in sorted(widths_of(plan).items()):
        figure = "rate" if width == 1 else f"rate@{width}"
        rate = rates[TrialId(name)][width - 1]
        found.append(Measured(TrialId(name), f"kind of {name}", {figure: rate}))
    return found


def settled(
    policy: Policy[object], known: State, rates: Rates, profile: Profile | None = None
) -> tuple[State, object]:
    """Where the widths come to rest: by this profile, or by what is measured meanwhile."""
    memory = policy.start()
    for now in range(20):
        known, memory = decided(policy, known, memory, float(now), profile)
        known = follow(known, known.plan, *timed(known.plan, rates))
    return known, memory


def decided(
    policy: Policy[object], known: State, memory: object, now: float, profile: Profile | None = None
) -> tuple[State, object]:
    """The state once the policy's plan runs, and what it remembers."""
    seen = view(known, now, profile or believe(known))
    plan, memory = policy.decide(seen, memory)
    return follow(known, plan), memory


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_widths_come_to_rest_where_the_true_rates_put_them(policy) -> None:
    truth = table(*TRUE.values()).of(begin().known)
    best, _ = settled(policy, begin(), TRUE, truth)
    found, _ = settled(policy, begin(), TRUE)
    assert widths_of(found.plan) == widths_of(best.plan)
    assert widths_of(found.plan)["t0"] == 2


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_trial_gives_back_slots_that_turn_out_slower_later(policy) -> None:
    known, memory = settled(policy, begin(), TRUE)
    slower = {**TRUE, TrialId("t0"): (100.0, 60.0)}
    known = follow(known, known.plan, *timed(known.plan, slower))
    known, _ = decided(policy, known, memory, 30.0)
    assert widths_of(known.plan)["t0"] == 1


# -- a trial gets more slots only where that pays, as far as was measured


CLIMBING = [
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
        plan, memory = policy.decide(believed(known, float(now)), memory)
        found.append(width(plan))
        name = "rate" if found[-1] == 1 else f"rate@{found[-1]}"
        told = Measured(T0, "kind", {name: true[found[-1]]})
        known = follow(known, plan, told, Advanced({T0: 100.0}))
    return found


@pytest.mark.parametrize("policy", CLIMBING, ids=str)
def test_slots_that_share_too_few_cores_are_given_back(policy: Policy[object]) -> None:
    true = {w: [0, 100, 98, 60, 50, 45, 40, 35, 30][w] for w in range(1, 9)}
    found = climbed(policy, true)
    assert (found[0], found[1], found[-1]) == (1, 2, 1)
    assert max(found) == 2


@pytest.mark.parametrize("policy", CLIMBING, ids=str)
def test_a_trial_that_scales_gets_all_slots(policy: Policy[object]) -> None:
    found = climbed(policy, {w: 100.0 * w**0.95 for w in range(1, 9)})
    assert found[0] == 1
    assert found[-1] == 8
    assert found == sorted(found)


def test_a_little_more_for_many_more_slots_does_not_pay() -> None:
    known = state([trial(0, 1e6)], nodes(8))
    known = follow(known, Plan(), measured(rate=100.0, rate_2=170.0, rate_4=175.0))
    (ask,) = paying(believed(known))
    assert ask.widths == (1, 2)
    (ask,) = paying(believed(known), all_widths)
    assert ask.widths == (1, 2, 3)


def test_a_width_that_was_measured_need_not_be_reached_step_by_step() -> None:
    known = state([trial(0, 1e6)], nodes(8))
    wide = follow(known, Plan(), measured(rate=100.0, rate_4=300.0))
    (ask,) = paying(believed(wide))
    assert ask.widths == (1, 2, 4, 8)
    slow = follow(known, Plan(), measured(rate=100.0, rate_8=90.0))
    (ask,) = paying(believed(slow))
    assert ask.widths == (1, 2), "four slots may pay, once two do"


def hop_widths(*figures: Measured) -> set[int]:
    """The widths with which hybrid begins two trials on four slots, a shard at each."""
    shards = {ShardId(f"s{i}"): 10 for i in range(4)}
    here = [Slot(SlotId(f"w{i}"), shards=frozenset([s])) for i, s in enumerate(shards)]
    trials = [replace(trial(i, 400.0), shards=frozenset(shards)) for i in range(2)]
    events = [Opened(1, shards), Joined(tuple(here)), *map(Submitted, trials), *figures]
    known = fold(State(), events)
    policy = Hybrid()
    plan, _ = policy.decide(believed(known), policy.start())
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
    plan, _ = Doubling().decide(believed(known), Doubling().start())
    fast = measured(rate=100.0, rate_2=200.0, rate_4=390.0, rate_8=700.0, up=6.0)
    known = follow(known, plan, fast)
    wide, _ = Doubling().decide(believed(known), Doubling().start())
    assert width(wide) == 8, "ten seconds become less than eight"
    known = follow(known, plan, Advanced({T0: 400.0}))
    stay, _ = Doubling().decide(believed(known), Doubling().start())
    assert width(stay) == 1, "six seconds are left, and a change takes six"


def test_what_does_not_pay_is_given_back_only_while_that_repays_itself() -> None:
    known = state([trial(0, 1000.0, (1, 2))], nodes(2))
    policy = Doubling()
    known = follow(known, Plan(), measured(rate=100.0))
    plan, memory = policy.decide(believed(known), policy.start())
    assert width(plan) == 2
    slower = measured(rate=100.0, rate_2=50.0, down=3.0)

    early = follow(known, plan, slower)
    begun, _ = policy.decide(believed(early), memory)
    assert width(begun) == 1
    late = follow(known, plan, slower, Advanced({T0: 800.0}))
    stays, _ = policy.decide(believed(late), memory)
    assert width(stays) == 2, "four seconds are left; alone it would be two, after three without"


def test_only_widths_that_repay_a_change_are_asked_for() -> None:
    """Two slots more would save 5 of 10 s and cost 6; all four are worth the wait."""
    known = state([trial(0, 1000.0, (1, 4))], nodes(4))
    plan, _ = Doubling().decide(believed(known), Doubling().start())
    fast = measured(rate=100.0, rate_2=200.0, rate_4=390.0, up=6.0)
    (ask,) = paying(believed(follow(known, plan, fast)))
    assert ask.widths == (1, 4)


def test_exploring_leaves_out_what_was_measured() -> None:
    known = state([trial(0, 1e6)], nodes(8))
    known = follow(known, Plan(), measured(rate=100.0, rate_4=300.0))
    policy = Explore(400.0)
    plan, memory = policy.decide(believed(known), policy.start())
    assert width(plan) == 2
    known = follow(known, plan, measured(rate_2=190.0))
    plan, memory = policy.decide(believed(known, 3.0), memory)
    assert width(plan) == 8, "two slots were measured long before their time is over"
    known = follow(known, plan, measured(rate_8=200.0))
    plan, _ = policy.decide(believed(known, 5.0), memory)
    assert width(plan) == 4
