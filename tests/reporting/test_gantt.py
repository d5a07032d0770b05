"""What every slot did, second by second."""

from collections.abc import Iterable
from math import fsum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import (
    Advanced,
    Ended,
    Entry,
    Event,
    Fell,
    Finished,
    Joined,
    Left,
    Opened,
    Planned,
)
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Journal, Line
from shoal.engine.run import Stalled, reopened, run
from shoal.policy.fifo import Fifo
from shoal.policy.hop.hop import Hop
from shoal.profile.table import Row, Table
from shoal.reporting.gantt import KINDS, Chart, chart, seconds
from shoal.search.grid import Grid
from shoal.search.space import grid


def told(found: Chart, slot: str) -> list[tuple[float, float, str | None, str]]:
    return [(bar.start, bar.end, bar.trial, bar.kind) for bar in found.bars[SlotId(slot)]]


def check_cover(found: Chart, overlaps: bool = False) -> None:
    """A slot's bars cover its spans exactly, and no others; without packs they do not overlap."""
    for slot, bars in found.bars.items():
        covered: list[list[float]] = []
        for bar in bars:
            assert bar.slot == slot
            assert bar.kind in KINDS
            assert bar.end > bar.start
            assert (bar.trial is None) == (bar.kind == "idle")
            assert overlaps or not covered or bar.start >= covered[-1][1]
            if covered and bar.start <= covered[-1][1]:
                covered[-1][1] = max(covered[-1][1], bar.end)
            else:
                covered.append([bar.start, bar.end])
        joined: list[list[float]] = []
        for start, end in found.spans[slot]:
            if joined and joined[-1][1] == start:
                joined[-1][1] = end
            else:
                joined.append([start, end])
        assert covered == joined
        whole = fsum(end - start for start, end in found.spans[slot])
        assert fsum(seconds(bars).values()) == pytest.approx(whole, abs=1e-9)


def test_the_parts_of_a_report_come_in_order_and_end_at_it(hopping: list[Line]) -> None:
    found = chart(hopping)
    check_cover(found)
    assert told(found, "a") == [
        (0.0, 0.5, "x", "switch"),
        (0.5, 2.0, "x", "train"),
        (2.0, 3.0, None, "idle"),
        (3.0, 4.0, "y", "other"),
        (4.0, 4.5, "y", "switch"),
        (4.5, 5.0, "y", "data"),
        (5.0, 6.0, "y", "train"),
    ]
    assert told(found, "b") == [
        (0.0, 3.0, "y", "train"),
        (3.0, 3.25, "x", "other"),
        (3.25, 4.25, "x", "train"),
        (4.25, 4.75, "x", "evaluate"),
        (4.75, 5.0, "x", "save"),
        (5.0, 6.0, None, "idle"),
    ]
    assert found.runs == ((0.0, 6.0),)


def test_a_run_that_was_cut_voids_its_gangs_and_ends_with_its_last_line(killed: list[Line]) -> None:
    found = chart(killed)
    check_cover(found)
    assert told(found, "a") == [
        (0.0, 3.5, "x", "train"),
        (3.5, 3.75, "x", "lost"),
        (4.0, 7.0, "x", "train"),
    ]
    assert found.runs == ((0.0, 3.75), (4.0, 7.0))
    assert found.spans == {"a": ((0.0, 3.75), (4.0, 7.0))}


def test_a_clock_that_begins_anew_goes_on_where_the_last_run_ended(killed: list[Line]) -> None:
    again = [line for line in killed if line.time < 4.0]
    again += [Line(line.time - 4.0, line.entry) for line in killed if line.time >= 4.0]
    assert chart(again).runs == ((0.0, 3.75), (3.75, 6.75))
    check_cover(chart(again))


