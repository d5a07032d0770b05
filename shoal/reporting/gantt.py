"""Who held each slot, when, and where its seconds went: a Gantt chart's bars as values.

Pure functions of a journal's lines, real or simulated. `Drawing` folds who holds which slot,
`Timeline` what trials report of their time there, `Bar` and `Chart` are what comes of it.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from shoal.core.cluster import SlotId
from shoal.core.event import (
    Advanced,
    Ended,
    Entry,
    Failed,
    Fell,
    Finished,
    Joined,
    Left,
    Opened,
    Planned,
    Retired,
)
from shoal.core.plan import Gang, prune
from shoal.core.trial import Seconds, TrialId
from shoal.engine.journal import Line

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
        pairs = (pair for bars in self.bars.values() for pair in pairwise(bars))
        return any(later.start < bar.end for bar, later in pairs)


# -- seconds by kind -------------------------------------------------------------------------------


def seconds(bars: Sequence[Bar]) -> dict[str, Seconds]:
    """Seconds of one slot by kind; they add up to the time it was there.

    Where bars overlap, the first of `KINDS` counts.
    """
    totals = dict.fromkeys(KINDS, 0.0)
    count = dict.fromkeys(KINDS, 0)  # bars of each kind at the moment
    last = 0.0
    edges = [(bar.start, 1, bar.kind) for bar in bars]
    edges += [(bar.end, -1, bar.kind) for bar in bars]
    for time, change, kind in sorted(edges):
        if time > last:
            top = next((each for each in KINDS if count[each]), None)
            if top is not None:
                totals[top] += time - last
            last = time
        count[kind] += change
    return totals


def waiting(use: Mapping[SlotId, Mapping[str, Seconds]]) -> dict[SlotId, Seconds]:
    """Seconds that each slot waited: idle, or held by a gang that did not say for what."""
    return {slot: by["idle"] + by["other"] for slot, by in use.items()}


# -- bars without gaps -----------------------------------------------------------------------------


def tiled(slot: SlotId, bars: Iterable[Bar], spans: Iterable[Span]) -> Bars:
    """The slot's bars by start, with idle bars where none is while the slot was there.

    Neighbours of one trial and kind become one bar.
    """
    joined = _joined(sorted(bars, key=_order))
    idle = [Bar(slot, start, end, None, "idle") for start, end in _gaps(joined, spans)]
    return tuple(sorted([*joined, *idle], key=_order))


def _order(bar: Bar) -> tuple[Seconds, str, Seconds]:
    """The key that sorts bars by start, idle ones before those of trials."""
    return bar.start, bar.trial or "", bar.end


def _joined(bars: Iterable[Bar]) -> list[Bar]:
    """The bars, neighbours of one trial and kind as one. `bars`: by start."""
    joined: list[Bar] = []
    newest: dict[TrialId | None, int] = {}  # index of each trial's last bar
    for bar in bars:
        index = newest.get(bar.trial)
        if index is not None:
            last = joined[index]
            if last.end == bar.start and last.kind == bar.kind:
                joined[index] = last._replace(end=bar.end)
                continue
        newest[bar.trial] = len(joined)
        joined.append(bar)
    return joined


def _gaps(bars: Iterable[Bar], spans: Iterable[Span]) -> Iterator[Span]:
    """When the slot was there without a bar. Bars and spans are in order of time."""
    rest = iter(bars)
    bar = next(rest, None)
    for start, end in spans:
        covered = start
        while bar is not None and bar.start < end:
            if bar.start > covered:
                yield covered, bar.start
            covered = max(covered, bar.end)
            bar = next(rest, None)
        if end > covered:
            yield covered, end


# -- names -----------------------------------------------------------------------------------------


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts names as people do: slot2 before slot10."""
    return tuple(map(_piece, re.findall(r"\d+|\D+", name)))


def _piece(text: str) -> tuple[int, int, str]:
    """The key of a piece of a name: numbers come before the rest, by size."""
    if text.isdecimal():
        return 0, int(text), ""
    return 1, 0, text


ORDER = ("switch", "data", "train", "evaluate", "save")  # of the parts of one report
RECENT = 64  # reports of a slot that are remembered
TICK = 2e-6  # seconds; times in a journal are rounded to half of it

Pair = tuple[SlotId, TrialId]
Spent = Mapping[str, Seconds]  # by cause
Parts = list[tuple[str, Seconds]]


