"""What each trial and each run of a study did: counted along a journal, then a row for each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

from shoal.core.cluster import GiB, ShardId, SlotId
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
    Joined,
    Measured,
    Opened,
    Planned,
    Remembered,
    Retired,
    Submitted,
)
from shoal.core.masking import masked_config
from shoal.core.plan import Gang
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Value
from shoal.core.visits import EPS

# Ends the names of values seen while training, for validation may have values of the same names.
TRAINING = " (training)"
# What no slot has. A trial is told to need so much if a step of it alone had no room on a slot of
# which nobody knows the memory.
NO_SLOT_HAS: GiB = 2.0**20

Sum = tuple[float, float]  # of a value, and of how many samples
Mark = tuple[Samples, Seconds]  # trained and spent so far


class Point(NamedTuple):
    """A value of a trial after so many epochs, at that time of the study."""

    epoch: float
    time: Seconds
    value: float


class PolicyChoice(NamedTuple):
    """What the automatic policy followed from this time on, and why."""

    time: Seconds
    follows: str
    why: str


class Split(NamedTuple):
    """A pack that had no room.

    `needs`: what each trial is believed to need since, GiB by signature.
    """

    time: Seconds
    trials: tuple[TrialId, ...]
    why: str
    needs: Mapping[str, GiB]


@dataclass(slots=True)
class RunTally:
    """The counts of one run.

    `finished`: all its trials had ended, and nothing was started after that; None: it is not known.
    `joined`: when its first slots were there; None: it has none yet.
    """

    number: int
    start: Seconds
    end: Seconds
    stopped: str | None = None
    finished: bool | None = False
    joined: Seconds | None = None

    @property
    def starting(self) -> Seconds:
        """How long the run waited for its first slots."""
        until = self.end if self.joined is None else self.joined
        return until - self.start


@dataclass(slots=True)
class TrialTally:
    """The counts of one trial.

    `sums`: of values since the last point of their curves. `marks`: at each report that still
    counts; they tell what a fall costs.
    """

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
    dealt: int = 0
    hops: int = 0
    slots: tuple[SlotId, ...] = ()
    points: dict[str, list[Point]] = field(default_factory=dict)
    sums: dict[str, Sum] = field(default_factory=dict)  # of values seen while training
    marks: list[Mark] = field(default_factory=lambda: [(0.0, 0.0)])

    @property
    def epochs(self) -> float | None:
        """Complete epochs, a fraction within one.

        None: the journal does not say how large an epoch is.
        """
        if self.visits and self.shards:
            return self.visits / self.shards
        if self.total:
            return self.samples / self.total
        if self.samples:
            return None
        return 0.0

    def run_at(self, time: Seconds, slots: tuple[SlotId, ...]) -> None:
        """Note that the trial starts at these slots, or goes on there."""
        if self.start is None:
            self.start = time
        if self.slots and self.slots != slots:
            self.hops += 1
        self.slots = slots

    def advance(self, time: Seconds, entry: Advanced) -> None:
        """Count a report that names this trial."""
        id_ = self.trial.id
        before = self._whole_epochs()
        self.samples += entry.samples.get(id_, 0.0)
        self.visits += len(entry.visits.get(id_, ()))
        self.moved += entry.moved.get(id_, 0)
        self.dealt += entry.dealt.get(id_, 0)
        for cause, length in entry.spent.get(id_, {}).items():
            self.spent[cause] = self.spent.get(cause, 0.0) + length
        self.marks.append((self.samples, sum(self.spent.values())))
        for name, (value, count) in entry.values.get(id_, {}).items():
            total, counted = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = total + value, counted + count
        if self._whole_epochs() > before:
            self.close_epoch(time)

    def _whole_epochs(self) -> int:
        """Complete epochs; 0 where they are unknown."""
        return int(self.epochs or 0.0)

    def close_epoch(self, time: Seconds, epoch: float | None = None) -> None:
        """Make the means of training values since the last time a point of their curves.

        `epoch`: where it lies, if that is within a visit.
        """
        if epoch is None:
            epoch = self.epochs or 0.0
        for name, (value, count) in self.sums.items():
            if count > 0:
                point = Point(epoch, time, value / count)
                self.points.setdefault(name + TRAINING, []).append(point)
        self.sums.clear()

    def evaluate(self, time: Seconds, entry: Evaluated) -> None:
        """Add a point to the curve of each metric; one of the same epoch gives way."""
        self.close_epoch(time, entry.epoch)
        for name, value in entry.values.items():
            if name in entry.trained:  # its curve is that of the reports while training
                continue
            points = self.points.setdefault(name, [])
            while points and points[-1].epoch >= entry.epoch - EPS:
                points.pop()
            points.append(Point(entry.epoch, time, value))

    def fall(self, entry: Fell) -> None:
        """Void what came after the visits that the trial fell back to, values seen there too."""
        total = sum(self.spent.values())
        while len(self.marks) > 1 and self.marks[-1][0] > entry.samples + EPS:
            self.marks.pop()
        reached, seconds = self.marks[-1]
        self.marks[-1] = reached, total
        self.void_seconds += total - seconds
        self.falls += 1
        self.void_visits += max(0, self.visits - entry.visits)
        self.void_samples += max(0.0, self.samples - entry.samples)
        self.samples = entry.samples
        self.visits = entry.visits
        self.sums.clear()
        epochs = self.epochs
        if epochs is None:
            return
        for points in self.points.values():
            while points and points[-1].epoch > epochs + EPS:
                points.pop()


class Tally:
    """The counts of a study so far."""

    def __init__(self) -> None:
        self.head: Mapping[str, Any] = {}
        self.runs: list[RunTally] = []
        self.choices: list[PolicyChoice] = []
        self.splits: list[Split] = []
        # What feeders did, by run and node.
        self.feeders: dict[tuple[int, str], Mapping[str, float]] = {}
        # What trials need by their signatures, and the moment when that was said.
        self._needs: dict[str, GiB] = {}
        self._needs_time: Seconds = 0.0
        self.trials: dict[TrialId, TrialTally] = {}
        self.left: set[TrialId] = set()  # trials that have not ended
        self.shards: Mapping[ShardId, int] = {}  # samples of each

    def take(self, time: Seconds, entry: Entry) -> None:
        """Count one line of the journal."""
        self._go_on(time, entry)
        match entry:
            case Submitted(trial):
                self._submit(trial)
            case Advanced():
                self._advance(time, entry)
            case Evaluated() if entry.trial in self.trials:
                self.trials[entry.trial].evaluate(time, entry)
            case Fell() if entry.trial in self.trials:
                self.trials[entry.trial].fall(entry)
            case Planned(_, start):
                self._plan(time, start)
            case Finished(id_) | Failed(id_) | Retired(id_) if id_ in self.left:
                self._end(time, id_)
            case Measured():
                self._measure(time, entry)
            case Joined() if self.runs and self.runs[-1].joined is None:
                self.runs[-1].joined = time
            case Ended(gang, why) if why:  # a pack had no room
                needs = dict(self._needs) if time == self._needs_time else {}
                self.splits.append(Split(time, gang.trials, why, needs))
            case Remembered("policy", {"follows": str(follows), "why": str(why)}):
                self._choose(PolicyChoice(time, follows, why))
            case Fed(node, figures) if self.runs:
                self.feeders[self.runs[-1].number, node] = figures
            case Commanded("stop", why) if self.runs:
                self.runs[-1].stopped = why

    # -- runs --------------------------------------------------------------------------------------

    def _go_on(self, time: Seconds, entry: Entry) -> None:
        """Take the time within a run, or begin another run, with what its head says."""
        if not isinstance(entry, Opened):
            if self.runs:
                self.runs[-1].end = time
            return
        self._note_finished()
        self.runs.append(RunTally(entry.run, time, time))
        self.head = {**self.head, **entry.head}
        self.shards = entry.shards

    def _note_finished(self) -> None:
        """Note for the newest run if every trial has ended by now."""
        if self.runs and self.trials and not self.left:
            self.runs[-1].finished = True

    def _choose(self, choice: PolicyChoice) -> None:
        """Note a choice if it is new: the policy's memory also changes without one."""
        if not self.choices or self.choices[-1][1:] != choice[1:]:
            self.choices.append(choice)

    def _measure(self, time: Seconds, entry: Measured) -> None:
        """Note what a pack's trials are believed to need, which is said just before it ends."""
        if time != self._needs_time:
            self._needs = {}
            self._needs_time = time
        need = entry.figures.get("crowded", NO_SLOT_HAS)
        if need < NO_SLOT_HAS:
            self._needs[entry.signature] = need

    # -- trials ------------------------------------------------------------------------------------

    def _submit(self, trial: Trial) -> None:
        """Count a trial that is new, or is to go on for longer."""
        self._note_finished()  # in case somebody adds it after the run's end
        self.left.add(trial.id)
        if trial.id in self.trials:
            self.trials[trial.id].trial = trial
        else:
            self.trials[trial.id] = self._new(trial)

    def _advance(self, time: Seconds, entry: Advanced) -> None:
        """Count a report for each trial that it names."""
        named = entry.samples.keys() | entry.visits.keys() | entry.spent.keys()
        for trial in named & self.trials.keys():
            self.trials[trial].advance(time, entry)

    def _plan(self, time: Seconds, start: Iterable[Gang]) -> None:
        """Note where trials run now: at the slots of their lanes in the gangs that start."""
        lanes = [lane for gang in start for lane in gang.lanes]
        if lanes and self.runs:
            self.runs[-1].finished = False
        for lane in lanes:
            if lane.trial in self.trials:
                self.trials[lane.trial].run_at(time, lane.slots)

    def go_on(self, time: Seconds, state: State) -> None:
        """Take from a state what it says of trials whose lines were not counted.

        Their scores were there by then; when they came is not known any more.
        """
        for run, following in pairwise(self.runs):
            run.end = following.start
        for run in self.runs:
            run.finished, run.joined = None, run.start
        self.shards = state.shards
        for trial in state.known.values():
            tally = self.trials[trial.id] = self._new(trial)
            tally.samples = state.done[trial.id]
            tally.visits = len(state.visits[trial.id])
            for epoch, values in state.scores[trial.id]:
                for name, value in values.items():
                    tally.points.setdefault(name, []).append(Point(epoch, time, value))
            tally.marks = [(tally.samples, 0.0)]
        self.left = set(state.trials)
        for trial_id, gang in state.running.items():
            (lane,) = [each for each in gang.lanes if each.trial == trial_id]
            self.trials[trial_id].slots = lane.slots

    def _new(self, trial: Trial) -> TrialTally:
        """The counts of a trial that is new."""
        sizes = [size for name, size in self.shards.items() if name in trial.shards]
        visits = len(trial.shards) or len(self.shards)
        total = float(sum(sizes or self.shards.values()))
        return TrialTally(trial, len(self.trials), visits, total)

    def _end(self, time: Seconds, trial: TrialId) -> None:
        """Count the end of a trial."""
        self.left.discard(trial)
        tally = self.trials[trial]
        tally.end = time
        tally.close_epoch(time)


