"""What happens to the trials, in a file and for Python's logging."""

import logging
from pathlib import Path

from shoal.core.event import (
    Entry,
    Evaluated,
    Failed,
    Fell,
    Finished,
    Kept,
    Retired,
)
from shoal.core.state import State
from shoal.core.trial import Seconds, TrialId
from shoal.engine.plain_files import open_file

# Silent unless the user's program sets logging up.
LOGGER = logging.getLogger("shoal")
LOGGER.addHandler(logging.NullHandler())

# Seconds whose lines the log gets at once: opening a file takes longer than to write to it.
TOGETHER: Seconds = 1.0


class Log:
    """Appends what happens to the trials to a file, within about a second, and logs it.

    The logger "shoal" gets failures as warnings, durable states for debugging, the rest as
    information.

    One file for all: with a file a trial, making files takes a fifth of a tiny trial's time.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._waiting: list[str] = []  # lines that are to be appended
        self._since: Seconds = 0.0  # when the first of them came

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        if not self._waiting:
            self._since = now
        for entry in entries:
            line = _line(entry)
            if line is not None:
                trial, text = line
                self._waiting.append(f"{now:10.2f} s  {trial}  {text}\n")
                LOGGER.log(_level(entry), "%s: %s", trial, text)
        if now - self._since >= TOGETHER or not state.gangs:
            self.close()

    def tell(self, now: Seconds, text: str) -> None:
        """What the run waits for before its first moment: a line at once."""
        self._waiting.append(f"{now:10.2f} s  {text}\n")
        LOGGER.info("%s", text)
        self.close()

    def close(self) -> None:
        """Write what waits."""
        if self._waiting:
            with open_file(self.file, "a") as log:
                log.writelines(self._waiting)
        self._waiting = []


def _level(entry: Entry) -> int:
    """How much the entry matters to somebody who follows the log."""
    if isinstance(entry, Failed) or (isinstance(entry, Fell) and entry.why):
        return logging.WARNING
    if isinstance(entry, Kept):
        return logging.DEBUG
    return logging.INFO


def _line(entry: Entry) -> tuple[TrialId, str] | None:
    """The trial that the entry is about, and what the log says of it; None: nothing."""
    match entry:
        case Evaluated(trial, epoch, values):
            listed = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
            return trial, f"epoch {epoch:g}: {listed}"
        case Kept(trial, visits, samples, name):
            return trial, f"kept as {name} after {visits} visits, {samples:g} samples"
        case Fell(trial, visits, samples, why):
            lost = why or "newer work was lost or void"
            return trial, f"back to visit {visits}, {samples:g} samples: {lost}"
        case Failed(trial, why):
            return trial, f"failed: {why}"
        case Finished(trial) | Retired(trial):
            return trial, type(entry).__name__.lower()
        case _:
            return None
