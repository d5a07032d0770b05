"""Lines of a journal that carry their own number and a checksum (docs/decisions/0039).

`{"d":{…},"e":"Finished","t":1.5,"n":17,"c":"5f3a09c1"}`: line 17 of its file, and the CRC-32 of
the line up to there. Journals of before have lines without them, and are read as they are.
"""

from pathlib import Path
from zlib import crc32

_NUMBER = b',"n":'
_CHECK = b',"c":"'
_CLOSE = b'"}\n'
_LENGTH = len(_CHECK) + 8 + len(_CLOSE)


class JournalError(ValueError):
    """The journal cannot be read: damaged before its last line, or of an unknown schema."""


def sealed(line: bytes, number: int) -> bytes:
    """The line, which ends with a brace and a newline, with its number and checksum."""
    body = b"%b%b%d" % (line[:-2], _NUMBER, number)
    return b"%b%b%08x%b" % (body, _CHECK, crc32(body), _CLOSE)


def number_of(line: bytes) -> int | None:
    """The number that the line carries; None: it carries none.

    Raises:
        JournalError: its checksum is wrong.
    """
    end = len(line) - _LENGTH
    if not (line.startswith(_CHECK, end) and line.endswith(_CLOSE)):
        return None
    body = line[:end]
    given = line[end + len(_CHECK) : -len(_CLOSE)]
    if given != b"%08x" % crc32(body):
        raise JournalError(
            f"not a journal entry as it was written: its checksum is {given.decode('latin1')}, "
            f"and that of its content {crc32(body):08x}"
        )
    digits = body[body.rfind(_NUMBER) + len(_NUMBER) :]
    if not digits.isdigit():
        raise JournalError(f"not a journal entry: its number is {digits[:20]!r}")
    return int(digits)


class LineOrder:
    """Whether the lines of a journal are all there, once, and in order.

    `number`: that of the line read last; the head is line 1.
    """

    def __init__(self) -> None:
        self.number = 0
        self._sealed = False  # a line that carried its number has come

    def go_on(self, number: int) -> None:
        """So many lines, which carry their numbers, came before; they are not looked at."""
        self.number = number
        self._sealed = True

    def follow(self, line: bytes) -> None:
        """Take the next line.

        Raises:
            JournalError: it was changed, or is not the line that follows.
        """
        self.number += 1
        expected = self.number
        found = number_of(line)
        if found is None and self._sealed:
            raise JournalError(
                "not a journal entry of this Shoal: the lines before it carry a checksum, "
                f"and this one does not: {line[:80]!r}"
            )
        if found is not None and found != expected:
            raise JournalError(_out_of_order(found, expected))
        self._sealed = found is not None


def _out_of_order(found: int, expected: int) -> str:
    """Why a line with this number is not the one that follows."""
    if found > expected:
        missing = f"line {expected} is"
        if found > expected + 1:
            missing = f"lines {expected} to {found - 1} are"
        return f"{missing} missing before it: it was written as line {found}"
    return (
        f"it was written as line {found}, and that one is there already: lines were doubled, or "
        "two runs wrote at once"
    )


def at_line(path: Path, number: int, error: JournalError) -> JournalError:
    """The error about this line of the file, with what to do."""
    return JournalError(
        f"{path}, line {number}: {error}; restore the file from a copy, or have "
        f"`shoal repair {path.parent}` cut it before this line"
    )
