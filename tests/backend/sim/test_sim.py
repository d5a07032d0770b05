from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from simkit import SHARDS, alone, kinds, moments, rates, slots, study, trial

from shoal.backend.sim.sim import Sim
from shoal.backend.sim.state import learning_curve
from shoal.backend.sim.units import SimulatedRecipe
from shoal.core.cluster import ShardId, Slot, SlotId, shard_order
from shoal.core.event import (
    Advanced,
    Commanded,
    Ended,
    Evaluated,
    Event,
    Failed,
    Fell,
    Finished,
    Joined,
    Kept,
    Left,
    Measured,
)
from shoal.core.plan import Gang, Lane, solo
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.core.visits import ValidateEvery
from shoal.policy.fifo import Fifo
from shoal.policy.hop.hop import Hop
from shoal.profile.table import Row, Table
from shoal.testing import Setting, World, check_backend, worlds

A, B = TrialId("a"), TrialId("b")
W = [SlotId(f"w{i}") for i in range(3)]
S = list(SHARDS)
CONFIGS = [{"x": 0}, {"x": 1}, {"x": 1}]


def setting(validate_every: int = 1, **options: Any) -> Setting:
    table = Table(
        (
            Row((10.0,), {"x": 0}, build=0.5, save=0.1),
            Row((17.0,), {"x": 1}, evaluate=0.2, switch=0.1),
            Row((5.0,)),
        )
    )

    def make(state: State, since: Seconds) -> Sim:
        def why(trial: Trial, _: int) -> str | None:
            return "ValueError: no such x" if trial.config["x"] == 9 else None

        return Sim(
            table.of,
            slots(SHARDS),
            shards=SHARDS,
            former=(state, since),
            recipe=SimulatedRecipe(fault=why, validate_every=ValidateEvery(validate_every)),
            **options,
        )

    return Setting(
        make,
        SHARDS,
        CONFIGS,
        bad={"x": 9},
        policies=(Fifo(), Hop(), Hop("lrw"), Hop("random")),
        late=20.0,
    )


@pytest.mark.parametrize("every", [0.0, 2.0, 30.0, float("inf")])
def test_contract(every: float) -> None:
    check_backend(setting(checkpoint_every=every))


def test_contract_of_other_evaluation_intervals() -> None:
    check_backend(setting(validate_every=2))


def test_a_unit_charges_what_it_does_and_reports_it_in_order() -> None:
    table = Table((Row((2.0,), build=1.0, first=0.5, evaluate=0.25, save=0.125),))
    found = alone(table, solo(A, W[0], 0, S[0], 10.0), trial("a", 10.0))
    assert [(now, kinds(events)) for now, events in found] == [
        (0.0, ["Joined"]),
        (
            1.5 + 5.0 + 0.25 + 0.125,
            ["Advanced", "Measured", "Evaluated", "Kept", "Ended", "Finished"],
        ),
    ]
    advanced, measured, evaluated, kept, ended, _ = found[1][1]
    assert advanced.samples == {A: 10} and advanced.visits[A][0][:2] == (0, S[0])
    assert advanced.spent == {A: {"switch": 1.5, "train": 5.0, "evaluate": 0.25, "save": 0.125}}
    assert measured.figures["rate"] == 2.0 and measured.figures["build"] == 1.0
    assert evaluated.epoch == pytest.approx(1 / 3) and evaluated.values == learning_curve({}, 1 / 3)
    assert (kept.visits, kept.samples) == (1, 10.0) and ended.gang == solo(A, W[0], 0, S[0], 10.0)


def test_whole_data_follows_shard_order_epoch_after_epoch() -> None:
    found = alone(
        Table((Row((2.0,)),)), solo(A, W[0], 0), trial("a", 60.0), seed=5, checkpoint_every=12.0
    )
    visits = [
        v for _, events in found for e in events if isinstance(e, Advanced) for v in e.visits[A]
    ]
    assert [(v.epoch, v.shard) for v in visits] == [
        (epoch, s) for epoch in (0, 1) for s in shard_order(5, epoch, S)
    ]
    assert [now for now, _ in found] == [5.0 * k for k in range(7)]
    assert [
        (now, e.epoch) for now, events in found for e in events if isinstance(e, Evaluated)
    ] == [(15.0, 1.0), (30.0, 2.0)]
    assert [(now, e.visits) for now, events in found for e in events if isinstance(e, Kept)] == [
        (15.0, 3),
        (30.0, 6),
    ]


def test_training_is_reported_as_sums_with_counts() -> None:
    found = alone(
        Table((Row((2.0,)),)),
        solo(A, W[0], 0),
        trial("a"),
        recipe=SimulatedRecipe(lambda config, epochs: {"loss": 3.0 - epochs}),
    )
    values = [e.values[A]["loss"] for _, events in found for e in events if isinstance(e, Advanced)]
    assert values == [(pytest.approx((3.0 - k / 3) * 10), 10.0) for k in (1, 2, 3)]


