"""Profiles of an ensemble (FLEET, appendix B.3, eq. 5)."""

import numpy as np
import pytest

from shoal.profile.fleet import extrapolate, feeders, feeders_wanted, widths_to_profile

EIGHT = (10.0, 20.0, 30.0, 38.0, 47.0, 56.0, 65.0, 72.0)


def test_the_worked_example() -> None:
    curve = extrapolate(EIGHT, 4, 64)
    assert curve[:8] == EIGHT
    assert (curve[8], curve[9], curve[15]) == pytest.approx((78.508, 84.547, 112.145), abs=1e-3)
    assert int(np.argmax(curve)) + 1 == 32


def test_more_measured_than_two_nodes_is_kept_and_the_base_stays() -> None:
    curve = extrapolate((*EIGHT, 70.0), 4, 10)
    assert curve[8:] == pytest.approx((70.0, 84.547), abs=1e-3)
    assert extrapolate(EIGHT, 4, 3) == EIGHT[:3]


def test_too_little_measured_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.\.8"):
        extrapolate(EIGHT[:5], 4, 6)


def test_widths_to_profile() -> None:
    assert widths_to_profile([176.0, 21.0], 4) == 9
    assert widths_to_profile([176.0, 90.0], 4) == 8
    with pytest.raises(ValueError, match="> 0"):
        widths_to_profile([], 4)


def test_feeders() -> None:
    assert feeders([176.0, 21.0], {1: 60.0, 2: 118.0, 4: 230.0, 8: 440.0}) == 4
    with pytest.raises(ValueError, match="measure more"):
        feeders([176.0], {1: 60.0})


def test_feeders_follow_from_the_rates_of_preparing_and_training() -> None:
    shared = 1 / 8  # eight slots that read one stream
    slots = [0.001] * 8
    assert feeders_wanted(0.0035, slots, shared, 16) == 4
    assert feeders_wanted(0.0035, slots, shared, 3) == 3, "no more than there are processors for"
    assert feeders_wanted(0.0035, [*slots[:7], 0.0005], shared, 16) == 7, (
        "the fastest of them decides"
    )
    assert feeders_wanted(0.0009, slots, shared, 16) == 1
    assert feeders_wanted(0.00002, slots, shared, 16) == 0, (
        "two hundredths of the work are not worth a process"
    )


def test_feeders_where_nothing_is_shared() -> None:
    assert feeders_wanted(0.0009, [0.001] * 4, 1.0, 16) == 0, (
        "each slot prepares its own beside training"
    )
    assert feeders_wanted(0.0035, [0.001], 1.0, 16) == 4, "one slot that would wait for its data"
    assert feeders_wanted(0.0035, [0.001] * 4, 1.0, 16) == 14
    assert feeders_wanted(0.0035, [0.001] * 4, 0.5, 16) == 7
    assert feeders_wanted(0.02, [0.001] * 4, 1.0, 6) == 6, (
        "not enough, and yet more than the slots make"
    )
    assert feeders_wanted(0.02, [0.001] * 4, 0.9, 3) == 0, (
        "four slots prepare more by themselves than three feeders"
    )


def test_feeders_wanted_refuses_what_cannot_be() -> None:
    for wrong in [
        (0.0, [1.0], 1.0, 1),
        (1.0, [], 1.0, 1),
        (1.0, [1.0], 0.0, 1),
        (1.0, [1.0], 1.0, 0),
    ]:
        with pytest.raises(ValueError, match="need times > 0"):
            feeders_wanted(*wrong)
