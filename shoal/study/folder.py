"""A study's folder: its journal, its lock, and what else there is about its runs."""

import errno
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from shoal.core.cluster import fits_utf8, is_name
from shoal.core.errors import StudyError
from shoal.core.event import Opened
from shoal.core.state import State
from shoal.core.trial import shown
from shoal.engine.files import is_remote, whole, write_whole
from shoal.engine.journal import Line, newest, read
from shoal.engine.lock import Taken, held
from shoal.engine.ownership import make_folder
from shoal.engine.plain_files import NotPlainFile, is_there, read_file, remove_file, status_of
from shoal.engine.small import SlotsFile, check_head, decoded
from shoal.engine.snapshot import History, Snapshots
from shoal.study.code.mark import are_own_places, is_own_snapshot, places_outside, snapshot_marks


class StudyBusy(StudyError):  # noqa: N818 - a state of the study, as its user names it
    """Another process has the study open."""


class TrialsFailed(StudyError):  # noqa: N818 - a state of the study, as its user names it
    """Every trial of the study failed; the message gives the first reasons."""


class StudyPaused(RuntimeError):  # noqa: N818 - a state of the study, as its user names it
    """Something outside the trials went wrong: the disk, the data or the folder.

    Durable work is kept; mend the cause and run again.
    """


class Folder:
    """The folder of a study. `checkpoints`: another place for the weights, any fsspec URL."""

    def __init__(self, path: str | Path, checkpoints: str | None = None) -> None:
        _check_no_database(path)
        _check_place("storage", path)
        if is_remote(path):
            raise StudyError(
                f"storage must be a folder that this process can append to; got {str(path)!r}: "
                "give a folder, and checkpoints=URL for the weights"
            )
        self.path = whole(path)
        self.journal = self.path / "journal.jsonl"
        self.report = self.path / "report.html"
        self.log = self.path / "log.txt"
        # The slots of a run, while it runs.
        self.board = self.path / "slots.json"
        # The place of the weights, if they are not in the folder itself.
        self.elsewhere: str | None = None
        # Why the place that the last run's head names for them is not used; empty: it is.
        self._why_foreign = ""
        # The study's state while its run calls a callback here; None: no callback is called.
        self.live: State | None = None
        # What that callback is told of: see `shoal.study.callback_handler.TrialMoment`.
        self.moment: Any = None
        if checkpoints:
            _check_place("checkpoints", checkpoints)
            elsewhere = checkpoints if is_remote(checkpoints) else whole(checkpoints).resolve()
            self.elsewhere = str(elsewhere)

    @property
    def name(self) -> str:
        """The study's name, which is that of its folder."""
        return self.path.resolve().name if self.path.name == ".." else self.path.name

    @property
    def checkpoints(self) -> str:
        """Where the weights lie, as any process finds them that sees the same files.

        Raises:
            StudyError: the journal names a place that is not known as the user's own choice.
        """
        if self._why_foreign and self.elsewhere is None:
            raise StudyError(self._why_foreign)
        return self.elsewhere or str(self.path.resolve() / "checkpoints")

    def go_on(self, head: Mapping[str, Any]) -> None:
        """Take the weights from where the run of this head had them, unless told another place.

        Weights in the folder itself move with the folder. Another place counts only under the
        user's mark, as whoever made the folder could name any: a run deletes checkpoints there.
        """
        place = head.get("checkpoints")
        if self.elsewhere is not None or place is None:
            return
        # Heads of the first version named the place also if it was in the folder itself.
        parts = Path(place).parts[-2:]
        inside = not is_remote(place) and parts == (head.get("study"), "checkpoints")
        if inside and is_there(self.path / "checkpoints"):
            return
        if are_own_places(head, self.path):
            self.elsewhere = place
        else:
            self._why_foreign = foreign_places_text(self, head, "checkpoints")

    def check_places(self, head: Mapping[str, Any], *names: str) -> None:
        """Check that what a run is to take from this head lies in the folder, or is the user's own.

        `names`: places beside the checkpoints that are given anew.

        Raises:
            StudyError: it names other places.
        """
        places = places_outside(head)
        for name in ("checkpoints", *names):
            places.pop(name, None)
        if places and not are_own_places(head, self.path):
            raise StudyError(foreign_places_text(self, head, *places))

    def make(self) -> None:
        """Create the folder, and see that it can be written to.

        Raises:
            StudyError: it cannot.
        """
        if self.name and not is_name(self.name):
            raise StudyError(
                f"a study is named after its folder, which is named {self.name[:80]!r}: leave out "
                "control characters and '\\\\', or choose another storage="
            )
        try:
            make_folder(self.path)
            write_whole(self.path / ".writable", b"")
            remove_file(self.path / ".writable")
        except OSError as error:
            raise StudyError(
                f"the study's folder {self.path} cannot be written to ({error}): "
                "choose another storage="
            ) from error

    def size(self) -> int:
        """The journal's bytes; 0 if there is none."""
        status = status_of(self.journal)
        return 0 if status is None else status.st_size

    def check_begun(self) -> None:
        """Raise StudyError unless there is a study's journal here."""
        if not is_there(self.journal):
            raise StudyError(f"there is no study in {self.path}: no journal.jsonl")

    def lines(self) -> list[Line]:
        """The journal; empty if there is none."""
        if not is_there(self.journal):
            return []
        return list(read(self.journal))

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots of the journal's state, under the user's key."""
        return Snapshots(self.journal, snapshot_marks, is_own_snapshot)

    def past(self) -> History:
        """The history that the journal tells; quicker than to read all of it, if it is long.

        Raises:
            JournalError: it cannot be read, or its entries do not fit each other.
        """
        return self.snapshots.past()

    def slots(self) -> Any:
        """What the study's run wrote last of its slots; None if there is no such file."""
        with suppress(OSError, ValueError):
            return decoded(read_file(self.board), SlotsFile)
        return None

    def head(self) -> Mapping[str, Any]:
        """The head of the newest run, as `last_head`; quicker than to read all of the journal.

        Raises:
            StudyError: Shoal writes no such head.
        """
        opened = None
        if is_there(self.journal):
            opened = newest(self.journal, Opened)
        if opened is None:
            return {}
        try:
            check_head(opened.head)
        except ValueError as error:
            raise foreign_head_error(error) from error
        return opened.head

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the study alone.

        Raises:
            StudyBusy: another process has it open; the message says which.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(held(self.path / "study.lock", self.path / "holder.json"))
            except Taken as taken:
                raise StudyBusy(
                    f"the study in {self.path} is open already, held by {taken.who}: "
                    f"wait for it, or end it{taken.remedy}"
                ) from None
            yield


