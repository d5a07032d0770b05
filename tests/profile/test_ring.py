"""Costs of all-reduce and the speed fit (Capes et al., eq. 2-5)."""

import pytest

from shoal.profile.all_reduce import Link, binary_blocks, doubling_halving, ring
from shoal.profile.ring import fit_speed

CAPES = {
    1: 160 / 368,
    2: 170 / 232,
    4: 160 / 126,
    8: 170 / 84,
}  # epochs per minute, Table 2
SLOW = Link(latency=1e-5, transfer=1e-10, add=1e-11)


def test_costs_are_those_of_the_paper() -> None:
    link = Link(latency=1.0, transfer=10.0, add=100.0)
    assert ring(4, 8.0, link) == 3 * 4 + 3 * 2 * 4 * 10 + 3 * 2 * 2 * 100
    assert doubling_halving(4, 8.0, link) == 4 * 2 + 4 * 8 * 10 + 2.5 * 8 * 100
    assert binary_blocks(5, 8.0, link) == (5 + 4 * 3) + 7 * 8 * 10 + 3 * 8 * 100
    assert binary_blocks(4, 8.0, link) == doubling_halving(4, 8.0, link)
    assert ring(1, 8.0, link) == doubling_halving(1, 8.0, link) == 0


def test_doubling_and_halving_needs_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        doubling_halving(6, 1.0, SLOW)


def test_the_fit_to_table_2() -> None:
    speed = fit_speed(CAPES)
    assert speed.powers == pytest.approx((2.151, 0.0, 0.0, 0.2345), abs=5e-4)
    assert all(abs(speed.rate(w) / r - 1) < 0.045 for w, r in CAPES.items())


def test_powers_of_two_and_others_have_their_own_curves() -> None:
    def seen(width: int) -> float:
        return 100 / (1.0 / width + binary_blocks(width, 1e8, SLOW))

    speed = fit_speed({w: seen(w) for w in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)})
    assert all(speed.rate(w) == pytest.approx(seen(w), rel=0.03) for w in range(1, 17))
    assert speed.rate(9) < speed.rate(8) < speed.rate(16)
    assert speed.curve(16)[8] == speed.rate(9)


def test_widths_never_measured_follow_the_powers_of_two() -> None:
    assert fit_speed(CAPES).rate(4) < fit_speed(CAPES).rate(5) < fit_speed(CAPES).rate(8)


def test_coefficients_are_never_negative() -> None:
    speed = fit_speed({1: 1.0, 2: 2.5, 4: 5.5})  # faster than linear
    assert min(speed.powers) >= 0


@pytest.mark.parametrize("rates", [{}, {3: 1.0}, {1: 0.0}, {0: 1.0}, {1: float("nan")}])
def test_wrong_speeds_are_refused(rates: dict[int, float]) -> None:
    with pytest.raises(ValueError):
        fit_speed(rates)
