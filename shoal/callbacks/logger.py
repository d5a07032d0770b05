"""What loggers have in common: each score of each trial is logged once, however a study goes on."""

from collections.abc import Collection, Mapping
from math import inf
from pathlib import Path
from typing import Any, Protocol

from shoal.callbacks.callback import Callback
from shoal.engine.own import make_folder
from shoal.engine.plain_files import check_plain_below

Values = Mapping[str, float]
METRIC = "metric."  # before a score's name that would be that of something else
# Links that a logger's library makes in its folder, to the user's cache, and never opens.
UNREAD = {"wandb": ("debug-core.log",)}


class Sink(Protocol):
    """Where a logger writes to."""

    def open(self, study: Any, folder: Path) -> None:
        """A run of the study begins. `folder`: where files may go."""

    def logged(self, trial: Any) -> float:
        """The epochs up to which the trial's scores are there already; -inf: it is not there."""

    def write(self, trial: Any, epoch: float, values: Values) -> None:
        """Add the trial's scores after so many epochs."""

    def end(self, trial: Any) -> None:
        """The trial ended; it may go on later."""

    def close(self) -> None:
        """The run is over."""


class Logger(Callback):
    """Logs each trial's configuration and scores to a sink.

    `folder`: where files go; None: a folder of the logger's name in the study's. A score that the
    sink has is left out, and one that it lacks (after a crash) is added when the study goes on.
    """

    def __init__(self, name: str, sink: Sink, folder: Path | None = None) -> None:
        self.name = name
        self.sink = sink
        self.folder = folder
        self._logged: dict[str, float] = {}

    def on_start(self, study: Any) -> None:
        folder = self.folder
        if folder is None:
            folder = study.folder.path / self.name
            make_folder(study.folder.path)
            check_plain_below(folder, study.folder.path, UNREAD.get(self.name, ()))
        self.sink.open(study, folder)
        self._logged = {}
        for trial in study.trials:
            if trial.scores and self._catch_up(trial) and trial.status != "running":
                self.sink.end(trial)

    def on_epoch(self, study: Any, trial: Any, epoch: float, values: Values) -> None:
        self._catch_up(trial)

    def on_trial_end(self, study: Any, trial: Any) -> None:
        self._catch_up(trial)
        self.sink.end(trial)

    def on_end(self, study: Any) -> None:
        self.sink.close()

    def _catch_up(self, trial: Any) -> bool:
        """Log the scores that are not there; whether there were any."""
        if not trial.scores:
            return False
        if trial.id not in self._logged:
            self._logged[trial.id] = self.sink.logged(trial)
        new = []
        for epoch, values in reversed(trial.scores):
            if epoch <= self._logged[trial.id]:
                break
            new.append((epoch, values))
        for epoch, values in reversed(new):
            self.sink.write(trial, epoch, values)
            self._logged[trial.id] = epoch
        return bool(new)


def apart(values: Values, own: Collection[str], prefix: str = METRIC) -> Values:
    """The scores, none of which has the name of one of the logger's own columns.

    A score of such a name, or of one that begins with a prefix, is called metric.<name>.
    """
    return {
        f"{METRIC}{name}" if name in own or name.startswith((METRIC, prefix)) else name: value
        for name, value in values.items()
    }


def step_of(trial: Any, epoch: float) -> int:
    """The number of a step for tools that count whole ones: epochs.

    In thousandths of an epoch where trials are evaluated within epochs.
    """
    first, _ = trial.scores[0]
    if first % 1:
        return round(1000 * epoch)
    return round(epoch)


def last_epoch(trial: Any, step: int) -> float:
    """The epoch of that step; -inf below all steps."""
    if step < 0:
        return -inf
    first, _ = trial.scores[0]
    if first % 1:
        return step / 1000 + 1e-6
    return step + 0.5
