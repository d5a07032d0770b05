"""Successive halving and Hyperband: rungs, promotions, and the contract."""

import pytest

from shoal.backend.sim.sim import Sim
from shoal.backend.sim.units import SimulatedRecipe
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Evaluated, Failed, Finished, Opened, Submitted
from shoal.core.fold import fold
from shoal.core.state import State, view
from shoal.core.trial import Trial, TrialId, Visit
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.policy.fifo import Fifo
from shoal.profile.table import Row, Table
from shoal.search.halving import (
    Hyperband,
    Rung,
    SuccessiveHalving,
    halving_bracket,
    hyperband_brackets,
)
from shoal.search.space import uniform
from shoal.testing.deciders import check_searcher

SHARDS = {ShardId("all"): 100}


@pytest.mark.parametrize(
    "make",
    [
        lambda: SuccessiveHalving({"x": uniform(0, 1)}, 5, 4, 1, 2, metric="accuracy", mode="max"),
        lambda: Hyperband({"x": uniform(0, 1)}, 3, 3, metric="loss", mode="min"),
        lambda: Hyperband(
            {"x": uniform(0, 1)},
            2,
            2,
            metric="accuracy",
            mode="max",
            concurrent=False,
            num_samples=4,
        ),
    ],
)
def test_contract(make):
    check_searcher(make, examples=5, settled=True)


def test_brackets_of_the_hyperband_paper():
    """Table 1 of Li et al.: R = 81, eta = 3."""
    assert hyperband_brackets(81, 3) == (
        (Rung(81, 1), Rung(27, 3), Rung(9, 9), Rung(3, 27), Rung(1, 81)),
        (Rung(34, 3), Rung(11, 9), Rung(3, 27), Rung(1, 81)),
        (Rung(15, 9), Rung(5, 27), Rung(1, 81)),
        (Rung(8, 27), Rung(2, 81)),
        (Rung(5, 81),),
    )


def test_brackets_come_again_until_there_are_so_many_trials():
    assert hyperband_brackets(9, 3, 20) == (*hyperband_brackets(9, 3), (Rung(3, 1), Rung(1, 9)))
    assert hyperband_brackets(9, 3, 4) == ((Rung(4, 1), Rung(1, 9)),)


def test_the_last_of_a_bracket_are_trained_to_the_end():
    assert halving_bracket(4, 1, 100, 2) == (Rung(4, 1), Rung(2, 2), Rung(1, 100))
    assert halving_bracket(27, 1, 10, 3) == (Rung(27, 1), Rung(9, 3), Rung(3, 9), Rung(1, 10))
    assert halving_bracket(1, 1, 9, 3) == (Rung(1, 9),)
    assert halving_bracket(100, 1, 9, 3) == (Rung(100, 1), Rung(33, 3), Rung(11, 9))


def simulate(
    searcher, curve=lambda c, e: {"score": c["x"]}, fault=lambda trial, visits: None, slots=2
):
    table = Table((Row((100.0,)),))
    here = [Slot(SlotId(f"g{i}"), shards=frozenset(SHARDS)) for i in range(slots)]
    sim = Sim(
        table.of, here, shards=SHARDS, recipe=SimulatedRecipe(curve, fault), checkpoint_every=1e9
    )
    journal, state = Journal(), fold(State(), [Opened(1, SHARDS)])
    state = run(searcher, Fifo(), sim, table.believe, journal, state)
    return state, [
        (line.time, line.entry.trial) for line in journal.lines if isinstance(line.entry, Submitted)
    ]


def test_the_best_go_on_and_train_longer():
    state, submitted = simulate(
        SuccessiveHalving({"x": uniform(0, 1)}, 9, 9, metric="score", mode="max")
    )
    ranked = sorted(state.known.values(), key=lambda t: -t.config["x"])
    assert [t.samples for t in ranked] == [900, 300, 300, 100, 100, 100, 100, 100, 100]
    assert state.done == {t.id: t.samples for t in ranked}
    assert [len([t for _, t in submitted if t.samples == k]) for k in (100, 300, 900)] == [9, 3, 1]


