"""Who held each slot, when, and where its seconds went.

A pure function of a journal's lines, real or simulated.
"""

from collections.abc import Iterable, Iterator, Sequence

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
from shoal.reporting.facts.bars import Chart, Span, natural, tiled
from shoal.reporting.facts.timeline import Pair, Timeline

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
    `timeline.ORDER` and end at the report; what is left before them is `other`. A report that does
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
            self._end_span(slot)

    def _end_span(self, slot: SlotId) -> None:
        """The slot was there up to now."""
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
        self._replace(gone, new)

        before = _pairs(gone)
        after = _pairs(new)
        for slot, trial in before.keys() - after.keys():
            self.times.give_up(slot, trial, self.now, trial in self.running)
        for slot, trial in after.keys() - before.keys():
            self._join(slot)  # journals made by hand may not say that it joined
            self.times.take_up(slot, trial, self.now)

    def _replace(self, gone: Iterable[Gang], new: Iterable[Gang]) -> None:
        """Note which gangs there are, and which trial runs in which."""
        for gang in gone:
            self._forget(gang)
        for gang in new:
            self.gangs.add(gang)
            self.busy |= gang.slots
            self.running.update(dict.fromkeys(gang.trials, gang))

    def _ended(self, gang: Gang, trials: tuple[TrialId, ...]) -> None:
        """They came to their end: nothing of theirs was cut off."""
        for slot, trial in _pairs((gang,)):
            if trial in trials:
                self.times.come_to_end(slot, trial, self.now)

    # -- reports -----------------------------------------------------------------------------------

    def _forget(self, gang: Gang) -> None:
        """The gang is no longer there."""
        self.gangs.discard(gang)
        self.busy -= gang.slots
        for trial in gang.trials:
            self.running.pop(trial, None)

    def _advanced(self, entry: Advanced) -> None:
        """A report of one or more trials."""
        if not (entry.spent or entry.values or entry.visits):
            return  # how far a unit is: what it took comes with its end

        for slot, trials in self._reporting(entry).items():
            if len(trials) == 1:
                spent = entry.spent.get(trials[0], {})
                self.times.report(slot, trials[0], spent, self.now)
            else:
                self.times.report_together(slot, trials, entry.spent, self.now)

    def _reporting(self, entry: Advanced) -> dict[SlotId, list[TrialId]]:
        """The trials that this report is about, by slot."""
        found: dict[SlotId, list[TrialId]] = {}
        for trial in dict.fromkeys((*entry.samples, *entry.spent)):
            self.times.account_for(trial, "train")
            for slot in self._slots(trial):
                found.setdefault(slot, []).append(trial)
        return found

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
