"""Beam insertion for an open shop: one trial after the other goes into the gaps that are left.

Ours.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from shoal.core.trial import Seconds
from shoal.policy.hop.shop import EPS, ShopSchedule, ShopUnit

Busy = list[tuple[Seconds, Seconds]]  # of one slot: (end, start), sorted
Row = Sequence[Seconds]  # one trial's, at each slot


class Path(NamedTuple):
    """A trial's first visits.

    `waits`: seconds that it waited. `free`: when it is free again. `seen`: the slots visited, as
    bits. `places`: (slot, start) of each visit.
    """

    waits: Seconds
    free: Seconds
    seen: int
    places: tuple[tuple[int, Seconds], ...]


NOWHERE = Path(0.0, 0.0, 0, ())
NEVER = Path(inf, inf, 0, ())


def insertion(times: Sequence[Row], beam: int = 8) -> ShopSchedule:
    """One epoch, the longest trials first; `times[i][j]`: seconds of trial i at slot j.

    A trial's way through the slots is searched breadth first, keeping the `beam` partial ways that
    waited least. Each visit takes the earliest gap that is long enough. The last trials to be
    placed find small gaps for their small units.
    """
    busy: list[Busy] = [[] for _ in times[0]]
    units: list[ShopUnit] = []
    for trial in _longest_first(times):
        path = _way(times[trial], busy, beam)
        for slot, start in path.places:
            end = start + times[trial][slot]
            insort(busy[slot], (end, start))
            units.append(ShopUnit(start, end, trial, slot, slot))
    return ShopSchedule(tuple(sorted(units)))


def _longest_first(times: Sequence[Row]) -> list[int]:
    """The trials, those with the most seconds in all first."""
    return sorted(range(len(times)), key=lambda i: (-sum(times[i]), i))


def _way(row: Row, busy: Sequence[Busy], beam: int) -> Path:
    """A short way of one trial through all slots."""
    paths = [NOWHERE]
    for _ in row:
        best = _best_by_slots(_longer(paths, row, busy))
        best.sort(key=lambda path: (path.waits, -path.free))
        paths = best[:beam]
    return min(paths, key=lambda path: path.free)


def _best_by_slots(paths: Iterable[Path]) -> list[Path]:
    """Of the paths through the same slots the best one."""
    best: dict[int, Path] = {}
    for path in paths:
        if path < best.get(path.seen, NEVER):
            best[path.seen] = path
    return list(best.values())


def _longer(paths: Iterable[Path], row: Row, busy: Sequence[Busy]) -> Iterator[Path]:
    """The paths, each with one visit more to any slot not seen yet."""
    for path in paths:
        for slot, seconds in enumerate(row):
            if path.seen >> slot & 1:
                continue
            start = _gap(busy[slot], path.free, seconds)
            waits = path.waits + start - path.free
            seen = path.seen | 1 << slot
            places = (*path.places, (slot, start))
            yield Path(waits, start + seconds, seen, places)


def _gap(busy: Busy, after: Seconds, seconds: Seconds) -> Seconds:
    """The earliest start, not before `after`, of so many seconds in which the slot is free."""
    start = after
    first = bisect_right(busy, (after + EPS, inf))
    for end, begin in busy[first:]:
        if begin - start >= seconds - EPS:
            break
        start = max(start, end)
    return start