class Timeline:
    """The bars of all slots, as far as they are known.

    A trial that gave up a slot may still report of it: only then is it known what it did there
    since its last report. If it does not, that time is lost.
    """

    def __init__(self) -> None:
        self.bars: dict[SlotId, list[Bar]] = {}  # in any order
        # Up to when the time of a running trial at a slot is accounted for.
        self._cursor: dict[Pair, Seconds] = {}
        # What was last reported of a slot.
        self._reported: dict[SlotId, deque[Span]] = {}
        # The cursor and the stop of trials that were stopped: they may still report.
        self._late: dict[TrialId, dict[SlotId, Span]] = {}
        # Likewise, at slots that a trial gave up while it went on.
        self._freed: dict[TrialId, list[tuple[SlotId, Span]]] = {}

    def copy(self) -> "Timeline":
        """An independent copy, which may go on otherwise."""
        copy = Timeline()
        copy.bars = {slot: [*bars] for slot, bars in self.bars.items()}
        copy._cursor = {**self._cursor}
        copy._reported = {slot: spans.copy() for slot, spans in self._reported.items()}
        copy._late = {trial: {**places} for trial, places in self._late.items()}
        copy._freed = {trial: [*places] for trial, places in self._freed.items()}
        return copy

    # -- a trial comes and goes --------------------------------------------------------------------

    def take_up(self, slot: SlotId, trial: TrialId, now: Seconds) -> None:
        """The trial begins at the slot."""
        self.settle(slot, trial)
        self._cursor[slot, trial] = now
        stopped = self._late.pop(trial, {})
        self._freed.setdefault(trial, []).extend(stopped.items())

    def give_up(self, slot: SlotId, trial: TrialId, now: Seconds, goes_on: bool) -> None:
        """The trial leaves the slot; `goes_on`: it runs at others."""
        # A forged journal may say that a trial stops where it did not begin.
        span = self._cursor.pop((slot, trial), now), now
        if goes_on:
            self._freed.setdefault(trial, []).append((slot, span))
        else:
            self._late.setdefault(trial, {})[slot] = span

    def come_to_end(self, slot: SlotId, trial: TrialId, now: Seconds) -> None:
        """The trial comes to its end at the slot: nothing is cut off."""
        pair = slot, trial
        if pair in self._cursor:
            self._add(slot, self._cursor[pair], now, trial, "other")
            self._cursor[pair] = now

    # -- what will not be reported any more --------------------------------------------------------

    def late_slots(self, trial: TrialId) -> Iterable[SlotId]:
        """The slots at which a trial was stopped that may still report."""
        return self._late.get(trial, ())

    def settle(self, slot: SlotId, trial: TrialId) -> None:
        """What a stopped trial did at the slot after its last report is lost."""
        places = self._late.get(trial, {})
        span = places.pop(slot, None)
        if span is not None:
            self._add(slot, *span, trial, "lost")

    def settle_all(self, slots: frozenset[SlotId]) -> None:
        """What trials that were stopped at these slots did after their last reports is lost."""
        for trial, places in self._late.items():
            for slot in slots & places.keys():
                self.settle(slot, trial)

    def account_for(self, trial: TrialId, kind: str) -> None:
        """Count as `kind` the time since the trial's last report at slots that it gave up."""
        for slot, span in self._freed.pop(trial, ()):
            self._add(slot, *span, trial, kind)

    def cut_off(self) -> None:
        """What trials did at slots that they gave up is lost, for the run is over."""
        for trial in tuple(self._freed):
            self.account_for(trial, "lost")

    # -- what was reported -------------------------------------------------------------------------

    def report(self, slot: SlotId, trial: TrialId, spent: Spent, now: Seconds) -> None:
        """The trial alone reports of the slot."""
        end = self._free(slot, trial, sum(spent.values()), now)
        self._place(slot, trial, spent, end)

    def report_together(
        self, slot: SlotId, trials: Sequence[TrialId], spent: Mapping[TrialId, Spent], now: Seconds
    ) -> None:
        """Several trials report of the slot: one after another, if their seconds allow it."""
        lengths = [sum(spent.get(trial, {}).values()) for trial in trials]
        room = now - min(self._accounted(slot, trial) for trial in trials)
        in_turn = min(lengths) > 0 and sum(lengths) <= room + TICK

        end = now
        for trial in reversed(trials):
            begin = self._place(slot, trial, spent.get(trial, {}), end)
            if in_turn:
                end = begin

    def _free(self, slot: SlotId, trial: TrialId, length: Seconds, now: Seconds) -> Seconds:
        """When the seconds end that the trial reports.

        Lanes that share a slot take turns, though they may report together.
        """
        if length <= 0:
            return now
        end = now
        for begin, until in sorted(self._reported.get(slot, ()), reverse=True):
            if until > end - length + TICK and begin < end - TICK:
                end = begin
        if end - length < self._accounted(slot, trial) - TICK:
            return now
        return end

    def _accounted(self, slot: SlotId, trial: TrialId) -> Seconds:
        """Up to when the trial's time at the slot is accounted for."""
        running = self._cursor.get((slot, trial))
        if running is not None:
            return running
        return self._late[trial][slot][0]

    def _place(self, slot: SlotId, trial: TrialId, spent: Spent, end: Seconds) -> Seconds:
        """Divide the time from what is accounted for to `end`; returns where its parts begin."""
        start = self._accounted(slot, trial)
        room = end - start
        if room <= 0:
            return end
        if not spent:
            self._add(slot, start, end, trial, "train")
            self._move(slot, trial, end)
            return start

        parts = _parts(spent)
        total = sum(length for _, length in parts)
        begin = end - total
        if parts and total > room - TICK:  # they fill it, or there is too little for them
            begin = start
            parts = [(kind, length * (room / total)) for kind, length in parts]

        self._add(slot, start, begin, trial, "other")
        self._add_parts(slot, trial, parts, (begin, end))
        self._reported.setdefault(slot, deque(maxlen=RECENT)).append((begin, end))
        self._move(slot, trial, end)
        return begin

    def _add_parts(self, slot: SlotId, trial: TrialId, parts: Parts, span: Span) -> None:
        """Add a bar for each part of a report, one after another."""
        begin, end = span
        for number, (kind, length) in enumerate(parts, 1):
            to = min(end, begin + length)
            if number == len(parts):
                to = end
            self._add(slot, begin, to, trial, kind)
            begin = to

    def _move(self, slot: SlotId, trial: TrialId, to: Seconds) -> None:
        """The trial's time at the slot is accounted for up to `to`."""
        if (slot, trial) in self._cursor:
            self._cursor[slot, trial] = to
            return

        places = self._late[trial]
        stop = places[slot][1]
        places[slot] = to, max(to, stop)
        for pair, cursor in self._cursor.items():
            if pair[0] == slot:  # who holds the slot now had to wait for it
                self._cursor[pair] = max(cursor, to)

    def _add(self, slot: SlotId, start: Seconds, end: Seconds, trial: TrialId, kind: str) -> None:
        """Add a bar, if it has a length."""
        if end > start:
            bar = Bar(slot, start, end, trial, kind)
            self.bars.setdefault(slot, []).append(bar)


