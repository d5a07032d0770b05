"""What the time of trials at slots went to, as they report it.

The half of `gantt` that divides time; who holds which slot is the other half.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from shoal.core.cluster import SlotId
from shoal.core.trial import Seconds, TrialId
from shoal.reporting.facts.bars import Bar, Span

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
        self._taken: dict[SlotId, deque[Span]] = {}
        # The cursor and the stop of trials that were stopped: they may still report.
        self._late: dict[TrialId, dict[SlotId, Span]] = {}
        # Likewise, at slots that a trial gave up while it went on.
        self._freed: dict[TrialId, list[tuple[SlotId, Span]]] = {}

    def copy(self) -> "Timeline":
        """The same bars, which then go on by themselves."""
        made = Timeline()
        made.bars = {slot: [*bars] for slot, bars in self.bars.items()}
        made._cursor = {**self._cursor}
        made._taken = {slot: spans.copy() for slot, spans in self._taken.items()}
        made._late = {trial: {**places} for trial, places in self._late.items()}
        made._freed = {trial: [*places] for trial, places in self._freed.items()}
        return made

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
        """Likewise, of all trials that were stopped at these slots."""
        for trial, places in self._late.items():
            for slot in slots & places.keys():
                self.settle(slot, trial)

    def account_for(self, trial: TrialId, kind: str) -> None:
        """What the trial did at slots that it gave up, since its last report there."""
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
        self,
        slot: SlotId,
        trials: Sequence[TrialId],
        spent: Mapping[TrialId, Spent],
        now: Seconds,
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
        """Where the trial's seconds end.

        Lanes that share a slot take turns, though they may report together.
        """
        if length <= 0:
            return now
        end = now
        for begin, until in sorted(self._taken.get(slot, ()), reverse=True):
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
            parts = _scaled(parts, room / total)

        self._add(slot, start, begin, trial, "other")
        self._add_parts(slot, trial, parts, (begin, end))
        self._taken.setdefault(slot, deque(maxlen=RECENT)).append((begin, end))
        self._move(slot, trial, end)
        return begin

    def _add_parts(self, slot: SlotId, trial: TrialId, parts: Parts, span: Span) -> None:
        """Bars for the parts of a report, one after another."""
        at, end = span
        for number, (kind, length) in enumerate(parts, 1):
            to = min(end, at + length)
            if number == len(parts):
                to = end
            self._add(slot, at, to, trial, kind)
            at = to

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
        """A bar, if it has a length."""
        if end > start:
            bar = Bar(slot, start, end, trial, kind)
            self.bars.setdefault(slot, []).append(bar)


def _parts(spent: Spent) -> Parts:
    """What the seconds of a report went to, in the order in which they are drawn."""
    parts = [("other", _other(spent))]
    for kind in ORDER:
        parts.append((kind, spent.get(kind, 0.0)))
    return [part for part in parts if part[1] > 0]


def _other(spent: Spent) -> Seconds:
    """The seconds of all kinds that are not drawn by themselves."""
    other = 0.0
    for kind, length in spent.items():
        if kind not in ORDER:
            other += length
    return other


def _scaled(parts: Parts, factor: float) -> Parts:
    """The parts, each longer or shorter by this factor."""
    return [(kind, length * factor) for kind, length in parts]
