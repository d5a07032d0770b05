import numpy as np
import pytest
from allocations import Case, case

from shoal.policy.elastic.knapsack import best_counts
from shoal.policy.elastic.table import value
from shoal.policy.reference import milp
from shoal.policy.reference.milp import NodeMilp, Solved, count_milp, first_map, node_milp


def solve(x: Case, **how: object) -> object:
    return node_milp(x.curve, first_map(x.held, x.free), x.up, x.down, x.horizon, **how)


def same_optimum(x: Case) -> None:
    best = value(x.table, best_counts(x.table, x.free))
    for found in (solve(x), count_milp(x.curve, x.held, x.up, x.down, x.horizon, x.free)):
        assert found.optimal
        assert found.counts.sum() <= x.free
        assert value(x.table, found.counts) == pytest.approx(best, rel=1e-6, abs=1e-3)


def test_elastic_has_the_optimum_of_the_programs():
    rng = np.random.default_rng(21)
    for _ in range(60):
        same_optimum(
            case(rng, int(rng.integers(1, 4)), int(rng.integers(3, 10)), int(rng.integers(3, 8)))
        )


@pytest.mark.nightly
def test_elastic_has_the_optimum_of_the_programs_on_500_instances():
    rng = np.random.default_rng(22)
    for _ in range(500):
        same_optimum(
            case(rng, int(rng.integers(1, 5)), int(rng.integers(3, 15)), int(rng.integers(3, 12)))
        )


def test_the_papers_big_m_forbids_to_change_by_more_than_half_of_the_nodes():
    # one trial on 12 free nodes: it should take all; M = |N| + 1 lets it take 6
    curve = np.array([np.arange(13.0) * 100.0])
    none, cost = np.zeros((1, 12), np.int64), np.array([18.0])
    assert node_milp(curve, none, cost, cost, 120.0).counts.tolist() == [12]
    assert node_milp(curve, none, cost, cost, 120.0, bigm="paper").counts.tolist() == [6]


def test_stopped_before_a_solution_the_present_counts_stay():
    x = case(np.random.default_rng(5), 3, 12, 6)
    counts = NodeMilp(limit=0.0).counts(x.curve, x.held, x.up, x.down, x.free)
    stay = np.where(x.table[np.arange(3), x.held] > -1e29, x.held, 0)
    assert value(x.table, counts) >= value(x.table, stay)
    assert value(x.table, counts) <= value(x.table, best_counts(x.table, x.free)) + 1e-6


@pytest.mark.parametrize(("found", "kept"), [([4, 0], [2, 2]), ([0, 0], [2, 2]), ([1, 3], [1, 3])])
def test_the_better_of_the_present_counts_and_a_solution_that_is_not_the_best(
    monkeypatch, found, kept
):
    # section 3.6: where the solver's time is over, what runs now may be the better map
    curve = np.array([[0.0, 10.0, 11.0, 11.0, 11.0], [0.0, 5.0, 10.0, 30.0, 31.0]])
    monkeypatch.setattr(milp, "node_milp", lambda *_: Solved(np.array(found), 0.0, optimal=False))
    free = np.zeros(2)
    counts = NodeMilp().counts(curve, np.array([2, 2]), free, free, 4)
    assert counts.tolist() == kept