def _parts(spent: Spent) -> Parts:
    """What the seconds of a report went to, in the order in which they are drawn."""
    other = sum(length for kind, length in spent.items() if kind not in ORDER)
    parts = [("other", other), *((kind, spent.get(kind, 0.0)) for kind in ORDER)]
    return [part for part in parts if part[1] > 0]


Trials = frozenset[TrialId]
Slots = frozenset[SlotId]


class SteadyClock:
    """Gives lines times that never go back, also where they come in several parts."""

    def __init__(self) -> None:
        self._last: Seconds = 0.0
        self._shift: Seconds = 0.0

    def steady(self, lines: Iterable[Line]) -> Iterator[Line]:
        """The lines that come next.

        A run whose clock began anew goes on where the last run ended.
        """
        for line in lines:
            time = line.time
            if isinstance(line.entry, Opened) and time + self._shift < self._last:
                self._shift = self._last - time
            self._last = max(self._last, time + self._shift)
            if self._last == time:
                yield line
            else:
                yield Line(self._last, line.entry)


def chart(lines: Iterable[Line]) -> Chart:
    """Fold a journal into what every slot did.

    A gang holds its slots from its Planned to its end. Within it the time between two reports of a
    trial is divided as the later one says (`Advanced.spent`). Its parts stand in the order of
    `ORDER` and end at the report; what is left before them is `other`. A report that does
    not say what it took counts as training.
    """
    draft = Drawing()
    for time, entry in SteadyClock().steady(lines):
        draft.take(time, entry)
    return draft.done()


