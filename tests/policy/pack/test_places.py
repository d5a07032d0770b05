"""Distances of the paper's kNN grouping are counted in levels of the search space."""

import pytest

from shoal.policy.pack.grouping import distance, places
from shoal.policy.pack.pack import Pack

ONE = {"batch_size": 20, "optimizer": "SGD", "lr": 0.01, "activation": "ReLu"}
OTHER = ONE | {"batch_size": 40, "optimizer": "Adagrad"}
LEVELS = {"batch_size": list(range(20, 75, 5)), "lr": [1e-4, 1e-3, 0.01, 0.1]}


def test_the_papers_example_is_five() -> None:
    """Defect 14: with only these two sampled it was 2."""
    assert distance(*places([ONE, OTHER], LEVELS, [])) == 5


def test_without_levels_the_values_that_there_are_count() -> None:
    assert distance(*places([ONE, OTHER], {}, [])) == 2
    between = [ONE | {"batch_size": size} for size in (25, 30)]
    assert distance(*places([ONE, OTHER], {}, between)) == 4


def test_what_has_no_order_is_equal_or_not() -> None:
    one, other = places([{"x": True}, {"x": False}], {"x": [False, True]}, [])
    assert distance(one, other) == 1
    one, other = places([{"x": 1}, {}], {}, [])
    assert distance(one, other) == 1


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="within=-1"):
        Pack("nearest", within=-1)
