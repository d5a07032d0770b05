import numpy as np
import pytest

from shoal.policy.elastic.placement import Spatial, exposure, rack_of, release, take


def near(*racks: float) -> np.ndarray:
    return Spatial().near(np.array(racks), np.zeros(len(racks), np.int64))


def test_racks_are_read_from_names():
    assert rack_of("c05n06") - rack_of("c02n18") == 3
    assert rack_of("d01n01") - rack_of("c01n01") == 37
    assert [rack_of(n) for n in ("nid00031", "nid00032", "login")] == [1.0, 2.0, 0.0]


def test_growing_takes_what_is_nearest_to_what_it_has():
    # classes at racks 0, 1, 9; it holds 2 at rack 9
    assert take(np.array([0, 0, 2]), np.array([4, 4, 1]), 3, near(0, 1, 9)).tolist() == [0, 2, 1]


def test_shrinking_releases_what_is_farthest_from_the_rest():
    assert release(np.array([3, 2, 1]), 2, near(0, 1, 30)).tolist() == [0, 1, 1]


def test_batches_equal_one_by_one():
    rng = np.random.default_rng(0)
    for _ in range(50):
        racks = np.sort(rng.choice(60, 8, replace=False)).astype(float)
        n = near(*racks)
        own, stock = rng.integers(0, 5, 8), rng.integers(0, 5, 8)
        need = int(rng.integers(0, stock.sum() + 1))
        left, taken = stock.copy(), np.zeros(8, np.int64)
        for _ in range(need):
            best = int(np.where(left > 0, n @ (own + taken).astype(float), np.inf).argmin())
            left[best] -= 1
            taken[best] += 1
        assert take(own, stock, need, n).tolist() == taken.tolist()


def test_a_better_placed_trial_is_less_exposed():
    n = near(0, 20)
    assert exposure(np.array([3, 0]), np.array([2, 0]), 2, n) < exposure(
        np.array([0, 3]), np.array([2, 0]), 2, n
    )


def test_a_table_tells_cohorts_apart():
    n = Spatial(table=[(0, 0.5, 0.8), (2, 0.1, 0.3)]).near(
        np.array([0.0, 0.0, 5.0]), np.array([1, 2, 1])
    )
    assert np.exp(n).round(6).tolist() == [[0.2, 0.5, 0.7], [0.5, 0.2, 0.9], [0.7, 0.9, 0.2]]


@pytest.mark.parametrize("bad", [{"chance": 1.0}, {"reach": 0.0}, {"table": [(1, 0.1, 0.1)]}])
def test_impossible_chances_are_refused(bad):
    with pytest.raises(ValueError, match="must"):
        Spatial(**bad)
