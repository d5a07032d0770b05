"""Planned schedules: worked examples, the paper's invariants, and how near the bound each way
of planning comes.
"""

import numpy as np
import pytest
from reference import milp, vector_rearrangement
from rules import by_lot, longest, shortest

from shoal.core.cluster import proportional
from shoal.policy.hop.rotation import rotation
from shoal.policy.hop.schedules import (
    along,
    best,
    bound,
    by_matching,
    candidates,
    in_order,
    insertion,
    most_left,
    quick4,
    quota,
    repeated,
    replica_bound,
    replica_shares,
    scarce,
    settled,
    shares,
)
from shoal.policy.hop.shop import Shop, ShopSchedule, ShopUnit, check_schedule, dispatch

UNIT = np.ones((4, 4))
PAIR = [[2.0, 4.0], [1.5, 3.0], [1.5, 3.0], [1.0, 2.0]]  # f = 4, 3, 3, 2 at speeds 2, 1
RULES = [by_lot(1), most_left, longest, shortest, by_matching]


def drawn(trials, slots, seed=0):
    rng = np.random.default_rng([seed, trials, slots])
    return rng.lognormal(0, 1, trials)[:, None] / rng.choice([12.1, 5.6, 11.3, 18.7], slots)


def spans(schedule, slot):
    return [(u.start, u.end, u.trial) for u in schedule.units if u.slot == slot]


# -- worked examples
# ----------------------------------------------------------------------------------------------


def test_three_by_three():
    assert bound(np.ones((3, 3))) == 3
    assert sorted(rotation(np.ones((3, 3)).tolist()).orders) == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    planned = quick4(np.ones((3, 3)).tolist())
    assert planned.schedule.makespan == 3
    check_schedule(planned.schedule, Shop.open(np.ones((3, 3))))


def test_four_on_two_unlike_slots():
    assert bound(PAIR) == 12
    plan = next(candidates(PAIR))
    assert plan.how == "rotation, closed form"
    assert spans(plan.schedule, 0) == [(0, 1.5, 1), (3, 4.5, 2), (6, 8, 0), (10, 11, 3)]
    assert spans(plan.schedule, 1) == [(0, 4, 0), (4, 6, 3), (6, 9, 1), (9, 12, 2)]
    shop = Shop.open(PAIR)
    assert dispatch(shop, most_left).makespan == 12
    assert dispatch(shop, by_matching).makespan == 12


def test_one_long_trial_is_the_bound():
    shop = Shop.open([[3, 3], [1, 1]])
    assert bound([[3, 3], [1, 1]]) == 6
    found = {(u.trial, u.slot): (u.start, u.end) for u in dispatch(shop, most_left).units}
    assert found == {(0, 0): (0, 3), (0, 1): (3, 6), (1, 1): (0, 1), (1, 0): (3, 4)}


def test_random_misses_where_matching_does_not():
    shop = Shop.open(UNIT)
    found = [dispatch(shop, by_lot(seed)).makespan for seed in range(200)]
    counts = {k: found.count(k) for k in (4, 5, 6)}
    assert sum(counts.values()) == 200
    assert counts[4] > 100 > counts[5] > 30 > counts[6]  # the prototype: 132, 66, 2
    assert dispatch(shop, by_matching).makespan == 4


@pytest.mark.parametrize(
    ("holders", "least"), [([[0, 1], [0, 1]], 8), ([[0], [1]], 12), ([[0, 1], [1]], 12)]
)
def test_replica_program(holders, least):
    assert replica_bound([2, 1], [6, 6], holders).bound == pytest.approx(least)


# -- every way of planning
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("barrier", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (7, 3), (8, 8), (20, 4)])
def test_rules_keep_the_invariants(rule, barrier, shape):
    times = drawn(*shape)
    schedule = dispatch(Shop.open(times), rule, 3, barrier)
    check_schedule(schedule, Shop.open(times), 3)
    assert schedule.makespan >= bound(times, 3) * (1 - 1e-9)
    if barrier:
        ends = [max(u.end for u in schedule.units if u.epoch == k) for k in range(3)]
        assert all(u.start >= ends[u.epoch - 1] * (1 - 1e-9) for u in schedule.units if u.epoch)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (7, 3), (8, 8), (12, 8)])