def test_wide_lanes_fill_all_their_slots_and_packs_overlap(packed: list[Line]) -> None:
    found = chart(packed)
    check_cover(found, overlaps=True)
    assert told(found, "b") == [(0.0, 4.0, "w", "train"), (4.0, 6.0, None, "idle")]
    assert told(found, "a")[0] == (0.0, 4.0, "w", "train")
    mine = {
        trial: [bar[:2] + bar[3:] for bar in told(found, "a") if bar[2] == trial] for trial in "xy"
    }
    assert mine["x"] == [
        (4.0, 4.5, "train"),
        (4.5, 5.0, "other"),
        (5.0, 7.5, "train"),
        (7.5, 8.0, "evaluate"),
    ]
    assert mine["y"] == [(4.0, 4.5, "other"), (4.5, 6.5, "train"), (6.5, 7.0, "lost")]


def test_where_lanes_overlap_the_most_useful_kind_counts(packed: list[Line]) -> None:
    totals = seconds(chart(packed).bars[SlotId("a")])
    assert {kind: value for kind, value in totals.items() if value} == {
        "train": 7.5,
        "evaluate": 0.5,
    }


def line_of(*timed: tuple[float, Entry]) -> list[Line]:
    slot = Slot(SlotId("a"))
    return [
        Line(0.0, Opened(1, {})),
        Line(0.0, Joined((slot,))),
        *(Line(time, entry) for time, entry in timed),
    ]


X, Y, A = TrialId("x"), TrialId("y"), SlotId("a")
GANG_X, GANG_Y = Gang((Lane(X, (A,)),), since=1), Gang((Lane(Y, (A,)),), since=2)


def test_a_report_that_claims_more_than_its_interval_is_scaled_to_it() -> None:
    found = chart(
        line_of(
            (0.0, Planned((), (GANG_X,))),
            (2.0, Advanced({X: 1.0}, spent={X: {"train": 3.0, "save": 1.0}})),
        )
    )
    assert told(found, "a") == [(0.0, 1.5, "x", "train"), (1.5, 2.0, "x", "save")]


def test_a_report_that_does_not_say_counts_as_training() -> None:
    found = chart(
        line_of(
            (1.0, Planned((), (GANG_X,))),
            (2.0, Advanced({X: 1.0}, {X: {"loss": (1.0, 1.0)}})),
            (2.0, Finished(X)),
        )
    )
    assert told(found, "a") == [(0.0, 1.0, None, "idle"), (1.0, 2.0, "x", "train")]


def test_how_far_a_unit_is_divides_nothing() -> None:
    """The time of the unit is told with its end."""
    end = Advanced({X: 1.0}, spent={X: {"data": 1.0, "train": 2.0}})
    lines = ((0.0, Planned((), (GANG_X,))), (2.0, Advanced({X: 1.0})), (3.0, end))
    assert told(chart(line_of(*lines)), "a") == [(0.0, 1.0, "x", "data"), (1.0, 3.0, "x", "train")]


def test_causes_that_are_not_known_are_other() -> None:
    found = chart(
        line_of(
            (0.0, Planned((), (GANG_X,))),
            (2.0, Advanced({X: 1.0}, spent={X: {"train": 1.0, "lunch": 1.0}})),
        )
    )
    assert told(found, "a") == [(0.0, 1.0, "x", "other"), (1.0, 2.0, "x", "train")]


def test_a_stopped_gang_may_still_report_and_its_successor_waits() -> None:
    found = chart(
        line_of(
            (0.0, Planned((), (GANG_X,))),
            (1.0, Advanced({X: 1.0}, spent={X: {"train": 1.0}})),
            (1.5, Planned((GANG_X,), (GANG_Y,))),
            (2.0, Advanced({X: 1.0}, spent={X: {"train": 1.0}})),
            (3.0, Advanced({Y: 1.0}, spent={Y: {"train": 1.0}})),
            (3.0, Finished(Y)),
        )
    )
    check_cover(found)
    assert told(found, "a") == [(0.0, 2.0, "x", "train"), (2.0, 3.0, "y", "train")]


