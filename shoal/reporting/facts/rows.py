"""A row for each trial and each run, of what was counted along a journal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

from shoal.core.masking import masked_config
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Value
from shoal.reporting.facts.format import config
from shoal.reporting.facts.tally import Point, RunTally, Tally, TrialTally

Points = Sequence[Point]
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
        """Whether it can be ranked: it has a score, and did not fail."""
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
        points = tally.points.get(self._metric, ())
        best = self._best(points)
        return TrialRow(
            id=trial.id,
            number=tally.number,
            config=self._config(trial),
            status=how,
            why=why,
            samples=tally.samples,
            asked=trial.samples,
            epochs=tally.epochs,
            last=_newest(points),
            best=best and best.value,
            best_epoch=best and best.epoch,
            start=tally.start,
            end=self._end(tally),
            spent=tally.spent,
            repeated=_void(tally),
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

    def _config(self, trial: Trial) -> dict[str, Value]:
        """What to show of the trial's configuration, in the order of the search space."""
        config = masked_config(trial.config)
        return {name: config[name] for name in self._names if name in config}

    def _best(self, points: Points) -> Point | None:
        """The first of the best finite values."""
        finite = [point for point in points if isfinite(point.value)]
        best: Point | None = self._choose(finite, key=_value, default=None)
        return best

    def _end(self, tally: TrialTally) -> Seconds | None:
        """When the trial ended; None if it did not, or is to go on."""
        if tally.trial.id not in self._state.ended:
            return None
        return tally.end


def _value(point: Point) -> float:
    """What the best is chosen by."""
    return point.value


def _newest(points: Points) -> float | None:
    """The last value; None if there is none, or if it is not finite."""
    if not points or not isfinite(points[-1].value):
        return None
    return points[-1].value


def _void(tally: TrialTally) -> Void:
    """The work that was lost."""
    return Void(tally.falls, tally.void_visits, tally.void_samples, tally.void_seconds)


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


def first_config(rows: Sequence[TrialRow], limit: int) -> str:
    """The configuration of the first of these trials, cut to so many characters."""
    return config(rows[0].config, limit) if rows else ""


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
