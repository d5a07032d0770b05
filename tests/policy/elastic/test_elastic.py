from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from small_studies import follow, nodes, seen, simulated, state, table, trial, widths_over_time
from test_widths_contract import wide_worlds

from shoal.core.check import check
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Joined, Left
from shoal.policy import describe, rebuild
from shoal.policy.elastic.elastic import Elastic
from shoal.policy.elastic.placement import Spatial
from shoal.policy.reference.baselines import Killable
from shoal.policy.reference.milp import NodeMilp
from shoal.profile.table import Row, Table
from shoal.testing import check_policy
from shoal.testing.deciders import WatchedPolicy
from shoal.testing.journals import check_journal

POLICIES = {
    "elastic": Elastic,
    "elastic-short": lambda: Elastic(5.0, up=4.0, down=2.0),
    "elastic-efficiency": lambda: Elastic(objective="efficiency", admit=2),
    "elastic-spatial": lambda: Elastic(placement="spatial"),
    "elastic-learned": lambda: Elastic(horizon="learned"),
    "elastic-cohorts": lambda: Elastic(placement=Spatial(table=[(0, 0.6, 0.8), (1, 0.2, 0.4)])),
    "killable": Killable,
    "killable-3": lambda: Killable(3, 4),
    "milp": lambda: NodeMilp(nodes=50),
}


FEW = [
    *((name, 6) for name in POLICIES if name != "milp"),
    ("milp", 2),
]  # a solver's run a decision
MANY = [pytest.param(name, 20, marks=pytest.mark.nightly) for name in POLICIES]


@pytest.mark.parametrize(("name", "examples"), [*FEW, *MANY])
def test_holds_the_contract(name, examples):
    check_policy(POLICIES[name], examples=examples)


@pytest.mark.parametrize(("name", "examples"), [*FEW, *MANY])
def test_holds_the_contract_with_widths(name, examples):
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(wide_worlds())
    def holds(world):
        lines, state, stalled = world.run(WatchedPolicy(POLICIES[name]()))
        check_journal(lines, state)
        assert lines == world.run(POLICIES[name]())[0]
        assert not stalled, f"stalled with {state.trials} on {state.slots}"

    holds()


def test_a_lone_trial_takes_all_and_shares_when_another_comes():
    lines = simulated(
        Elastic(horizon=1000.0),
        [(0.0, trial(0, 1e4)), (10.0, trial(1, 1e4))],
        nodes(4),
        table((10.0, 16.0, 20.0, 22.0)),
    )
    assert widths_over_time(lines)[:2] == [(0.0, {"t0": 4}), (10.0, {"t0": 2, "t1": 2})]


def test_nothing_migrates():
    known = state([trial(0, 1e4), trial(1, 1e4)], nodes(6))
    profile = table((10.0, 19.0, 27.0, 34.0, 40.0, 45.0))
    policy = Elastic()
    plan, _ = policy.decide(seen(known, profile), {})
    check(plan, seen(known, profile))
    known = follow(known, plan, Left(frozenset({SlotId("g00"), SlotId("g01")})))
    before = {t: set(g.slots) for t, g in known.running.items()}
    after, _ = policy.decide(seen(known, profile), {})
    for gang in after.gangs:
        mine = before.get(gang.trials[0], set())
        assert gang.slots <= mine or gang.slots >= mine


@pytest.mark.parametrize("placement", ["index", "spatial"])
@pytest.mark.parametrize(("trials", "slots"), [(2, 4), (3, 3), (3, 5), (2, 6), (3, 6)])
def test_equal_trials_change_no_places_when_a_slot_is_killed(trials, slots, placement):
    profile = table((10.0, 19.0, 27.0, 34.0, 40.0, 45.0))
    policy = Elastic(placement=placement)
    for gone in range(slots):
        known = state([trial(i, 1e4) for i in range(trials)], nodes(slots))
        plan, memory = policy.decide(seen(known, profile), {})
        known = follow(known, plan, Left(frozenset({SlotId(f"g{gone:02d}")})))
        before = {t: len(gang.slots) for t, gang in known.running.items()}
        after, _ = policy.decide(seen(known, profile), memory)
        widths = {gang.trials[0]: len(gang.slots) for gang in after.gangs}
        assert widths == before or sorted(widths.values()) != sorted(before.values())


