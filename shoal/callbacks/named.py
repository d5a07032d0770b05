"""Loggers by what a user says: a name, perhaps with a place, or an object."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.callbacks.callback import Callback
from shoal.callbacks.csv_file import CsvFile
from shoal.callbacks.logger import Logger, Sink
from shoal.core.install import install
from shoal.core.trial import shown
from shoal.engine.files import is_remote, whole
from shoal.engine.own import why_foreign

# The module of each logger's library, and what to install for it.
NEEDS = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "wandb": ("wandb", "wandb"),
}
NAMES = ("csv", *NEEDS)
ONLINE = "online"


def loggers_of(given: str | Iterable[str | Callback]) -> list[Callback]:
    """The loggers that these names, or objects, stand for.

    A place may follow a name: "csv:logs/digits"; for mlflow a folder or the URI of a tracking
    store; for wandb a folder or "online".

    Raises:
        ValueError: no logger has that name, or its library is not installed.
    """
    made: list[Callback] = []
    for each in listed(given):
        if isinstance(each, str):
            made.append(_named(each))
        else:
            made.append(each)
    return made


def listed(given: str | Iterable[str | Callback]) -> list[str | Callback]:
    """The loggers as a list; one name stands for itself."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Iterable):
        raise ValueError(
            f"loggers= takes a list of names ({', '.join(NAMES)}) or loggers; got {shown(given)}"
        )
    return list(given)


def _named(text: str) -> Logger:
    name, _, place = text.partition(":")
    if name not in NAMES:
        raise ValueError(
            f"no logger is named {name!r}: there are {', '.join(NAMES)}; a folder may follow, "
            f"as in {NAMES[0]}:FOLDER"
        )
    if name in NEEDS:
        _check_there(name)
    sink, folder = _SINKS[name](place)
    return Logger(name, sink, folder)


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


def _csv(place: str) -> tuple[Sink, Path | None]:
    return CsvFile(), _folder(place)


def _tensorboard(place: str) -> tuple[Sink, Path | None]:
    made: Callable[[], Sink] = import_module("shoal.callbacks.tensorboard").TensorBoard
    return made(), _folder(place)


def _mlflow(place: str) -> tuple[Sink, Path | None]:
    made: Any = import_module("shoal.callbacks.mlflow").MLflow
    if "://" in place:
        return made(place), None
    return made(), _folder(place)


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


def _wandb(place: str) -> tuple[Sink, Path | None]:
    _check_settings_are_own()
    made: Any = import_module("shoal.callbacks.wandb").WeightsAndBiases
    if place == ONLINE:
        return made(online=True), None
    return made(), _folder(place)


_SINKS = {"csv": _csv, "tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
