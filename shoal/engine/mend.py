"""A damaged journal is cut before its first bad line, and a copy of it stays."""

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from shoal.engine.files import write_durably
from shoal.engine.journal import JournalError, check_schema, decode, first_line, raw_lines
from shoal.engine.plain_files import open_file
from shoal.engine.sealed import number_of

SEARCHED = 2**14  # bytes of a line in which a turned bit is searched for


@dataclass(frozen=True, slots=True)
class Mended:
    """What was done to a journal.

    `lines`: that stay, the head among them. `doubled`: that were there twice, and stay once. `cut`:
    lines from the first bad one on. `why`: what is wrong with that one; empty if none is. `copy`:
    the journal as it was; None if nothing was wrong. `restored`: lines that are as they were
    before a bit of them turned, or the first line, made anew. `spared`: lines that are damaged and
    stay, as a snapshot says what they and those before and after them came to.
    """

    lines: int
    doubled: int = 0
    cut: int = 0
    why: str = ""
    copy: Path | None = None
    restored: int = 0
    spared: int = 0


def mend(path: Path, known: tuple[int, int] | None = None) -> Mended:
    """Leave out what was doubled, and all from the first bad line on.

    A line that says what another says already is left out, and nothing is lost. What stays is a
    journal that a run can go on with. Whoever calls this holds the study. `known`: a snapshot
    says what so many bytes come to, which were so many lines: of these none is cut.

    Raises:
        JournalError: it is no journal, or one of another version.
    """
    lines = [line for line in raw_lines(path) if line.endswith(b"\n")]
    if not lines:
        raise JournalError(f"{path} is empty: bring the file back from a copy")
    lines_now = [_sound_head(path, lines), *lines[1:]]
    begin = _Begin(lines_now[:1])
    if known is not None:
        begin = _known(lines_now, *known)
    kept, doubled, why = _sound(lines_now[len(begin.lines) :], begin)
    cut = len(lines) - len(kept) - doubled
    stay = set(kept)
    restored = sum(line not in stay for line in lines[: len(kept) + doubled])
    if not (cut or doubled or restored):
        return Mended(len(kept), spared=begin.bad)
    copy = _copied(path)
    write_durably(path, b"".join(kept))
    return Mended(len(kept), doubled, cut, why, copy, restored, begin.bad)


def _sound_head(path: Path, lines: Sequence[bytes]) -> bytes:
    """The journal's first line; made anew if it is damaged and others are as Shoal wrote them.

    Raises:
        JournalError: it is of another version, or the file is no journal.
    """
    try:
        check_schema(path, lines[0])
        return lines[0]
    except JournalError:
        sealed_rest = any(_number_of_sound(line) == n for n, line in enumerate(lines, 1))
        if _names_other_schema(lines[0]) or not sealed_rest:
            raise
    return first_line()


def _number_of_sound(line: bytes) -> int | None:
    """The number that the line carries, if it is an entry as it was written; else None."""
    try:
        decode(line)
        return number_of(line)
    except JournalError:
        return None


def _names_other_schema(line: bytes) -> bool:
    """Whether the first line is whole, without a checksum, and of another version."""
    try:
        number = number_of(line)
        head = json.loads(line)
    except (JournalError, ValueError):
        return False
    return number is None and isinstance(head, dict) and head.get("shoal") == "journal"


def _restored(line: bytes, number: int) -> bytes | None:
    """The line as it was before one bit of it turned; None if that is not what is wrong.

    The checksum tells which bit: no two single bits change it alike.
    """
    if len(line) > SEARCHED:
        return None
    turned = bytearray(line)
    for at in range(len(line) - 1):  # the newline is there
        for bit in range(8):
            turned[at] ^= 1 << bit
            if _number_of_sealed(turned) == number:
                found = bytes(turned)
                if _number_of_sound(found) == number:
                    return found
            turned[at] ^= 1 << bit
    return None


def _number_of_sealed(line: bytes | bytearray) -> int | None:
    """The number of a line whose checksum is right; else None."""
    try:
        return number_of(bytes(line))
    except JournalError:
        return None


class _Begin(NamedTuple):
    """The lines that stay whatever they are. `bad`: of these. `shift`: so many more were written;
    damage may have made ends of lines, or taken them away.
    """

    lines: list[bytes]
    bad: int = 0
    shift: int = 0


def _known(lines: Sequence[bytes], offset: int, number: int) -> _Begin:
    """The lines up to that byte, which were so many; with turned bits as they were before."""
    kept: list[bytes] = []
    size = bad = 0
    for line in lines:
        size += len(line)
        if size > offset:
            break
        if kept and not _is_sound(line, len(kept) + 1):
            before = _restored(line, len(kept) + 1)
            bad += before is None
            line = before or line
        kept.append(line)
    return _Begin(kept, bad, number - len(kept))


def _is_sound(line: bytes, number: int) -> bool:
    """Whether it is an entry as it was written, as that line or before lines had numbers."""
    try:
        decode(line)
        return number_of(line) in (None, number)
    except JournalError:
        return False


def _sound(lines: Sequence[bytes], begin: _Begin) -> tuple[list[bytes], int, str]:
    """The lines up to the first bad one, how many were doubled, and what is wrong with that one.

    `begin`: those before, which stay.
    """
    kept = [*begin.lines]
    doubled = 0
    numbered = False
    for line in lines:
        expected = len(kept) + begin.shift + 1
        try:
            number = number_of(line)
            decode(line)
        except JournalError as error:
            before = _restored(line, expected)
            if before is None:
                return kept, doubled, str(error)
            line, number = before, expected
        if number is None and numbered:
            return kept, doubled, "it carries no checksum, and lines before it do"
        numbered = number is not None
        if number is None or number == expected:
            kept.append(line)
        elif number < expected and kept[number - begin.shift - 1] == line:
            doubled += 1
        else:
            why = f"it was written as line {number}, and line {expected} should follow"
            return kept, doubled, why
    return kept, doubled, ""


def _copied(path: Path) -> Path:
    """A copy of the file, under a name that is free."""
    for number in count(1):
        copy = path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")
        with suppress(FileExistsError), open_file(copy, "xb") as file, open_file(path) as source:
            shutil.copyfileobj(source, file)
            return copy
    raise AssertionError("one of the names is free")
