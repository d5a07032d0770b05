"""A damaged journal is cut before its first bad line, and a copy of it stays."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from shoal.engine.files import write_durably
from shoal.engine.journal import JournalError, check_schema, decode
from shoal.engine.own import private
from shoal.engine.sealed import number_of


@dataclass(frozen=True, slots=True)
class Mended:
    """What was done to a journal.

    `lines`: that stay, the head among them. `doubled`: that were there twice, and stay once. `cut`:
    lines from the first bad one on. `why`: what is wrong with that one; empty if none is. `copy`:
    the journal as it was; None if nothing was wrong.
    """

    lines: int
    doubled: int = 0
    cut: int = 0
    why: str = ""
    copy: Path | None = None


def mend(path: Path) -> Mended:
    """Leave out what was doubled, and all from the first bad line on.

    A line that says what another says already is left out, and nothing is lost. What stays is a
    journal that a run can go on with. Whoever calls this holds the study.

    Raises:
        JournalError: the first line is bad, so that nothing would stay.
    """
    data = path.read_bytes()
    lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
    if not lines:
        raise JournalError(f"{path} is empty: bring the file back from a copy")
    check_schema(path, lines[0])
    kept, doubled, why = _sound(lines)
    cut = len(lines) - len(kept) - doubled
    if not (cut or doubled):
        return Mended(len(kept))
    copy = _copied(path)
    write_durably(path, b"".join(kept))
    return Mended(len(kept), doubled, cut, why, copy)


def _sound(lines: Sequence[bytes]) -> tuple[list[bytes], int, str]:
    """The lines up to the first bad one, how many were doubled, and what is wrong with that one."""
    kept = [lines[0]]
    doubled = 0
    numbered = False
    for line in lines[1:]:
        try:
            number = number_of(line)
            decode(line)
        except JournalError as error:
            return kept, doubled, str(error)
        expected = len(kept) + 1
        if number is None and numbered:
            return kept, doubled, "it carries no checksum, and lines before it do"
        numbered = number is not None
        if number is None or number == expected:
            kept.append(line)
        elif number < expected and kept[number - 1] == line:
            doubled += 1
        else:
            why = f"it was written as line {number}, and line {expected} should follow"
            return kept, doubled, why
    return kept, doubled, ""


def _copied(path: Path) -> Path:
    """A copy of the file, under a name that is free."""
    for number in count(1):
        copy = path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")
        with suppress(FileExistsError), open(copy, "xb", opener=private) as file:
            file.write(path.read_bytes())
            return copy
    raise AssertionError("one of the names is free")
