"""Counting along a journal: what each trial and each run did. The mutable half of `metrics`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shoal.core.cluster import GiB, SlotId
from shoal.core.event import (
    Advanced,
    Commanded,
    Ended,
    Entry,
    Evaluated,
    Failed,
    Fed,
    Fell,
    Finished,
    Measured,
    Opened,
    Planned,
    Remembered,
    Retired,
    Submitted,
)
from shoal.core.trial import Samples, Seconds, Trial, TrialId

TRAINING = " (training)"  # ends the names of values seen while training, of which validation may have namesakes
EPS = 1e-6


class Point(NamedTuple):
    """A value of a trial after so many epochs, at that time of the study."""

    epoch: float
    time: Seconds
    value: float


class Choice(NamedTuple):
    """What the automatic policy followed from this time on, and why."""

    time: Seconds
    follows: str
    why: str


class Split(NamedTuple):
    """A pack that had no room: its trials, what it ended of, and what each is believed to need since, GiB by signature."""

    time: Seconds
    trials: tuple[TrialId, ...]
    why: str
    needs: Mapping[str, GiB]


@dataclass(slots=True)
class RunTally:
    """One run. `finished`: all trials known in it had ended when it did."""

    number: int
    start: Seconds
    end: Seconds
    stopped: str | None = None
    finished: bool = False


@dataclass(slots=True)
class TrialTally:
    """One trial. `marks`: (samples, seconds spent) at each of its reports that still counts, to tell what a fall costs."""

    trial: Trial
    number: int
    shards: int  # visits in an epoch
    total: Samples  # samples in an epoch; 0: unknown
    samples: Samples = 0.0
    visits: int = 0
    start: Seconds | None = None
    end: Seconds | None = None
    spent: dict[str, Seconds] = field(default_factory=dict)
    falls: int = 0
    void_visits: int = 0
    void_samples: Samples = 0.0
    void_seconds: Seconds = 0.0
    moved: int = 0
    hops: int = 0
    slots: tuple[SlotId, ...] = ()
    points: dict[str, list[Point]] = field(default_factory=dict)
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)  # of training values since their last point
    marks: list[tuple[Samples, Seconds]] = field(default_factory=lambda: [(0.0, 0.0)])

    @property
    def epochs(self) -> float | None:
        """Complete epochs, a fraction within one; None: the journal does not say how large one is."""
        if self.visits and self.shards:
            return self.visits / self.shards
        if self.total:
            return self.samples / self.total
        return None if self.samples else 0.0

    def advance(self, time: Seconds, entry: Advanced) -> None:
        """A report that names this trial."""
        id_, before = self.trial.id, int(self.epochs or 0.0)
        self.samples += entry.samples.get(id_, 0.0)
        self.visits += len(entry.visits.get(id_, ()))
        self.moved += entry.moved.get(id_, 0)
        for cause, length in entry.spent.get(id_, {}).items():
            self.spent[cause] = self.spent.get(cause, 0.0) + length
        for name, (value, count) in entry.values.get(id_, {}).items():
            old = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = old[0] + value, old[1] + count
        self.marks.append((self.samples, sum(self.spent.values())))
        if int(self.epochs or 0.0) > before:
            self.close_epoch(time)

    def close_epoch(self, time: Seconds) -> None:
        """The means of training values since the last time are one point of their curves."""
        for name, (value, count) in self.sums.items():
            if count > 0:
                self.points.setdefault(name + TRAINING, []).append(Point(self.epochs or 0.0, time, value / count))
        self.sums.clear()

    def evaluate(self, time: Seconds, entry: Evaluated) -> None:
        """A point of each metric; one of the same epoch gives way."""
        self.close_epoch(time)
        for name, value in entry.values.items():
            points = self.points.setdefault(name, [])
            while points and points[-1].epoch >= entry.epoch - EPS:
                points.pop()
            points.append(Point(entry.epoch, time, value))

    def fall(self, entry: Fell) -> None:
        """What came after those visits is void, the values seen there too."""
        total = sum(self.spent.values())
        while len(self.marks) > 1 and self.marks[-1][0] > entry.samples + EPS:
            self.marks.pop()
        self.falls += 1
        self.void_visits += max(0, self.visits - entry.visits)
        self.void_samples += max(0.0, self.samples - entry.samples)
        self.void_seconds += total - self.marks[-1][1]
        self.marks[-1] = self.marks[-1][0], total
        self.samples, self.visits = entry.samples, entry.visits
        self.sums.clear()
        reached = self.epochs
        if reached is not None:
            for points in self.points.values():
                while points and points[-1].epoch > reached + EPS:
                    points.pop()


class Tally:
    """The counts of a study so far."""

    def __init__(self) -> None:
        self.head: Mapping[str, Any] = {}
        self.runs: list[RunTally] = []
        self.choices: list[Choice] = []
        self.splits: list[Split] = []
        self.feeders: dict[tuple[int, str], Mapping[str, float]] = {}  # what they did, by run and node
        self._needs: tuple[Seconds, dict[str, GiB]] = 0.0, {}  # said at that moment
        self.trials: dict[TrialId, TrialTally] = {}
        self.left: set[TrialId] = set()
        self.data: tuple[int, Samples] = 0, 0.0  # shards, samples

    def take(self, time: Seconds, entry: Entry) -> None:
        self._go_on(time, entry)
        match entry:
            case Submitted(trial):
                self._submit(trial)
            case Advanced():
                for id_ in entry.samples.keys() | entry.visits.keys() | entry.spent.keys():
                    if id_ in self.trials:
                        self.trials[id_].advance(time, entry)
            case Evaluated() if entry.trial in self.trials:
                self.trials[entry.trial].evaluate(time, entry)
            case Fell() if entry.trial in self.trials:
                self.trials[entry.trial].fall(entry)
            case Planned():
                self._plan(time, entry)
            case Finished(id_) | Failed(id_) | Retired(id_) if id_ in self.left:
                self.left.discard(id_)
                self.trials[id_].end = time
                self.trials[id_].close_epoch(time)
            case Measured() | Ended():
                self._split(time, entry)
            case Remembered("policy", {"follows": str(follows), "why": str(why)}):
                self._choose(Choice(time, follows, why))
            case Fed(node, figures) if self.runs:
                self.feeders[self.runs[-1].number, node] = figures
            case Commanded("stop", why) if self.runs:
                self.runs[-1].stopped = why

    def _go_on(self, time: Seconds, entry: Entry) -> None:
        if isinstance(entry, Opened):
            self._open(time, entry)
        elif self.runs:
            self.runs[-1].end = time

    def _open(self, time: Seconds, entry: Opened) -> None:
        if self.runs:
            self.runs[-1].finished = bool(self.trials) and not self.left
        self.runs.append(RunTally(entry.run, time, time))
        self.head = {**self.head, **entry.head}
        self.data = len(entry.shards), float(sum(entry.shards.values()))

    def _split(self, time: Seconds, entry: Measured | Ended) -> None:
        """What a pack's trials are believed to need is said just before it ends."""
        needs = self._needs[1] if self._needs[0] == time else {}
        if isinstance(entry, Measured):
            memory = entry.figures.get("crowded")
            self._needs = time, needs if memory is None else {**needs, entry.signature: memory}
        elif entry.why:
            self.splits.append(Split(time, entry.gang.trials, entry.why, needs))

    def _choose(self, choice: Choice) -> None:
        """The policy's memory also changes without a new choice."""
        if not self.choices or self.choices[-1][1:] != choice[1:]:
            self.choices.append(choice)

    def _submit(self, trial: Trial) -> None:
        shards, total = self.data
        known = self.trials.get(trial.id)
        if known is None:
            self.trials[trial.id] = TrialTally(trial, len(self.trials), len(trial.shards) or shards, total)
        else:
            known.trial = trial
        self.left.add(trial.id)

    def _plan(self, time: Seconds, entry: Planned) -> None:
        for gang in entry.start:
            for lane in gang.lanes:
                tally = self.trials.get(lane.trial)
                if tally is None:
                    continue
                tally.start = time if tally.start is None else tally.start
                tally.hops += bool(tally.slots) and tally.slots != lane.slots
                tally.slots = lane.slots
