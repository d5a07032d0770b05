import numpy as np
import pytest
from allocations import brute, case

from shoal.policy.elastic.knapsack import best_counts, best_counts_dp
from shoal.policy.elastic.table import FORBIDDEN, gains, value


def test_gains_are_those_of_equation_16():
    # two trials, O(n) = 10 n and 8 n, of which the first holds 2 of 4 slots and the other none
    curve = np.array([[0.0, 10, 20, 30, 40], [0, 8, 16, 24, 32]])
    table = gains(curve, np.array([2, 0]), np.array([18.0, 18]), np.array([12.0, 12]), 30.0)
    assert table[0].tolist() == [
        -240.0,
        60.0,
        600.0,
        540.0,
        840.0,
    ]  # 30 O(n) - 12 O(2) below 2, - 18 O(2) above
    assert table[1].tolist() == [0.0, 240.0, 480.0, 720.0, 960.0]  # a start from none is free
    assert best_counts(table, 4).tolist() == [2, 2]


def test_a_trial_cut_below_its_fewest_makes_nothing_and_may_leave_for_nothing():
    curve = np.array([[0.0, FORBIDDEN, 20.0, 30.0]])
    table = gains(curve, np.array([1]), np.array([18.0]), np.array([12.0]), 10.0)
    assert table[0].tolist() == [0.0, FORBIDDEN, 200.0, 300.0]
    assert best_counts(table, 1).tolist() == [0]


def test_a_long_horizon_moves_slots_and_a_short_one_leaves_them():
    curve = np.array([[0.0, 10, 12, 13], [0, 10, 12, 13]])
    held = np.array([3, 0])
    cost = np.array([15.0, 15.0])
    assert best_counts(gains(curve, held, cost, cost, 5.0), 3).tolist() == [3, 0]
    assert best_counts(gains(curve, held, cost, cost, 500.0), 3).sum() == 3
    assert 0 not in best_counts(gains(curve, held, cost, cost, 500.0), 3)


def test_the_convex_step_that_greedy_misses_is_taken():
    curve = np.array([[0.0, 1.0, 2.0, 3.0, 10.0], [0.0, 2.0, 3.9, 5.7, 7.4]])
    none = np.zeros(2)
    assert best_counts(gains(curve, np.zeros(2, np.int64), none, none, 1.0), 4).tolist() == [4, 0]


def test_equals_the_recursion_on_1000_instances():
    rng = np.random.default_rng(11)
    for _ in range(1000):
        x = case(rng, int(rng.integers(1, 30)), int(rng.integers(1, 200)), int(rng.integers(2, 65)))
        counts = best_counts(x.table, x.free)
        best = value(x.table, best_counts_dp(x.table, x.free))
        assert counts.sum() <= x.free
        assert value(x.table, counts) == pytest.approx(best, rel=1e-9, abs=1e-6)


def test_equals_brute_force_on_500_small_instances():
    rng = np.random.default_rng(12)
    for _ in range(500):
        x = case(rng, int(rng.integers(1, 4)), int(rng.integers(1, 13)), int(rng.integers(2, 9)))
        best = brute(x.table, x.free)
        assert value(x.table, best_counts(x.table, x.free)) == pytest.approx(
            best, rel=1e-9, abs=1e-6
        )
        assert value(x.table, best_counts_dp(x.table, x.free)) == pytest.approx(
            best, rel=1e-9, abs=1e-6
        )


def test_equal_trials_and_flat_curves_are_no_trouble():
    rng = np.random.default_rng(13)
    for _ in range(200):
        x = case(rng, 1, 60, 30)
        table = np.repeat(
            np.maximum.accumulate(np.where(x.table > FORBIDDEN, x.table, 0.0), axis=1), 12, axis=0
        )
        best = value(table, best_counts_dp(table, x.free))
        assert value(table, best_counts(table, x.free)) == pytest.approx(best, rel=1e-9, abs=1e-6)


def test_equals_the_recursion_where_trials_are_of_few_kinds():
    """As after an event: equal trials, each holding what was best for it before some lost a
    slot.
    """
    rng = np.random.default_rng(14)
    for _ in range(60):
        kinds, copies, width = (
            int(rng.integers(1, 5)),
            int(rng.integers(2, 9)),
            int(rng.integers(4, 40)),
        )
        speeds = np.concatenate(
            [np.zeros((kinds, 1)), rng.uniform(0.2, 2.0, (kinds, width)).cumsum(1)], axis=1
        )
        curve = np.repeat(speeds, copies, axis=0)
        free = int(rng.integers(1, kinds * copies * width))
        up, down = (np.repeat(rng.uniform(0.0, 20.0, kinds), copies) for _ in range(2))
        held = best_counts(gains(curve, np.zeros(len(curve), np.int64), up, down, 60.0), free)
        hit = rng.choice(len(curve), 2, replace=False)
        held[hit] = np.maximum(held[hit] - 1, 0)
        table = gains(curve, held, up, down, float(rng.choice([5.0, 30.0, 120.0])))
        for room in (free, max(0, free - 3), free + 5):
            counts = best_counts(table, room)
            best = value(table, best_counts_dp(table, room))
            assert counts.sum() <= room and counts.max() <= width
            assert value(table, counts) == pytest.approx(best, rel=1e-9, abs=1e-6)


def test_one_count_only_and_plenty_for_all():
    assert best_counts(np.zeros((3, 1)), 5).tolist() == [0, 0, 0]
    assert best_counts(np.array([[0.0, 2.0, 1.0], [0.0, -1.0, -2.0]]), 4).tolist() == [1, 0]
    assert best_counts(np.array([[0.0, 1e-12, 3e-12], [0.0, 2e-12, 3e-12]]), 2).tolist() in (
        [2, 0],
        [1, 1],
        [0, 2],
    )
