"""The figures people want of a study, from its journal alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from shoal.core.cluster import SlotId
from shoal.core.state import Figures, State
from shoal.core.trial import Samples, Seconds, TrialId, Value
from shoal.engine.journal import Line, replay
from shoal.report.gantt import KINDS, Chart, chart, seconds, steady
from shoal.report.tally import Choice, Point, RunTally, Split, Tally, TrialTally

STATUSES = ("running", "waiting", "finished", "retired", "failed")


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial of the study as its journal leaves it. Work that was voided counts in `repeated` only."""

    id: TrialId
    number: int  # from 0, in the order of submission
    config: Mapping[str, Value]  # in the order of the search space
    status: str  # one of STATUSES; what runs when the journal ends is "running"
    why: str  # of a failure
    samples: Samples
    asked: Samples  # samples it is to train in all
    epochs: float | None  # None: unknown
    last: float | None  # the metric when last evaluated; None: never, or not a finite number
    best: float | None
    best_epoch: float | None
    start: Seconds | None  # first planned
    end: Seconds | None
    spent: Mapping[str, Seconds]  # by cause, all of it, voided work included
    repeated: "Void"
    hops: int  # times it went on at other slots than before
    moved: int  # bytes of its state that came from another slot
    signature: str
    widths: tuple[int, int] = (1, 1)  # fewest and most slots
    priority: float = 1.0


class Void(NamedTuple):
    """Work that a loss made void, and that was or is to be done again."""

    falls: int = 0
    visits: int = 0
    samples: Samples = 0.0
    seconds: Seconds = 0.0


class RunRow(NamedTuple):
    """One run of the study. `how` it ended: finished, stopped: why, cut off; open: nothing says that it has ended."""

    number: int
    start: Seconds
    end: Seconds
    how: str


@dataclass(frozen=True, slots=True)
class Account:
    """All figures of a study. `metric` None: there is nothing to rank by."""

    head: Mapping[str, Any]
    metric: str | None
    mode: str
    trials: tuple[TrialRow, ...]  # in the order of submission
    runs: tuple[RunRow, ...]
    curves: Mapping[str, Mapping[TrialId, tuple[Point, ...]]]  # by name of the value, then by trial
    chart: Chart
    use: Mapping[SlotId, Mapping[str, Seconds]]  # seconds by kind, of every slot that was there
    figures: Mapping[str, Figures]  # measured, by signature
    entries: int
    choices: tuple[Choice, ...] = ()  # of the automatic policy
    splits: tuple[Split, ...] = ()  # packs that had no room
    feeders: Mapping[tuple[int, str], Mapping[str, float]] = field(default_factory=dict)  # what they did, by run and node

    @property
    def seconds(self) -> Seconds:
        """How long the runs took together."""
        return sum(run.end - run.start for run in self.runs)

    @property
    def trained(self) -> Samples:
        """Samples trained, voided ones included."""
        return sum(row.samples + row.repeated.samples for row in self.trials)

    @property
    def throughput(self) -> float | None:
        """Samples/s over all runs and slots."""
        return self.trained / self.seconds if self.seconds > 0 else None

    @property
    def used(self) -> dict[str, Seconds]:
        """Slot seconds by kind, of all slots together."""
        return {kind: sum(use.get(kind, 0.0) for use in self.use.values()) for kind in KINDS}

    @property
    def choice(self) -> Choice | None:
        """What the automatic policy follows; None: the last run had another policy, or nothing was chosen yet."""
        said = self.head.get("policy")
        other = isinstance(said, Mapping) and said.get("name") != "auto"
        return self.choices[-1] if self.choices and not other else None

    @property
    def status(self) -> str:
        """empty, finished, stopped: why, or open (at work or cut off: a journal cannot tell)."""
        if not self.trials:
            return "empty"
        return self.runs[-1].how if self.runs else "open"

    def count(self) -> dict[str, int]:
        """Trials by status."""
        return {status: sum(row.status == status for row in self.trials) for status in STATUSES}

    def ranked(self) -> list[TrialRow]:
        """The trials by their last score, best first, as the study ranks them; then those without one, then those that failed."""
        sign = -1.0 if self.mode == "max" else 1.0
        return sorted(
            self.trials, key=lambda row: (row.status == "failed", row.last is None, sign * (row.last or 0.0), row.number)
        )

    def best(self) -> TrialRow | None:
        """The trial with the best last score of those that did not fail."""
        first = next(iter(self.ranked()), None)
        return first if first is not None and first.last is not None and first.status != "failed" else None


