"""What wide runs journal of their speed and of their rescales becomes the belief about widths."""

import pytest
from simkit import started, trial

from shoal.core.cluster import SlotId
from shoal.core.event import Measured as Was
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane, solo
from shoal.core.state import State
from shoal.core.trial import TrialId
from shoal.profile.measure import Believer, believe
from shoal.profile.widths import WIDER, fit_speed
from shoal.testing import check_profile

A, B, C = TrialId("a"), TrialId("b"), TrialId("c")
W = [SlotId(f"w{i}") for i in range(8)]
CAPES = {1: 318.0, 2: 576.2, 4: 1152.4, 8: 2177.8}  # images/s of ResNet-110, Table 1


def measured(figures: dict[str, float], **others: dict[str, float]) -> State:
    state = started(trial("a", width=8), trial("b", width=64), trial("c", width=512))
    events = [
        Was(A, "of a", figures),
        *(Was(TrialId(name), f"of {name}", each) for name, each in others.items()),
    ]
    return fold(state, events)


def wide(trial: TrialId, width: int) -> Gang:
    return Gang((Lane(trial, tuple(W[:width])),))


def table(rates: dict[int, float]) -> dict[str, float]:
    return {"rate" if width == 1 else f"rate@{width}": rate for width, rate in rates.items()}


def test_measured_widths_are_as_they_were_measured() -> None:
    profile = believe(measured(table(CAPES)))
    curve = profile.curve(A, 8)
    assert [curve[w - 1] for w in (1, 2, 4, 8)] == pytest.approx(list(CAPES.values()))
    assert profile.rates(wide(A, 4))[A] == pytest.approx(1152.4)
    check_profile(profile, [A, B, C], W)


def test_the_others_lie_on_capes_curve_where_three_powers_of_two_are_known() -> None:
    known = {w: CAPES[w] for w in (1, 2, 4)}
    curve = believe(measured(table(known))).curve(A, 16)
    fit = fit_speed(known)
    assert curve[2] == pytest.approx(fit.rate(3)) and curve[15] == pytest.approx(fit.rate(16))
    assert curve[7] == pytest.approx(CAPES[8], rel=0.1), (
        "what eight slots made is foretold from 1, 2 and 4"
    )


def test_with_fewer_widths_between_and_beyond_them() -> None:
    curve = believe(measured({"rate": 100.0, "rate@4": 200.0})).curve(A, 8)
    assert curve[:4] == pytest.approx([100.0, 100.0 * 2**0.5, 100.0 * 3**0.5, 200.0])
    assert curve[7] == pytest.approx(200.0 * 2**0.5), "it goes on as it did"
    assert believe(measured({"rate": 100.0})).curve(A, 2)[1] == pytest.approx(100.0 * 2**WIDER)
    steep = believe(measured({"rate": 100.0, "rate@2": 250.0})).curve(A, 4)
    assert steep[3] == pytest.approx(250.0 * 2**WIDER), (
        "what is faster than perfect is not drawn on"
    )


def test_a_slot_more_may_slow_a_trial_down() -> None:
    for known in ({"rate": 100.0, "rate@2": 80.0, "rate@4": 60.0}, {"rate": 100.0, "rate@2": 80.0}):
        curve = believe(measured(known)).curve(A, 4)
        assert curve[0] > curve[1] > curve[2] > curve[3], (
            "and wider lanes are not believed to be faster again"
        )


def test_widths_of_others_tell_by_their_speed_up() -> None:
    state = measured(
        {"rate": 100.0, "rate@2": 150.0}, b={"rate": 10.0, "rate@2": 19.0}, c={"rate": 40.0}
    )
    assert believe(state).curve(C, 2)[1] == pytest.approx(40.0 * (1.5 + 1.9) / 2)
    assert believe(state).curve(B, 2)[1] == pytest.approx(19.0), "its own go first"


def test_what_was_only_measured_wide() -> None:
    alone = believe(measured({"rate@2": 150.0})).curve(A, 2)
    assert alone == pytest.approx([150.0 / 2**WIDER, 150.0])
    state = measured({"rate@2": 150.0}, b={"rate": 10.0, "rate@2": 15.0})
    assert believe(state).curve(A, 2) == pytest.approx([100.0, 150.0])


def test_waiting_for_data_slows_every_width_by_the_same_seconds_a_sample() -> None:
    curve = believe(measured({"rate": 100.0, "rate@2": 200.0, "data": 0.01})).curve(A, 2)
    assert curve == pytest.approx([50.0, 1 / (1 / 200 + 0.01)])


def test_a_rescale_costs_what_rescales_took() -> None:
    state = measured(
        {"rate": 100.0, "switch": 7.0, "up": 0.5}, b={"rate": 10.0, "switch": 9.0, "down": 0.25}
    )
    profile = believe(state)
    assert profile.switch(wide(A, 1), wide(A, 2)) == 0.5
    assert profile.switch(wide(A, 2), wide(A, 1)) == 0.25, "the mean of those measured"
    assert profile.switch(wide(B, 4), wide(B, 2)) == 0.25
    assert profile.switch(None, wide(A, 2)) == 7.0
    moved = Gang((Lane(A, (W[6], W[7])),))
    assert profile.switch(solo(A, W[0], 0), moved) == 7.0, (
        "no slot is kept: the state has to travel"
    )
    assert believe(measured({"rate": 1.0, "switch": 7.0})).switch(wide(A, 1), wide(A, 2)) == 7.0


def test_a_believer_sees_new_widths() -> None:
    believer, state = Believer(), measured({"rate": 100.0})
    first = believer(state)
    assert first.curve(A, 2)[1] < 190.0 and believer(state) is first
    assert believer(fold(state, [Was(A, "of a", {"rate@2": 195.0})])).curve(A, 2) == pytest.approx(
        [100.0, 195.0]
    )
