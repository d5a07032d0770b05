"""The studies that are watched: their journals are followed as they grow."""

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from time import monotonic

from shoal.core.errors import StudyError
from shoal.core.trial import Seconds
from shoal.engine.journal import JournalError, Tail
from shoal.engine.plain_files import is_there, status_of
from shoal.reporting.accounting import Account, Accounting
from shoal.reporting.importance import Memory
from shoal.reporting.parameters import Parameter, parameters
from shoal.reporting.score_charts import View
from shoal.reporting.tally import TrialRow
from shoal.study.folder import Folder, studies_in
from shoal.study.holder import is_held
from shoal.ui.feed import NewsFeed

# The least and the longest time between two looks at a journal, and how many times longer than it
# takes to count the figures, so that a large study leaves the page time for other things.
LEAST: Seconds = 0.5
LONGEST: Seconds = 5.0
PATIENCE = 4
DOTS = 1000  # trials in each drawing of scores: it is drawn again and again


class Seen:
    """A study as it was at one moment, with what is made of it at most once.

    `memory`: of the importances, which are not made anew at each moment.
    """

    def __init__(self, account: Account, standing: str, version: int, memory: Memory) -> None:
        self.account = account
        self.standing = standing
        self.version = version
        self.memory = memory

    @cached_property
    def view(self) -> View:
        """What the drawings of scores show."""
        return View(self.account, DOTS, self.memory)

    @cached_property
    def ranked(self) -> Sequence[TrialRow]:
        """The trials, the best first."""
        return self.account.ranked()

    @cached_property
    def parameters(self) -> tuple[list[Parameter], dict[str, str]]:
        """What varies in the configurations, and what is the same in all of them."""
        return parameters(self.account)

    @cached_property
    def rows(self) -> Mapping[str, TrialRow]:
        """The trials by their names."""
        return {row.id: row for row in self.account.trials}


class LiveStudy:
    """One study. Threads may use it at once.

    `name`: what the page calls it, which is also its place below the folder that is served.
    """

    def __init__(self, name: str, folder: Folder) -> None:
        self.name = name
        self.folder = folder
        self.lock = threading.RLock()
        self.fault = ""  # why the journal cannot be followed any more
        self._version = 0
        self._memory = Memory()
        self._next: Seconds = 0.0  # when to look again
        self._start()

    def _start(self) -> None:
        """Begin with an empty account; of a long journal with what came before its newest lines."""
        self.feed = NewsFeed()
        since = None
        if is_there(self.folder.journal):
            since = self.folder.snapshots.of_long()
        begin = (since.offset, since.lines) if since else ()
        self._tail = Tail(self.folder.journal, *begin)
        self._accounting = Accounting(since=since)
        self._seen: Seen | None = None
        self._fresh = True  # there are lines that no account was made of

    def seen(self) -> Seen:
        """The study as it stands now, or did a moment ago."""
        with self.lock:
            if self._seen is None or monotonic() >= self._next:
                self._look()
            assert self._seen is not None
            return self._seen

    def changed(self) -> float:
        """When the journal last grew, by the clock; 0 if it is gone."""
        status = status_of(self.folder.journal)
        return 0.0 if status is None else status.st_mtime

    def _look(self) -> None:
        """Follow the journal, and count again if anything is new."""
        try:
            try:
                lines = self._tail.lines()
            except JournalError:  # it was replaced, or is damaged: once more from the beginning
                self._start()
                lines = self._tail.lines()
            self.fault = ""
            if lines:
                self._accounting.take(lines)
                self.feed.take(lines)
                self._fresh = True
        except (JournalError, OSError) as error:
            self.fault = str(error)
        begun = monotonic()
        self._count()
        took = monotonic() - begun
        self._next = monotonic() + min(LONGEST, max(LEAST, PATIENCE * took))

    def _count(self) -> None:
        """The account and the standing, as a new version if either has changed."""
        before = self._seen
        running = is_held(self.folder)
        if before is not None and not self._fresh:
            standing = stands(before.account, running)
            if standing == before.standing:
                return
        account = self._accounting.account(goes_on=running is not False)
        self._version += 1
        self._seen = Seen(account, stands(account, running), self._version, self._memory)
        self._fresh = False


def stands(account: Account, running: bool | None) -> str:
    """How a study stands: as its journal says, and whether a process is at work."""
    if account.status == "empty" and running:  # as while its cluster starts
        return "starting"
    if account.status != "open" or running is None:
        return account.status
    if running:
        return "running"
    return "cut off"


class Shelf:
    """The studies that are served, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.alone = is_there(self.path / "journal.jsonl")
        self._lock = threading.Lock()
        self._studies: dict[str, LiveStudy] = {}
        if not self.studies():
            raise StudyError(
                f"there is no study in {path}: no journal.jsonl in it, nor in folders below it; "
                "give a study's folder, or one that holds studies"
            )

    def studies(self) -> dict[str, LiveStudy]:
        """The studies that are there now; those that were there before stay open."""
        with self._lock:
            places = {self.path.name or "study": self.path} if self.alone else studies_in(self.path)
            known = self._studies
            self._studies = {
                name: known.get(name) or LiveStudy(name, Folder(place))
                for name, place in places.items()
            }
            return self._studies

    def read(self) -> None:
        """Read the journals, so that whoever asks first need not wait as long."""
        for study in self.studies().values():
            study.seen()

    def get(self, name: str) -> LiveStudy | None:
        """The study of that name; None: there is none."""
        study = self._studies.get(name)
        if study is None:
            study = self.studies().get(name)
        return study