def account(lines: Iterable[Line], metric: str | None = None, mode: str | None = None) -> Account:
    """The figures of the study that these lines record. `metric` and `mode` ("min" or "max"): as the journal says, unless given.

    Raises:
        ValueError: the mode is neither "min" nor "max".
    """
    lines = list(steady(lines))
    tally = Tally()
    for time, entry in lines:
        tally.take(time, entry)
    metric = metric or _text(tally.head.get("metric"))
    mode = mode or _text(tally.head.get("mode")) or "min"
    if mode not in ("min", "max"):
        raise ValueError(f'mode must be "min" or "max"; got {mode!r}')
    state = replay(lines)
    drawn = chart(lines)
    names = _names(tally)
    return Account(
        head=tally.head,
        metric=metric,
        mode=mode,
        trials=tuple(_row(trial, names, metric, mode, state) for trial in tally.trials.values()),
        runs=tuple(_runs(tally.runs, bool(state.known) and not state.trials)),
        curves=_curves(tally.trials.values()),
        chart=drawn,
        use={slot: seconds(bars) for slot, bars in drawn.bars.items()},
        figures=state.figures,
        entries=len(lines),
        choices=tuple(tally.choices),
        splits=tuple(tally.splits),
        feeders=tally.feeders,
    )


def given_rows(head: Mapping[str, Any]) -> list[tuple[Mapping[str, Value], Figures]]:
    """The figures that a run was given instead of measured ones: of trials with these values (none: of any), which."""
    rows = head.get("given")
    return [(row["config"], row["figures"]) for row in rows] if isinstance(rows, (list, tuple)) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _names(tally: Tally) -> list[str]:
    """The names in configurations: those of the search space in the user's order, then the others."""
    known = {name for trial in tally.trials.values() for name in trial.trial.config}
    space = tally.head.get("space")
    dimensions = space.get("dimensions") if isinstance(space, Mapping) else None
    first = [pair[0] for pair in dimensions if pair[0] in known] if isinstance(dimensions, (list, tuple)) else []
    return [*dict.fromkeys([*first, *sorted(known)])]


def _row(tally: TrialTally, names: Sequence[str], metric: str | None, mode: str, state: State) -> TrialRow:
    trial = tally.trial
    how, _, why = state.ended.get(trial.id, "running" if trial.id in state.running else "waiting").partition(": ")
    points = [point for point in tally.points.get(metric or "", ()) if isfinite(point.value)]
    best = (max if mode == "max" else min)(points, key=lambda point: point.value, default=None)
    newest = tally.points.get(metric or "", ())[-1:]
    return TrialRow(
        id=trial.id,
        number=tally.number,
        config={name: trial.config[name] for name in names if name in trial.config},
        status=how,
        why=why,
        samples=tally.samples,
        asked=trial.samples,
        epochs=tally.epochs,
        last=newest[0].value if newest and isfinite(newest[0].value) else None,
        best=best.value if best else None,
        best_epoch=best.epoch if best else None,
        start=tally.start,
        end=tally.end if trial.id in state.ended else None,
        spent=tally.spent,
        repeated=Void(tally.falls, tally.void_visits, tally.void_samples, tally.void_seconds),
        hops=tally.hops,
        moved=tally.moved,
        signature=state.signature.get(trial.id, ""),
        widths=trial.widths,
        priority=trial.priority,
    )


def _runs(runs: Sequence[RunTally], finished: bool) -> Iterable[RunRow]:
    for run in runs:
        last = run is runs[-1]
        if run.stopped is not None:
            how = f"stopped: {run.stopped}" if run.stopped else "stopped"
        elif run.finished or (last and finished):
            how = "finished"
        else:
            how = "open" if last else "cut off"
        yield RunRow(run.number, run.start, run.end, how)


def _curves(tallies: Iterable[TrialTally]) -> dict[str, dict[TrialId, tuple[Point, ...]]]:
    curves: dict[str, dict[TrialId, tuple[Point, ...]]] = {}
    for tally in tallies:
        for name, points in tally.points.items():
            if points:
                curves.setdefault(name, {})[tally.trial.id] = tuple(points)
    return curves
