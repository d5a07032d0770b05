"""The state after so many lines of a journal, kept beside it: opening then folds the rest only.

A snapshot is a cache of the fold, and no record: the journal stays complete, and who has no sound
snapshot of their own reads it all (docs/decisions/0072). One is used only if

- the user's key marks it: what a stranger wrote is not decoded,
- this very code made it: the state that other code folds may be another one, and
- the journal has, where it ends, the lines that it was made after: a journal that was cut, and went
  on otherwise, has others.

Lines before that are not looked at: damage to them costs nothing.
"""

import gc
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec

import shoal.core
from shoal.core.event import Commanded, Joined, Opened, Planned
from shoal.core.plan import Gang
from shoal.core.state import State
from shoal.core.trial import Seconds
from shoal.engine.files import read_named, write_durably
from shoal.engine.journal import (
    WRONG,
    JournalError,
    Line,
    decode,
    encode,
    plain,
    read,
    replay,
    sound_part,
)
from shoal.engine.plain_files import (
    is_there,
    open_file,
    read_file,
    remove_file,
    rename_file,
    status_of,
)

# A journal of more lines is long: people are shown what at least so many newest ones tell.
LONG = 100_000
LEAST = 10_000
EVERY = 50_000  # lines of a journal
# Bytes of the journal before a snapshot's place that must be as they were.
ENDING = 2**16
MARGIN = 2**20  # bytes that a snapshot may have more than its journal
# Their values are among `gangs`, and are written as places there.
BY_GANG = ("busy", "running")
TABLES = tuple(f.name for f in fields(State) if f.init and f.compare)


class Snapshot(NamedTuple):
    """What the first `lines` lines of a journal, its head among them, come to.

    `offset`: how many bytes these are. `time`: of the last one. `runs`: those of them that began
    runs or asked for something, which are few. `learnt`: what else whoever wrote it had learnt
    from them, JSON-able; None: nothing.
    """

    lines: int
    offset: int
    time: Seconds
    runs: Sequence[Line]
    state: State
    learnt: Any = None

    def begin(self) -> list[Line]:
        """Lines that bring about what is there and runs, for who counts what comes after."""
        slots, gangs = tuple(self.state.slots.values()), tuple(self.state.gangs)
        entries = (Joined(slots), Planned((), gangs))
        return [*self.runs, *(Line(self.time, entry) for entry in entries)]


class History(NamedTuple):
    """What a whole journal comes to; the fields are as those of `Snapshot`.

    `tail`: the lines since the snapshot that it began with, `since`; all if there is none.
    """

    lines: int
    time: Seconds
    runs: Sequence[Line]
    state: State
    tail: Sequence[Line]
    since: Snapshot | None


class _File(msgspec.Struct, array_like=True):
    """What the file holds. `marks`: of `content`, by the names of keys."""

    marks: dict[str, str]
    content: bytes


class _Content(msgspec.Struct, array_like=True):
    """`maker`: of which code. `ending`: see `Snapshots._ending`. `runs`: lines of a journal."""

    maker: str
    ending: bytes
    lines: int
    offset: int
    time: Seconds
    runs: list[bytes]
    state: bytes
    learnt: Any


def tables_type(names: Sequence[str]) -> Any:
    """What holds these tables of a state as a snapshot has them: see `BY_GANG`."""
    types: dict[str, Any] = get_type_hints(State)
    types |= {"gangs": list[Gang], "busy": dict[str, int], "running": dict[str, int]}
    chosen = [(name, types[name]) for name in names]
    return msgspec.defstruct("Tables", chosen, array_like=True)


Tables = tables_type(TABLES)