@pytest.mark.parametrize(
    "make", [lambda t: insertion(t.tolist()), lambda t: vector_rearrangement(t).schedule]
)
def test_other_plans_keep_the_invariants(shape, make):
    times = drawn(*shape)
    check_schedule(make(times), Shop.open(times))


@pytest.mark.parametrize("slots", [4, 8])
@pytest.mark.parametrize("per_slot", [1, 1.25, 1.5, 2, 4])
@pytest.mark.parametrize("alike", [True, False])
def test_quick4_is_near_the_bound(slots, per_slot, alike):
    """Goal A-1 of papers/cerebro."""
    for seed in range(3):
        times = (
            np.ones((int(slots * per_slot), slots))
            if alike
            else drawn(int(slots * per_slot), slots, seed)
        )
        planned = quick4(times.tolist())
        check_schedule(planned.schedule, Shop.open(times))
        assert planned.schedule.makespan <= 1.001 * bound(times)


def test_quick4_for_several_epochs():
    times = drawn(8, 8)
    planned = quick4(times.tolist(), epochs=3)
    check_schedule(planned.schedule, Shop.open(times), 3)
    assert planned.schedule.makespan <= 1.03 * bound(times, 3)
    assert len(planned.schedule.completions()) == 8


def test_repeated_epochs_follow_each_other():
    plan = repeated(quick4(PAIR).schedule, 2)
    check_schedule(plan, Shop.open(PAIR), 2)
    assert plan.makespan == 24


def test_following_a_list_schedule_gives_it_again():
    times = drawn(9, 4)
    plan = dispatch(Shop.open(times), most_left)
    assert dispatch(Shop.open(times), in_order(plan)) == plan


def test_the_best_as_followed_is_no_worse_than_lrw():
    for seed in range(5):
        times = drawn(12, 6, seed).tolist()
        followed = best(
            times, (settled(times, plan) for plan in candidates(times))
        ).schedule.makespan
        assert followed <= dispatch(Shop.open(times), most_left).makespan * (1 + 1e-9)


def test_wrong_beliefs_change_times_not_completeness():
    times = drawn(10, 5)
    truth = times * np.random.default_rng(0).lognormal(0, 0.3, times.shape)
    schedule = dispatch(Shop.open(times), most_left, 2, actual=Shop.open(truth))
    check_schedule(schedule, Shop.open(truth), 2)


def test_orders_of_slots():
    plan = rotation(UNIT.tolist())
    schedule = dispatch(Shop.open(UNIT), along(plan.orders))
    assert [tuple(order) for order in schedule.orders(4)] == list(plan.orders)


# -- the paper's planners
# ----------------------------------------------------------------------------------------------


def test_milp_finds_the_optimum_of_small_shops():
    for seed in range(4):
        times = drawn(4, 3, seed)
        solved = milp(times)
        check_schedule(solved.schedule, Shop.open(times))
        assert solved.bound == pytest.approx(solved.found, rel=1e-3)
        assert solved.schedule.makespan == pytest.approx(solved.found)
        assert quick4(times.tolist()).schedule.makespan <= solved.found * 1.02


def test_milp_gives_up_after_its_nodes():
    times = drawn(12, 8)
    solved = milp(times, nodes=0)
    check_schedule(solved.schedule, Shop.open(times))
    assert solved.binaries == 12 * 28 + 8 * 66


def test_vector_rearrangement_is_optimal_where_it_says_so():
    times = np.ones((80, 4))
    found = vector_rearrangement(times)
    assert found.optimal
    assert found.schedule.makespan == pytest.approx(bound(times))
    assert not vector_rearrangement(np.ones((8, 8))).optimal


# -- replicas
# ----------------------------------------------------------------------------------------------


def replicated(trials, slots, copies, seed):
    rng = np.random.default_rng([seed, trials, slots, copies])
    work, speeds = (rng.lognormal(0, 1, trials), rng.choice([12.1, 5.6, 11.3, 18.7], slots))
    seconds = np.full((trials, slots, slots), np.inf)
    for q in range(slots):
        at = [q, *rng.permutation([w for w in range(slots) if w != q])[: copies - 1]]
        seconds[:, q, at] = work[:, None] / speeds[at]
    return Shop(seconds)


