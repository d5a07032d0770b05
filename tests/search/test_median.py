"""The median stopping rule, over any searcher."""

from dataclasses import replace
from math import nan
from statistics import median

import pytest
from search_kit import simulate, told

from shoal.search import ASHA, PBT, MedianStopping, Random
from shoal.search.space import uniform
from shoal.search.stopping import _median_without
from shoal.testing import check_searcher

X = {"x": uniform(0, 1)}
GOAL = {"metric": "score", "mode": "max"}


def test_contract():
    check_searcher(lambda: MedianStopping(Random(X, 5, 3), "accuracy", "max", min_trials=2), 5)


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


def test_over_another_searcher_and_none():
    state, _ = simulate(MedianStopping(ASHA(X, 9, 4, reduction_factor=2, **GOAL), **GOAL))
    assert len(state.known) == 9 and not state.trials
    with pytest.raises(ValueError, match="MedianStopping needs inner="):
        simulate(MedianStopping(**GOAL))