class Snapshots:
    """The snapshots of one journal: the newest, and the one before it.

    `sign`: the marks by the user's key of content; none: there is no key, and no snapshot is
    written. `is_own`: whether one of these marks is right.
    """

    def __init__(
        self,
        journal: Path,
        sign: Callable[[bytes], Mapping[str, str]],
        is_own: Callable[[bytes, Mapping[str, str]], bool],
    ) -> None:
        self.journal = journal
        self.file = journal.with_suffix(".snapshot")
        self.former = journal.with_suffix(".former.snapshot")
        self._sign = sign
        self._is_own = is_own

    def newest(self, before: int | None = None) -> Snapshot | None:
        """The newest sound one; None: there is none. `before`: of so many lines at most."""
        for file in (self.file, self.former):
            found = self._read(file)
            if found is not None and (before is None or found.lines <= before):
                return found
        return None

    def past(self) -> History:
        """What the journal comes to, from the newest sound snapshot on.

        Raises:
            JournalError: see `journal.read` and `replay`; damage before the snapshot is none.
        """
        if not is_there(self.journal):
            return History(0, 0.0, (), State(), (), None)
        with _uncollected():
            since = self.newest()
            begin = since or Snapshot(1, 0, 0.0, (), State())
            tail = self._lines_after(since)
            state = replay(tail, begin.state)
        time = tail[-1].time if tail else begin.time
        runs = [*begin.runs, *runs_in(tail)]
        return History(begin.lines + len(tail), time, runs, state, tail, since)

    def recent(self, whole: bool = False) -> tuple[Snapshot | None, list[Line]]:
        """The newest lines of a long journal, and the snapshot that they begin with.

        None and all lines of a shorter one, if `whole` is asked for, and without such a snapshot.
        A shorter one that is damaged is read from its newest snapshot on.

        Raises:
            JournalError: see `journal.read`.
        """
        if not is_there(self.journal):
            return None, []
        with _uncollected():
            since = None if whole else self.of_long()
            try:
                return since, self._lines_after(since)
            except JournalError:
                since = None if since or whole else self.newest()
                if since is None:
                    raise
                return since, self._lines_after(since)

    def of_long(self) -> Snapshot | None:
        """A snapshot with enough lines after it, if the journal is long."""
        _, count = sound_part(self.journal)
        return self.newest(before=count - LEAST) if count > LONG else None

    def _lines_after(self, since: Snapshot | None) -> list[Line]:
        if since is None:
            return list(read(self.journal))
        return list(read(self.journal, since.offset, since.lines))

    def _read(self, file: Path) -> Snapshot | None:
        """The snapshot in this file; None if it is not to be used."""
        try:
            most = MARGIN + status_of(self.journal).st_size  # type: ignore[union-attr]
            held = msgspec.msgpack.decode(read_file(file, most), type=_File)
            if not self._is_own(held.content, held.marks):
                return None
            content = zlib.decompress(held.content)
            found = msgspec.msgpack.decode(content, type=_Content)
            if found.maker != maker() or found.ending != self._ending(found.offset):
                return None
            return Snapshot(
                found.lines,
                found.offset,
                found.time,
                [decode(line) for line in found.runs],
                unpacked(found.state),
                found.learnt,
            )
        except (OSError, zlib.error, *WRONG):
            return None

    def write(self, snapshot: Snapshot) -> bool:
        """Keep it, and the one before it; whether that could be done.

        Its lines are in the journal's file. A crash at any moment leaves one of the two.

        Raises:
            OSError: it cannot be written.
        """
        try:
            content = msgspec.msgpack.encode(
                _Content(
                    maker(),
                    self._ending(snapshot.offset),
                    snapshot.lines,
                    snapshot.offset,
                    snapshot.time,
                    [encode(*line) for line in snapshot.runs],
                    packed(snapshot.state),
                    snapshot.learnt,
                )
            )
        except WRONG:  # such as a number beyond 64 bits, which a journal may hold
            return False
        content = zlib.compress(content, 1)
        marks = dict(self._sign(content))
        if not marks:
            return False
        with suppress(FileNotFoundError):
            rename_file(self.file, self.former)
        write_durably(self.file, msgspec.msgpack.encode(_File(marks, content)))
        return True

    def rebuild(self) -> bool:
        """Have a sound one of a journal that is sound from its newest one on; whether it was made.

        Raises:
            JournalError: the journal is not.
            OSError: it cannot be written.
        """
        past = self.past()
        if past.lines < EVERY or (past.since and len(past.tail) < EVERY):
            return False
        size, _ = sound_part(self.journal)
        at = past.lines, size, past.time
        return self.write(Snapshot(*at, past.runs, past.state))

    def remove(self) -> None:
        """Forget them: the journal was cut, or they were found to be wrong."""
        for file in (self.file, self.former):
            remove_file(file)

    def _ending(self, offset: int) -> bytes:
        """A digest of the journal's bytes just before this one.

        Raises:
            JournalError: it has fewer.
        """
        begin = max(0, offset - ENDING)
        with open_file(self.journal) as opened:
            opened.seek(begin)
            found = opened.read(offset - begin)
        if len(found) != offset - begin:
            raise JournalError(f"{self.journal} is shorter than its snapshot")
        return blake2b(found, digest_size=16).digest()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Python's collector rests: it looks at all of a large tree again and again as that grows."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def runs_in(lines: Sequence[Line]) -> list[Line]:
    """Those of the lines that a snapshot keeps as they are."""
    return [line for line in lines if isinstance(line.entry, Opened | Commanded)]


def packed(state: State) -> bytes:
    """The state in bytes, all tables as plain dicts in their order."""
    tables = {name: getattr(state, name) for name in TABLES}
    for name, table in tables.items():
        if isinstance(table, Mapping):
            tables[name] = dict(table)
    place = {gang: number for number, gang in enumerate(state.gangs)}
    tables["gangs"] = list(state.gangs)
    for name in BY_GANG:
        tables[name] = {key: place[gang] for key, gang in tables[name].items()}
    # What deciders remember is as a journal gives it back: with lists in place of tuples.
    tables["memory"] = {who: plain(each) for who, each in state.memory.items()}
    return msgspec.msgpack.encode(Tables(**{name: tables[name] for name in TABLES}))


def unpacked(content: bytes) -> State:
    """Undo `packed`."""
    found = msgspec.msgpack.decode(content, type=Tables)
    tables = {name: getattr(found, name) for name in TABLES}
    gangs: list[Gang] = tables["gangs"]
    tables["gangs"] = dict.fromkeys(gangs)
    for name in BY_GANG:
        tables[name] = {key: gangs[place] for key, place in tables[name].items()}
    return State(**tables)


@cache
def maker() -> str:
    """What tells the code that folds from other code: other versions may fold otherwise."""
    digest = blake2b(digest_size=16)
    for folder in shoal.core.__path__:
        for file in sorted(Path(folder).glob("*.py")):
            digest.update(read_named(file))
    digest.update(read_named(__file__))
    return digest.hexdigest()
