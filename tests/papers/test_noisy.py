"""Beliefs with error."""

import numpy as np
import pytest
from noisy import noisy

from shoal.core.cluster import SlotId
from shoal.core.plan import solo
from shoal.core.trial import TrialId
from shoal.profile.table import Row, Table

TABLE = Table((Row(rates=(100.0,) * 8, memory=3.0),))


def test_errors_have_the_size_asked_for() -> None:
    belief = noisy(TABLE, 0.3, seed=1)
    factors = 100 / np.array([belief.curve(TrialId(f"t{i}"), 8) for i in range(400)])  # of the time
    assert factors.mean() == pytest.approx(1.0, abs=0.02)
    assert factors.std() == pytest.approx(0.3, abs=0.02)


def test_beliefs_are_functions_of_the_seed() -> None:
    trial = TrialId("t0")
    assert noisy(TABLE, 0.3, 1).curve(trial, 4) == noisy(TABLE, 0.3, 1).curve(trial, 4)
    assert noisy(TABLE, 0.3, 1).curve(trial, 4) != noisy(TABLE, 0.3, 2).curve(trial, 4)
    assert noisy(TABLE, 0.0).curve(trial, 4) == list(TABLE.curve(trial, 4))


def test_a_gang_and_the_curve_agree() -> None:
    belief = noisy(TABLE, 0.3)
    gang = solo(TrialId("t7"), SlotId("a"), 0)
    assert belief.rates(gang)[TrialId("t7")] == pytest.approx(belief.curve(TrialId("t7"), 1)[0])
    assert belief.cost(TrialId("t7")).memory == 3.0


def test_a_negative_error_is_refused() -> None:
    with pytest.raises(ValueError, match=">= 0"):
        noisy(TABLE, -0.1)
