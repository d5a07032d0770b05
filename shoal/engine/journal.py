"""The journal: append-only JSON lines, one entry each; the only record of a study."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOENT
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, get_args

import msgspec

from shoal.core.cluster import LONGEST_NAME, is_name
from shoal.core.event import Entry, Event, Kept, Planned, Remembered, ids_of
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import Seconds
from shoal.engine.plain_files import is_there, open_file, status_of
from shoal.engine.sealed import JournalError, LineOrder, at_line, number_of, sealed
from shoal.engine.small import check_depth, marked, unmarked

__all__ = ["Journal", "JournalError", "Line", "Tail", "newest", "read", "replay"]

E = TypeVar("E")
SCHEMA = 1
LONGEST_LINE = 2**26  # bytes
BLOCK = 2**20  # bytes that are searched at once
KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (*get_args(Event), Planned, Remembered)
}
# What decoding raises for a line that is no entry.
WRONG = (
    msgspec.MsgspecError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
    OverflowError,
    AttributeError,
)
_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode


class Line(NamedTuple):
    """One entry and the time it was written, in seconds of the study."""

    time: Seconds
    entry: Entry


def encode(time: Seconds, entry: Entry) -> bytes:
    """One line of a journal, its newline included."""
    line = _encode_fields(time, entry, entry)
    if b"null" in line:  # None, or a number that JSON lacks
        fields = msgspec.to_builtins(entry, order="deterministic")
        line = _encode_fields(time, entry, marked(fields))
    return line


def _encode_fields(time: Seconds, entry: Entry, fields: Any) -> bytes:
    kind = type(entry).__name__
    return _encode({"t": round(time, 6), "e": kind, "d": fields}) + b"\n"


def plain(value: Any) -> Any:
    """The value as a journal gives it back: tuples and sets as lists, dataclasses as dicts."""
    return unmarked(_decode(_encode(marked(msgspec.to_builtins(value)))))


def decode(line: bytes) -> Line:
    """The entry of one line.

    Raises:
        JournalError: not JSON, an unknown kind of entry, or fields that do not fit it.
    """
    try:
        raw = _decode(line)
        check_depth(line, raw)
        if b'"~"' in line:
            raw = unmarked(raw)
        entry: Entry = msgspec.convert(raw["d"], KINDS[raw["e"]])
        _check_ids(entry)
        return Line(_seconds(raw["t"]), entry)
    except WRONG as error:
        about = f"{type(error).__name__}: {error}"[:500]
        raise JournalError(f"not a journal entry ({about}): {line[:120]!r}") from error


def as_read(entry: Entry) -> Entry:
    """The entry as a journal gives it back, which tells whether it may be written.

    Raises:
        JournalError: no journal with it could be read.
    """
    return decode(encode(0.0, entry)).entry


def _check_ids(entry: Entry) -> None:
    """Raise ValueError if an id could not name a file of the study, and only that."""
    for name in ids_of(entry):
        if not _is_name(name):
            raise ValueError(
                "ids of trials, slots and nodes hold no '/', '\\\\' or control characters, are not "
                f"'.' or '..', and have at most {LONGEST_NAME} characters; got {name[:40]!r}"
            )
    if isinstance(entry, Kept) and entry.name:
        parts = entry.name.split("/")
        if len(entry.name) > 2 * LONGEST_NAME or not all(map(_is_name, parts)):
            raise ValueError(
                "a checkpoint's name is of names with '/' between them, within the study's; got "
                f"{entry.name[:40]!r}"
            )


_is_name = lru_cache(2**14)(is_name)


def _seconds(value: Any) -> Seconds:
    if not (isinstance(value, int | float) and isfinite(value)):
        raise ValueError("the time of an entry is a finite number")
    return float(value)


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Grouping:
    """Entries that are written within so many seconds share one sync (docs/decisions/0015).

    `before` is called before the entries are written. It makes durable what they speak of, such
    as checkpoints. `after` is called once the entries are durable. It does what had to wait for
    that, such as deleting former checkpoints.
    """

    seconds: Seconds
    before: Callable[[], None] = _nothing
    after: Callable[[], None] = _nothing


class Journal:
    """An open journal file.

    `append` keeps an entry in memory. `flush` hands it to the operating system: other processes
    can read it, and it outlives this process. After `sync` it also outlives a crash of the machine.

    With a `grouping`, `flush` and `sync_soon` do nothing until the oldest entry is so many seconds
    old; `sync` never waits. A crash then loses the end of the journal, as if it had never
    happened. Nothing outside this process may therefore rely on it before.

    Without a path the journal is a list in memory, for simulations: read `lines`.
    """

    def __init__(self, path: Path | None = None, grouping: Grouping | None = None) -> None:
        self.path = path
        self.lines: list[Line] = []
        self._is_grouped = grouping is not None
        self._grouping = grouping or Grouping(0.0)
        self._file: IO[bytes] | None = None
        # The encoded entries that are not yet written. The file has no buffer of its own: after a
        # failed write, that would write the rest at some later time.
        self._waiting: list[bytes] = []
        # The times of the first and the last of these entries.
        self._oldest: Seconds | None = None
        self._newest: Seconds = 0.0
        self.number = 0  # lines so far, those that wait included
        if path is not None:
            self._open(path)

    def _open(self, path: Path) -> None:
        size = 0
        if is_there(path):
            size, self.number = sound_part(path)
        self._file = open_file(path, "ab", buffering=0)
        # A crash may have torn the last line. Nobody has acted upon it: it was never durable.
        self._file.truncate(size)
        if size == 0:
            self._waiting.append(first_line())
            self.number = 1

    def append(self, time: Seconds, entry: Entry) -> None:
        """Add an entry that happened at this time of the study."""
        if self._file is None:
            self.lines.append(Line(time, entry))
            return
        self.number += 1
        self._waiting.append(sealed(encode(time, entry), self.number))
        self._newest = time
        if self._oldest is None:
            self._oldest = time

    def flush(self) -> None:
        """Hand what was appended to the operating system. With a grouping: `sync_soon`.

        Raises:
            OSError: the disk is full, for example. What could not be written is lost, and whoever
                opens the file next goes on with what was written before.
        """
        if self._is_grouped:
            self.sync_soon()
        else:
            self._hand_over()

    def sync_soon(self) -> None:
        """Make everything appended so far durable: now, or when its group is complete.

        Raises:
            OSError: see `flush`.
        """
        if self._is_group_complete():
            self.sync()

    def _is_group_complete(self) -> bool:
        """Whether the oldest entry has waited long enough. Without a grouping none waits."""
        if not self._is_grouped:
            return True
        if self._oldest is None:
            return False
        return self._newest - self._oldest >= self._grouping.seconds

    def sync(self) -> None:
        """Make everything appended so far durable: it survives a crash of the machine.

        Raises:
            OSError: see `flush`; also what the grouping's `before` and `after` raise.
        """
        if self._file is None:
            return
        self._grouping.before()
        self._hand_over()
        os.fsync(self._file.fileno())
        self._check_there(self._file)
        self._grouping.after()

    @property
    def size(self) -> int:
        """The bytes of the file; 0 without one."""
        return 0 if self._file is None else os.fstat(self._file.fileno()).st_size

    def _check_there(self, file: IO[bytes]) -> None:
        """Check that the file still is where it was opened.

        The system writes to a file that was deleted as if nothing had happened.

        Raises:
            FileNotFoundError: it was deleted or moved.
        """
        assert self.path is not None, "an open file has a path"
        there = status_of(self.path)
        if there is None or not os.path.samestat(os.fstat(file.fileno()), there):
            raise FileNotFoundError(
                ENOENT,
                "the journal is not there any more, it was deleted or moved while the study ran",
                str(self.path),
            )

    def _hand_over(self) -> None:
        """Write the entries that wait. If writing fails, they are lost."""
        if self._file is None or not self._waiting:
            return
        data = b"".join(self._waiting)
        self._waiting = []
        self._oldest = None
        _write_all(self._file, data)

    def close(self) -> None:
        """Sync, and close the file."""
        if self._file is None:
            return
        try:
            self.sync()
        finally:
            self._file.close()
            self._file = None


def _write_all(file: IO[bytes], data: bytes) -> None:
    """Write to an unbuffered file, of which one call may take only a part."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def sound_part(path: Path) -> tuple[int, int]:
    """Bytes up to the end of the last whole line, and how many lines these are.

    The last whole line says its number itself. Only in a journal of before, and after damage to
    that line, are the lines counted.
    """
    size, line = _last_line(path)
    with suppress(JournalError):
        number = number_of(line)
        if number is not None:
            return size, number
    size = count = 0
    for line in raw_lines(path):
        if line.endswith(b"\n"):
            size += len(line)
            count += 1
    return size, count


