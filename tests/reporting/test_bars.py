"""Bars: their seconds by kind, and the order of slots' names."""

from shoal.core.cluster import SlotId
from shoal.reporting.gantt import KINDS, Bar, natural, seconds

A = SlotId("a")


def test_names_are_sorted_as_people_count_them() -> None:
    assert sorted(["s10", "s2", "a", "s1"], key=natural) == ["a", "s1", "s2", "s10"]


def test_no_bars_take_no_time() -> None:
    assert seconds([]) == dict.fromkeys(KINDS, 0.0)
    assert seconds([Bar(A, 1.0, 3.0, None, "idle")])["idle"] == 2.0