def test_a_slot_that_a_trial_gave_up_counts_with_the_trials_next_report() -> None:
    wide = Gang((Lane(X, (A, SlotId("b"))),), since=1)
    narrow = Gang((Lane(X, (A,)),), since=2)
    lines = [
        (0.0, Planned((), (wide,))),
        (1.0, Planned((wide,), (narrow,))),
        (1.5, Planned((narrow,), ())),
        (2.0, Advanced({X: 1.0}, spent={X: {"train": 2.0}})),
        (4.0, Planned((), (narrow,))),
        (5.0, Planned((narrow,), ())),
    ]
    reported = chart(line_of(*lines, (6.0, Advanced({X: 1.0}, spent={X: {"train": 2.0}}))))
    check_cover(reported)
    assert told(reported, "a") == [
        (0.0, 2.0, "x", "train"),
        (2.0, 4.0, None, "idle"),
        (4.0, 6.0, "x", "train"),
    ]
    assert told(reported, "b") == [(0.0, 1.0, "x", "train"), (1.0, 6.0, None, "idle")]
    void = chart(line_of(*lines[:2], (3.0, Fell(X, 0, 0.0))))
    assert told(void, "b")[0] == (0.0, 1.0, "x", "lost")


def test_what_a_stopped_gang_never_reports_is_lost() -> None:
    found = chart(
        line_of(
            (0.0, Planned((), (GANG_X,))),
            (1.0, Planned((GANG_X,), ())),
            (2.0, Left(frozenset({A}))),
        )
    )
    assert told(found, "a") == [(0.0, 1.0, "x", "lost"), (1.0, 2.0, None, "idle")]


def test_a_trial_that_stays_at_its_slot_keeps_what_it_has_not_reported_yet() -> None:
    wider = Gang((Lane(X, (A, SlotId("b"))),), since=2)
    found = chart(
        line_of(
            (0.0, Planned((), (GANG_X,))),
            (1.0, Planned((GANG_X,), (wider,))),
            (3.0, Advanced({X: 1.0}, spent={X: {"train": 3.0}})),
            (3.0, Finished(X)),
        )
    )
    check_cover(found)
    assert told(found, "a") == [(0.0, 3.0, "x", "train")]
    assert told(found, "b") == [(1.0, 3.0, "x", "train")]


def test_a_gang_that_holds_its_slot_and_says_nothing_is_not_idle() -> None:
    found = chart(line_of((0.0, Planned((), (GANG_X,))), (2.0, Ended(GANG_X)), (3.0, Finished(X))))
    assert told(found, "a") == [(0.0, 2.0, "x", "other"), (2.0, 3.0, None, "idle")]


def test_neighbours_of_one_trial_and_kind_are_one_bar() -> None:
    chunks = [(float(n), Advanced({X: 1.0}, spent={X: {"train": 1.0}})) for n in range(1, 50)]
    assert told(chart(line_of((0.0, Planned((), (GANG_X,))), *chunks)), "a") == [
        (0.0, 49.0, "x", "train")
    ]


def test_slots_come_in_the_order_people_count_them(hopping: list[Line]) -> None:
    assert list(chart(hopping).bars) == ["a", "b"]


# -- simulated studies
# ----------------------------------------------------------------------------------------------


def simulated(
    slots: int, shards: int, hop: bool, script: Iterable[tuple[float, Event]] = (), **more: Any
) -> list[Line]:
    sizes = {ShardId(f"d{n}"): 100 + n for n in range(shards)}
    there = [Slot(SlotId(f"s{n}"), shards=frozenset(sizes)) for n in range(slots)]
    table = Table(
        (Row(rates=(80.0,), build=0.25, evaluate=0.125, save=0.0625, switch=0.5, first=1.0),)
    )
    journal = Journal()
    entries = reopened(State(), sizes, {"metric": "accuracy", "mode": "max"})
    for entry in entries:
        journal.append(0.0, entry)
    searcher = Grid({"lr": grid([0.1, 0.2, 0.3])}, max_epochs=2)
    sim = Sim(table.of, there, script, shards=sizes, **more)
    run(searcher, Hop() if hop else Fifo(), sim, table.believe, journal, fold(State(), entries))
    return journal.lines


