"""What ranks tell each other arrives to the bit."""

import math

import numpy as np
import pytest

from shoal.train.wide.notes import RankMessage


@pytest.mark.parametrize("parameters", [0, 5, 6, 7, 14, 23])
def test_what_a_rank_tells_is_the_same_after_packing(parameters: int) -> None:
    rng = np.random.default_rng(parameters)
    present = rng.integers(0, 2, parameters).astype(bool).tolist()
    message = RankMessage(2**40 + 3, True, False, present, [0.1, -1e300, math.inf])
    assert RankMessage.of(message.packed(), parameters) == message


def test_what_all_ranks_tell_is_equally_long() -> None:
    none = RankMessage(0, False, False, [False] * 9, [0.0, 0.0])
    some = RankMessage(7, True, True, [True] * 9, [2.5, 32.0])
    assert len(none.packed()) == len(some.packed())


def test_a_loss_that_is_not_a_number_stays_one() -> None:
    message = RankMessage(1, False, False, [True], [math.nan, 4.0])
    (loss, rows) = RankMessage.of(message.packed(), 1).notes
    assert math.isnan(loss)
    assert rows == 4.0
