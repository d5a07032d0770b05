"""Least squares without negative coefficients, against SciPy's."""

import numpy as np
import pytest
from scipy.optimize import nnls

from shoal.profile.ring import nonnegative_fit


@pytest.mark.parametrize("points", range(1, 9))
def test_it_finds_what_scipy_finds(points: int) -> None:
    """Also with fewer points than terms, and where most terms have to go."""
    rng = np.random.default_rng(points)
    for _ in range(50):
        terms = rng.normal(size=(points, 4)) * 10.0 ** rng.integers(-3, 4, 4)
        values = rng.normal(size=points)
        expected, _ = nnls(terms, values)
        found = nonnegative_fit(terms, values)
        assert (found >= 0).all()
        assert terms @ found == pytest.approx(terms @ expected, abs=1e-9)


def test_what_only_negative_coefficients_would_fit_gets_none() -> None:
    assert (nonnegative_fit(np.eye(3), -np.ones(3)) == 0).all()
