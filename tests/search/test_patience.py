"""Trials that no longer improve leave."""

from collections import Counter
from math import inf, nan

import pytest
from search_kit import simulate, told

from shoal.core.event import Evaluated, Retired
from shoal.core.fold import fold
from shoal.core.state import State, view
from shoal.profile.table import Table
from shoal.search import ASHA, Patience, Random, describe, parse, rebuild
from shoal.search.space import uniform
from shoal.testing import check_searcher

X = {"x": uniform(0, 1)}
GOAL = {"metric": "score", "mode": "max"}


def test_contract():
    check_searcher(lambda: Patience(Random(X, 5, 3), 1, 0.001, "accuracy", "max"), 5)


def stopped(*scores, **more):
    rule = Patience(Random(X, 1, 99), **{"epochs": 2, **GOAL, **more})
    return bool(rule.propose(told({"t000": (99, list(scores), "")}), 1)[0].retire)


def test_no_better_for_so_many_epochs():
    assert not stopped(0.1, 0.5, 0.4)
    assert stopped(0.1, 0.5, 0.4, 0.5), "as good is no better"
    assert not stopped(0.1, 0.5, 0.4, 0.6)
    assert not stopped(0.1, 0.5, 0.4, 0.6, 0.6) and stopped(0.1, 0.5, 0.4, 0.6, 0.6, 0.6)
    assert stopped(0.5, 0.6, 0.7, mode="min") and not stopped(0.7, 0.6, 0.5, mode="min")


def test_one_that_took_its_last_samples_is_not_stopped():
    rule = Patience(Random(X, 1, 3), epochs=2, **GOAL)
    assert rule.propose(told({"t000": (3, [0.9, 0.1, 0.1], "")}), 1)[0].retire == frozenset()


def test_better_by_less_than_min_delta_is_not_better():
    assert stopped(0.5, 0.505, 0.509, min_delta=0.01)
    assert not stopped(0.5, 0.505, 0.511, min_delta=0.01), (
        "against the best that counted, so that slow gains add up"
    )


def test_evaluations_at_some_epochs_only():
    assert not stopped(0.5, None, 0.6) and stopped(0.5, None, 0.5)


def test_before_the_grace_period_and_without_scores():
    assert not stopped() and not stopped(None, None, None)
    assert not stopped(0.5, 0.4, 0.3, grace_period=4) and stopped(
        0.5, 0.4, 0.3, 0.2, grace_period=4
    )


def test_what_is_not_finite_is_no_improvement():
    assert stopped(nan, nan, nan) and stopped(0.5, inf, nan)
    assert not stopped(nan, nan, 0.1)


def levelled(config, epochs):
    """Rises to x within 3 epochs."""
    return {"score": config["x"] * min(epochs, 3) / 3}


def test_an_ensemble_whose_models_converge_trains_no_longer_than_that():
    state, _ = simulate(Patience(Random(X, 6, 50), 2, **GOAL), curve=levelled)
    assert set(state.ended.values()) == {"retired"}
    assert {len(visits) for visits in state.visits.values()} <= {5, 6}, (
        "3 epochs, 2 without gain, and the one under way"
    )
    whole, _ = simulate(Random(X, 6, 50), curve=levelled)
    assert sum(state.done.values()) < sum(whole.done.values()) / 5


def test_it_can_be_resumed_from_any_prefix_of_the_journal():
    """What leaves is a function of the scores: after each entry, a new decider says what the
    old one said.
    """
    rule = Patience(Random(X, 4, 20), 2, **GOAL)
    _, lines = simulate(rule, curve=levelled)
    state, gone = State(), set()
    for _, entry in lines:
        state = fold(state, [entry])
        if isinstance(entry, Evaluated):
            gone |= rule.propose(view(state, 0.0, Table().of(state.known)), 4)[0].retire
    assert (
        gone
        == {entry.trial for _, entry in lines if isinstance(entry, Retired)}
        == set(state.known)
    )


def test_over_another_searcher_and_none():
    state, _ = simulate(Patience(ASHA(X, 9, 4, reduction_factor=2, **GOAL), 1, **GOAL))
    assert len(state.known) == 9 and not state.trials
    with pytest.raises(ValueError, match="Patience needs inner="):
        simulate(Patience(**GOAL))
    for wrong in ({"epochs": 0}, {"min_delta": -1.0}, {"min_delta": nan}):
        with pytest.raises(ValueError, match="Patience: epochs must be > 0 and min_delta >= 0"):
            Patience(**wrong)


@pytest.mark.parametrize(("converged", "longest"), [(12, 27), (3, 9)])
def test_who_converged_is_not_replaced_by_all_the_others_in_turn(converged, longest):
    """Two of eight come to the second rung, and the best of them goes on until it leaves: in
    the last rung, or one before.
    """
    rule = Patience(ASHA(X, 8, 27, **GOAL, sampling=None), 2, **GOAL)
    state, _ = simulate(
        rule,
        curve=lambda config, epochs: {"score": config["x"] * min(epochs, converged)},
    )
    lengths = Counter(trial.samples / 100 for trial in state.known.values())
    assert lengths == {1: 6, 3: 1, longest: 1}
    assert [
        state.ended[t] for t, trial in state.known.items() if trial.samples == longest * 100
    ] == ["retired"]


def test_by_name():
    rule = parse("patience(epochs=3, inner='random(num_samples=9)')")
    assert rule == Patience(Random(num_samples=9), 3)
    assert rebuild(describe(rule)) == rule
    assert parse("patience") == Patience()