def test_moving_costs_a_switch_and_a_new_slot_a_build() -> None:
    table = Table((Row((1.0,), build=2.0, switch=0.5),))
    sim = Sim(table.of, slots(SHARDS), shards=SHARDS)
    units = [
        solo(A, W[0], 0, S[0], 10.0),
        solo(A, W[1], 1, S[1], 10.0),
        solo(A, W[1], 2, S[1], 10.0),
        solo(A, W[0], 3, S[2], 10.0),
    ]
    coming = iter(units)

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            sim.submit(trial("a", 40.0))
        if not any(isinstance(e, Finished) for e in events):
            sim.change(None, next(coming))

    found = moments(sim, act)
    spent = [
        e.spent[A].get("switch", 0.0)
        for _, events in found
        for e in events
        if isinstance(e, Advanced)
    ]
    assert spent == [2.0, 2.5, 0.0, 0.5]


def test_stopping_completes_the_visit_under_way_and_holds_slot_and_trial_until_then() -> None:
    sim = Sim(rates(1.0, 2.0, build=0.5).of, slots(SHARDS), shards=SHARDS)
    gang, other, back = solo(A, W[0], 0), solo(B, W[0], 1), solo(A, W[1], 1)

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            sim.submit(trial("a", x=0))
            sim.submit(trial("b", 10.0, x=1))
            sim.change(None, gang)
            sim.wake(14.0)
        elif now == 14.0:
            sim.change(gang, None)
            sim.change(None, other)
            sim.change(None, back)

    found = moments(sim, act)
    ends = [
        (now, next(iter(e.visits)))
        for now, events in found
        for e in events
        if isinstance(e, Advanced)
    ]
    # a: 0.5 + 10, 10; then b builds in 0.5 and takes 5 s; a builds at its new slot, and makes
    # its last visit
    assert ends == [(10.5, A), (20.5, A), (26.0, B), (31.0, A)]


def test_stopping_between_visits_leaves_nothing_to_complete() -> None:
    sim = Sim(rates(1.0).of, slots(SHARDS), shards=SHARDS)
    gang = solo(A, W[0], 0)

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            sim.submit(trial("a", x=0))
            sim.change(None, gang)
        elif now == 10.0:
            sim.change(gang, None)

    found = moments(sim, act)
    assert [(now, kinds(events)) for now, events in found[2:]] == [(10.0, ["Kept"])]


def test_a_unit_with_a_quota_is_void_when_it_is_stopped() -> None:
    sim = Sim(rates(1.0).of, slots(SHARDS), shards=SHARDS)
    unit = solo(A, W[0], 0, S[0], 10.0)

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            sim.submit(trial("a", x=0))
            sim.change(None, unit)
            sim.wake(4.0)
        elif now == 4.0:
            sim.change(unit, None)

    assert [(now, kinds(events)) for now, events in moments(sim, act)] == [
        (0.0, ["Joined"]),
        (4.0, []),
    ]


def test_what_leaves_may_be_lost_or_fail_and_those_that_wait_go_on() -> None:
    def run(event: Event) -> list[tuple[float, list[str]]]:
        sim = Sim(rates(1.0, 1.0).of, slots(SHARDS), [(7.0, event)], shards=SHARDS)
        gang, wide = (
            solo(A, W[0], 0),
            Gang((Lane(B, (W[0],)), Lane(TrialId("c"), (W[1],))), since=1),
        )

        def act(now: float, events: tuple[Event, ...]) -> None:
            if now == 0:
                for name, x in (("a", 0), ("b", 1), ("c", 1)):
                    sim.submit(trial(name, 10.0, x=x))
                sim.change(None, gang)
                sim.wake(5.0)
            elif now == 5.0:
                sim.change(gang, None)
                sim.change(None, wide)

        return [(now, kinds(events)) for now, events in moments(sim, act)[2:]]

    ends = ["Advanced", "Evaluated", "Kept", "Finished"]
    # the slot takes a's visit and b's place along; c was to begin with b, and begins
    assert run(Left(frozenset({W[0]}))) == [
        (7.0, ["Left"]),
        (17.0, ["Advanced", "Measured", *ends[1:]]),
    ]
    # a fails: both begin; after six steps it is known how fast they are
    assert [now for now, _ in run(Failed(A, "gone"))] == [7.0, 13.0, 17.0]


def test_a_change_of_an_ended_gang_does_nothing() -> None:
    sim = Sim(rates(1.0).of, slots(SHARDS), shards=SHARDS)
    unit, other = solo(A, W[0], 0, S[0], 10.0), solo(A, W[1], 1, S[1], 10.0)

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            sim.submit(trial("a", 20.0, x=0))
            sim.change(None, unit)
        elif now == 10.0:
            sim.change(None, other)
            sim.change(unit, None)

    assert [now for now, _ in moments(sim, act)] == [0.0, 10.0, 20.0]


