"""The scores of a running study, as its progress shows them."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from shoal.core.event import Entry, Failed, Finished, Retired, Submitted
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.reporting.facts.format import score

Aim = Callable[[Any], tuple[str | None, str]]  # metric and mode of a configuration


@dataclass(frozen=True, slots=True)
class Scores:
    """The study's metric and mode, and `aim`: those of a trial's configuration."""

    metric: str | None
    mode: str
    aim: Aim | None = None

    def best(self, state: State) -> tuple[float, TrialId] | None:
        """The best last score and its trial, as the study ranks them."""
        found: list[tuple[float, TrialId]] = []
        for trial in state.known if self.metric else ():
            reached = self._last(state, trial)
            if reached is not None:
                found.append((reached, trial))
        if self.mode == "max":
            return max(found, key=_score_of, default=None)
        return min(found, key=_score_of, default=None)

    def text(self, state: State, trial: TrialId, before: str) -> str:
        """The trial's last score with the metric's name, or nothing if it has none."""
        reached = self._last(state, trial)
        if reached is None:
            return ""
        return f"{before}{self._metric_of(state, trial)} {score(reached)}"

    def _metric_of(self, state: State, trial: TrialId) -> str | None:
        """What the trial is ranked by."""
        if self.aim is None:
            return self.metric
        return self.aim(state.known[trial].config)[0]

    def _last(self, state: State, trial: TrialId) -> float | None:
        """The trial's last score; None if it has none, is not finite, or the trial failed."""
        metric = self._metric_of(state, trial)
        if metric is None or state.ended.get(trial, "").startswith("failed"):
            return None
        for _, values in reversed(state.scores.get(trial, ())):
            if metric in values:
                last = values[metric]
                return last if isfinite(last) else None
        return None


@dataclass(frozen=True, slots=True)
class Ends:
    """What became of trials, in the words of searchers with rungs where trials pause at rungs.

    `furthest`: the epochs to which such a trial goes on at most; None: none goes on.
    """

    scores: Scores
    furthest: float | None = None

    def line(self, entry: Entry, state: State) -> str | None:
        """What the entry means for a trial, in a line; None: it ends none and promotes none."""
        match entry:
            case Finished(trial):
                how = self._finished(state, trial)
            case Retired(trial):
                how = "stopped" + _at(_epoch(state, trial))
            case Failed(trial, why):
                return f"{trial} failed: {why}"
            case Submitted(submitted) if self._goes_on(state, submitted):
                return f"{submitted.id} promoted{_to(state, submitted)}"
            case _:
                return None
        return f"{trial} {how}{self.scores.text(state, trial, before=': ')}"

    def _finished(self, state: State, trial: TrialId) -> str:
        """Whether it is at its last epoch, or waits at a rung whether it is promoted."""
        if self.furthest is None:
            return "finished"
        epoch = _epoch(state, trial)
        if epoch is None or epoch >= self.furthest:
            return "finished" + _at(epoch)
        return "paused" + _at(epoch)

    def _goes_on(self, state: State, trial: Trial) -> bool:
        """Whether the trial had paused at a rung."""
        return self.furthest is not None and state.done.get(trial.id, 0.0) > 0


def _epoch(state: State, trial: TrialId) -> float | None:
    """The epoch of the trial's last evaluation."""
    scores = state.scores.get(trial)
    if not scores:
        return None
    return scores[-1][0]


def _at(epoch: float | None) -> str:
    """Where a trial ended."""
    return "" if epoch is None else f" at epoch {epoch:g}"


def _to(state: State, trial: Trial) -> str:
    """How far a trial goes on: its samples are in proportion to its epochs so far."""
    epoch = _epoch(state, trial.id)
    if epoch is None:
        return ""
    return f" to epoch {round(epoch * trial.samples / state.done[trial.id], 2):g}"


def _score_of(found: tuple[float, TrialId]) -> float:
    """What the best is chosen by."""
    return found[0]
