"""Searchers that stop trials early, over any searcher: by the median of the others, by patience."""

from collections import Counter
from dataclasses import replace
from math import inf, nan
from statistics import median

import pytest
from search_kit import simulate, told

from shoal.core.event import Evaluated, Retired
from shoal.core.fold import fold
from shoal.core.state import State, view
from shoal.profile.table import Table
from shoal.search import ASHA, PBT, MedianStopping, Patience, Random, describe, parse, rebuild
from shoal.search.space import uniform
from shoal.search.stopping import _median_without
from shoal.testing import check_searcher

X = {"x": uniform(0, 1)}
GOAL = {"metric": "score", "mode": "max"}


@pytest.mark.parametrize(
    "rule",
    [
        MedianStopping(Random(X, 5, 3), "accuracy", "max", min_trials=2),
        Patience(Random(X, 5, 3), 1, 0.001, "accuracy", "max"),
    ],
)
def test_contract(rule):
    check_searcher(lambda: replace(rule), 5)


@pytest.mark.parametrize(
    ("kind", "name", "more"),
    [(MedianStopping, "MedianStopping", {}), (Patience, "Patience", {"epochs": 1})],
)
def test_over_another_searcher_and_none(kind, name, more):
    state, _ = simulate(kind(ASHA(X, 9, 4, reduction_factor=2, **GOAL), **GOAL, **more))
    assert len(state.known) == 9 and not state.trials
    with pytest.raises(ValueError, match=f"{name} needs inner="):
        simulate(kind(**GOAL))


def stopped(trials, **more):
    rule = MedianStopping(Random(X, len(trials), 9), **GOAL, **more)
    return rule.propose(told(trials, slots=5), len(trials))[0].retire


DONE = {
    "t000": (3, [0.1, 0.3, 0.5], "finished"),
    "t001": (3, [0.4, 0.6, 0.8], "finished"),
    "t002": (3, [0.2, 0.4, 0.9], "finished"),
}


def test_worse_than_the_median_of_running_averages():
    """Averages up to the second epoch: 0.2, 0.5, 0.3, of which the median is 0.3; the best so
    far must not be below it.
    """
    assert stopped(DONE | {"t003": (3, [0.1, 0.29], "")}) == {"t003"}
    assert stopped(DONE | {"t003": (3, [0.1, 0.31], "")}) == frozenset()
    assert stopped(DONE | {"t003": (3, [0.31, 0.1], "")}) == frozenset(), (
        "its best so far, not its last"
    )


def test_only_where_others_came_as_far():
    assert stopped(DONE | {"t003": (9, [0.0] * 4, "")}) == frozenset(), (
        "nobody is beyond the third epoch"
    )
    assert stopped(DONE | {"t003": (3, [0.0], "")}, min_trials=4) == frozenset()
    assert stopped(DONE | {"t003": (3, [0.0], "")}, grace_period=2) == frozenset()
    assert stopped(
        DONE | {"t003": (3, [0.0], ""), "t004": (3, [0.0, 0.0], "")}, grace_period=2
    ) == {"t004"}
    assert stopped(DONE | {"t003": (3, [nan, nan], "")}) == {"t003"}
    assert stopped(DONE | {"t003": (3, [0.0, 0.0, 0.0], "")}) == frozenset(), (
        "it took its last samples, and is about to finish"
    )


def test_an_evaluation_without_the_metric_is_the_worst_and_a_name_that_none_has_is_told():
    seen = told(DONE | {"t003": (3, [0.1], "")})
    known = {
        t: tuple((epoch, {"score": 0.5} if t != "t001" else {"loss": 1.0}) for epoch, _ in s)
        for t, s in seen.scores.items()
    }
    rule = MedianStopping(Random(X, 4, 9), **GOAL)
    rule.propose(replace(seen, scores=known), 4)
    with pytest.raises(ValueError, match="trials have no metric 'acc'; evaluations give score"):
        replace(rule, metric="acc").propose(seen, 4)


def test_a_copy_that_began_late_has_no_scores_up_to_there():
    """It starts from another's state, and is scored from there on only."""
    late = {"t003": (9, [None, None, 0.9], ""), "t004": (9, [0.0], "")}
    assert stopped(DONE | late) == {"t004"}


def test_over_a_population():
    state, _ = simulate(MedianStopping(PBT(X, 4, 4, **GOAL), **GOAL), slots=1)
    assert set(state.ended.values()) <= {"finished", "retired"} and any(
        t.start for t in state.known.values()
    )


def test_trials_that_advance_together_are_compared_with_each_other():
    assert stopped({f"t00{i}": (3, [s], "") for i, s in enumerate([0.1, 0.5, 0.6, 0.7])}) == {
        "t000",
        "t001",
    }


def test_the_median_of_the_others():
    for numbers in ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 7.0, 9.0]):
        for one in numbers:
            rest = sorted(numbers)
            rest.remove(one)
            assert _median_without(sorted(numbers), one) == median(rest)


def test_saves_training():
    state, _ = simulate(MedianStopping(Random(X, 16, 6), **GOAL), slots=4)
    assert set(state.ended.values()) == {"finished", "retired"}
    assert state.ended[max(state.known, key=lambda t: state.known[t].config["x"])] == "finished"
    assert sum(state.done.values()) < 16 * 600


# -- trials that no longer improve leave


def leaves(*scores, **more):
    rule = Patience(Random(X, 1, 99), **{"epochs": 2, **GOAL, **more})
    return bool(rule.propose(told({"t000": (99, list(scores), "")}), 1)[0].retire)


def test_no_better_for_so_many_epochs():
    assert not leaves(0.1, 0.5, 0.4)
    assert leaves(0.1, 0.5, 0.4, 0.5), "as good is no better"
    assert not leaves(0.1, 0.5, 0.4, 0.6)
    assert not leaves(0.1, 0.5, 0.4, 0.6, 0.6) and leaves(0.1, 0.5, 0.4, 0.6, 0.6, 0.6)
    assert leaves(0.5, 0.6, 0.7, mode="min") and not leaves(0.7, 0.6, 0.5, mode="min")


def test_one_that_took_its_last_samples_is_not_stopped():
    rule = Patience(Random(X, 1, 3), epochs=2, **GOAL)
    assert rule.propose(told({"t000": (3, [0.9, 0.1, 0.1], "")}), 1)[0].retire == frozenset()


def test_better_by_less_than_min_delta_is_not_better():
    assert leaves(0.5, 0.505, 0.509, min_delta=0.01)
    assert not leaves(0.5, 0.505, 0.511, min_delta=0.01), (
        "against the best that counted, so that slow gains add up"
    )


def test_evaluations_at_some_epochs_only():
    assert not leaves(0.5, None, 0.6) and leaves(0.5, None, 0.5)


def test_before_the_grace_period_and_without_scores():
    assert not leaves() and not leaves(None, None, None)
    assert not leaves(0.5, 0.4, 0.3, grace_period=4) and leaves(0.5, 0.4, 0.3, 0.2, grace_period=4)


def test_what_is_not_finite_is_no_improvement():
    assert leaves(nan, nan, nan) and leaves(0.5, inf, nan)
    assert not leaves(nan, nan, 0.1)


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


def test_wrong_numbers_are_refused():
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
        rule, curve=lambda config, epochs: {"score": config["x"] * min(epochs, converged)}
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