# By name of the value, then by trial.
Curves = Mapping[str, Mapping[TrialId, tuple[Point, ...]]]

STATUSES = ("running", "waiting", "finished", "retired", "failed")


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial of the study as its journal leaves it.

    Work that was voided counts in `repeated` only.
    """

    id: TrialId
    number: int  # from 0, in the order of submission
    config: Mapping[str, Value]  # in the order of the search space; secrets masked
    status: str  # one of STATUSES; what runs when the journal ends is "running"
    why: str  # of a failure
    samples: Samples
    asked: Samples  # samples it is to train in all
    epochs: float | None  # None: unknown
    last: float | None  # the metric's newest value; None: there is no finite one
    best: float | None
    best_epoch: float | None
    start: Seconds | None  # first planned
    end: Seconds | None
    spent: Mapping[str, Seconds]  # by cause, all of it, voided work included
    repeated: "Void"
    hops: int  # times it went on at other slots than before
    moved: int  # bytes of its state that came from another slot
    dealt: int  # bytes of samples that were dealt to its shards from other nodes
    signature: str
    widths: tuple[int, int] = (1, 1)  # fewest and most slots
    priority: float = 1.0

    @property
    def scored(self) -> bool:
        """Whether the trial can be ranked: it has a score, and did not fail."""
        return self.last is not None and self.status != "failed"


class Void(NamedTuple):
    """Work that a loss made void, and that was or is to be done again."""

    falls: int = 0
    visits: int = 0
    samples: Samples = 0.0
    seconds: Seconds = 0.0


class RunRow(NamedTuple):
    """One run of the study.

    `how` it ended: finished, "stopped: why", cut off, or ended, if it is not known how; open:
    nothing says that it has ended.
    """

    number: int
    start: Seconds
    end: Seconds
    how: str


# -- trials ----------------------------------------------------------------------------------------


class TrialRows:
    """Makes a row of each trial that was counted."""

    def __init__(self, tally: Tally, state: State, metric: str | None, mode: str) -> None:
        self._tallies = tally.trials.values()
        self._state = state
        self._metric = metric or ""
        self._choose: Callable[..., Any] = min
        if mode == "max":
            self._choose = max
        self._names = _names(tally)

    def all(self) -> tuple[TrialRow, ...]:
        """A row for each trial, in the order of submission."""
        return tuple(map(self._row, self._tallies))

    def _row(self, tally: TrialTally) -> TrialRow:
        """The row of one trial."""
        trial = tally.trial
        how, why = self._status(trial.id)
        config = masked_config(trial.config)
        points = tally.points.get(self._metric, [])
        finite = [point for point in points if isfinite(point.value)]
        best: Point | None = self._choose(finite, key=lambda point: point.value, default=None)
        is_last_finite = bool(points) and isfinite(points[-1].value)
        return TrialRow(
            id=trial.id,
            number=tally.number,
            config={name: config[name] for name in self._names if name in config},
            status=how,
            why=why,
            samples=tally.samples,
            asked=trial.samples,
            epochs=tally.epochs,
            last=points[-1].value if is_last_finite else None,
            best=best and best.value,
            best_epoch=best and best.epoch,
            start=tally.start,
            end=tally.end if trial.id in self._state.ended else None,
            spent=tally.spent,
            repeated=Void(tally.falls, tally.void_visits, tally.void_samples, tally.void_seconds),
            hops=tally.hops,
            moved=tally.moved,
            dealt=tally.dealt,
            signature=self._state.signature.get(trial.id, ""),
            widths=trial.widths,
            priority=trial.priority,
        )

    def _status(self, trial: TrialId) -> tuple[str, str]:
        """One of STATUSES, and why a trial failed."""
        state = self._state
        if trial in state.ended:
            how, _, why = state.ended[trial].partition(": ")
            return how, why
        if trial in state.running:
            return "running", ""
        return "waiting", ""


def _names(tally: Tally) -> list[str]:
    """The names in configurations.

    Those of the search space come first, in the user's order.
    """
    known: set[str] = set()
    for trial in tally.trials.values():
        known.update(trial.trial.config)
    first = [name for name in _space_names(tally.head) if name in known]
    return list(dict.fromkeys([*first, *sorted(known)]))


def _space_names(head: Mapping[str, Any]) -> list[str]:
    """The names of the search space, as the journal's head lists them."""
    space = head.get("space")
    if not isinstance(space, Mapping):
        return []
    dimensions = space.get("dimensions")
    if not isinstance(dimensions, (list, tuple)):
        return []
    pairs = [pair for pair in dimensions if isinstance(pair, (list, tuple)) and pair]
    return [pair[0] for pair in pairs if isinstance(pair[0], str)]


# -- runs and curves -------------------------------------------------------------------------------


def run_rows(runs: Sequence[RunTally], finished: bool) -> Iterable[RunRow]:
    """The runs, and how each ended. `finished`: all trials known have ended."""
    for run in runs:
        how = _how(run, run is runs[-1], finished)
        yield RunRow(run.number, run.start, run.end, how)


def _how(run: RunTally, is_last: bool, finished: bool) -> str:
    """How a run ended."""
    if run.stopped:
        return f"stopped: {run.stopped}"
    if run.stopped is not None:
        return "stopped"
    if run.finished or (is_last and finished):
        return "finished"
    if is_last:
        return "open"
    return "ended" if run.finished is None else "cut off"


def curves_of(tallies: Iterable[TrialTally]) -> Curves:
    """The points of all trials, by name of the value."""
    curves: dict[str, dict[TrialId, tuple[Point, ...]]] = {}
    for tally in tallies:
        for name, points in tally.points.items():
            if points:
                curves.setdefault(name, {})[tally.trial.id] = tuple(points)
    return curves
