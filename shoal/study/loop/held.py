"""A study's journal in the hands of a loop of the user's own."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import Any
from weakref import finalize

from shoal.core.event import Entry, Opened, Planned, Remembered
from shoal.core.fold import fold
from shoal.core.state import State, View, view
from shoal.core.trial import Seconds, TrialId
from shoal.engine.journal import Journal, Line, replay
from shoal.options import Options
from shoal.policy import Fifo
from shoal.profile.measure import believe
from shoal.study.code.files import function_in
from shoal.study.code.mark import places_mark
from shoal.study.code.saving import save
from shoal.study.folder import last_head
from shoal.study.head import Deciders, Head, check_same, head
from shoal.study.inbox import Inbox, answers
from shoal.study.loop.searching import Asking, searcher_for
from shoal.study.notes import control
from shoal.study.notes.meaning import meaning
from shoal.study.parts.functions import with_own_draws
from shoal.study.parts.grown import with_past
from shoal.study.setup import Setup, data_of
from shoal.study.watch.log import Log
from shoal.study.watch.notice import Repeats
from shoal.train.function.recipe import nothing


class HeldStudy:
    """The study, which no other process can open between `take` and `leave`.

    A run begins in its journal when it is first taken, and after others have run it meanwhile.
    """

    def __init__(self, setup: Setup, searcher: Any) -> None:
        self.setup = setup
        self.state = State()
        # Trials that ever had a slot.
        self.begun: set[TrialId] = set()
        self._searcher = searcher
        self._asking: Asking | None = None
        # The number of this loop's run in the journal; 0: it has not begun.
        self._run = 0
        self._size = 0  # of the journal, in bytes, when it was left
        self._zero: Seconds = 0.0  # the clock's time at which the study's was 0
        self._log = Log(setup.folder.log)
        self._repeats = Repeats(())
        self._free: Callable[[], Any] | None = None  # lets go of the study, once

    @property
    def asking(self) -> Asking:
        """The searcher."""
        assert self._asking is not None
        return self._asking

    def now(self) -> Seconds:
        """The time of the study."""
        return monotonic() - self._zero

    def seen(self) -> View:
        """What a searcher sees."""
        return view(self.state, self.now(), believe(self.state))

    def take(self) -> None:
        """Hold the study, and read what others have written meanwhile.

        Raises:
            StudyError: it is open elsewhere, or was begun as another search.
        """
        if self._free is not None:
            return
        folder = self.setup.folder
        folder.make()
        with ExitStack() as opened:
            opened.enter_context(folder.lock())
            if self._run == 0 or folder.size() != self._size:
                self._read()
            # Of a loop that is dropped, or that leaves trials when its program ends.
            self._free = finalize(self, opened.pop_all().close)
        folder.live = self.state

    def leave(self) -> None:
        """Let go of the study."""
        if self._free is None:
            return
        folder = self.setup.folder
        self._log.close()
        self._size = folder.size()
        folder.live = None
        self._free()
        self._free = None

    def note(self, entries: Sequence[Entry]) -> None:
        """Write these entries down; they are durable afterwards."""
        if not entries:
            return
        now = self.now()
        state = fold(self.state, entries)
        journal = Journal(self.setup.folder.journal)
        try:
            for entry in entries:
                journal.append(now, entry)
        finally:
            journal.close()
        self.state = state
        self._log(now, tuple(entries), state)
        self._repeats(now, tuple(entries), state)
        if self._free is not None:
            self.setup.folder.live = state

    def take_notes(self) -> None:
        """Write down what others ask for: trials to add, to change, or to take out."""
        inbox = Inbox(self.setup.folder.path)
        if not inbox:
            return
        paths, entries = answers(inbox, self.state, meaning(self.setup))
        self.note(entries)
        inbox.remove(paths)

    def _read(self) -> None:
        """Read the journal; a run begins, unless this loop's is the newest there."""
        control.take(self.setup)
        lines = self.setup.folder.lines()
        self.state = replay(lines)
        self._repeats = Repeats(self.state.known.values())
        self.begun = _begun(lines)
        if self._run == 0 or self.state.run != self._run:
            self._begin(lines)

    def _begin(self, lines: Sequence[Line]) -> None:
        """Write down that a run begins.

        Raises:
            StudyError: the searcher cannot be asked so, or the study was begun otherwise.
        """
        setup = self.setup
        before = last_head(lines)
        searcher = searcher_for(setup, self._searcher, before)
        if before:
            searcher = with_past(searcher, before["searcher"], self.state)
        searcher = with_own_draws(setup, searcher)
        data = data_of(setup.recipe)
        now = _head(setup, data, Deciders(searcher, Fifo(), Options()), before)
        now["marks"] = places_mark(now, setup.folder.path)
        check_same(before, now, self.state)
        now["recipe"] = {**now["recipe"], **save(setup.folder, setup.recipe)}
        self._asking = Asking(searcher)
        self._run = self.state.run + 1
        since = 0.0
        if lines:
            since = lines[-1].time
        self._zero = monotonic() - since
        entries: list[Entry] = [Opened(self._run, data.sizes, now)]
        if before and before.get("policy") != now["policy"]:
            entries.append(Remembered("policy", None))
        self.note(entries)


def _head(setup: Setup, data: Any, deciders: Deciders, before: Head) -> dict[str, Any]:
    """The head of the run. If there is no function, no file is named as that of the code."""
    now = {
        **head(setup, data, deciders, before),
        "profile": None,
        "given": None,
        "loggers": [],
        "loop": True,
    }
    if function_in(setup.recipe) is nothing:
        now["recipe"] = {"name": "own loop", "file": None, "sha256": None}
    return now


def _begun(lines: Sequence[Line]) -> set[TrialId]:
    """The trials that ever had a slot."""
    found: set[TrialId] = set()
    for _, entry in lines:
        if isinstance(entry, Planned):
            for gang in entry.start:
                found.update(gang.trials)
    return found
