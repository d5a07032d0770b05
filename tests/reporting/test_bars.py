"""Bars: their seconds by kind, the order of slots' names, and how they are laid out."""

from itertools import pairwise
from math import fsum

import pytest

from shoal.core.cluster import SlotId
from shoal.core.trial import TrialId
from shoal.engine.journal import Line
from shoal.reporting.charts import CAUSES
from shoal.reporting.gantt import KINDS, Bar, Chart, chart, natural, seconds
from shoal.reporting.slot_charts import Drawn, bar_trace, drawn, even_lanes, high_lanes, stacked

A = SlotId("a")


def bar(start: float, end: float, trial: str, kind: str = "train") -> Bar:
    return Bar(A, start, end, TrialId(trial), kind)


def many(count: int) -> Chart:
    bars = tuple(bar(n, n + (0.9 if n % 2 else 1.0), f"t{n % 5}") for n in range(count))
    return Chart({A: bars}, {A: ((0.0, float(count)),)}, ((0.0, float(count)),))


def test_names_are_sorted_as_people_count_them() -> None:
    assert sorted(["s10", "s2", "a", "s1"], key=natural) == ["a", "s1", "s2", "s10"]


def test_no_bars_take_no_time() -> None:
    assert seconds([]) == dict.fromkeys(KINDS, 0.0)
    assert seconds([Bar(A, 1.0, 3.0, None, "idle")])["idle"] == 2.0


def test_lone_bars_have_the_whole_lane() -> None:
    laid = stacked([bar(0, 1, "x"), bar(1, 2, "y")])
    assert [(item.row, item.rows) for item in laid] == [(0, 1), (0, 1)]


def test_overlapping_bars_share_it_and_a_trial_keeps_its_row() -> None:
    laid = stacked([bar(0, 2, "x"), bar(0, 1, "y"), bar(1, 3, "y"), bar(2, 3, "x"), bar(3, 4, "x")])
    rows = {(item.bar.trial, item.bar.start): (item.row, item.rows) for item in laid}
    assert rows == {
        ("x", 0): (0, 2),
        ("y", 0): (1, 2),
        ("y", 1): (1, 2),
        ("x", 2): (0, 2),
        ("x", 3): (0, 1),
    }


def test_no_two_bars_of_a_row_overlap(packed: list[Line]) -> None:
    last: dict[tuple[str, int, int], float] = {}
    for item in drawn(chart(packed), 1000):
        key = item.bar.slot, item.row, item.rows
        assert item.bar.start >= last.get(key, 0.0)
        last[key] = item.bar.end
    assert {rows for _, _, rows in last} == {1, 2}


def test_few_bars_are_drawn_as_they_are(hopping: list[Line]) -> None:
    found = chart(hopping)
    assert [item.bar for item in drawn(found, 100)] == [
        bar for bars in found.bars.values() for bar in bars
    ]


@pytest.mark.parametrize("limit", [10, 100, 999])
def test_never_more_bars_than_the_limit(limit: int) -> None:
    found = many(1000)
    items = drawn(found, limit)
    assert len(items) <= limit + 1
    assert sum(item.units for item in items) == 1000
    assert fsum(item.bar.end - item.bar.start for item in items) == pytest.approx(950)


def test_bars_drawn_as_one_look_like_most_of_their_time() -> None:
    long = [bar(0, 100, "z")]
    short = [bar(100, 100.2, "x"), bar(100.2, 100.9, "y", "switch"), bar(100.9, 101, "x")]
    found = Chart({A: (*long, *short)}, {A: ((0.0, 101.0),)}, ((0.0, 101.0),))
    first, second = drawn(found, 3)
    assert first == Drawn(long[0], 0, 1)
    assert (second.bar.start, second.bar.trial, second.bar.kind, second.units) == (
        100,
        "y",
        "switch",
        3,
    )
    assert second.bar.end == pytest.approx(101)


def test_bars_apart_do_not_grow_when_drawn_as_one() -> None:
    apart = tuple(bar(n, n + 0.25, "x") for n in range(100))
    items = drawn(Chart({A: apart}, {A: ((0.0, 100.0),)}, ((0.0, 100.0),)), 10)
    assert len(items) <= 10
    assert fsum(item.bar.end - item.bar.start for item in items) == pytest.approx(25)


B = SlotId("b")


def together(width: int, rounds: int = 1) -> list[Drawn]:
    """Groups of so many trials on one slot, one group after the other."""
    bars = [bar(n, n + 1, f"t{n}-{m}") for n in range(rounds) for m in range(width)]
    return stacked(bars)


def test_a_lane_is_as_high_as_what_trains_together() -> None:
    lone = high_lanes([A], together(1))[A]
    few = high_lanes([A], together(4))[A]
    group = high_lanes([A], together(16, rounds=19))[A]
    assert lone.height == 40
    assert few.bars / 4 == group.bars / 16 == 12
    wide = high_lanes([A], together(100))[A]
    assert wide.height < 400 and wide.bars / 100 > 2
    lanes = high_lanes([A, B], together(16))
    assert lanes[B].height == 40
    assert lanes[B].middle - lanes[A].middle == (lanes[A].height + lanes[B].height) / 2
    many = [
        item._replace(bar=item.bar._replace(slot=SlotId(f"s{n}")))
        for n in range(64)
        for item in together(16)
    ]
    whole = high_lanes([SlotId(f"s{n}") for n in range(64)], many)
    assert sum(lane.height for lane in whole.values()) < 2500


def test_no_bar_covers_another_and_none_leaves_its_lane() -> None:
    items = together(16, rounds=3) + [
        item._replace(bar=item.bar._replace(slot=B)) for item in together(5)
    ]
    for lanes in (high_lanes([A, B], items), even_lanes([A, B])):
        trace = bar_trace(CAUSES[0], items, lanes, {}, 1.0)
        places = []
        for y, offset, width, begin, item in zip(
            trace["y"], trace["offset"], trace["width"], trace["base"], items, strict=True
        ):
            lane = lanes[item.bar.slot]
            assert y + offset >= lane.middle - lane.height / 2 - 0.01
            assert y + offset + width <= lane.middle + lane.height / 2 + 0.01
            places.append((begin, y + offset, width))
        for (begin, low, width), (other, above, _) in pairwise(sorted(places)):
            assert other > begin or above >= low + width - 0.01
