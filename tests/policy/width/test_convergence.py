"""The convergence fit (Capes et al., eq. 1)."""

from math import inf

import numpy as np
import pytest

from shoal.policy.width.convergence import Convergence, fit_convergence


@pytest.mark.parametrize(("scale", "stretch"), [(1.0, 1.0), (1e3, 1e4), (1e-4, 1.0)])
def test_a_curve_is_found_again(scale: float, stretch: float) -> None:
    k = np.arange(1, 40)
    true = Convergence(0.3 / scale / stretch, 0.5 / scale, 0.7 * scale)
    found = fit_convergence(k * stretch, [true.loss(x) for x in k * stretch])
    assert found.slope == pytest.approx(true.slope, rel=1e-4)
    assert found.floor == pytest.approx(true.floor, rel=1e-4)


def test_what_is_left_is_foretold_from_the_first_third() -> None:
    rng = np.random.default_rng(1)
    true = Convergence(0.3, 0.5, 0.7)
    seen = np.arange(1, 31)
    found = fit_convergence(seen, [true.loss(k) * rng.normal(1.0, 0.005) for k in seen])
    assert found.steps_until_flat(0.0004) == pytest.approx(true.steps_until_flat(0.0004), rel=0.2)
    assert true.steps_until_flat(0.0004) == pytest.approx(90, abs=1)


def test_steps_to_a_loss() -> None:
    curve = Convergence(0.5, 1.0, 0.25)
    assert curve.loss(curve.steps_to(0.3)) == pytest.approx(0.3)
    assert curve.steps_to(0.25) == inf
    assert curve.steps_to(9.0) == 0


def test_a_flat_loss_has_nothing_left() -> None:
    assert fit_convergence([1, 2, 3, 4], [0.5, 0.5, 0.5, 0.5]).steps_until_flat(0.01) < 5


def test_wrong_points_are_refused() -> None:
    with pytest.raises(ValueError, match="three"):
        fit_convergence([1, 2], [1.0, 0.5])
    with pytest.raises(ValueError, match="finite"):
        fit_convergence([1, 2, 3], [1.0, 0.5, float("nan")])
    with pytest.raises(ValueError, match="drop"):
        Convergence(1.0, 1.0, 0.0).steps_until_flat(0.0)
