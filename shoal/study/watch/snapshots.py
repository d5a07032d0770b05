"""Writes a snapshot of the study's state every so many lines of its journal."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shoal.core.event import Entry
from shoal.core.state import State
from shoal.core.trial import Seconds
from shoal.engine.journal import Journal, Line
from shoal.engine.snapshot import EVERY, History, Snapshot, Snapshots, runs_in


class SnapshotWriter:
    """Follows a run: called after each moment, when all that follows from it is done.

    `past`: what the journal came to before. `learnt`: what a snapshot is to hold beside the state.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        journal: Journal,
        past: History,
        learnt: Callable[[], Any] = lambda: None,
    ) -> None:
        self._snapshots = snapshots
        self._journal = journal
        self._runs = [*past.runs]
        self._learnt = learnt
        self._due = EVERY + (past.since.lines if past.since else 0)

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        self._runs += runs_in([Line(now, entry) for entry in entries])
        if self._journal.number < self._due:
            return
        self._due = self._journal.number + EVERY
        self._journal.sync()
        at = self._journal.number, self._journal.size
        # Without one the next run reads more. The journal itself says so if the disk is full.
        with suppress(OSError):
            self._snapshots.write(Snapshot(*at, now, self._runs, state, self._learnt()))
