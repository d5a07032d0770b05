"""Rules for a short mean time: the worked examples."""

import pytest
from asks import CAPES, ask, asks, counts
from hypothesis import given
from hypothesis import strategies as st

from shoal.policy.reference.baselines import (
    HeSrpt,
    SrptK,
    Wrate,
    hesrpt_shares,
    srpt_shares,
    weighted_rates,
)
from shoal.policy.width.equi import equal_shares


def test_equal_shares() -> None:
    assert counts(equal_shares(asks([160, 160, 160], CAPES), 8), 3) == (4, 2, 2)
    assert counts(equal_shares(asks([160, 16], CAPES), 8), 2) == (4, 4)


def test_the_surplus_goes_to_those_with_least_left() -> None:
    assert counts(equal_shares(asks([30, 20, 10], CAPES), 8), 3) == (2, 2, 4)
    assert counts(equal_shares(asks([30, 20, 10], CAPES), 2), 3) == (0, 1, 1)


def test_a_width_that_is_no_faster_is_not_given() -> None:
    assert counts(equal_shares(asks([10], {1: 2.0, 2: 2.0, 4: 1.0}), 8), 1) == (1,)


def test_shortest_first_and_weighted_rates() -> None:
    both = asks([160, 16], CAPES)
    assert counts(srpt_shares(both, 8, 4), 2) == (4, 4)
    assert counts(weighted_rates(both, 8, 0.25), 2) == (4, 4)
    assert counts(weighted_rates(both, 8, 1.0), 2) == (0, 8)


def test_hysteresis_keeps_what_a_trial_has() -> None:
    def share(hysteresis: float) -> tuple[int, ...]:
        both = [ask(0, 100, CAPES, held=8), ask(1, 100, CAPES, held=0)]
        return counts(weighted_rates(both, 8, 0.0, hysteresis), 2)

    assert share(0.0) == (4, 4)
    assert share(2.0) == (8, 0)


def test_the_share_of_the_shortest_is_the_largest() -> None:
    shares = counts(hesrpt_shares(asks([100, 50, 25, 12], CAPES), 16, 0.6), 4)
    assert list(shares) == sorted(shares)
    assert sum(shares) <= 16


@given(st.lists(st.floats(1, 1e4), max_size=12), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_no_rule_gives_more_than_there_is(lefts: list[float], capacity: int) -> None:
    wanting = asks(lefts, CAPES)
    for widths in (
        equal_shares(wanting, capacity),
        weighted_rates(wanting, capacity, 0.25, 0.1),
        hesrpt_shares(wanting, capacity, 0.6),
        srpt_shares(wanting, capacity, 4),
    ):
        assert sum(widths.values()) <= capacity
        assert set(widths.values()) <= set(CAPES)
        assert sum(widths.values()) == min(
            capacity, 8 * len(lefts)
        )  # these speeds rise: no slot is left idle


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="beta"):
        Wrate(-1)
    with pytest.raises(ValueError, match="exponent"):
        HeSrpt(1.0)
    with pytest.raises(ValueError, match="width"):
        SrptK(0)
