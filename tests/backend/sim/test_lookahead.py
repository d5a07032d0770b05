"""Looking ahead: what runs goes on, and what is too much to simulate is estimated."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simkit import SHARDS, started, trial, view_of

from shoal.backend.sim.lookahead import Ahead, ahead
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Finished, Joined, Opened, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane, solo
from shoal.core.ports import Policy
from shoal.core.state import State, View, view
from shoal.core.trial import Trial, TrialId, Visit
from shoal.core.visits import ValidateEvery
from shoal.policy import Fifo, Hop, Pack
from shoal.profile.table import Row, Table

NEAR = Ahead(0.01, part=inf)
EVALUATED = Table((Row((100.0,), evaluate=0.25),))
TABLE = Table((Row((100.0,), build=0.5, evaluate=0.25, switch=0.125),))


def study(trials: int, slots: int, shards: int, epochs: int, table: Table = TABLE) -> View:
    sizes = {ShardId(f"s{i:03d}"): 100 for i in range(shards)}
    here = tuple(
        Slot(SlotId(f"w{i}"), shards=frozenset(list(sizes)[i::slots])) for i in range(slots)
    )
    many = [
        Trial(TrialId(f"t{i:03d}"), 100.0 * shards * epochs, {"x": i}, shards=frozenset(sizes))
        for i in range(trials)
    ]
    state = fold(State(), [Opened(1, sizes), Joined(here), *map(Submitted, many)])
    return view(state, 0.0, table.of(state.known))


def test_the_seconds_are_of_what_the_objective_says() -> None:
    """Three equal trials on one slot, 100 s each: fifo ends one after the other."""
    state = started(*(trial(f"t{i}", 1000.0) for i in range(3)))
    one = {slot: replace(each, shards=frozenset(SHARDS)) for slot, each in state.slots.items()}
    state = replace(state, slots=dict(list(one.items())[:1]))
    look = view_of(state, Table((Row((10.0,)),)))
    found = {
        objective: Ahead(part=inf, objective=objective)(look, Fifo())  # type: ignore[arg-type]
        for objective in ("makespan", "mean_completion", "first_result")
    }
    assert found == {"makespan": 300.0, "mean_completion": 200.0, "first_result": 100.0}

    state = fold(state, [Advanced({TrialId("t0"): 1000.0}), Finished(TrialId("t0"))])
    then = view_of(state, Table((Row((10.0,)),)))
    first = Ahead(part=inf, objective="first_result")
    assert first(then, Fifo()) == 200.0, "the first result is there: now the end of all"


@pytest.mark.parametrize("objective", ["makespan", "mean_completion", "first_result"])
def test_an_estimate_is_near_by_every_objective(objective: Any) -> None:
    look = study(trials=64, slots=4, shards=4, epochs=20)
    whole = Ahead(inf, part=inf, objective=objective)
    some = Ahead(0.1, part=inf, objective=objective)
    for policy in (Fifo(), Hop()):
        assert some(look, policy) == pytest.approx(whole(look, policy), rel=0.15)


def test_of_many_trials_over_whole_data_few_are_simulated() -> None:
    """At each trial's end a policy looks at all trials: 1000 of them took it five seconds."""
    slots = tuple(Slot(SlotId(f"w{i}")) for i in range(4))
    many = [Trial(TrialId(f"t{i:04d}"), 1000.0) for i in range(1000)]
    state = fold(State(), [Opened(1, {}), Joined(slots), *map(Submitted, many)])
    look = view(state, 0.0, TABLE.of(state.known))
    assert 5.0 < Ahead(inf, part=inf).price(look) < 6.0
    seen: list[int] = []

    class Counting:
        def start(self) -> Any:
            return Fifo().start()

        def decide(self, view: View, memory: Any) -> Any:
            seen.append(len(view.trials))
            return Fifo().decide(view, memory)

    found = Ahead()(look, Counting())
    assert max(seen) <= 300
    assert found == pytest.approx(ahead(look, Fifo()), rel=0.05)


def test_what_runs_goes_on_where_it_runs() -> None:
    """Hopping cannot divide what fifo has begun: two of three trials stay at their slots."""
    state = started(*(trial(f"t{i}", 300.0) for i in range(3)))
    state = replace(state, slots=dict(list(state.slots.items())[:2]))
    table = Table((Row((10.0,)),))
    begun = fold(
        state,
        [Planned((), (solo(TrialId("t0"), SlotId("w0"), 0), solo(TrialId("t1"), SlotId("w1"), 0)))],
    )
    assert ahead(view_of(state, table), Fifo()) == ahead(view_of(begun, table), Fifo()) == 60.0
    whole = {slot: replace(each, shards=frozenset(SHARDS)) for slot, each in state.slots.items()}
    assert ahead(view_of(replace(state, slots=whole), table), Hop()) < 50.0
    assert ahead(view_of(replace(begun, slots=whole), table), Hop()) == 60.0


