"""Successive halving and Hyperband: rungs, promotions, and the contract."""

import pytest

from shoal.backend.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Opened, Submitted
from shoal.core.state import State, fold
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.policy.fifo import Fifo
from shoal.profile.table import Row, Table
from shoal.search.halving import Halving, Hyperband, Rung, halving_bracket, hyperband_brackets
from shoal.search.space import uniform
from shoal.testing.searchers import check_searcher

SHARDS = {ShardId("all"): 100}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Halving({"x": uniform(0, 1)}, 9, 9, metric="accuracy"),
        lambda: Hyperband({"x": uniform(0, 1)}, 9, metric="loss", mode="min"),
        lambda: Hyperband({"x": uniform(0, 1)}, 4, 2, metric="accuracy", concurrent=False),
    ],
)
def test_contract(make):
    check_searcher(make, examples=10)


def test_brackets_of_the_hyperband_paper():
    """Table 1 of Li et al.: R = 81, eta = 3."""
    assert hyperband_brackets(81, 3) == (
        (Rung(81, 1), Rung(27, 3), Rung(9, 9), Rung(3, 27), Rung(1, 81)),
        (Rung(34, 3), Rung(11, 9), Rung(3, 27), Rung(1, 81)),
        (Rung(15, 9), Rung(5, 27), Rung(1, 81)),
        (Rung(8, 27), Rung(2, 81)),
        (Rung(5, 81),),
    )


def test_rungs_end_where_trials_or_epochs_do():
    assert halving_bracket(4, 1, 100, 2) == (Rung(4, 1), Rung(2, 2), Rung(1, 4))
    assert halving_bracket(100, 1, 9, 3) == (Rung(100, 1), Rung(33, 3), Rung(11, 9))


def simulate(searcher, curve=lambda c, e: {"score": c["x"]}, fault=lambda trial, visits: None, slots=2):
    table = Table((Row((100.0,)),))
    here = [Slot(SlotId(f"g{i}"), shards=frozenset(SHARDS)) for i in range(slots)]
    sim = Sim(table.of, here, shards=SHARDS, curve=curve, fault=fault, checkpoint_every=1e9)
    journal, state = Journal(), fold(State(), [Opened(1, SHARDS)])
    state = run(searcher, Fifo(), sim, table.believe, journal, state)
    return state, [(line.time, line.entry.trial) for line in journal.lines if isinstance(line.entry, Submitted)]


def test_the_best_go_on_and_train_longer():
    state, submitted = simulate(Halving({"x": uniform(0, 1)}, 9, 9, metric="score"))
    ranked = sorted(state.known.values(), key=lambda t: -t.config["x"])
    assert [t.samples for t in ranked] == [900, 300, 300, 100, 100, 100, 100, 100, 100]
    assert state.done == {t.id: t.samples for t in ranked}
    assert [len([t for _, t in submitted if t.samples == k]) for k in (100, 300, 900)] == [9, 3, 1]


def test_min_is_the_other_way_round():
    state, _ = simulate(Halving({"x": uniform(0, 1)}, 3, 3, metric="score", mode="min"))
    longest = max(state.known.values(), key=lambda t: t.samples)
    assert longest.config["x"] == min(t.config["x"] for t in state.known.values())


def test_a_rung_waits_for_its_last_trial():
    _, submitted = simulate(Halving({"x": uniform(0, 1)}, 9, 9, metric="score"))
    times = {t.samples: time for time, t in submitted}
    assert times == {100: 0.0, 300: 5.0, 900: 9.0}  # nine epochs on two slots, then two more for each of three


def test_ties_go_to_the_smaller_id_and_failures_no_further():
    def fault(trial, visits):
        return "breaks" if trial.id == "t000" else None

    state, _ = simulate(Halving({"x": uniform(0, 1)}, 3, 3, metric="score"), lambda c, e: {"score": 0.5}, fault)
    assert {t: how for t, how in state.ended.items() if how != "finished"} == {"t000": "failed: breaks"}
    assert state.known["t001"].samples == 300
    assert state.known["t002"].samples == 100


def test_no_finite_score_comes_last():
    state, _ = simulate(Halving({"x": uniform(0, 1)}, 3, 3, metric="score"), lambda c, e: {"score": float("nan")})
    assert state.known["t000"].samples == 300


def test_brackets_one_after_the_other_or_at_once():
    space = {"x": uniform(0, 1)}
    _, apart = simulate(Hyperband(space, 9, metric="score", concurrent=False))
    _, together = simulate(Hyperband(space, 9, metric="score"))
    assert [len({t.id for time, t in s if time == 0.0}) for s in (apart, together)] == [9, 17]
    assert {(t.id, t.samples) for _, t in apart} == {(t.id, t.samples) for _, t in together}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Hyperband({}, 0), "max_epochs"),
        (lambda: Hyperband({}, 9, 1), "reduction_factor"),
        (lambda: Halving({}, 0), "num_samples"),
        (lambda: Halving({}, 9, 9, mode="most"), "min"),
        (lambda: simulate(Halving({"x": uniform(0, 1)}, 9, 9)), "metric="),
        (lambda: simulate(Halving({"x": uniform(0, 1)}, 9, 9, metric="f1")), "'f1'"),
    ],
)
def test_wrong_values(make, words):
    with pytest.raises(ValueError, match=words):
        make()
