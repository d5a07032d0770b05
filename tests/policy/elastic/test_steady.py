"""Equal trials exchange no slots; what is measured a little off moves none; nothing migrates."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from allocations import Case, case
from small_studies import follow, nodes, seen, state, table, trial

from shoal.core.cluster import SlotId
from shoal.core.event import Joined, Left
from shoal.policy.elastic.elastic import Elastic
from shoal.policy.elastic.knapsack import best_counts, best_counts_dp, steady
from shoal.policy.elastic.objective import PRIOR, forward_time
from shoal.policy.elastic.table import FORBIDDEN, gains, value
from shoal.policy.reference.milp import NodeMilp


def equal_trials(rng: np.random.Generator) -> Case:
    """Trials with one curve and one cost, on slots of which some may be free."""
    trials, free, width = (int(rng.integers(2, 5)), int(rng.integers(3, 16)), 11)
    one = case(rng, 1, free, width)
    allowed = np.flatnonzero(one.curve[0] > FORBIDDEN)
    held, left = np.zeros(trials, np.int64), free
    for j in range(trials):
        held[j] = rng.choice(allowed[allowed <= left])
        left -= held[j]
    cost = np.full(trials, rng.choice([0.12, 18.0]))
    curve = np.repeat(one.curve, trials, 0)
    return replace(one, curve=curve, held=held, up=cost, down=2.0 * cost, free=free)


def test_equal_trials_exchange_no_slots_for_nothing():
    rng = np.random.default_rng(3)
    for _ in range(100):
        x = equal_trials(rng)
        best = best_counts(x.table, x.free)
        counts = steady(x.table, best, x.held)
        assert value(x.table, counts) == pytest.approx(value(x.table, best))
        for i, j in combinations(range(len(x.held)), 2):
            other = counts.copy()
            other[[i, j]] = counts[[j, i]]
            moves_less = abs(other - x.held).sum() < abs(counts - x.held).sum()
            as_good = value(x.table, other) >= value(x.table, counts) * (1 - 1e-9)
            assert not (moves_less and as_good)


def test_what_is_best_within_the_hysteresis_stays():
    rng = np.random.default_rng(4)
    rates = np.array([10.0, 19.0, 27.0, 34.0, 40.0, 45.0, 49.0, 52.0])
    for _ in range(40):
        count = int(rng.integers(2, 5))
        known = state([trial(i, 1e6) for i in range(count)], nodes(6))
        plan, _ = Elastic(up=0.0, down=0.0).decide(seen(known, table(rates)), {})
        known = follow(known, plan)
        believed = table(*(rates * rng.uniform(0.995, 1.005) for _ in range(count)))
        look = seen(known, believed)
        assert Elastic(up=0.0, down=0.0).decide(look, {})[0] == plan


def test_without_hysteresis_a_little_noise_moves_slots():
    rates = np.array([10.0, 20.0, 30.0, 40.0])
    known = state([trial(0, 1e6), trial(1, 1e6)], nodes(4))
    plan, _ = Elastic().decide(seen(known, table(rates)), {})
    known = follow(known, plan)
    look = seen(known, table(rates, rates * 1.004))
    assert Elastic(up=0.0, down=0.0).decide(look, {})[0] == plan
    assert Elastic(up=0.0, down=0.0, hysteresis=0.0).decide(look, {})[0] != plan


@pytest.mark.parametrize("placement", ["index", "spatial"])
def test_nothing_migrates_whatever_happens(placement):
    rng = np.random.default_rng(5)
    policy, memory = Elastic(placement=placement, horizon="learned"), {}
    profile = table((10.0, 19.0, 27.0, 34.0, 40.0, 45.0))
    all_slots = nodes(8)
    known = state([trial(i, 1e4) for i in range(4)], all_slots)
    for moment in range(60):
        before = {t: gang.slots for t, gang in known.running.items()}
        plan, memory = policy.decide(seen(known, profile, 10.0 * moment), memory)
        for gang in plan.gangs:
            held = before.get(gang.trials[0], frozenset())
            assert gang.slots <= held or gang.slots >= held
        there = [slot.id for slot in known.slots.values()]
        gone = frozenset(rng.choice(there, rng.integers(0, len(there) + 1), False))
        back = tuple(s for s in all_slots if s.id not in there and rng.random() < 0.5)
        known = follow(known, plan, Left(frozenset(map(SlotId, gone))), Joined(back))


def test_a_trial_of_one_width_only_is_decided_upon():
    # four trials that run on three slots or not at all: three of them fit
    curve = np.full((4, 12), FORBIDDEN)
    curve[:, 0], curve[:, 3] = 0.0, 21.0
    none, held = np.zeros(4), np.zeros(4, np.int64)
    table_of = gains(curve, held, none, none, 120.0)
    counts = best_counts(table_of, 11)
    assert sorted(counts.tolist()) == [0, 3, 3, 3]
    assert value(table_of, counts) == value(table_of, best_counts_dp(table_of, 11))


@pytest.mark.parametrize("policy", [Elastic, NodeMilp])
def test_a_gain_of_half_a_percent_moves_slots_only_without_hysteresis(policy):
    known = state([trial(0, 1e6), trial(1, 1e6)], nodes(3))
    equal = seen(known, table((10.0, 19.0), (10.0, 19.0)))
    known = follow(known, Elastic().decide(equal, {})[0])
    second_faster = seen(known, table((10.0, 19.0), (10.1, 19.2)))
    widths = {gang.trials[0]: len(gang.slots) for gang in second_faster.plan.gangs}
    assert widths == {"t0": 2, "t1": 1}
    for hysteresis, stays in ((0.01, True), (0.0, False)):
        rule = policy(up=0.0, down=0.0, hysteresis=hysteresis)
        plan, _ = rule.decide(second_faster, rule.start())
        assert (plan == second_faster.plan) is stays
    with pytest.raises(ValueError, match="hysteresis must be 0 or more, below 1"):
        policy(hysteresis=1.0)


# -- the objective, and the time that a decision is to hold


def test_the_program_has_the_same_objectives():
    fast, slow = (100.0, 150.0, 190.0, 220.0), (1.0, 2.0, 3.0, 3.9)
    trials = [trial(0, 1e4), replace(trial(1, 1e4), priority=9.0)]
    look = seen(state(trials, nodes(4)), table(fast, slow))

    def second_alone(one, rates):
        return [rate * (1000.0 if one.id == "t1" else 1.0) for rate in rates]

    for objective in ("throughput", "efficiency", "priority", second_alone):
        plans = [
            policy.decide(look, memory)[0]
            for policy, memory in (
                (Elastic(objective=objective), {}),
                (NodeMilp(objective=objective), None),
            )
        ]
        widths = [{g.trials[0]: len(g.slots) for g in plan.gangs} for plan in plans]
        assert widths[0] == widths[1]


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, float("nan"), 4.0]])
def test_an_objective_gives_a_number_for_each_width(values):
    look = seen(state([trial(0, 1e4)], nodes(4)), table((1.0, 2.0, 3.0, 4.0)))
    with pytest.raises(ValueError, match="one finite number for each of the 4 rates"):
        Elastic(objective=lambda one, rates: values).decide(look, {})
    with pytest.raises(ValueError, match="milp's objective is one of"):
        NodeMilp(objective="speed")


def test_the_forward_time_is_the_mean_time_between_departures():
    assert forward_time(0.0, 0) == PRIOR
    assert forward_time(1000.0, 0) == 1120.0
    assert forward_time(1000.0, 6) == 160.0
    policy, memory = Elastic(horizon="learned"), {}
    profile = table((10.0, 19.0, 27.0, 34.0))
    known = state([trial(0, 1e9)], nodes(3))
    spoken = [
        (100.0, [Left(frozenset({SlotId("g01")}))]),
        (200.0, [Joined(nodes(2)[1:])]),
        (300.0, [Left(frozenset({SlotId("g02")})), Joined(nodes(3)[2:])]),
        (400.0, []),
        (500.0, [Left(frozenset({SlotId("g00"), SlotId("g01")}))]),
    ]
    plan, memory = policy.decide(seen(known, profile, 0.0), memory)
    for now, events in spoken:
        known = follow(known, plan, *events)
        plan, memory = policy.decide(seen(known, profile, now), memory)
    assert memory["departures"] == {"since": 0.0, "departures": 3, "slots": 1, "last": "g02"}