def test_a_lost_slot_brings_back_the_durable_state_of_all_that_lay_there() -> None:
    sim = Sim(
        rates(1.0, 1.0).of,
        slots(SHARDS),
        [(25.0, Left(frozenset({W[0]}), died=True))],
        shards=SHARDS,
        checkpoint_every=15.0,
    )

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            sim.submit(trial("a", x=0))
            sim.submit(trial("b", x=1))
            sim.change(None, solo(A, W[0], 0, S[0], 10.0))
        if now == 10.0:
            sim.change(None, solo(B, W[0], 1, S[0], 10.0))

    found = moments(sim, act)
    assert found[3][1] == (Left(frozenset({W[0]}), died=True), Fell(A, 0, 0.0), Fell(B, 0, 0.0))
    sim = Sim(
        rates(1.0, 1.0).of,
        slots(SHARDS),
        [(25.0, Left(frozenset({W[0]})))],
        shards=SHARDS,
        checkpoint_every=8.0,
    )
    found = moments(sim, act)
    assert found[3][1] == (Left(frozenset({W[0]})),), "what is durable does not fall"


def test_at_the_end_what_is_only_in_memory_is_kept() -> None:
    lines, state = study(Fifo(), rates(1.0), count=1, deadline=12.0)
    kept = [(time, entry.visits) for time, entry in lines if isinstance(entry, Kept)]
    assert kept == [(20.0, 2)] and state.stopped == "timeout", "the visit under way is completed"


def test_script_and_told_events() -> None:
    sim = Sim(
        rates(1.0).of,
        [],
        [(5.0, Joined((Slot(W[0]),))), (7.0, Commanded("x")), (9.0, Failed(A, "gone"))],
        shards=SHARDS,
    )

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            sim.submit(trial("a", x=0))
        if kinds(events) == ["Joined"]:
            sim.change(None, solo(A, W[0], 0))
            sim.tell(Commanded("stop"))

    found = [(now, kinds(events)) for now, events in moments(sim, act)]
    assert found == [
        (0.0, []),
        (5.0, ["Joined"]),
        (5.0, ["Commanded"]),
        (7.0, ["Commanded"]),
        (9.0, ["Failed"]),
    ]


def test_wake_is_a_moment() -> None:
    sim = Sim(rates(1.0).of, slots(SHARDS), shards=SHARDS)
    found = moments(sim, lambda now, events: sim.wake(now + 3 if now < 6 else None))
    assert [now for now, _ in found] == [0.0, 3.0, 6.0]


def test_a_study_whose_trials_are_done_ends_before_its_script() -> None:
    script: list[tuple[float, Event]] = [(1e6, Left(frozenset({W[0]})))]
    lines, _ = study(Fifo(), rates(1.0), count=1, script=script)
    assert max(time for time, _ in lines) == 30.0


def test_a_resumed_study_goes_on_at_its_time_and_place() -> None:
    lines, _ = study(Fifo(), rates(1.0), count=1, epochs=2, deadline=25.0)
    more, state = study(Fifo(), rates(1.0), count=1, epochs=2, former=lines)
    assert [time for time, e in more if isinstance(e, Finished)] == [30.0 + 30.0]
    assert len(state.visits[TrialId("t000")]) == 6
    told = [name for _, e in more if isinstance(e, Measured) for name in e.figures]
    assert sorted(told) == ["evaluate", "memory", "rate", "save", "step", "switch"], (
        "known figures are not measured again"
    )


def test_faults() -> None:
    fault = lambda t, visits: "diverged" if t.config["x"] == 1 and visits == 2 else None  # noqa: E731
    _, state = study(Hop(), rates(1.0, 1.0, 1.0), count=3, recipe=SimulatedRecipe(fault=fault))
    assert state.ended == {"t000": "finished", "t001": "failed: diverged", "t002": "finished"}
    assert len(state.visits[TrialId("t001")]) == 2


@settings(max_examples=30, deadline=None)
@given(worlds())
def test_a_slot_is_never_busy_longer_than_there_is_time(world: World) -> None:
    """What units say they spent adds up to the time between their start and their end."""
    lines, _, _ = world.run(Hop())
    starts: dict[Gang, float] = {}
    spent: dict[TrialId, float] = {}  # two gangs may end at the same moment
    for time, entry in lines:
        for gang in getattr(entry, "start", ()):
            starts[gang] = time
        if isinstance(entry, Advanced):
            spent.update({trial: sum(parts.values()) for trial, parts in entry.spent.items()})
        if isinstance(entry, Ended):
            whole = sum(spent[lane.trial] for lane in entry.gang.lanes)
            assert time - starts[entry.gang] == pytest.approx(whole, abs=1e-6)


def test_the_made_up_curve_is_smooth_and_depends_on_the_configuration() -> None:
    curves = [[learning_curve({"x": x}, e / 4)["accuracy"] for e in range(40)] for x in range(5)]
    for curve in curves:
        assert all(0 <= a <= b <= 1 and b - a < 0.3 for a, b in pairwise(curve))
    assert len({curve[-1] for curve in curves}) == 5


def test_shards_of_unlike_size() -> None:
    shards = {ShardId("s0"): 5, ShardId("s1"): 20}
    _, state = study(Hop(), rates(1.0), shards=shards, count=1, epochs=2)
    assert state.done[TrialId("t000")] == 50.0
    assert {(v.shard, v.samples) for v in state.visits[TrialId("t000")]} == {("s0", 5), ("s1", 20)}