def test_a_rung_waits_for_its_last_evaluation():
    """In a pack all lanes have trained before the first is evaluated."""
    searcher = SuccessiveHalving({"x": uniform(0, 1)}, 3, 3, metric="score", mode="max")
    state = fold(State(), [Opened(1, SHARDS)])
    trials = searcher.propose(view(state, 0.0, Table((Row((100.0,)),))), None)[0].submit
    state = fold(
        state,
        [Submitted(t) for t in trials]
        + [Advanced({t.id: 100 for t in trials}), Evaluated(trials[0].id, 1.0, {"score": 0.1})],
    )
    assert searcher.propose(view(state, 1.0, Table((Row((100.0,)),))), None)[0].submit == ()
    rest = [Evaluated(t.id, 1.0, {"score": 0.5}) for t in trials[1:]] + [
        Finished(t.id) for t in trials
    ]
    again = searcher.propose(view(fold(state, rest), 2.0, Table((Row((100.0,)),))), None)[0].submit
    assert [(t.id, t.samples) for t in again] == [("t001", 300)]


def test_min_is_the_other_way_round():
    state, _ = simulate(SuccessiveHalving({"x": uniform(0, 1)}, 3, 3, metric="score", mode="min"))
    longest = max(state.known.values(), key=lambda t: t.samples)
    assert longest.config["x"] == min(t.config["x"] for t in state.known.values())


def test_a_rung_waits_for_its_last_trial():
    _, submitted = simulate(
        SuccessiveHalving({"x": uniform(0, 1)}, 9, 9, metric="score", mode="max")
    )
    times = {t.samples: time for time, t in submitted}
    assert times == {
        100: 0.0,
        300: 5.0,
        900: 9.0,
    }  # nine epochs on two slots, then two more for each of three


def test_ties_go_to_the_smaller_id_and_failures_no_further():
    def fault(trial, visits):
        return "breaks" if trial.id == "t000" else None

    state, _ = simulate(
        SuccessiveHalving({"x": uniform(0, 1)}, 3, 3, metric="score", mode="max"),
        lambda c, e: {"score": 0.5},
        fault,
    )
    assert {t: how for t, how in state.ended.items() if how != "finished"} == {
        "t000": "failed: breaks"
    }
    assert state.known["t001"].samples == 300
    assert state.known["t002"].samples == 100


def test_no_finite_score_goes_no_further():
    state, _ = simulate(
        SuccessiveHalving({"x": uniform(0, 1)}, 3, 3, metric="score", mode="max"),
        lambda c, e: {"score": float("nan")},
    )
    assert {trial.samples for trial in state.known.values()} == {100}


def test_a_trial_that_failed_stays_failed_when_fewer_are_asked_for():
    """With nine trials it went on to the second rung and failed there; with two its bracket
    begins with it.
    """
    shards, rule = (
        SHARDS,
        SuccessiveHalving({"x": uniform(0, 1)}, 2, 9, metric="score", mode="max"),
    )
    entries = [Opened(1, shards)]
    for name, samples, score in (("t000", 100.0, 0.1), ("t001", 300.0, 0.9)):
        t = TrialId(name)
        entries += [Submitted(Trial(t, samples, {"x": 0.5}, shards=frozenset(shards)))]
        entries += [
            Advanced({t: 100}, visits={t: (Visit(0, ShardId("all"), 0, 100),)}),
            Evaluated(t, 1, {"score": score}),
        ]
        entries += [Finished(t) if name == "t000" else Failed(t, "breaks")]
    state = fold(State(), entries)
    assert rule.propose(view(state, 0.0, Table().of(state.known)), None)[0].submit == ()


def test_no_two_rungs_of_the_same_length():
    assert halving_bracket(8, 2.4, 10, 2) == (Rung(8, 2), Rung(4, 5), Rung(2, 10))


def test_brackets_one_after_the_other_or_at_once():
    space = {"x": uniform(0, 1)}
    _, apart = simulate(Hyperband(space, 9, metric="score", mode="max", concurrent=False))
    _, together = simulate(Hyperband(space, 9, metric="score", mode="max"))
    assert [len({t.id for time, t in s if time == 0.0}) for s in (apart, together)] == [9, 17]
    assert {(t.id, t.samples) for _, t in apart} == {(t.id, t.samples) for _, t in together}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Hyperband({}, 0), "max_epochs"),
        (lambda: Hyperband({}, 9, 1), "reduction_factor"),
        (lambda: SuccessiveHalving({}, 0), "num_samples"),
        (lambda: SuccessiveHalving({}, 9, 9, mode="most"), "min"),
        (lambda: simulate(SuccessiveHalving({"x": uniform(0, 1)}, 9, 9)), "metric="),
        (lambda: simulate(SuccessiveHalving({"x": uniform(0, 1)}, 9, 9, metric="f1")), "'f1'"),
    ],
)
def test_wrong_values(make, words):
    with pytest.raises(ValueError, match=words):
        make()
