"""What slots report of costs in virtual time: when, of what, and how wrong."""

from dataclasses import replace
from typing import Any

import pytest
from simkit import SHARDS, moments, trial

from shoal.backend.sim.meter import Measuring, signature_of
from shoal.backend.sim.sim import Sim
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Ended, Event, Failed, Finished, Left, Measured
from shoal.core.plan import Gang, Lane, solo
from shoal.core.trial import Trial, TrialId
from shoal.profile.pack import Packing
from shoal.profile.table import Row, Table

A, B = TrialId("a"), TrialId("b")
W = [SlotId(f"w{i}") for i in range(3)]


def told(
    rows: tuple[Row, ...],
    changes: dict[float, tuple[Gang | None, Gang | None]],
    *trials: Trial,
    memory: float = 16.0,
    **options: Any,
) -> list[tuple[float, Event]]:
    """What is measured, and which gangs end, where gangs change at these times."""
    slots = [Slot(name, memory=memory, shards=frozenset(SHARDS)) for name in W]
    sim = Sim(Table(rows).of, slots, shards=SHARDS, **options)
    due = sorted(changes)

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            for each in trials:
                sim.submit(each)
        while due and due[0] <= now:
            sim.change(*changes[due.pop(0)])
        sim.wake(due[0] if due else None)

    found = moments(sim, act)
    return [
        (now, event)
        for now, events in found
        for event in events
        if isinstance(event, (Measured, Ended))
    ]


def measured(found: list[tuple[float, Event]]) -> list[tuple[float, TrialId, Any]]:
    """When figures were told, of whom, and which."""
    return [
        (now, event.trial, dict(event.figures))
        for now, event in found
        if isinstance(event, Measured) and event.figures
    ]


def test_nothing_is_known_before_the_first_unit_is_over() -> None:
    row = Row((2.0,), build=1.0, evaluate=0.25, save=0.5, memory=3.0)
    found = measured(told((row,), {0.0: (None, solo(A, W[0], 0))}, trial("a", 10.0)))
    figures = {"rate": 2.0, "step": 0.5, "memory": 3.0, "build": 1.0}
    assert found == [(6.75, A, figures | {"evaluate": 0.25, "save": 0.5})]


def test_a_hop_is_told_by_whom_it_brought() -> None:
    first, second, *_ = SHARDS
    there = solo(A, W[0], 0, first, 10.0)
    here = solo(A, W[1], 1, second, 10.0)
    changes = {0.0: (None, there), 5.0: (None, here)}
    found = measured(told((Row((2.0,), switch=0.5),), changes, trial("a", 20.0)))
    assert [figures.get("switch") for _, _, figures in found] == [None, 0.5]


def test_nobody_is_asked_amid_a_unit_that_tells_nothing_new() -> None:
    """One moment amid the first unit, and none amid those of the trial that is like it."""
    sim = Sim(Table((Row((2.0, 4.0)),)).of, [Slot(W[0])])
    first, second = (replace(trial(name, 20.0), widths=(1, 2)) for name in "ab")

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            sim.submit(first)
            sim.submit(second)
            sim.change(None, solo(A, W[0], 0))
        if any(event == Finished(A) for event in events):
            sim.change(None, solo(B, W[0], 1))

    assert [now for now, _ in moments(sim, act)] == [0.0, 3.0, 10.0, 20.0]


def test_of_a_wide_lane_the_rate_at_its_width_is_known_after_six_steps() -> None:
    """And not what it would do alone, which nobody has seen."""
    wide = Gang((Lane(A, (W[0], W[1])),))
    row = Row((1.0, 2.0), up=0.5)
    more = Gang((Lane(A, tuple(W)),), since=1)
    changes = {0.0: (None, wide), 4.0: (wide, more)}
    found = measured(told((row,), changes, trial("a", 10.0)))
    assert found[0] == (3.0, A, {"rate@2": 2.0})
    late = {name for _, _, figures in found[1:] for name in figures}
    assert {"rate@3", "up"} <= late and "rate" not in late | {*found[0][2]}


def test_what_a_change_of_width_took_is_told_amid_a_unit_though_the_rate_is_known() -> None:
    narrow, wide = solo(A, W[0], 0), Gang((Lane(A, (W[0], W[1])),), since=1)
    again = replace(narrow, since=2)
    changes = {0.0: (None, narrow), 8.0: (narrow, wide), 16.0: (wide, again)}
    row = Row((1.0, 2.0), up=0.5, down=0.25)
    found = measured(told((row,), changes, replace(trial("a", 60.0), widths=(1, 2))))
    told_down = [now for now, _, figures in found if "down" in figures]
    assert told_down == [22.25]


def test_fused_steps_are_told_where_they_save_time() -> None:
    lanes = (Lane(A, (W[0],)), Lane(B, (W[0],)))
    pack = Gang(lanes, fused=True)
    changes: Any = {0.0: (None, pack), 1.0: (None, pack)}  # the first time they are tried
    gaining = Row((100.0,), packing=Packing.shared(0.5, 100.0, 10))
    both = trial("a", 10.0, batch_size=10), trial("b", 10.0, batch_size=10)
    ((_, _, figures),) = measured(told((gaining,), changes, *both))
    assert 1.0 < figures["fused:2"] / figures["step"] < 2.0
    ((_, _, figures),) = measured(told((Row((100.0,)),), changes, *both))
    assert figures["unfusable"] == 1.0 and "fused:2" not in figures


