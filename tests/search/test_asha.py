"""ASHA: who goes on when; the contract."""

from collections import Counter
from itertools import groupby
from math import nan

import pytest
from search_kit import simulate, submitted, told

from shoal.core.cluster import ShardId
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.policy.hop.hop import Hop
from shoal.policy.pack.pack import Pack
from shoal.search import ASHA
from shoal.search.asha import rungs
from shoal.search.space import uniform
from shoal.testing import check_searcher

X = {"x": uniform(0, 1)}
GOAL = {"metric": "score", "mode": "max"}


@pytest.mark.parametrize("stopping", [False, True])
def test_contract(stopping):
    check_searcher(
        lambda: ASHA(X, 5, 4, reduction_factor=2, metric="accuracy", mode="max", stopping=stopping),
        5,
    )


def test_rungs():
    assert rungs(1, 3, 9) == (1, 3, 9)
    assert rungs(1, 4, 256) == (1, 4, 16, 64, 256)
    assert rungs(2, 3, 10) == (2, 6, 10)
    assert rungs(5, 3, 5) == (5,)
    assert rungs(1, 1.5, 4) == (1, 2, 3, 4)


def asked(trials, **more):
    proposal, _ = ASHA(X, 20, 9, max_concurrent=1, **GOAL, **more).propose(told(trials), None)
    return [(t.id, t.samples / 100) for t in proposal.submit], proposal.retire


def test_one_in_three_goes_on_and_no_earlier():
    """Algorithm 2 of the paper, eta = 3: with two results in a rung none is among the best
    third, with three one is.
    """
    done = {f"t00{i}": (1, [s], "finished") for i, s in enumerate([0.1, 0.9, 0.5])}
    assert asked({t: done[t] for t in ("t000", "t001")})[0] == [("t002", 1)]
    assert asked(done)[0] == [("t001", 3)]
    on = done | {"t001": (3, [0.9, 0.9, 0.9], "finished")}
    assert asked(on)[0] == [("t003", 1)], "the rung's best third went on already"
    assert asked(on | {f"t00{i}": (1, [0.2], "finished") for i in (3, 4, 5)})[0] == [("t002", 3)]


