"""Who held each slot, when, and where its seconds went: a pure function of a journal's lines, real or simulated."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from shoal.core.cluster import SlotId
from shoal.core.event import Advanced, Ended, Entry, Failed, Fell, Finished, Joined, Left, Opened, Planned, Retired
from shoal.core.plan import Gang, prune
from shoal.core.trial import Seconds, TrialId
from shoal.engine.journal import Line

KINDS = ("train", "evaluate", "save", "data", "switch", "lost", "other", "idle")
"""What a slot's second goes to, the most useful first: the order in which kinds win where lanes share a slot.

`lost`: a unit was under way when its trial failed or was stopped, its slot left, or the run ended. `other`: a gang held
the slot but did not say for what (messages, waiting for its neighbours). `idle`: no gang held it.
"""
ORDER = ("switch", "data", "train", "evaluate", "save")  # of the parts within one report
RECENT = 64  # reports of a slot that are remembered
TICK = 2e-6  # seconds; times in a journal are rounded to half of it

Span = tuple[Seconds, Seconds]


class Bar(NamedTuple):
    """From `start` to `end` the slot was used in this way, for this trial (None: idle)."""

    slot: SlotId
    start: Seconds
    end: Seconds
    trial: TrialId | None
    kind: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What every slot did while it was there.

    `spans`: when each slot was there. `bars`: by slot, in order of start; together they cover its spans exactly,
    and they overlap only where lanes of a pack share the slot. `runs`: begin and end of each run of the study.
    """

    bars: Mapping[SlotId, tuple[Bar, ...]] = field(default_factory=dict)
    spans: Mapping[SlotId, tuple[Span, ...]] = field(default_factory=dict)
    runs: tuple[Span, ...] = ()

    @property
    def start(self) -> Seconds:
        return self.runs[0][0] if self.runs else 0.0

    @property
    def end(self) -> Seconds:
        return self.runs[-1][1] if self.runs else 0.0

    @property
    def shared(self) -> bool:
        """Whether trials shared a slot."""
        return any(later.start < bar.end for bars in self.bars.values() for bar, later in pairwise(bars))