class Drawing:
    """A chart being made: who holds which slot. `take` wants times that never go back."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs: list[Span] = []
        self.here: dict[SlotId, Seconds] = {}  # since when each slot is there
        self.spans: dict[SlotId, list[Span]] = {}
        self.gangs: set[Gang] = set()
        self.running: dict[TrialId, Gang] = {}
        self.busy: set[SlotId] = set()  # of the gangs
        self.times = Timeline()

    def take(self, time: Seconds, entry: Entry) -> None:
        """Go on by one line of the journal."""
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
                self._drop(trial)
            case Failed(trial) | Retired(trial):
                self._drop(trial)
            case Advanced():
                self._advanced(entry)
            case Fell(trial):
                self.times.account_for(trial, "lost")

    def so_far(self, goes_on: bool) -> Chart:
        """The chart up to now; more lines may be taken afterwards.

        `goes_on`: the last run is under way, so that what its trials did since their last reports
        counts as held instead of lost.
        """
        draft = Drawing()
        draft.now = self.now
        draft.runs = [*self.runs]
        draft.here = {**self.here}
        draft.spans = {slot: [*spans] for slot, spans in self.spans.items()}
        draft.gangs = {*self.gangs}
        draft.running = {**self.running}
        draft.busy = {*self.busy}
        draft.times = self.times.copy()
        if goes_on:
            for gang in self.gangs:
                draft._ended(gang, gang.trials)
        return draft.done()

    def done(self) -> Chart:
        """The whole chart. The drawing must not be used afterwards."""
        self._close_run()
        bars = {}
        spans = {}
        for slot in sorted(self.spans, key=natural):
            spans[slot] = tuple(self.spans[slot])
            bars[slot] = tiled(slot, self.times.bars.get(slot, ()), spans[slot])
        return Chart(bars, spans, tuple(self.runs))

    @property
    def some_idle(self) -> bool:
        """Whether some slot has no gang now."""
        return len(self.busy) < len(self.here)

    # -- runs and slots ----------------------------------------------------------------------------

    def _close_run(self) -> None:
        """What is under way is cut off, and all slots leave."""
        self.times.cut_off()
        if not self.runs:
            return

        begin, _ = self.runs[-1]
        self.runs[-1] = begin, self.now
        self._swap(tuple(self.gangs), ())
        self._leave(tuple(self.here))

    def _join(self, slot: SlotId) -> None:
        """The slot is there from now on."""
        self.here.setdefault(slot, self.now)
        self.spans.setdefault(slot, [])

    def _leave(self, slots: Iterable[SlotId]) -> None:
        """Slots left, and what ran there is cut off."""
        gone = frozenset(slots)
        for gang in [gang for gang in self.gangs if gang.slots & gone]:
            self._prune(gang, frozenset(), gone)
        self.times.settle_all(gone)

        for slot in gone & self.here.keys():
            since = self.here.pop(slot)
            if self.now > since:
                self.spans[slot].append((since, self.now))

    # -- gangs -------------------------------------------------------------------------------------

    def _drop(self, trial: TrialId) -> None:
        """The trial is over: its gang goes on without it."""
        gang = self.running.get(trial)
        if gang is not None:
            self._prune(gang, frozenset((trial,)), frozenset())

    def _prune(self, gang: Gang, trials: Trials, slots: Slots) -> None:
        """The gang goes on without these trials and slots, if anything is left of it."""
        rest = prune(gang, trials, slots)
        if rest is None:
            self._swap((gang,), ())
        else:
            self._swap((gang,), (rest,))

    def _swap(self, old: Iterable[Gang], new: Sequence[Gang]) -> None:
        """Gangs stop, and others start; a trial may stay at a slot in another gang."""
        gone = [gang for gang in old if gang in self.gangs]
        for gang in gone:
            self.gangs.discard(gang)
            self.busy -= gang.slots
            for trial in gang.trials:
                self.running.pop(trial, None)
        for gang in new:
            self.gangs.add(gang)
            self.busy |= gang.slots
            self.running.update(dict.fromkeys(gang.trials, gang))

        before = _pairs(gone)
        after = _pairs(new)
        for slot, trial in before.keys() - after.keys():
            self.times.give_up(slot, trial, self.now, trial in self.running)
        for slot, trial in after.keys() - before.keys():
            self._join(slot)  # journals made by hand may not say that it joined
            self.times.take_up(slot, trial, self.now)

    def _ended(self, gang: Gang, trials: tuple[TrialId, ...]) -> None:
        """These trials of the gang came to their end: nothing of theirs was cut off."""
        for slot, trial in _pairs((gang,)):
            if trial in trials:
                self.times.come_to_end(slot, trial, self.now)

    # -- reports -----------------------------------------------------------------------------------

    def _advanced(self, entry: Advanced) -> None:
        """Take a report of one or more trials."""
        if not (entry.spent or entry.values or entry.visits):
            return  # how far a unit is: what it took comes with its end

        by_slot: dict[SlotId, list[TrialId]] = {}
        for trial in dict.fromkeys((*entry.samples, *entry.spent)):
            self.times.account_for(trial, "train")
            for slot in self._slots(trial):
                by_slot.setdefault(slot, []).append(trial)
        for slot, trials in by_slot.items():
            if len(trials) == 1:
                spent = entry.spent.get(trials[0], {})
                self.times.report(slot, trials[0], spent, self.now)
            else:
                self.times.report_together(slot, trials, entry.spent, self.now)

    def _slots(self, trial: TrialId) -> tuple[SlotId, ...]:
        """The slots that a report of the trial is about."""
        gang = self.running.get(trial)
        if gang is None:
            late = self.times.late_slots(trial)
            return tuple(slot for slot in late if slot in self.here)
        return next(lane.slots for lane in gang.lanes if lane.trial == trial)


def _pairs(gangs: Iterable[Gang]) -> dict[Pair, None]:
    """Which trial is at which slot."""
    pairs: dict[Pair, None] = {}
    for gang in gangs:
        for lane in gang.lanes:
            for slot in lane.slots:
                pairs[slot, lane.trial] = None
    return pairs
