"""Notes to a study that runs: a folder beside its journal.

Whoever wants something of the study leaves a note. The run looks into the folder about once a
second, turns each note into entries of its journal, and removes it once they are written. When
nobody runs the study, the next run reads the notes first. A note taken twice, after a crash, does
nothing more.
"""

import json
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from shoal.core.errors import warn
from shoal.core.event import Commanded, Entry, Event
from shoal.core.fold import fold
from shoal.core.masking import masked_config
from shoal.core.plan import Gang
from shoal.core.ports import Moment
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.files import write_durably
from shoal.engine.journal import WRONG, as_read
from shoal.engine.lock import alone
from shoal.engine.ownership import make_folder
from shoal.engine.plain_files import NotPlainFile, TooLarge, names_in, read_file, remove_file
from shoal.engine.process import STOPPING, in_forks
from shoal.engine.small import decoded, marked, unmarked


class AddNote(Struct, frozen=True):
    """Train a trial of this name."""

    add: TrialId
    config: dict[str, Any]
    max_epochs: int | float
    widths: tuple[int, int]
    priority: int | float = 1.0


class CopyNote(Struct, frozen=True):
    """Train a copy, of this name, of a trial. `max_epochs`: in all; None: those of the trial."""

    copy: TrialId
    of: TrialId
    modify: dict[str, Any]
    warm_start: bool
    max_epochs: int | float | None


class ExtendNote(Struct, frozen=True):
    """Train this trial for so many epochs in all."""

    extend: TrialId
    max_epochs: int | float


class StopNote(Struct, frozen=True):
    """Take this trial out; None: end the run."""

    stop: TrialId | None


class SlotsNote(Struct, frozen=True):
    """Have more or fewer slots; see `shoal.study.control.slot_change`."""

    slots: str


Note = AddNote | CopyNote | ExtendNote | StopNote | SlotsNote
# By the field that a file has, which no other kind has.
KINDS: Mapping[str, type[Note]] = {
    "add": AddNote,
    "copy": CopyNote,
    "extend": ExtendNote,
    "stop": StopNote,
    "slots": SlotsNote,
}
# Raises ValueError or RuntimeError if the note asks for what cannot be.
Meaning = Callable[[State, Note], Iterable[Entry]]

# In a batch job Slurm's warning before the time limit stops a study, too; a user asks for it
# (sbatch --signal=B:USR1@60).
WARNING = "SIGUSR1"
_NOTE = re.compile(r"[0-9]{1,18}\.json")  # the name of a note's file
# Between two looks into the folder.
EVERY: Seconds = 1.0
# What the backend is told when there are notes; it is never journalled.
LOOK = Commanded("look", "there are notes")
# What the signals did before the run that takes them now.
_former: dict[int, Any] = {}


class Inbox:
    """The notes, in the order in which they were left."""

    def __init__(self, folder: Path) -> None:
        self.study = folder
        self.folder = folder / "inbox"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Within, nobody else leaves a note."""
        make_folder(self.folder, self.study)
        with alone(self.folder / "lock", timeout=30, root=self.study):
            yield

    def leave(self, note: Note) -> None:
        """Leave a note, whole or not at all; only while `writing`."""
        number = max((int(path.stem) for path in self.paths()), default=0) + 1
        place = self.folder / f"{number:06d}.json"
        write_durably(place, json.dumps(marked(asdict(note))).encode(), self.study)

    def __bool__(self) -> bool:
        return bool(self.paths())

    def read(self) -> dict[Path, Note]:
        """The notes by their files; a file that is no note is removed, with a warning."""
        notes: dict[Path, Note] = {}
        for path in self.paths():
            try:
                notes[path] = self._note_in(path)
            except FileNotFoundError:  # the run has written it down, and removed it
                continue
            except (ValueError, NotPlainFile, TooLarge) as error:
                warn(f"{path} is not a note to a study, and was removed: {error}")
                self.remove([path])
        return notes

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove notes that are written down by now."""
        for path in paths:
            remove_file(path, self.study)

    def paths(self) -> list[Path]:
        """The files of the notes, in the order in which they were left; no others are looked at."""
        names = names_in(self.folder, self.study)
        return [self.folder / name for name in names if _NOTE.fullmatch(name)]

    def _note_in(self, path: Path) -> Note:
        """The note in this file.

        Raises:
            ValueError, NotPlainFile, TooLarge: it is none.
        """
        fields = unmarked(decoded(read_file(path, root=self.study), dict[str, Any]))
        for name, kind in KINDS.items():
            if name in fields:
                return msgspec.convert(fields, kind)
        raise ValueError(f"it has none of {', '.join(KINDS)}")