def steady(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines with times that never go back: a run whose clock began anew goes on where the last one ended."""
    last = shift = 0.0
    for time, entry in lines:
        if isinstance(entry, Opened) and time + shift < last:
            shift = last - time
        last = max(last, time + shift)
        yield Line(last, entry)


def chart(lines: Iterable[Line]) -> Chart:
    """Fold a journal into what every slot did.

    A gang holds its slots from its Planned to its end. Within it the time between two reports of a trial is
    divided as the later one says (`Advanced.spent`), its parts in `ORDER` and ending at the report; a report
    that does not say counts as training. What is left before the parts is `other`.
    """
    draft = _Draft()
    for time, entry in steady(lines):
        draft.take(time, entry)
    return draft.done()


def seconds(bars: Sequence[Bar]) -> dict[str, Seconds]:
    """Seconds of one slot by kind; they add up to the time it was there. Where bars overlap, the first of `KINDS` counts."""
    totals = dict.fromkeys(KINDS, 0.0)
    count = dict.fromkeys(KINDS, 0)
    edges = sorted([(bar.start, 1, bar.kind) for bar in bars] + [(bar.end, -1, bar.kind) for bar in bars])
    last = edges[0][0] if edges else 0.0
    for time, change, kind in edges:
        if time > last:
            top = next((k for k in KINDS if count[k]), None)
            if top is not None:
                totals[top] += time - last
            last = time
        count[kind] += change
    return totals


Pair = tuple[SlotId, TrialId]


class _Draft:
    """A chart being made."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs: list[Span] = []
        self.here: dict[SlotId, Seconds] = {}
        self.spans: dict[SlotId, list[Span]] = {}
        self.bars: dict[SlotId, list[Bar]] = {}
        self.gangs: set[Gang] = set()
        self.running: dict[TrialId, Gang] = {}
        self.cursor: dict[Pair, Seconds] = {}  # up to when the time of a running trial at a slot is accounted for
        self.taken: dict[SlotId, deque[Span]] = {}  # what was last reported of a slot
        self.late: dict[TrialId, dict[SlotId, Span]] = {}  # of stopped ones, that and the stop: they may still report
        self.freed: dict[TrialId, list[tuple[SlotId, Span]]] = {}  # likewise, at slots that a trial gave up while it went on

    def take(self, time: Seconds, entry: Entry) -> None:
        if isinstance(entry, Opened):
            self._close_run()
        if isinstance(entry, Opened) or not self.runs:
            self.runs.append((time, time))
        self.now = time
        match entry:
            case Joined(slots):
                for slot in slots:
                    self._join(slot.id)
            case Left(slots):
                self._leave(slots)
            case Planned(stop, start):
                self._swap(stop, start)
            case Ended(gang):
                self._ended(gang, gang.trials)
                self._swap((gang,), ())
            case Finished(trial) if trial in self.running:
                self._ended(self.running[trial], (trial,))
                self._prune(self.running[trial], frozenset((trial,)), frozenset())
            case Failed(trial) | Retired(trial):
                self._prune(self.running.get(trial), frozenset((trial,)), frozenset())
            case Advanced():
                self._advanced(entry)
            case Fell(trial):
                self._account_for(trial, "lost")

    def done(self) -> Chart:
        self._close_run()
        slots = sorted(self.spans, key=natural)
        return Chart(
            {slot: _tiled(slot, self.bars.get(slot, []), self.spans[slot]) for slot in slots},
            {slot: tuple(self.spans[slot]) for slot in slots},
            tuple(self.runs),
        )

    # -- who holds what ------------------------------------------------------------------------------------------------

    def _join(self, slot: SlotId) -> None:
        self.here.setdefault(slot, self.now)
        self.spans.setdefault(slot, [])

    def _leave(self, slots: Iterable[SlotId]) -> None:
        gone = frozenset(slots)
        for gang in [gang for gang in self.gangs if gang.slots & gone]:
            self._prune(gang, frozenset(), gone)
        for trial, places in self.late.items():
            for slot in gone & places.keys():
                self._settle(slot, trial)
        for slot in gone & self.here.keys():
            since = self.here.pop(slot)
            if self.now > since:
                self.spans[slot].append((since, self.now))

    def _prune(self, gang: Gang | None, trials: frozenset[TrialId], slots: frozenset[SlotId]) -> None:
        if gang is not None:
            rest = prune(gang, trials, slots)
            self._swap((gang,), () if rest is None else (rest,))

    def _swap(self, old: Iterable[Gang], new: Iterable[Gang]) -> None:
        gone = [gang for gang in old if gang in self.gangs]
        before, after = _pairs(gone), _pairs(new)
        for gang in gone:
            self.gangs.discard(gang)
            for trial in gang.trials:
                self.running.pop(trial, None)
        for gang in new:
            self.gangs.add(gang)
            self.running.update(dict.fromkeys(gang.trials, gang))
        for slot, trial in before.keys() - after.keys():
            span = self.cursor.pop((slot, trial)), self.now
            if trial in self.running:
                self.freed.setdefault(trial, []).append((slot, span))
            else:
                self.late.setdefault(trial, {})[slot] = span
        for slot, trial in after.keys() - before.keys():
            self._join(slot)  # journals made by hand may not say that it joined
            self._settle(slot, trial)
            self.cursor[slot, trial] = self.now
            self.freed.setdefault(trial, []).extend(self.late.pop(trial, {}).items())

    def _ended(self, gang: Gang, trials: tuple[TrialId, ...]) -> None:
        """They came to their end: nothing of theirs was cut off."""
        for slot, trial in _pairs((gang,)):
            if trial in trials and (slot, trial) in self.cursor:
                self._add(Bar(slot, self.cursor[slot, trial], self.now, trial, "other"))
                self.cursor[slot, trial] = self.now

    def _settle(self, slot: SlotId, trial: TrialId) -> None:
        """It will not report any more: what it did after its last report is lost."""
        begin, end = self.late.get(trial, {}).pop(slot, (0.0, 0.0))
        self._add(Bar(slot, begin, end, trial, "lost"))

    def _account_for(self, trial: TrialId, kind: str) -> None:
        """What the trial did at slots that it gave up, since its last report there: now it is known what it was."""
        for slot, (begin, end) in self.freed.pop(trial, ()):
            self._add(Bar(slot, begin, end, trial, kind))

    def _close_run(self) -> None:
        for trial in tuple(self.freed):
            self._account_for(trial, "lost")
        if self.runs:
            self.runs[-1] = self.runs[-1][0], self.now
            self._swap(tuple(self.gangs), ())
            self._leave(tuple(self.here))

    # -- what was reported ---------------------------------------------------------------------------------------------

    def _advanced(self, entry: Advanced) -> None:
        if not (entry.spent or entry.values or entry.visits):
            return  # how far a unit is: what it took comes with its end
        on: dict[SlotId, list[TrialId]] = {}
        for trial in dict.fromkeys((*entry.samples, *entry.spent)):
            self._account_for(trial, "train")
            for slot in self._slots(trial):
                on.setdefault(slot, []).append(trial)
        for slot, sharing in on.items():
            spent = [sum(entry.spent.get(trial, {}).values()) for trial in sharing]
            room = self.now - min(self._cursor(slot, trial) for trial in sharing)
            in_turn = len(sharing) > 1 and min(spent) > 0 and sum(spent) <= room + TICK
            end = self.now if len(sharing) > 1 else self._free(slot, sharing[0], spent[0])
            for trial in reversed(sharing):
                begin = self._place(slot, trial, entry.spent.get(trial, {}), end)
                end = begin if in_turn else end

    def _free(self, slot: SlotId, trial: TrialId, length: Seconds) -> Seconds:
        """Where the trial's seconds end: lanes that share a slot take turns, though they may report together."""
        end = self.now
        for begin, until in sorted(self.taken.get(slot, ()), reverse=True):
            if until > end - length + TICK and begin < end - TICK:
                end = begin
        return end if length > 0 and end - length >= self._cursor(slot, trial) - TICK else self.now

    def _slots(self, trial: TrialId) -> tuple[SlotId, ...]:
        gang = self.running.get(trial)
        if gang is not None:
            return next(lane.slots for lane in gang.lanes if lane.trial == trial)
        return tuple(slot for slot in self.late.get(trial, ()) if slot in self.here)

    def _cursor(self, slot: SlotId, trial: TrialId) -> Seconds:
        return self.cursor[slot, trial] if trial in self.running else self.late[trial][slot][0]

    def _place(self, slot: SlotId, trial: TrialId, spent: Mapping[str, Seconds], end: Seconds) -> Seconds:
        """Divide the time from the trial's cursor to `end`; returns where its parts begin."""
        start = self._cursor(slot, trial)
        room = end - start
        if room <= 0:
            return end
        parts = _parts(spent) if spent else [("train", room)]
        total = sum(length for _, length in parts)
        full = total > room - TICK
        scale = room / total if full else 1.0
        begin = at = start if full else end - total
        self._add(Bar(slot, start, begin, trial, "other"))
        if spent:
            self.taken.setdefault(slot, deque(maxlen=RECENT)).append((begin, end))
        for number, (kind, length) in enumerate(parts, 1):
            to = end if number == len(parts) else min(end, at + length * scale)
            self._add(Bar(slot, at, to, trial, kind))
            at = to
        self._move(slot, trial, end)
        return begin

    def _move(self, slot: SlotId, trial: TrialId, to: Seconds) -> None:
        if trial in self.running:
            self.cursor[slot, trial] = to
            return
        self.late[trial][slot] = to, max(to, self.late[trial][slot][1])
        for pair, cursor in self.cursor.items():  # who holds the slot now had to wait for it
            if pair[0] == slot:
                self.cursor[pair] = max(cursor, to)

    def _add(self, bar: Bar) -> None:
        if bar.end > bar.start:
            self.bars.setdefault(bar.slot, []).append(bar)


def _pairs(gangs: Iterable[Gang]) -> dict[Pair, None]:
    return {(slot, lane.trial): None for gang in gangs for lane in gang.lanes for slot in lane.slots}


def _parts(spent: Mapping[str, Seconds]) -> list[tuple[str, Seconds]]:
    other = sum(length for kind, length in spent.items() if kind not in ORDER)
    parts = [("other", other), *((kind, spent.get(kind, 0.0)) for kind in ORDER)]
    return [(kind, length) for kind, length in parts if length > 0]


def _tiled(slot: SlotId, bars: list[Bar], spans: Iterable[Span]) -> tuple[Bar, ...]:
    """The bars by start, neighbours of one trial and kind as one, with idle bars where none is."""
    tiled: list[Bar] = []
    newest: dict[TrialId | None, int] = {}  # index of each trial's last bar
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.trial or "", bar.end)):
        at = newest.get(bar.trial)
        if at is not None and tiled[at].end == bar.start and tiled[at].kind == bar.kind:
            tiled[at] = tiled[at]._replace(end=bar.end)
        else:
            newest[bar.trial] = len(tiled)
            tiled.append(bar)
    idle = [Bar(slot, start, end, None, "idle") for start, end in _gaps(tiled, spans)]
    return tuple(sorted([*tiled, *idle], key=lambda bar: (bar.start, bar.trial or "", bar.end)))


def _gaps(bars: Sequence[Bar], spans: Iterable[Span]) -> Iterator[Span]:
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


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts names as people do: slot2 before slot10."""
    pieces = re.findall(r"\d+|\D+", name)
    return tuple((0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces)