def _last_line(path: Path) -> tuple[int, bytes]:
    """Where the last whole line ends, and that line; 0 and nothing: no such line ends the file."""
    with open_file(path) as file:
        end = file.seek(0, os.SEEK_END)
        length = 2**12
        while length <= 2 * LONGEST_LINE:
            begin = max(0, end - length)
            file.seek(begin)
            found = file.read(end - begin)
            newline = found.rfind(b"\n") + 1
            first = found.rfind(b"\n", 0, max(0, newline - 1)) + 1
            if newline and (first or begin == 0):
                return begin + newline, found[first:newline]
            length *= 4
    return 0, b""


def raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a journal as they lie there, from that byte on; the last one may be torn.

    Raises:
        JournalError: one is longer than any that Shoal writes, as of a file of a terabyte of zeros.
    """
    with open_file(path) as file:
        yield from _lines_left(path, file, 0)


def _lines_left(path: Path, file: IO[bytes], number: int) -> Iterator[bytes]:
    """As `raw_lines`, from where the file stands, which is after so many lines."""
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        check_length(path, number, line)
        yield line


def check_length(path: Path, number: int, line: bytes) -> None:
    """Raise JournalError if the line is longer than any that Shoal writes."""
    if len(line) > LONGEST_LINE:
        error = JournalError(f"no journal entry: it has over {LONGEST_LINE} bytes")
        raise at_line(path, number, error)


def read(path: Path, offset: int = 0, number: int = 0) -> Iterator[Line]:
    """The entries of a journal, oldest first. A last line that a crash has torn is left out.

    `offset`: of a sealed journal those from that byte on, before which there are `number` lines.

    Raises:
        JournalError: the file is no journal, is damaged before its last line, or has another
            schema. Lines that are missing, doubled or changed are damage, too.
    """
    order = LineOrder()
    if offset:
        order.go_on(number)
    with open_file(path) as file:
        file.seek(offset)
        for line in _lines_left(path, file, order.number):
            if not line.endswith(b"\n"):
                return
            if order.number == 0:
                check_schema(path, line)
                order.number = 1
                continue
            yield _next(path, order, line)


def _next(path: Path, order: LineOrder, line: bytes) -> Line:
    """The entry of the line that follows in this file.

    Raises:
        JournalError: it is damaged, or another one should follow.
    """
    try:
        order.follow(line)
        return decode(line)
    except JournalError as error:
        raise at_line(path, order.number, error) from error


class Tail:
    """Reads a journal that grows: each call of `lines` gives the entries that came since.

    `offset` and `number`: see `read`.
    """

    def __init__(self, path: Path, offset: int = 0, number: int = 0) -> None:
        self.path = path
        self._offset = offset  # bytes that were read
        self._order = LineOrder()
        if offset:
            self._order.go_on(number)
        self._file: tuple[int, int] | None = None  # which file this is

    def lines(self) -> list[Line]:
        """The entries that are whole by now and were not given before.

        Raises:
            JournalError: see `read`; or the file is another one than before.
            OSError: there is no such file.
        """
        with open_file(self.path) as file:
            self._check_same(os.fstat(file.fileno()))
            file.seek(self._offset)
            whole = list(_lines_left(self.path, file, self._order.number))
        if whole and not whole[-1].endswith(b"\n"):
            del whole[-1]
        if whole and self._offset == 0:
            check_schema(self.path, whole[0])
            self._offset = len(whole[0])
            self._order.number = 1
            whole = whole[1:]
        found = [_next(self.path, self._order, line) for line in whole]
        self._offset += sum(map(len, whole))
        return found

    def _check_same(self, status: os.stat_result) -> None:
        """Raise JournalError if the file was replaced or cut."""
        file = status.st_dev, status.st_ino
        if self._file not in (None, file) or status.st_size < self._offset:
            raise JournalError(f"{self.path} was replaced: open it again")
        self._file = file


def newest(path: Path, kind: type[E]) -> E | None:
    """The newest entry of this kind; None if there is none.

    Lines of other kinds are not decoded.

    Raises:
        JournalError: see `read`; damage in lines of other kinds is not noticed.
    """
    mark = f'"e":"{kind.__name__}"'.encode()
    for number, line in reversed(_lines_with(path, mark)):
        try:
            number_of(line)
            entry = decode(line).entry
        except JournalError as error:
            raise at_line(path, number, error) from error
        if isinstance(entry, kind):
            return entry
    return None


def _lines_with(path: Path, mark: bytes) -> list[tuple[int, bytes]]:
    """The whole lines, after the first, that contain the mark, with their numbers."""
    found: list[tuple[int, bytes]] = []
    count = 0  # lines so far
    torn = b""
    with open_file(path) as file:
        while block := file.read(BLOCK):
            whole, _, rest = block.rpartition(b"\n")
            if len(block) == len(rest):  # no line ends here
                torn += rest
                check_length(path, count + 1, torn)
                continue
            whole = torn + whole + b"\n"
            torn = rest
            if count == 0:
                check_schema(path, whole[: whole.index(b"\n") + 1])
            if mark in whole:
                for number, line in enumerate(whole.split(b"\n"), count + 1):
                    if number > 1 and mark in line:
                        found.append((number, line + b"\n"))
            count += whole.count(b"\n")
    return found


def first_line() -> bytes:
    """The first line of a journal, which says what it is."""
    return sealed(_encode({"shoal": "journal", "schema": SCHEMA}) + b"\n", 1)


def check_schema(path: Path, line: bytes) -> None:
    """Check the first line of a journal; those of before carry no checksum.

    Raises:
        JournalError: it is damaged, or of another version.
    """
    try:
        number_of(line)
    except JournalError as error:
        raise at_line(path, 1, error) from error
    try:
        head = _decode(line)
    except WRONG:
        head = None
    if not isinstance(head, dict) or head.get("shoal") != "journal":
        raise JournalError(
            f"{path}, line 1: it is not a Shoal journal, or its first line is damaged: that is "
            f"{line[:60]!r}; restore the file from a copy, or have `shoal repair {path.parent}` "
            "write that line again"
        )
    found = head.get("schema")
    if found != SCHEMA:
        raise JournalError(
            f"{path} has schema {found}; this Shoal reads schema {SCHEMA}:"
            " use the version that wrote it"
        )


def replay(lines: Iterable[Line], begin: State = State()) -> State:
    """The state that these entries lead to, from the beginning or another state.

    Raises:
        JournalError: they do not fit each other.
    """
    try:
        return fold(begin, (line.entry for line in lines))
    except WRONG as error:
        about = f"{type(error).__name__}: {str(error)[:300]}"
        raise JournalError(
            f"the journal's entries do not fit each other ({about}): take a copy that is as Shoal "
            "wrote it"
        ) from error
