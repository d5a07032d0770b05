"""The journal: append-only JSON lines, one entry each; the only record of a study."""

import os
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import IO, Any, NamedTuple, get_args

import msgspec

from shoal.core.event import Entry, Event, Planned, Remembered
from shoal.core.state import State, fold
from shoal.core.trial import Seconds

SCHEMA = 1
KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (*get_args(Event), Planned, Remembered)}
_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode


class JournalError(ValueError):
    """The journal cannot be read: damaged before its last line, or of an unknown schema."""


class Line(NamedTuple):
    """One entry and the time it was written, in seconds of the study."""

    time: Seconds
    entry: Entry


def encode(time: Seconds, entry: Entry) -> bytes:
    """One line of a journal, its newline included."""
    fields: Any = entry
    line = _encode({"t": round(time, 6), "e": type(entry).__name__, "d": fields})
    if b"null" in line:  # None, or a number that JSON lacks
        fields = _marked(msgspec.to_builtins(fields, order="deterministic"))
        line = _encode({"t": round(time, 6), "e": type(entry).__name__, "d": fields})
    return line + b"\n"


def _marked(value: Any) -> Any:
    """nan, inf and -inf as {"~": text}, which JSON can hold."""
    if isinstance(value, float) and not isfinite(value):
        return {"~": repr(value)}
    if isinstance(value, dict):
        return {key: _marked(item) for key, item in value.items()}
    return [_marked(item) for item in value] if isinstance(value, (list, tuple, set, frozenset)) else value


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        marks = value.keys() == {"~"} and value["~"] in ("nan", "inf", "-inf")
        return float(value["~"]) if marks else {key: _unmarked(item) for key, item in value.items()}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """The value as a journal gives it back: tuples and sets as lists, dataclasses as dicts."""
    return _unmarked(_decode(_encode(_marked(msgspec.to_builtins(value)))))


def decode(line: bytes) -> Line:
    """The entry of one line.

    Raises:
        JournalError: not JSON, an unknown kind of entry, or fields that do not fit it.
    """
    try:
        raw = _decode(line)
        if b'"~"' in line:
            raw = _unmarked(raw)
        return Line(raw["t"], msgspec.convert(raw["d"], KINDS[raw["e"]]))
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise JournalError(f"not a journal entry ({type(error).__name__}: {error}): {line[:120]!r}") from error


class Journal:
    """An open journal file. `append` buffers; `sync` makes all of it durable.

    Without a path it only remembers (for simulations): read `lines`.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.lines: list[Line] = []
        self._file: IO[bytes] | None = None
        self._waiting: list[bytes] = []  # not the file's own buffer, which would write the rest when it likes, after a failure
        if path is not None:
            size = sound_length(path) if path.exists() else 0
            self._file = path.open("ab", buffering=0)
            self._file.truncate(size)  # a last line torn by a crash was never acted upon
            if size == 0:
                self._waiting.append(_encode({"shoal": "journal", "schema": SCHEMA}) + b"\n")

    def append(self, time: Seconds, entry: Entry) -> None:
        if self._file is None:
            self.lines.append(Line(time, entry))
        else:
            self._waiting.append(encode(time, entry))

    def flush(self) -> None:
        """Hand what was appended to the operating system: readers see it, and it outlives this process.

        Raises:
            OSError: the disk is full, say. What could not be written never will be: the next to open the file goes on before it.
        """
        if self._file is None or not self._waiting:
            return
        left = memoryview(b"".join(self._waiting))
        self._waiting = []
        while left:
            left = left[self._file.write(left) :]

    def sync(self) -> None:
        """Return when everything appended so far will survive a crash."""
        if self._file is not None:
            self.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            try:
                self.sync()
            finally:
                self._file.close()
                self._file = None


def sound_length(path: Path) -> int:
    """Bytes up to the end of the last whole line."""
    data = path.read_bytes()
    return data.rfind(b"\n") + 1


def read(path: Path) -> Iterator[Line]:
    """The entries of a journal, oldest first; a torn last line is left out.

    Raises:
        JournalError: no journal, damaged before the last line, or written by another schema.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            if number == 1:
                _check_schema(path, line)
                continue
            try:
                yield decode(line)
            except JournalError as error:
                raise JournalError(f"{path}, line {number}: {error}; restore the file or cut it before this line") from error


def _check_schema(path: Path, line: bytes) -> None:
    try:
        head = _decode(line)
    except msgspec.MsgspecError:
        head = None
    if not isinstance(head, dict) or head.get("shoal") != "journal":
        raise JournalError(f"{path} is not a Shoal journal: its first line is {line[:60]!r}")
    if head.get("schema") != SCHEMA:
        found = head.get("schema")
        raise JournalError(f"{path} has schema {found}; this Shoal reads schema {SCHEMA}: use the version that wrote it")


def replay(lines: Iterator[Line] | list[Line]) -> State:
    """The state that these entries lead to."""
    return fold(State(), (line.entry for line in lines))
