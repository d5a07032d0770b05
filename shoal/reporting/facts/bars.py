"""What a slot's time went to, as bars: the values that a Gantt chart is made of."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from shoal.core.cluster import SlotId
from shoal.core.trial import Seconds, TrialId

KINDS = ("train", "evaluate", "save", "data", "switch", "lost", "other", "idle")
"""What a slot's second goes to, the most useful first.

Where lanes share a slot, the kind that stands first here counts.

- lost: a unit was under way when its trial failed or was stopped, its slot left, or the run ended.
- other: a gang held the slot but did not say for what (messages, waiting for its neighbours).
- idle: no gang held the slot.
"""

Span = tuple[Seconds, Seconds]  # from when to when


class Bar(NamedTuple):
    """From `start` to `end` the slot was used in this way, for this trial (None: idle).

    `why`: what an idle slot waited for, as far as somebody looked.
    """

    slot: SlotId
    start: Seconds
    end: Seconds
    trial: TrialId | None
    kind: str
    why: str = ""


Bars = tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """What every slot did while it was there.

    `spans`: when each slot was there. `bars`: by slot, in order of start; together they cover its
    spans exactly, and they overlap only where lanes of a pack share the slot. `runs`: begin and
    end of each run of the study.
    """

    bars: Mapping[SlotId, Bars] = field(default_factory=dict)
    spans: Mapping[SlotId, tuple[Span, ...]] = field(default_factory=dict)
    runs: tuple[Span, ...] = ()

    @property
    def start(self) -> Seconds:
        """When the first run began."""
        if not self.runs:
            return 0.0
        return self.runs[0][0]

    @property
    def end(self) -> Seconds:
        """When the last run ended."""
        if not self.runs:
            return 0.0
        return self.runs[-1][1]

    @property
    def shared(self) -> bool:
        """Whether trials shared a slot."""
        return any(map(_overlap, self.bars.values()))


def _overlap(bars: Bars) -> bool:
    """Whether two of a slot's bars overlap."""
    return any(later.start < bar.end for bar, later in pairwise(bars))


# -- seconds by kind -------------------------------------------------------------------------------


def seconds(bars: Sequence[Bar]) -> dict[str, Seconds]:
    """Seconds of one slot by kind; they add up to the time it was there.

    Where bars overlap, the first of `KINDS` counts.
    """
    totals = dict.fromkeys(KINDS, 0.0)
    count = dict.fromkeys(KINDS, 0)  # bars of each kind at the moment
    last = 0.0
    for time, change, kind in _edges(bars):
        if time > last:
            top = _first(count)
            if top is not None:
                totals[top] += time - last
            last = time
        count[kind] += change
    return totals


def waiting(use: Mapping[SlotId, Mapping[str, Seconds]]) -> dict[SlotId, Seconds]:
    """Seconds that each slot waited: idle, or held by a gang that did not say for what."""
    return {slot: by["idle"] + by["other"] for slot, by in use.items()}


def _edges(bars: Sequence[Bar]) -> list[tuple[Seconds, int, str]]:
    """The begin (1) and the end (-1) of each bar, with its kind, by time."""
    edges = []
    for _, start, end, _, kind, _ in bars:
        edges.append((start, 1, kind))
        edges.append((end, -1, kind))
    return sorted(edges)


def _first(count: Mapping[str, int]) -> str | None:
    """The kind that counts: the most useful of those that are there."""
    for kind in KINDS:
        if count[kind]:
            return kind
    return None


# -- bars without gaps -----------------------------------------------------------------------------


def tiled(slot: SlotId, bars: Iterable[Bar], spans: Iterable[Span]) -> Bars:
    """The slot's bars by start, with idle bars where none is while the slot was there.

    Neighbours of one trial and kind become one bar.
    """
    joined = _joined(sorted(bars, key=_order))
    idle = [Bar(slot, start, end, None, "idle") for start, end in _gaps(joined, spans)]
    return tuple(sorted([*joined, *idle], key=_order))


def _order(bar: Bar) -> tuple[Seconds, str, Seconds]:
    """By start, idle bars before those of trials."""
    return bar.start, bar.trial or "", bar.end


def _joined(bars: Iterable[Bar]) -> list[Bar]:
    """The bars, neighbours of one trial and kind as one. `bars`: by start."""
    joined: list[Bar] = []
    newest: dict[TrialId | None, int] = {}  # index of each trial's last bar
    for bar in bars:
        at = newest.get(bar.trial)
        if at is not None:
            last = joined[at]
            if last.end == bar.start and last.kind == bar.kind:
                joined[at] = last._replace(end=bar.end)
                continue
        newest[bar.trial] = len(joined)
        joined.append(bar)
    return joined


def _gaps(bars: Iterable[Bar], spans: Iterable[Span]) -> Iterator[Span]:
    """When the slot was there without a bar. Both are in order of time."""
    rest = iter(bars)
    bar = next(rest, None)
    for start, end in spans:
        at = start
        while bar is not None and bar.start < end:
            if bar.start > at:
                yield at, bar.start
            at = max(at, bar.end)
            bar = next(rest, None)
        if end > at:
            yield at, end


# -- names -----------------------------------------------------------------------------------------


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts names as people do: slot2 before slot10."""
    return tuple(map(_piece, re.findall(r"\d+|\D+", name)))


def _piece(text: str) -> tuple[int, int, str]:
    """Numbers before the rest, by size."""
    if text.isdecimal():
        return 0, int(text), ""
    return 1, 0, text