def note_entries(inbox: Inbox, state: State, meaning: Meaning) -> tuple[list[Path], list[Entry]]:
    """The files of the notes, and the entries to be journalled for them.

    It warns of what cannot be done.
    """
    entries: list[Entry] = []
    notes = inbox.read()
    for note in notes.values():
        try:
            more = [as_read(entry) for entry in meaning(state, note)]
            state = fold(state, more)
        except (*WRONG, RuntimeError) as error:
            wish = str(masked_config(asdict(note)))[:200]
            warn(f"the study was asked for {wish}, and cannot do it: {str(error)[:200]}")
            continue
        entries += more
    return list(notes), entries


class InboxBackend:
    """A backend through which notes reach the study: their entries come as its events.

    `state`: with which the run begins; as a watcher of the run it follows the state. A thread looks
    for notes from the beginning of its `with` block to the end.
    """

    def __init__(self, backend: Any, inbox: Inbox, meaning: Meaning, state: State) -> None:
        self._backend = backend
        self._inbox = inbox
        self._meaning = meaning
        self._state = state
        # Whether the backend was told to have a moment for notes.
        self._looks = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shoal-inbox", daemon=True)

    def __enter__(self) -> "InboxBackend":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY):
            self.look()

    def look(self) -> None:
        """Have the run read its notes at the next moment, if there are any."""
        if not self._looks and self._inbox:
            self._looks = True
            self._backend.tell(LOOK)

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        self._state = state

    def submit(self, trial: Trial) -> None:
        self._backend.submit(trial)

    def change(self, before: Gang | None, after: Gang | None) -> None:
        self._backend.change(before, after)

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        self._backend.wake(at, until)

    def moments(self) -> Iterator[Moment]:
        for now, events in self._backend.moments():
            news = tuple(event for event in events if event is not LOOK)
            if len(news) == len(events):
                yield now, events
                continue
            paths, noted = note_entries(self._inbox, fold(self._state, news), self._meaning)
            together: tuple[Event, ...] = (*news, *noted)  # type: ignore[arg-type]
            yield now, together
            self._inbox.remove(paths)  # the journal has them by now
            self._looks = False


@contextmanager
def stop_signals(tell: Callable[[Commanded], None], warned: bool = False) -> Iterator[None]:
    """Within, Ctrl-C or SIGTERM stops the study at the next moment; a second one, at once.

    `warned`: the scheduler's warning does so, too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [*STOPPING]
    if warned:
        numbers.append(signal.Signals[WARNING])
    before = {number: signal.getsignal(number) for number in numbers}
    _former.update(before.items())
    second = dict(before)
    # Shells have what they start in the background ignore SIGINT.
    if second[signal.SIGINT] == signal.SIG_IGN:
        second[signal.SIGINT] = signal.default_int_handler

    def stop(number: int, _frame: Any) -> None:
        tell(Commanded("stop", signal.Signals(number).name))
        for each, handler in second.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        _give_back()


def _give_back() -> None:
    """Give signals back to the handlers that they had before.

    Forks of the process, too: their parent ends them by SIGTERM, as a `multiprocessing.Pool` does,
    and waits for that.
    """
    for number, handler in _former.items():
        if handler is not None:  # one that was not set from Python stays as it is
            signal.signal(number, handler)
    _former.clear()


in_forks(_give_back)
