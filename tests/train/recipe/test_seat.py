"""Shares of a batch, learning rates by width, and orders."""

import threading
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_kit import Small

from shoal.train.recipe.seat import Move, Orders, Seat, lr_factor, share
from shoal.train.recipe.settings import settings


@given(st.integers(0, 300), st.integers(1, 40))
def test_shares_cover_a_batch_once_and_differ_by_one_row_at_most(count, width):
    shares = [share(count, width, rank) for rank in range(width)]
    assert [row for start, stop in shares for row in range(start, stop)] == list(range(count))
    sizes = {stop - start for start, stop in shares}
    assert max(sizes) - min(sizes) <= 1


def test_learning_rate_rules():
    assert [lr_factor("linear", width) for width in (1, 2, 8)] == [1, 2, 8]
    assert [lr_factor("sqrt", width) for width in (1, 2, 4)] == [1, sqrt(2), 2]
    assert lr_factor("none", 8) == 1
    assert lr_factor(lambda width: 1 + width / 2, 4) == 3
    with pytest.raises(ValueError, match="factor > 0 for every width; got 0.0 for 4"):
        lr_factor(lambda width: 0, 4)


def test_a_recipe_says_what_a_batch_counts_and_brings_its_own_rule():
    class Own(Small):
        batch_per_slot = True

        def lr_rule(self, width):
            return width**0.25

    found = settings(Own(), {})
    assert found.batch_per_slot and found.lr_rule(16) == 2
    assert settings(Own(), {"lr_rule": "sqrt", "batch_per_slot": 0}).lr_rule == "sqrt"
    with pytest.raises(
        ValueError,
        match='lr_rule must be "linear", "sqrt", "none" or a function of the width; got \'cubic\'',
    ):
        settings(Small(lr_rule="cubic"), {})


@pytest.mark.parametrize(
    ("seat", "why"),
    [
        ({"generation": 0, "rank": 0, "width": 1}, "generation 0, rank 0, width 1"),
        ({"generation": 1, "rank": 2, "width": 2}, "generation 1, rank 2, width 2"),
        ({"generation": 1, "rank": 0, "width": 2}, "2 processes need a store to meet at; got none"),
    ],
)
def test_seats_that_cannot_be(seat, why):
    with pytest.raises(ValueError, match=why):
        Seat("t", **seat)


def test_only_the_newest_order_counts():
    orders = Orders()
    assert orders.after(1) is None
    orders.move(Move(3, None))
    orders.move(Move(2, Seat("t", 2, 0, 1)))  # came late
    assert orders.after(1) == orders.after(2) == Move(3, None)
    assert orders.after(3) is None
    assert orders.wait(3, 0.01) is None
    threading.Timer(0.01, orders.move, [Move(4, None, broken=True)]).start()
    assert orders.wait(3, 60) == Move(4, None, broken=True)
    orders.halt()
    assert orders.wait(3, 60) is None and orders.halted