def test_who_has_no_room_together_is_told_before_it_trains() -> None:
    pack = Gang((Lane(A, (W[0],)), Lane(B, (W[0],))), fused=True)
    row = Row((2.0,), memory=6.0, build=1.0)
    both = trial("a", 10.0), trial("b", 10.0)
    found = told((row,), {0.0: (None, pack)}, *both, memory=10.0)
    assert measured(found) == [(1.5, A, {"memory": 6.0})]
    assert found[-1] == (1.5, Ended(pack))


def test_a_pack_with_a_kind_that_nobody_has_measured_is_not_begun() -> None:
    """A step of each kind is tried, and told; the same pack begins the next time."""
    lanes = (Lane(A, (W[0],)), Lane(B, (W[0],)))
    pack, rows = Gang(lanes), (Row((10.0,), {"x": 0}), Row((1.0,), {"x": 1}))
    both = trial("a", 10.0, x=0), trial("b", 10.0, x=1)
    changes: Any = {0.0: (None, pack), 9.0: (None, pack)}
    found = told(rows, changes, *both, measuring=Measuring(tries=True))
    assert measured(found)[:2] == [
        (pytest.approx(0.4 + 4.0), A, {"memory": 0.0, "rate": 10.0, "step": 0.1}),
        (pytest.approx(0.4 + 4.0), B, {"memory": 0.0, "rate": 1.0, "step": 1.0}),
    ]
    ended = [now for now, event in found if isinstance(event, Ended)]
    assert ended == [pytest.approx(4.4)]
    assert found[-1][0] > 9.0, "it began"


@pytest.mark.parametrize("lost", [True, False])
def test_a_pack_that_is_tried_shrinks_as_any_gang(lost: bool) -> None:
    """Its slot leaves, or one of its trials fails, before what was tried is told."""
    pack = Gang((Lane(A, (W[0],)), Lane(B, (W[0],))))
    rows = (Row((10.0,), {"x": 0}), Row((1.0,), {"x": 1}))
    both = trial("a", 10.0, x=0), trial("b", 10.0, x=1)
    happens = Left(frozenset({W[0]})) if lost else Failed(A, "gone")
    found = told(
        rows, {0.0: (None, pack)}, *both, script=[(1.0, happens)], measuring=Measuring(tries=True)
    )
    assert [trial for _, trial, _ in measured(found)] == ([] if lost else [B])
    ended = [event.gang for _, event in found if isinstance(event, Ended)]
    assert ended == ([] if lost else [solo(B, W[0], 0)])


def test_who_has_room_is_told_with_the_first_unit() -> None:
    """To learn that took a step of a model of each kind, which is thrown away."""
    pack = Gang((Lane(A, (W[0],)), Lane(B, (W[0],))), fused=True)
    row = Row((2.0,), memory=6.0)
    both = trial("a", 10.0), trial("b", 10.0)
    ((now, _, figures), *_) = measured(told((row,), {0.0: (None, pack)}, *both))
    assert now == 10.5 and figures["memory"] == 6.0


def test_errors_have_a_bound_and_a_seed() -> None:
    row = Row((100.0, 180.0), {}, build=1.0, memory=2.0)
    wide = Gang((Lane(A, (W[0], W[1])),))
    alone = solo(A, W[0], 0)
    rates = set()
    for seed in range(20):
        measuring = Measuring(0.15, seed)

        def figures(gang: Gang, how: Measuring = measuring) -> dict[str, float]:
            found = told((row,), {0.0: (None, gang)}, trial("a", 10.0), measuring=how)
            return {k: v for _, _, each in measured(found) for k, v in each.items()}

        one, two = figures(alone), figures(wide)
        assert one == figures(alone), "a seed gives the same errors"
        assert abs(one["rate"] / 100.0 - 1) <= 0.15 and one["memory"] == 2.0
        assert one["step"] == pytest.approx(1 / one["rate"])
        gain = two["rate@2"] / one["rate"]
        assert 1.8**0.85 <= gain <= 1.8**1.15, "more slots are believed to gain"
        rates.add(one["rate"])
    assert len(rates) == 20


def test_another_truth_counts_at_once() -> None:
    sim = Sim(Table((Row((1.0,)),)).of, [Slot(W[0])], shards={"s": 10})  # type: ignore[dict-item]

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            sim.submit(trial("a", 10.0, shards=("s",)))  # type: ignore[arg-type]
            sim.change(None, solo(A, W[0], 0))
            sim.wake(4.0)
        elif now == 4.0:
            sim.truth = Table((Row((3.0,)),)).of(sim.known)

    assert moments(sim, act)[-1][0] == 6.0


def test_another_truth_leaves_the_pace_of_a_joint_gang_to_its_largest_shard() -> None:
    sizes: Any = {"s": 10, "t": 30}
    joint = Gang((Lane(A, (W[0], W[1])),), tuple(sizes), joint=True)
    table = Table((Row((1.0, 2.0)),))
    sim = Sim(table.of, [Slot(W[0]), Slot(W[1])], shards=sizes)

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            sim.submit(trial("a", 40.0, shards=sizes))
            sim.change(None, joint)
            sim.wake(4.0)
        elif now == 4.0:
            sim.truth = table.of(sim.known)  # the same one

    assert moments(sim, act)[-1][0] == 30.0


def test_what_changes_only_what_is_learnt_makes_no_kind() -> None:
    quick, slow = trial("a", lr=0.1, width=32), trial("b", lr=0.2, width=32)
    assert signature_of(quick) == signature_of(slow)
    assert signature_of(quick) != signature_of(trial("c", lr=0.1, width=64))
