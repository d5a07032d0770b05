"""Doubling, +1 and the exact widths: the worked examples, and the optimum against brute force."""

from itertools import product

import pytest
from asks import CAPES, ask, asks, between, counts
from hypothesis import given
from hypothesis import strategies as st

from shoal.policy.reference.baselines import Width
from shoal.policy.width.doubling import Doubling, best_widths, climb
from shoal.profile.widths import Speed

TOY = {1: 1.0, 2: 1.6, 3: 1.55, 4: 2.8}


def test_three_equal_trials_on_eight_slots() -> None:
    three = asks([160, 160, 160], CAPES)
    assert counts(climb(three, 8), 3) == (4, 2, 2)
    assert counts(climb(asks([160, 160, 160], between(CAPES)), 8), 3) == (3, 3, 2)
    assert counts(best_widths(three, 8), 3) == (4, 2, 2)


def test_what_is_saved_counts_by_the_slot() -> None:
    """Eq. 6 divides by the slots that a step takes: 10 s for one slot before 15 s for two."""
    both = [ask(0, 100, {2: 5.0, 4: 20.0}), ask(1, 100, {1: 5.0, 2: 10.0})]
    assert counts(climb(both, 5), 2) == (2, 2)


def test_one_more_is_stuck_where_two_more_would_help() -> None:
    powers = {w: r for w, r in TOY.items() if w != 3}
    assert counts(climb(asks([10], powers), 4), 1) == (4,)
    assert counts(climb(asks([10], TOY), 4), 1) == (2,)
    assert counts(best_widths(asks([10], TOY), 4), 1) == (4,)


def test_a_long_and_a_short_trial() -> None:
    both = asks([160, 16], CAPES)
    assert counts(climb(both, 8), 2) == counts(best_widths(both, 8), 2) == (4, 4)


def test_nine_slower_than_eight_keeps_plus_one_at_eight_and_doubling_reaches_sixteen() -> None:
    speed = Speed(powers=(1.0, 0.0, 0.0, 0.04), others=(1.0, 0.0, 0.0, 0.09))
    assert speed.rate(9) < speed.rate(8) < speed.rate(16)
    curve = {w: speed.rate(w) for w in range(1, 17)}
    every = {w: r for w, r in curve.items() if w in (1, 2, 4, 8) or w > 8}
    assert counts(climb(asks([100], every), 16), 1) == (8,)
    assert counts(climb(asks([100], {w: curve[w] for w in (1, 2, 4, 8, 16)}), 16), 1) == (16,)


def test_more_trials_than_slots_run_first_come() -> None:
    assert counts(climb(asks([9, 1, 5], CAPES), 2), 3) == (1, 1, 0)
    assert counts(best_widths(asks([9, 1, 5], CAPES), 2), 3) == (1, 1, 0)
    assert climb([], 4) == best_widths([], 4) == {}


RATES = st.lists(st.floats(0.05, 2.0), min_size=1, max_size=4).map(
    lambda steps: dict(
        zip((1, 2, 4, 8), (sum(steps[: k + 1]) for k in range(len(steps))), strict=False)
    )
)


@given(st.lists(st.tuples(st.floats(1, 100), RATES), min_size=1, max_size=4), st.integers(1, 8))
def test_exact_widths_are_the_optimum(
    trials: list[tuple[float, dict[int, float]]], capacity: int
) -> None:
    wanting = [ask(i, left, rates) for i, (left, rates) in enumerate(trials)][:capacity]
    options = [
        list(zip(a.widths, (a.seconds(k) for k in range(len(a.widths))), strict=True))
        for a in wanting
    ]
    sums = [
        sum(t for _, t in pick) for pick in product(*options) if sum(w for w, _ in pick) <= capacity
    ]
    seconds = {(a.trial, w): a.seconds(k) for a in wanting for k, w in enumerate(a.widths)}
    found = best_widths(wanting, capacity)
    assert sum(found.values()) <= capacity
    assert sum(seconds[choice] for choice in found.items()) == pytest.approx(min(sums))
    heuristic = climb(wanting, capacity)
    assert sum(seconds[choice] for choice in heuristic.items()) >= min(sums) - 1e-9


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="rule is one of"):
        Doubling("tripling")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="interval"):
        Doubling(every=0)
    with pytest.raises(ValueError, match="width"):
        Width(0)