def test_the_highest_rung_first():
    low = {
        f"t00{i}": (1, [s], "finished")
        for i, s in enumerate([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    }
    high = {t: (3, [low[t][1][0]] * 3, "finished") for t in ("t006", "t007", "t008")}
    assert asked(low | high)[0] == [("t008", 9)]
    six = {f"t0{i}": (1, [0.05], "finished") for i in range(10, 13)}
    assert asked(low | {"t008": high["t008"]} | six)[0] == [("t007", 3)]


def test_failed_and_not_finite_results_hold_nobody_up():
    trials = {
        "t000": (1, [nan], "finished"),
        "t001": (1, [0.3], "finished"),
        "t002": (1, [], "failed"),
    }
    assert asked(trials)[0] == [("t003", 1)], "the failed one is no result, so two make no third"
    assert asked(trials | {"t003": (1, [0.1], "finished")})[0] == [("t001", 3)], (
        "one without a finite score counts, and is last"
    )
    none = {f"t00{i}": (1, [nan], "finished") for i in range(3)}
    assert asked(none)[0] == [("t003", 1)]


def test_ties_go_to_the_first():
    assert asked({f"t00{i}": (1, [0.5], "finished") for i in range(3)})[0] == [("t000", 3)]


def test_stopping_looks_when_a_trial_comes_to_a_rung():
    trials = {
        "t000": (9, [0.5, 0.5], ""),
        "t001": (9, [0.4], ""),
        "t002": (9, [0.9], ""),
        "t003": (9, [], ""),
    }
    assert asked(trials, stopping=True) == ([], {"t001"}), "t000 is past the rung"
    assert asked({"t000": (9, [0.5], "")}, stopping=True) == ([], set()), "the first there goes on"
    assert asked({"t000": (9, [0.5] * 3, ""), "t001": (9, [0.6] * 3, "")}, stopping=True)[1] == {
        "t000"
    }


def test_slots_stay_busy_and_the_best_trains_longest():
    state, lines = simulate(ASHA(X, 27, 9, **GOAL), slots=3)
    epochs = {t: trial.samples / 100 for t, trial in state.known.items()}
    assert len(epochs) == 27 and set(state.ended.values()) == {"finished"}
    assert epochs[max(state.known, key=lambda t: state.known[t].config["x"])] == 9
    assert Counter(epochs.values())[1] >= 13
    last = max(time for time, t, _ in submitted(lines) if t == "t026")
    assert {len(s.busy) for time, s in _states(lines) if time < last} == {3}, (
        "until nothing is left to begin"
    )


def test_on_hopping_with_as_many_trials_as_slots():
    """Cerebro, section 6.3: R = 9, eta = 3; each slot has a part of the data."""
    shards = {ShardId(f"s{i}"): 25 for i in range(4)}
    state, lines = simulate(ASHA(X, 12, 9, **GOAL), Hop(), slots=4, shards=shards)
    assert set(state.ended.values()) == {"finished"} and len(state.known) == 12
    assert max(len(s.trials) for _, s in _states(lines)) == 4
    best = max(state.known.values(), key=lambda t: t.config["x"])
    assert best.samples == max(t.samples for t in state.known.values()) > 100
    assert all(len({v.shard for v in state.visits[t][:4]}) == 4 for t in state.known)


def test_rungs_are_each_beyond_the_one_before():
    assert rungs(1, 3, 9) == (1, 3, 9) and rungs(1, 3, 10) == (1, 3, 9, 10)
    assert rungs(1, 2.5, 16) == (1, 2, 6, 16) and rungs(1, 1.5, 8) == (1, 2, 3, 5, 8)
    state, _ = simulate(ASHA(X, 9, 8, reduction_factor=1.5, max_concurrent=1, **GOAL), slots=1)
    assert len(state.known) == 9, "none that is at the end takes the place of another"


def test_as_many_for_each_slot_as_are_packed():
    _, lines = simulate(ASHA(X, 12, 3, **GOAL, per_slot=3), Pack(most=3), slots=2)
    assert len([s for s in submitted(lines) if s[0] == 0]) == 6


def _states(lines):
    """(time, state after all that happened at it)."""
    state = State()
    for time, group in groupby(lines, key=lambda line: line.time):
        state = fold(state, [line.entry for line in group])
        yield time, state


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ASHA(X, 0, 9), "num_samples must be >= 1"),
        (lambda: ASHA(X, 9, 0.5), "max_epochs must be >= 1"),
        (lambda: ASHA(X, 9, 9, grace_period=10), "grace_period must be <= max_epochs"),
        (lambda: ASHA(X, 9, 9, reduction_factor=1), "reduction_factor must be > 1"),
        (lambda: ASHA(X, 9, 9, max_concurrent=0), "max_concurrent"),
        (lambda: ASHA(X, 9, 9, mode="most"), '"min" or "max"'),
        (lambda: simulate(ASHA(X)), "ASHA needs num_samples="),
        (lambda: simulate(ASHA(X, 9, 9)), "name it, metric="),
        (lambda: simulate(ASHA(X, 9, 9, metric="f1")), "'f1'; evaluations give score"),
    ],
)
def test_wrong_values(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_where_too_few_come_the_best_goes_to_the_end():
    """Eight trials, rungs 1, 3, 9, 27: two go on, of whom the rule alone promotes none."""
    state, lines = simulate(ASHA(X, 8, 27, **GOAL, sampling=None))
    lengths = Counter(trial.samples / 100 for trial in state.known.values())
    assert lengths == {1: 6, 3: 1, 27: 1}
    best = max(state.known, key=lambda t: state.known[t].config["x"])
    assert state.known[best].samples == 2700
    assert len([t for _, t, epochs in submitted(lines) if epochs > 3]) == 2, (
        "one rung after the other, once"
    )


def test_nobody_is_left_to_go_on_where_no_score_is_finite():
    state, _ = simulate(ASHA(X, 4, 9, **GOAL), curve=lambda config, epochs: {"score": nan})
    assert {trial.samples for trial in state.known.values()} == {100} and set(
        state.ended.values()
    ) == {"finished"}


def test_one_that_took_its_last_samples_is_not_stopped():
    """On one slot its evaluation, and its end, come a moment later."""
    trials = {f"t00{i}": (4, [0.5, 0.6, 0.7, 0.8], "") for i in range(3)}
    seen = told(trials | {"t003": (4, [None, None, None, 0.1], "")})
    assert ASHA(X, 4, 4, stopping=True, **GOAL).propose(seen, None)[0].retire == frozenset()
