"""The gauge: which widths it tries, what it chooses, and that a disturbed try is made good."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from shoal.train.gauge import GAIN, TRIES, Gauge


def measured(gauge: Gauge, lanes: int, step: Callable[[int], float]) -> list[int]:
    """Try what it wants until it wants no more; the widths tried."""
    tried = []
    while (width := gauge.wants("a", lanes)) is not None:
        tried.append(width)
        for _ in range(TRIES):
            gauge.took("a", width, step(width))
        assert len(tried) < 20
    return tried


def test_it_tries_alone_then_all_then_halves_while_that_is_faster() -> None:
    gauge = Gauge()
    assert measured(gauge, 8, lambda w: 1.0 + 0.1 * w) == [1, 8, 4]
    assert gauge.choose("a", 8) == 8
    assert gauge.choose("a", 5) == 4, "the one that was measured and fits"
    gauge = Gauge()
    assert measured(gauge, 8, lambda w: 0.5 * w**1.5 if w > 1 else 1.0) == [1, 8, 4, 2]
    assert gauge.choose("a", 8) == 2


def test_what_does_not_gain_is_left_alone() -> None:
    gauge = Gauge()
    measured(gauge, 4, lambda w: w * (1 - GAIN / 2))
    assert gauge.choose("a", 4) == 1
    gauge.never("b", "an attribute changes")
    assert gauge.wants("b", 4) is None and gauge.choose("b", 4) == 1 and gauge.why("b") == "an attribute changes"


def test_a_disturbed_try_is_made_good() -> None:
    gauge = Gauge()
    measured(gauge, 4, lambda w: 10.0 if w == 4 else 1.0 * w)  # somebody else was busy
    assert gauge.choose("a", 4) == 1
    for _ in range(20):
        measured(gauge, 4, lambda w: 1.0 + 0.1 * w)
    assert gauge.choose("a", 4) == 4


@given(st.integers(2, 64), st.lists(st.floats(0.1, 10.0), min_size=64, max_size=64))
def test_it_chooses_none_that_was_measured_slower(lanes: int, costs: list[float]) -> None:
    gauge = Gauge()
    tried = measured(gauge, lanes, lambda w: costs[w - 1] * w)
    chosen = gauge.choose("a", lanes)
    assert chosen in tried
    assert (
        costs[chosen - 1] <= costs[0] and costs[chosen - 1] * (1 - GAIN) <= min(costs[w - 1] for w in tried) / (1 - GAIN) + 1e-9
    )