def test_the_profile_says_what_resizing_costs():
    known = state([trial(0, 1e6)], nodes(3))
    dear = Table((Row((10.0, 11.0, 12.0), up=500.0, down=0.0),))
    look = seen(known, dear)
    plan, _ = Elastic(horizon=100.0).decide(look, {})
    known = follow(known, plan, Joined((Slot(SlotId("new")),)))
    assert [
        len(g.slots)
        for g in Elastic(100.0)
        .decide(seen(known, Table((Row((10.0, 11, 12, 13), up=500.0),))), {})[0]
        .gangs
    ] == [3]
    cheap = Table((Row((10.0, 11, 12, 13), up=1.0),))
    assert [len(g.slots) for g in Elastic(100.0).decide(seen(known, cheap), {})[0].gangs] == [4]


def test_objectives_choose_who_gets_the_slots():
    fast, slow = (100.0, 150.0, 190.0, 220.0), (1.0, 2.0, 3.0, 4.0)
    known = state([trial(0, 1e4), trial(1, 1e4)], nodes(4))
    profile = table(fast, slow)

    def shares(objective):
        plan, _ = Elastic(objective=objective).decide(seen(known, profile), {})
        return {g.trials[0]: len(g.slots) for g in plan.gangs}

    assert shares("throughput") == {"t0": 4}
    assert shares("efficiency") == {"t0": 1, "t1": 3}
    assert shares(lambda t, rates: [r * (1000.0 if t.id == "t1" else 1.0) for r in rates]) == {
        "t1": 4
    }
    for said in ({"priority": 50.0}, {"config": {"x": 0, "priority": 50.0}}):
        urgent = replace(trial(0, 1e4), **said)
        plan, _ = Elastic(objective="priority").decide(
            seen(state([urgent, trial(1, 1e4)], nodes(4)), profile), {}
        )
        assert {g.trials[0]: len(g.slots) for g in plan.gangs} == {"t0": 4}


def test_spatial_placement_keeps_racks_together():
    slots = tuple(Slot(SlotId(f"s{i}"), f"a{1 + 20 * (i % 2):02d}n{i:02d}") for i in range(8))
    known = state([trial(0, 1e4, (4, 4)), trial(1, 1e4, (4, 4))], slots)
    profile = table((1.0, 2.0, 3.0, 4.0))

    def racks(policy):
        plan, _ = policy.decide(seen(known, profile), {})
        return [{known.slots[s].node[:3] for s in g.slots} for g in plan.gangs]

    assert all(len(found) == 1 for found in racks(Elastic(placement="spatial")))
    assert all(len(found) == 2 for found in racks(Elastic()))


def test_first_come_first_served():
    known = state([trial(i, 1e4) for i in range(5)], nodes(4))
    plan, _ = Elastic(admit=2).decide(seen(known, table((1.0, 1.9, 2.7, 3.4))), {})
    assert sorted(g.trials[0] for g in plan.gangs) == ["t0", "t1"]


def test_killable_stops_a_trial_that_lost_a_node():
    profile, rule = table((1.0, 2.0)), Killable(2)

    def widths(known):
        plan, _ = rule.decide(seen(known, profile), None)
        check(plan, seen(known, profile))
        return plan, {g.trials[0]: len(g.slots) for g in plan.gangs}

    known = state([trial(0, 1e4), trial(1, 1e4)], nodes(4))
    plan, shares = widths(known)
    assert shares == {"t0": 2, "t1": 2}
    known = follow(known, plan, Left(frozenset({SlotId("g00")})))
    plan, shares = widths(known)
    assert shares == {"t1": 2}
    known = follow(known, plan, Joined(nodes(1)))
    assert widths(known)[1] == {"t0": 2, "t1": 2}


@pytest.mark.parametrize(
    "bad",
    [
        {"horizon": 0.0},
        {"horizon": "guessed"},
        {"hysteresis": 1.0},
        {"up": -1.0},
        {"admit": 0},
        {"objective": "speed"},
        {"placement": "moon"},
    ],
)
def test_what_cannot_be_is_refused(bad):
    with pytest.raises(ValueError, match="elastic"):
        Elastic(**bad)


def test_can_be_described_and_rebuilt():
    for policy in (
        Elastic(60.0, objective="efficiency", placement="spatial"),
        Elastic("learned", hysteresis=0.05),
        NodeMilp(objective="priority"),
        Killable(4),
    ):
        assert rebuild(describe(policy)) == policy


def test_decides_quickly_for_many_trials_and_nodes():
    slots = tuple(Slot(SlotId(f"s{i}"), f"a{i // 18 % 36:02d}n{i % 18:02d}") for i in range(2000))
    rates = tuple(float(n**0.9) for n in np.arange(1, 65))
    known = state([trial(i, 1e9, (1, 64)) for i in range(50)], slots)
    plan, _ = Elastic(placement="spatial").decide(seen(known, table(rates)), {})
    assert sum(len(g.slots) for g in plan.gangs) == 2000
