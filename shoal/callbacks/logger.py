"""Loggers: what they have in common, and which one a name stands for.

Each score of each trial is logged once, however a study goes on.
"""

from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, Protocol

from shoal.callbacks.callback import Callback
from shoal.core.errors import arguments_checked
from shoal.core.install import install
from shoal.core.other_tools import check_own
from shoal.core.trial import shown
from shoal.engine.files import is_remote, whole
from shoal.engine.ownership import make_folder, why_foreign
from shoal.engine.plain_files import check_plain_below

Values = Mapping[str, float]
METRIC = "metric."  # before a score's name that would be that of something else
# The sink of each logger: its module below this folder, which imports the logger's library.
SINKS = {
    "csv": ("csv_file", "CsvFile"),
    "tensorboard": ("tensorboard", "TensorBoard"),
    "mlflow": ("mlflow", "MLflow"),
    "wandb": ("wandb", "WeightsAndBiases"),
}
# The library of each logger that needs one, and what to install for it.
NEEDS = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "wandb": ("wandb", "wandb"),
}
ONLINE = "online"
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
        """Log the scores that the sink lacks; returns whether there were any."""
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


def apart(values: Values, columns: Collection[str], prefix: str = METRIC) -> Values:
    """The scores, none of which has the name of one of the logger's own columns.

    A score of such a name, or of one that begins with a prefix, is called metric.<name>.
    """
    return {
        f"{METRIC}{name}" if name in columns or name.startswith((METRIC, prefix)) else name: value
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


# -- by name ---------------------------------------------------------------------------------------


@arguments_checked()
def loggers_of(loggers: str | Iterable[str | Callback]) -> list[Callback]:
    """The loggers that these names, or objects, stand for.

    A place may follow a name: "csv:logs/digits"; for mlflow a folder or the URI of a tracking
    store; for wandb a folder or "online".

    Raises:
        ArgumentError: no logger has that name, its library is not installed, or it is another
            tool's.
    """
    return [_named(each) if isinstance(each, str) else each for each in listed(loggers)]


def listed(loggers: str | Iterable[str | Callback]) -> list[str | Callback]:
    """The loggers as a list; one name is a list of one."""
    if isinstance(loggers, str):
        return [loggers]
    check_own(loggers)
    if not isinstance(loggers, Iterable):
        raise ValueError(
            f"loggers= takes a list of names ({', '.join(SINKS)}) or loggers; got {shown(loggers)}"
        )
    return list(loggers)


def _named(text: str) -> Logger:
    """The logger that a text `name` or `name:place` stands for."""
    name, _, place = text.partition(":")
    if name not in SINKS:
        raise ValueError(
            f"no logger is named {name!r}: there are {', '.join(SINKS)}; a folder may follow, "
            f"as in {next(iter(SINKS))}:FOLDER"
        )
    if name in NEEDS:
        _check_there(name)
    if name == "wandb":
        _check_settings_are_own()
    module, sink_name = SINKS[name]
    sink = getattr(import_module(f"shoal.callbacks.{module}"), sink_name)
    if name == "wandb" and place == ONLINE:
        return Logger(name, sink(online=True))
    if name == "mlflow" and "://" in place:
        return Logger(name, sink(place))
    return Logger(name, sink(), _folder(place))


def _check_there(name: str) -> None:
    """Raise ValueError unless the logger's library can be imported."""
    module, package = NEEDS[name]
    try:
        import_module(module)
    except ImportError as error:
        raise ValueError(f"the logger {name!r} needs {module}: {install(package)}") from error


def _folder(place: str) -> Path | None:
    if not place:
        return None
    if is_remote(place):
        raise ValueError(f"a logger writes to a folder on this machine; got {place!r}")
    return whole(place)


def _check_settings_are_own() -> None:
    """See that W&B takes no settings of somebody else's: they name the server that gets your key.

    Raises:
        ValueError: the current folder has such a file, which W&B reads.
    """
    for file in (Path("wandb/settings"), Path(".wandb/settings")):
        foreign = why_foreign(file.stat()) if file.exists() else None
        if foreign is not None:
            raise ValueError(
                f"W&B reads {file.absolute()}, which must be your own, but {foreign}: go to "
                "another folder, or remove it"
            )