def foreign_places_text(folder: Folder, head: Mapping[str, Any], *names: str) -> str:
    """Why these places that a head names are not used, and what to do."""
    places = places_outside(head)
    named = ", ".join(f"{name} {str(places[name])[:200]!r}" for name in names)
    return (
        f"the journal in {folder.path} names {named}, outside of its folder, and this is not known "
        "as your own choice (no mark of your key, or the folder was moved): if it is right, give "
        f"it again once: shoal resume {folder.path} --checkpoints PLACE or "
        f"shoal.load_study({str(folder.path)!r}, checkpoints=PLACE) for checkpoints, else "
        f"shoal run FILE.py --storage {folder.path} with --address, --logger, --profile or --policy"
    )


def foreign_head_error(error: Exception) -> StudyError:
    """The error for a head in the journal that cannot be used, for this reason."""
    return StudyError(
        "the journal says of its newest run what Shoal does not write "
        f"({type(error).__name__}: {str(error)[:300]}): take a copy that is as Shoal wrote it, "
        "or run the command again that began the study"
    )


def studies_in(path: Path) -> dict[str, Path]:
    """The folders of studies at most two levels below this one, by name; links are left out."""
    studies = {}
    for depth in ("*", "*/*"):
        for place in sorted(path.glob(depth)):
            with suppress(NotPlainFile):
                if is_there(place / "journal.jsonl", root=path):
                    studies[place.relative_to(path).as_posix()] = place
    return studies


# Addresses of databases, which are storages of Optuna: the kind, and the path after the host.
_DATABASE = re.compile(
    r"(sqlite|postgres(?:ql)?|mysql|mariadb|oracle|mssql|redis)s?(?:\+\w+)?:(?=/)(?://[^/]*)?(.*)",
    re.S,
)


def _check_no_database(place: Any) -> None:
    """Raise StudyError if this is a database, by its address or as an object of Optuna's."""
    name = "my-study"
    if isinstance(place, str | os.PathLike):
        match = _DATABASE.match(str(os.fspath(place)))
        if match is None:
            return
        given = f"an address of {match[1]}"  # not all of it: it may hold a password
        file = Path(match[2].partition("?")[0]).stem
        if is_name(file) and not {"@", ":"} & {*file}:
            name = file
    elif type(place).__module__.partition(".")[0] == "optuna":
        given = type(place).__name__
    else:
        return
    raise StudyError(
        f"Shoal stores a study in a folder, not in a database; got {given}: write "
        f"storage='runs/{name}'"
    )


def _check_place(name: str, place: Any) -> None:
    """Raise StudyError unless this argument can be a path, or an address of one."""
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(text, str) or not fits_utf8(text):
        raise StudyError(
            f"{name}= takes a path, as a text that UTF-8 can hold or a Path; got {shown(place)}: "
            "choose another"
        )
    try:
        if is_remote(text):
            import fsspec

            scheme = text.partition("://")[0].rpartition("::")[2]
            fsspec.get_filesystem_class(scheme.partition(":")[0])
            return
        os.stat(os.path.expanduser(text))
    except (ValueError, ImportError) as error:
        raise StudyError(
            f"{name}={text!r} cannot be reached: {error}; give a folder, or a URL that fsspec "
            "knows and whose package is installed"
        ) from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise StudyError(
                f"{name}= names a longer path than there can be, {shown(place)}: choose another"
            ) from error


def timestamp() -> str:
    """Now, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def _installed() -> Mapping[str, str]:
    """Versions of installed packages. Read once: it takes as long as a small study's beginning."""
    installed = {}
    for name in ("shoal", "torch", "numpy", "ray"):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide the numbers."""
    return {"python": platform.python_version(), **_installed()}


def last_head(lines: Sequence[Line]) -> Mapping[str, Any]:
    """The head of the newest run in a journal; empty if there is none."""
    for line in reversed(lines):
        if isinstance(line.entry, Opened):
            return line.entry.head
    return {}