def test_a_policy_that_gets_stuck_takes_for_ever() -> None:
    look = study(2, 2, 2, 1)
    assert ahead(replace(look, slots=dict(list(look.slots.items())[:1])), Hop()) == inf
    assert Ahead()(replace(look, slots=dict(list(look.slots.items())[:1])), Hop()) == inf


@pytest.mark.parametrize(
    ("trials", "slots", "shards", "epochs"),
    [(3, 2, 2, 90), (10, 4, 4, 25), (45, 4, 4, 2), (67, 4, 8, 1)],
    ids=["epochs", "many-epochs", "both", "trials"],
)
@pytest.mark.parametrize("policy", [Fifo(), Hop()], ids=["fifo", "hop"])
def test_the_estimate_is_near_what_it_would_take(
    trials: int, slots: int, shards: int, epochs: int, policy: object
) -> None:
    look, near = study(trials, slots, shards, epochs), Ahead(0.06)
    assert near.price(look) <= 0.06 < Ahead(inf, inf).price(look)
    assert near(look, policy) == pytest.approx(ahead(look, policy), rel=0.015)  # type: ignore[arg-type]


def test_little_work_is_worth_little_simulating() -> None:
    look = study(16, 2, 4, 1)  # 32 s of work: 0.032 s at most, and all of it would take 0.01 s
    assert Ahead().price(look) == Ahead(inf, inf).price(look) < 0.032
    quick = replace(look, profile=Table((Row((2000.0,)),)).of(look.known))
    assert Ahead().price(quick) == inf
    assert Ahead(part=6e-3).price(quick) < 0.0096


def test_too_much_to_estimate_has_no_price() -> None:
    look = study(40, 16, 16, 1)
    assert Ahead(0.04).price(look) == inf
    with pytest.raises(ValueError, match="too many to simulate"):
        Ahead(0.04)(look, Fifo())


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 15),
    st.integers(0, 3),
    st.data(),
)
def test_the_estimate_of_unlike_trials_under_way_is_not_far_off(
    trials: int, slots: int, shards: int, epochs: int, made: int, data: st.DataObject
) -> None:
    rows = tuple(
        Row((data.draw(st.floats(50.0, 200.0)),), {"x": i}, switch=0.1) for i in range(trials)
    )
    look = study(trials, slots, shards, epochs, Table(rows))
    state = State(
        known=look.known,
        trials=look.trials,
        done=look.done,
        visits=look.visits,
        pending=look.pending,
    )
    state = replace(state, shards=look.shards, slots=look.slots, scores=look.scores)
    first = next(iter(look.trials.values()))
    for number in range(min(made, shards * epochs - 1)):
        shard = sorted(look.shards)[number % shards]
        visit = Visit(number // shards, shard, number // shards, 100)
        state = fold(state, [Advanced({first.id: 100.0}, {}, {first.id: (visit,)})])
    look = view(state, 0.0, look.profile)
    for policy in (Fifo(), Hop()):
        assert NEAR.price(look) == inf or NEAR(look, policy) == pytest.approx(
            ahead(look, policy), rel=0.25
        )


@pytest.mark.parametrize("policy", [Fifo(), Hop(), Pack()], ids=["fifo", "hop", "pack"])
@pytest.mark.parametrize("most", [inf, 0.01], ids=["whole", "estimated"])
def test_trials_whose_end_is_not_yet_an_event_hold_nothing_up(
    policy: Policy[Any], most: float
) -> None:
    """Two of the trials are trained to their end, one of them beside one that is not."""
    look = study(12, 1, 1, 8)
    trials = list(look.trials)
    visits = tuple(Visit(epoch, ShardId("s000"), epoch, 100) for epoch in range(8))
    gang = Gang(tuple(Lane(name, (SlotId("w0"),)) for name in trials[:3]))
    state = fold(
        State(),
        [
            Opened(1, look.shards),
            Joined(tuple(look.slots.values())),
            *map(Submitted, look.trials.values()),
            Planned((), (gang,)),
            Advanced(dict.fromkeys(trials[:2], 800.0), {}, dict.fromkeys(trials[:2], visits)),
        ],
    )
    trained = view(state, 0.0, look.profile)
    finished = fold(state, [Finished(name) for name in trials[:2]])
    then = view(finished, 0.0, look.profile)
    near = Ahead(most, part=inf)
    assert near(trained, policy) == near(then, policy) < inf
    assert ahead(trained, policy) == ahead(then, policy) < inf
    assert near.price(trained) == near.price(then) < inf


def test_evaluations_count_as_often_as_they_are_made() -> None:
    """Four trials on one slot train for 8 s each; an evaluation takes 0.25 s."""
    look = replace(study(4, 1, 1, 8), profile=EVALUATED.of(study(4, 1, 1, 8).known))
    for epochs, times in ((1, 8), (0.5, 16), (4, 2), (8, 1)):
        every = ValidateEvery(epochs)
        seconds = pytest.approx(4 * (8.0 + 0.25 * times))
        assert ahead(look, Fifo(), every=every) == seconds
        assert Ahead(inf, inf, every)(look, Fifo()) == seconds
        assert Ahead(0.002, inf, every)(look, Fifo()) == seconds, "as an estimate"