@pytest.mark.parametrize("hop", [False, True])
def test_a_simulated_study_is_covered_and_its_seconds_are_those_it_reports(hop: bool) -> None:
    lines = simulated(2, 2, hop)
    found = chart(lines)
    check_cover(found)
    reported = dict.fromkeys(KINDS, 0.0)
    for _, entry in lines:
        for parts in entry.spent.values() if isinstance(entry, Advanced) else ():
            for cause, length in parts.items():
                reported[cause] += length
    drawn = dict.fromkeys(KINDS, 0.0)
    for bars in found.bars.values():
        for kind, length in seconds(bars).items():
            drawn[kind] += length
    for kind in ("train", "evaluate", "save", "switch", "data"):
        assert drawn[kind] == pytest.approx(reported[kind], abs=1e-4), kind
    assert drawn["other"] == pytest.approx(0.0, abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    slots=st.integers(1, 3),
    shards=st.integers(1, 3),
    hop=st.booleans(),
    leaves=st.floats(0.5, 8.0),
    back=st.floats(0.25, 4.0),
    died=st.booleans(),
    every=st.sampled_from([0.0, 2.0, 30.0]),
)
def test_slots_that_come_and_go_are_covered(
    slots: int, shards: int, hop: bool, leaves: float, back: float, died: bool, every: float
) -> None:
    gone = Slot(SlotId("s0"), shards=frozenset(ShardId(f"d{n}") for n in range(shards)))
    script: list[tuple[float, Event]] = [
        (leaves, Left(frozenset({gone.id}), died)),
        (leaves + back, Joined((gone,))),
    ]
    try:
        lines = simulated(slots, shards, hop, script, checkpoint_every=every)
    except Stalled:
        return
    found = chart(lines)
    check_cover(found)
    assert found.end == max(line.time for line in lines)


def test_trials_of_undivided_data_are_drawn_too() -> None:
    gang = Gang((Lane(X, (A,)),), since=1)
    whole = Trial(X, 10.0)
    assert not whole.shards
    found = chart(
        line_of(
            (0.0, Planned((), (gang,))),
            (5.0, Advanced({X: 10.0}, spent={X: {"train": 5.0}})),
            (5.0, Finished(X)),
        )
    )
    assert told(found, "a") == [(0.0, 5.0, "x", "train")]


def test_lanes_of_a_slot_that_report_together_took_turns() -> None:
    """A fused pack shares its seconds among its lanes, whose reports come one right after the
    other.
    """
    lanes = tuple(Lane(TrialId(name), (SlotId("a"),)) for name in "xyz")
    reports = [
        (3.0, Advanced({TrialId(name): 1.0}, spent={TrialId(name): {"train": 1.0}}))
        for name in "xyz"
    ]
    found = chart(
        line_of((0.0, Joined((Slot(SlotId("a")),))), (0.0, Planned((), (Gang(lanes),))), *reports)
    )
    check_cover(found, overlaps=True)
    trained = [(bar.start, bar.end, bar.trial) for bar in found.bars["a"] if bar.kind == "train"]
    assert trained == [(0.0, 1.0, "z"), (1.0, 2.0, "y"), (2.0, 3.0, "x")]
    assert seconds(found.bars["a"])["train"] == 3.0


def test_a_report_of_no_seconds_right_after_the_start_is_drawn() -> None:
    """There is nothing to divide, and less time than what a journal rounds away."""
    gang = Gang((Lane(X, (A,)),), since=1)
    found = chart(
        line_of(
            (0.0, Planned((), (gang,))),
            (1e-6, Advanced({X: 10.0}, spent={X: {"train": 0.0}})),
            (1.0, Advanced({X: 10.0}, spent={X: {"train": 0.5}})),
            (1.0, Finished(X)),
        )
    )
    assert (0.5, 1.0, "x", "train") in told(found, "a")
