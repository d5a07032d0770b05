"""Beam insertion for an open shop: one trial after the other into the gaps that are left. Ours."""

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from shoal.core.trial import Seconds
from shoal.policy.shop import EPS, Schedule, Unit

Busy = list[tuple[Seconds, Seconds]]  # of one slot: (end, start), sorted


class Path(NamedTuple):
    """A trial's first visits: seconds it waited, when it is free, the slots seen (as bits), and (slot, start) of each."""

    waits: Seconds
    free: Seconds
    seen: int
    places: tuple[tuple[int, Seconds], ...]


def insertion(times: Sequence[Sequence[Seconds]], beam: int = 8) -> Schedule:
    """One epoch, the longest trials first; `times[i][j]`: seconds of trial i at slot j.

    A trial's way through the slots is searched breadth first, keeping the `beam` partial ways that waited least; each
    visit takes the earliest gap that is long enough. The last to be placed find small gaps for their small units.
    """
    slots = len(times[0])
    busy: list[Busy] = [[] for _ in range(slots)]
    units = []
    for trial in sorted(range(len(times)), key=lambda i: (-sum(times[i]), i)):
        for slot, start in _way(times[trial], busy, beam).places:
            end = start + times[trial][slot]
            insort(busy[slot], (end, start))
            units.append(Unit(start, end, trial, slot, slot))
    return Schedule(tuple(sorted(units)))


def _way(row: Sequence[Seconds], busy: Sequence[Busy], beam: int) -> Path:
    paths = [Path(0.0, 0.0, 0, ())]
    for _ in row:
        best: dict[int, Path] = {}
        for path in _longer(paths, row, busy):
            if path < best.get(path.seen, _NEVER):
                best[path.seen] = path
        paths = sorted(best.values(), key=lambda p: (p.waits, -p.free))[:beam]
    return min(paths, key=lambda p: p.free)


_NEVER = Path(inf, inf, 0, ())


def _longer(paths: Iterable[Path], row: Sequence[Seconds], busy: Sequence[Busy]) -> Iterator[Path]:
    for path in paths:
        for slot, seconds in enumerate(row):
            if not path.seen >> slot & 1:
                start = _gap(busy[slot], path.free, seconds)
                waits = path.waits + start - path.free
                yield Path(waits, start + seconds, path.seen | 1 << slot, (*path.places, (slot, start)))


def _gap(busy: Busy, after: Seconds, seconds: Seconds) -> Seconds:
    """The earliest start, not before `after`, of so many seconds in which the slot is free."""
    start = after
    for end, begin in busy[bisect_right(busy, (after + EPS, inf)) :]:
        if begin - start >= seconds - EPS:
            break
        start = max(start, end)
    return start
