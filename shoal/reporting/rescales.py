"""What it cost and gained that running trials got more or fewer slots.

Capes et al. 2019: a wider trial is worth its restart only if it then ends earlier.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from shoal.core.cluster import SlotId
from shoal.core.event import (
    Advanced,
    Ended,
    Entry,
    Failed,
    Fell,
    Finished,
    Left,
    Measured,
    Opened,
    Planned,
    Retired,
)
from shoal.core.plan import Gang
from shoal.core.trial import Samples, Seconds, TrialId

BESIDE = ("evaluate", "save")  # seconds that are spent at any width
Slots = frozenset[SlotId]


class WidthChange(NamedTuple):
    """A running trial went on with more or fewer slots.

    `stood`: seconds without training. `old_rate`, `new_rate`: samples/s before and after, without
    the time in which it evaluated, saved, waited or stood still. `saved`: by how many seconds it
    made what it made at the new width, until it changed again, sooner than if it had never changed
    since it began to run (at the first speed that is known); below 0: later. What nobody measured
    is None. `forced`: when slots of it left; None: a plan wanted the change.
    """

    trial: TrialId
    time: Seconds
    before: int
    after: int
    stood: Seconds | None
    old_rate: float | None
    new_rate: float | None
    saved: Seconds | None
    forced: Seconds | None = None


@dataclass(slots=True)
class _AtWidth:
    """What a trial does at one width.

    It counts from `since`, when the trial had made `first` samples. Up to `last` it has made `done`
    samples, and spent `beside` seconds on what takes as long at any width, or waited. None: it has
    not reported yet.
    """

    width: int
    since: Seconds | None = None
    first: Samples = 0.0
    last: Seconds = 0.0
    done: Samples = 0.0
    beside: Seconds = 0.0

    def take(self, time: Seconds, done: Samples, beside: Seconds) -> None:
        """The trial reports: it has made so many samples.

        A stretch that is not part of a change counts from its first report on. What comes before
        is the time to build the model.
        """
        if self.since is None:
            self.since, self.first = time, done
        else:
            self.beside += beside
        self.last, self.done = time, done

    def stand(self, begin: Seconds, seconds: Seconds) -> None:
        """The trial stood still for so long; what lies before its last report does not count."""
        self.beside += min(max(0.0, self.last - begin), seconds)

    @property
    def samples(self) -> Samples:
        """The samples that count."""
        return self.done - self.first

    @property
    def seconds(self) -> Seconds:
        """The seconds in which these samples were made."""
        if self.since is None:
            return 0.0
        return self.last - self.since - self.beside

    @property
    def rate(self) -> float | None:
        """Samples/s; None: it is not known."""
        if self.seconds <= 0 or self.samples <= 0:
            return None
        return self.samples / self.seconds


@dataclass(slots=True)
class _Rescale:
    """A change of width, from the plan that wants it.

    Nobody writes down when the trial makes it. So until a time without training is measured, the
    trial goes on in the old stretch as well (`going_on`); and `new` counts from the plan on.
    `believed`: the rate measured at the old width, if any was. `stood`: seconds without training,
    as measured; `is_dated`: whether this tells when the trial made the change. `reported`: when
    the trial last reported what its seconds went to; `switched`: how many of them went to
    switching, the first time. `forced`: as of `WidthChange`. `former`: the change before this one,
    since the trial began to run; `later`: the one after it.
    """

    trial: TrialId
    time: Seconds
    old: _AtWidth
    new: _AtWidth
    going_on: _AtWidth
    believed: float | None
    stood: Seconds | None = None
    is_dated: bool = False
    reported: Seconds | None = None
    switched: Seconds | None = None
    forced: Seconds | None = None
    former: "_Rescale | None" = None
    later: "_Rescale | None" = None

    @property
    def figure(self) -> str:
        """The name of the figure that is the time of such a change."""
        if self.new.width > self.old.width:
            return "up"
        return "down"

    def spent(self, time: Seconds, spent: Mapping[str, Seconds]) -> None:
        """The trial reports what its seconds went to."""
        self.reported = time
        if self.switched is None:
            self.switched = spent.get("switch", 0.0)

    def measured(self, time: Seconds, stood: Seconds) -> None:
        """The time without training is known: the change was made by now.

        If the trial reports a whole unit at this moment, it was made at some time within the unit.
        """
        self.stood = stood
        if self.reported == time:
            return
        self.is_dated = True
        self.time = time - stood
        self.old = self.going_on
        self.old.stand(self.time, stood)
        done = self.old.done
        self.new.since, self.new.first, self.new.beside = time, done, 0.0

    def outcome(self) -> WidthChange:
        """What the change cost and gained up to now."""
        # What comes after the next change is that one's, also where nobody says when it was made.
        new = self.new if self.later is None else self.later.old
        stood = self.stood
        if stood is None:
            stood = self.switched
        training = total = new.seconds
        if self.is_dated:
            total += stood or 0.0
        else:
            training -= stood or 0.0

        old_rate = self.old.rate or self.believed
        first_rate = self._first_rate()
        new_rate = saved = None
        if new.samples > 0 and training > 0:
            new_rate = new.samples / training
        if new.samples > 0 and first_rate:
            saved = new.samples / first_rate - total
        widths = self.old.width, new.width
        figures = stood, old_rate, new_rate, saved
        return WidthChange(self.trial, self.time, *widths, *figures, self.forced)

    def _first_rate(self) -> float | None:
        """The rate at which the trial began to run, or the first later one that is known."""
        rate, change = None, self
        while True:
            rate = change.old.rate or change.believed or rate
            if change.former is None:
                return rate
            change = change.former


class WidthTally:
    """Finds the changes of width along a journal."""

    def __init__(self) -> None:
        self._changes: list[_Rescale] = []
        self._slots: dict[TrialId, Slots] = {}  # of the trials that run
        self._done: dict[TrialId, Samples] = {}
        self._stretch: dict[TrialId, _AtWidth] = {}  # the newest of each trial
        self._last: dict[TrialId, _Rescale] = {}  # the change that began it
        self._reported: dict[TrialId, Seconds] = {}  # up to when it said what it did
        self._signature: dict[TrialId, str] = {}
        self._figures: dict[str, dict[str, float]] = {}

    def so_far(self) -> tuple[WidthChange, ...]:
        """The changes, in order of time."""
        return tuple(change.outcome() for change in self._changes)

    def take(self, time: Seconds, entry: Entry) -> None:
        """Count one line."""
        match entry:
            case Opened():
                self._slots.clear()
            case Planned(stop, start):
                self._plan(time, stop, start)
            case Left(gone):  # trials that had others too go on with these
                for trial, slots in [*self._slots.items()]:
                    rest = slots - gone
                    self._slots[trial] = rest
                    if not rest:
                        del self._slots[trial]
                    elif rest != slots:
                        self._change(time, trial, len(rest), forced=time)
            case Ended(gang):
                self._stop((gang,))
            case Finished(trial) | Failed(trial) | Retired(trial):
                self._slots.pop(trial, None)
            case Advanced():
                self._advance(time, entry)
            case Fell(trial, _, samples):
                self._done[trial] = samples
            case Measured():
                self._measure(time, entry)

    # -- who has which slots -----------------------------------------------------------------------

    def _plan(self, time: Seconds, stop: Iterable[Gang], start: Iterable[Gang]) -> None:
        """Gangs stop and start. Trials that do both go on."""
        before = self._stop(stop)
        for trial, slots in _lanes(start):
            self._slots[trial] = slots
            former = before.get(trial)
            if former is None:
                self._stretch[trial] = _AtWidth(len(slots))
                self._last.pop(trial, None)
                self._reported[trial] = time
            elif len(former) != len(slots):
                self._change(time, trial, len(slots))

    def _stop(self, gangs: Iterable[Gang]) -> dict[TrialId, Slots]:
        """Gangs stop; returns which slots their trials had."""
        before = {}
        for trial, _ in _lanes(gangs):
            if trial in self._slots:
                before[trial] = self._slots.pop(trial)
        return before

    def _change(
        self, time: Seconds, trial: TrialId, width: int, forced: Seconds | None = None
    ) -> None:
        """The trial is to go on with so many slots."""
        old = self._stretch[trial]
        done = self._done.get(trial, 0.0)
        new = _AtWidth(width, time, done, time, done)
        figures = self._figures.get(self._signature.get(trial, ""), {})
        believed = figures.get(f"rate@{old.width}" if old.width > 1 else "rate")
        former = self._last.get(trial)
        change = _Rescale(
            *(trial, time, replace(old), new, old, believed), forced=forced, former=former
        )
        if former is not None:
            former.later = change
        self._stretch[trial] = new
        self._last[trial] = change
        self._changes.append(change)

    # -- reports -----------------------------------------------------------------------------------

    def _advance(self, time: Seconds, entry: Advanced) -> None:
        """Take a report of what trials trained."""
        for trial, samples in entry.samples.items():
            done = self._done.get(trial, 0.0) + samples
            self._done[trial] = done
            spent = entry.spent.get(trial, {})
            beside = sum(spent.get(name, 0.0) for name in BESIDE)
            change = self._last.get(trial)
            if spent:
                beside += self._waited(trial, time, spent, change)
                self._reported[trial] = time
            stretch = self._stretch.get(trial)
            if stretch is not None:
                stretch.take(time, done, beside)
            if change is None:
                continue
            if not change.is_dated:
                change.going_on.take(time, done, beside)
            if spent:
                change.spent(time, spent)

    def _waited(
        self, trial: TrialId, time: Seconds, spent: Mapping[str, Seconds], change: _Rescale | None
    ) -> Seconds:
        """Seconds since the trial's last report of which it does not say what they went to.

        What it waits for is not its width's doing. Standing still for a change is.
        """
        since = self._reported.get(trial, time)
        stood = 0.0
        if change is not None:
            since = max(since, change.time)
            stood = change.stood or 0.0
        return max(0.0, time - since - stood - sum(spent.values()))

    def _measure(self, time: Seconds, entry: Measured) -> None:
        """Take measured figures: rates, and times without training."""
        trial = entry.trial
        self._signature[trial] = entry.signature
        self._figures.setdefault(entry.signature, {}).update(entry.figures)
        change = self._last.get(trial)
        if change is not None and change.stood is None:
            stood = entry.figures.get(change.figure)
            if stood is not None:
                change.measured(time, stood)


def _lanes(gangs: Iterable[Gang]) -> Iterator[tuple[TrialId, Slots]]:
    """The trials of these gangs, each with its slots."""
    for gang in gangs:
        for lane in gang.lanes:
            yield lane.trial, frozenset(lane.slots)