@pytest.mark.parametrize("copies", [1, 2, 3, 6])
@pytest.mark.parametrize("epochs", [1, 2])
def test_replicas_keep_the_invariants(copies, epochs):
    shop = replicated(9, 6, copies, 0)
    least, share = replica_shares(shop)
    for rule in (by_lot(2), scarce(), scarce(share), scarce(target=least * epochs)):
        check_schedule(dispatch(shop, rule, epochs), shop, epochs)
    planned = quota(shop, epochs)
    check_schedule(planned.schedule, shop, epochs)
    assert planned.schedule.makespan >= least * epochs * (1 - 1e-9)


@pytest.mark.parametrize("copies", [pytest.param(2, marks=pytest.mark.nightly), 3])
def test_quota_beats_the_papers_rule(copies):
    """Goal A-3 of papers/cerebro: 1.12 times faster."""
    ratios = []
    for seed in range(3):
        shop = replicated(32, 8, copies, seed)
        ratios.append(dispatch(shop, by_lot(seed)).makespan / quota(shop).schedule.makespan)
    assert np.mean(ratios) >= 1.12


def test_shares_sum_to_one_and_balance():
    found = shares([[1.0, 2.0, np.inf], [np.inf, 2.0, 4.0]])
    assert [sum(row) for row in found.share] == pytest.approx([1, 1])
    assert found.share[0][2] == 0 == found.share[1][0]
    with pytest.raises(ValueError, match="shard 1 has none"):
        shares([[1.0], [np.inf]])


# -- sizes of shards
# ----------------------------------------------------------------------------------


def test_proportional_shards():
    assert proportional(100, [1, 1, 2]) == (25, 25, 50)
    assert proportional(10, [1, 1, 1]) == (4, 3, 3)
    assert proportional(5, [1, 1000, 1]) == (1, 3, 1)
    assert sum(proportional(9973, [12.1, 5.6, 11.3, 18.7])) == 9973


@pytest.mark.parametrize(("total", "speeds"), [(3, []), (3, [1, 0]), (1, [1, 1])])
def test_proportional_refuses(total, speeds):
    with pytest.raises(ValueError):
        proportional(total, speeds)


# -- what a schedule must keep
# -----------------------------------------------------------------------------------------

GOOD = [
    ShopUnit(0, 1, 0, 0, 0),
    ShopUnit(1, 2, 0, 1, 1),
    ShopUnit(0, 1, 1, 1, 1),
    ShopUnit(1, 2, 1, 0, 0),
]


@pytest.mark.parametrize(
    ("units", "words"),
    [
        (GOOD[:3], "exactly once"),
        ([*GOOD[:3], GOOD[2]], "exactly once"),
        ([*GOOD[:3], ShopUnit(1.0, 1.5, 1, 0, 0)], "last"),
        ([*GOOD[:3], ShopUnit(0.5, 1.5, 1, 0, 0)], "at once"),
        (
            [GOOD[0], ShopUnit(0, 1, 0, 1, 1), ShopUnit(1, 2, 1, 1, 1), GOOD[3]],
            "trial 0 is in two units",
        ),
    ],
)
def test_broken_schedules_are_refused(units, words):
    shop = Shop.open(np.ones((2, 2)))
    check_schedule(ShopSchedule(tuple(sorted(GOOD))), shop)
    with pytest.raises(ValueError, match=words):
        check_schedule(ShopSchedule(tuple(sorted(units))), shop)


@pytest.mark.parametrize(
    "seconds", [np.ones((2, 2)), np.zeros((1, 1, 1)), np.full((1, 1, 1), np.inf)]
)
def test_impossible_shops_are_refused(seconds):
    with pytest.raises(ValueError):
        Shop(seconds)


def test_rules_that_cheat_are_refused():
    shop = Shop.open(np.ones((2, 2)))
    with pytest.raises(ValueError, match="cannot begin"):
        dispatch(shop, lambda floor, slots: [(0, 0, 0), (0, 1, 1)])
    with pytest.raises(ValueError, match="undone"):
        dispatch(shop, lambda floor, slots: [])
