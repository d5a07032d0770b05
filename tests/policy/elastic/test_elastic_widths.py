"""Exploring, water-fill, flotillas and rounds on the simulator: lists of (time, widths)."""

import pytest
from asks import ask, counts
from hypothesis import given
from hypothesis import strategies as st
from small_studies import follow, nodes, seen, simulated, state, table, trial, widths_over_time

from shoal.core.event import Finished
from shoal.policy.reference.baselines import Rounds
from shoal.policy.width.doubling import Doubling
from shoal.policy.width.explore import Explore
from shoal.policy.width.flotilla import Flotilla
from shoal.policy.width.waterfill import WaterFill, level
from shoal.profile.table import Row, Table

RISING = (10.0, 18.0, 24.0, 30.0, 34.0, 38.0, 42.0, 45.0)


def test_a_new_trial_explores_each_width_and_then_gets_what_it_is_worth() -> None:
    lines = simulated(Explore(seconds=40.0), [(0.0, trial(0, 3000.0))], nodes(8), table(RISING))
    assert widths_over_time(lines) == [
        (0.0, {"t0": 1}),
        (10.0, {"t0": 2}),
        (20.0, {"t0": 4}),
        (30.0, {"t0": 8}),
    ]
    kept = simulated(
        Explore(seconds=40.0),
        [(0.0, trial(0, 3000.0))],
        nodes(8),
        table((10.0, 18.0, 18.0, 15.0, 9.0, 9.0, 9.0, 9.0)),
    )
    assert widths_over_time(kept)[-1] == (40.0, {"t0": 2})  # seen to be best, whatever was believed


def test_explorers_hold_their_slots_and_others_share_the_rest() -> None:
    lines = simulated(
        Explore(seconds=40.0, most=4),
        [(0.0, trial(0, 1e4)), (100.0, trial(1, 1e4))],
        nodes(8),
        table(RISING),
    )
    assert (100.0, {"t1": 1}) in widths_over_time(lines)
    assert all(sum(now.values()) <= 8 for _, now in widths_over_time(lines))


def test_doubling_on_the_simulator() -> None:
    lines = simulated(
        Doubling(),
        [(0.0, trial(0, 600.0)), (5.0, trial(1, 600.0))],
        nodes(8),
        table(RISING, switch=1.0),
    )
    assert widths_over_time(lines)[:2] == [(0.0, {"t0": 8}), (5.0, {"t0": 4, "t1": 4})]


def test_water_fill_evens_out_the_ends() -> None:
    linear = {w: float(w) for w in range(1, 9)}
    assert counts(level([ask(0, 60, linear), ask(1, 20, linear)], 8), 2) == (6, 2)
    assert counts(level([ask(0, 60, linear), ask(1, 20, linear)], 2), 2) == (1, 1)


def test_water_fill_never_gives_a_slot_that_slows_down() -> None:
    peak = {1: 1.0, 2: 1.8, 3: 1.7, 4: 1.6, 5: 1.9, 6: 1.5}
    assert counts(level([ask(0, 10, peak)], 4), 1) == (2,)
    assert counts(level([ask(0, 10, peak)], 8), 1) == (5,)


@given(
    st.lists(
        st.tuples(st.floats(1, 100), st.lists(st.floats(0.5, 9), min_size=5, max_size=5)),
        min_size=1,
        max_size=4,
    ),
    st.integers(4, 9),
)
def test_no_other_widths_end_earlier(
    trials: list[tuple[float, list[float]]], capacity: int
) -> None:
    wanting = [ask(i, left, dict(enumerate(rates, 1))) for i, (left, rates) in enumerate(trials)]
    found = level(wanting, capacity)
    assert sum(found.values()) <= capacity

    def last(widths: tuple[int, ...]) -> float:
        return max(a.seconds(w - 1) for a, w in zip(wanting, widths, strict=True))

    def options(n: int, room: int) -> list[tuple[int, ...]]:
        return (
            [()]
            if n == 0
            else [
                (w, *rest) for w in range(1, min(5, room) + 1) for rest in options(n - 1, room - w)
            ]
        )

    best = min(last(o) for o in options(len(wanting), capacity) if sum(o) <= capacity)
    assert last(counts(found, len(wanting))) == pytest.approx(best)


def test_water_fill_moves_nobody_for_little() -> None:
    known = state([trial(0, 1000.0), trial(1, 1000.0)], nodes(4))
    for switch, moved in ((1.0, True), (50.0, False)):
        profile = table((10.0, 20.0, 30.0, 40.0), switch=switch)
        start = WaterFill().decide(seen(known, profile), None)[0]
        then = follow(known, start, Finished(trial(1, 1.0).id))
        after = WaterFill().decide(seen(then, profile), None)[0]
        assert (after.gangs != then.plan.gangs) is moved


def test_water_fill_weighs_what_a_rescale_costs_not_what_a_start_costs() -> None:
    known = state([trial(0, 1000.0), trial(1, 1000.0)], nodes(4))
    for up, moved in ((1.0, True), (50.0, False)):
        profile = Table(
            (Row((10.0, 20.0, 30.0, 40.0), switch=50.0 if moved else 1.0, up=up, down=0.0),)
        )
        start = WaterFill().decide(seen(known, profile), None)[0]
        then = follow(known, start, Finished(trial(1, 1.0).id))
        assert (WaterFill().decide(seen(then, profile), None)[0].gangs != then.plan.gangs) is moved


def test_more_trials_than_slots_are_not_turned_out() -> None:
    lines = simulated(
        WaterFill(), [(0.0, trial(i, 100.0 * (i + 1))) for i in range(4)], nodes(2), table((10.0,))
    )
    assert widths_over_time(lines) == [
        (0.0, {"t3": 1, "t2": 1}),
        (30.0, {"t1": 1}),
        (40.0, {"t0": 1}),
    ]


def test_a_new_flotilla_when_few_slots_are_busy() -> None:
    speeds = (
        (100.0, 190.0, 280.0, 360.0),
        (50.0, 98.0, 140.0, 180.0),
        (100.0, 190.0, 280.0, 360.0),
    )
    lines = simulated(
        Flotilla(delta=10.0),
        [(0.0, trial(i, 1000.0 * (i + 1))) for i in range(3)],
        nodes(4),
        table(*speeds),
    )
    first, second = widths_over_time(lines)[:2]
    assert first == (0.0, {"t0": 1, "t2": 1, "t1": 2})
    assert second[1] == {"t1": 3}, "t2 goes on where it is"


def test_a_local_flotilla_stops_nobody() -> None:
    lines = simulated(
        Flotilla("local"),
        [(0.0, trial(i, 500.0 * (i + 1), (1, 2))) for i in range(5)],
        nodes(4),
        table(RISING),
    )
    started = [t for _, now in widths_over_time(lines) for t in now]
    assert sorted(started) == ["t0", "t1", "t2", "t3", "t4"]


def test_rounds_wait_for_their_slowest() -> None:
    lines = simulated(
        Rounds(seed=3),
        [(0.0, trial(i, 100.0 * (i + 1))) for i in range(4)],
        nodes(2),
        table((10.0,)),
    )
    (_, first), (second_at, second) = widths_over_time(lines)
    assert first.keys() | second.keys() == {"t0", "t1", "t2", "t3"}
    slowest = max(int(t[1:]) for t in first)
    assert second_at >= 10.0 * (slowest + 1) - 1e-9
