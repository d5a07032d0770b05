"""Slurm's short forms: lists of nodes as "n[1-3,07],login", and counts as "4(x2),8"."""

import re
from collections.abc import Iterator

COMMA = re.compile(r",(?![^\[]*\])")  # one outside of brackets
RANGES = re.compile(r"\[[^\[\]]*\]")
PIECE = re.compile(r"([^\[\]]+)|\[([^\[\]]*)\]")  # a text, or ranges in brackets
COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
# Nodes of a list. The largest clusters have a tenth of them; a typing error may ask for billions.
MOST = 1_000_000


def hosts(listed: str) -> list[str]:
    """The nodes of a Slurm host list: "n[1-3,07],login" is n1 n2 n3 n07 login.

    Raises:
        ValueError: not such a list, or one of more than a million nodes.
    """
    nodes: list[str] = []
    for part in COMMA.split(listed):
        try:
            nodes += _names(part)
        except ValueError as error:
            raise ValueError(f"not a host list: {listed[:100]!r}") from error
        _check_few(len(nodes))
    return nodes


def counts(listed: str) -> list[int]:
    """The numbers of a list with repetitions: "4(x2),8" is 4 4 8.

    Slurm writes the CPUs of an allocation's nodes so.

    Raises:
        ValueError: not such a list, or one of more than a million numbers.
    """
    numbers: list[int] = []
    for part in listed.split(","):
        count = COUNT.fullmatch(part)
        if count is None:
            raise ValueError(f"not a list of counts such as 4(x2),8: {listed[:100]!r}")
        times = int(count[2] or 1)
        _check_few(len(numbers) + times)
        numbers += [int(count[1])] * times
    return numbers


def _check_few(number: int) -> None:
    """Raise ValueError if there are more than a million."""
    if number > MOST:
        raise ValueError(f"a list must name at most {MOST:,} nodes; got {number:,}")


def _names(part: str) -> list[str]:
    """The nodes of one part of a host list, such as "n[1-3,07]".

    Raises:
        ValueError: it is no such part.
    """
    outside = RANGES.sub("", part)
    if not part or "[" in outside or "]" in outside:
        raise ValueError(part)

    names = [""]
    for text, ranges in PIECE.findall(part):
        endings = [text] if text else [*_numbers(ranges)]
        _check_few(len(names) * len(endings))
        names = [name + ending for name in names for ending in endings]
    return names


def _numbers(ranges: str) -> Iterator[str]:
    """The numbers of "1-3,07", as they are written.

    Raises:
        ValueError: it is no such list, or has too many numbers.
    """
    for piece in ranges.split(","):
        low, dash, high = piece.partition("-")
        if not dash:
            high = low
        if not (_is_number(low) and _is_number(high) and int(low) <= int(high)):
            raise ValueError(piece)
        _check_few(int(high) - int(low) + 1)
        for number in range(int(low), int(high) + 1):
            yield f"{number:0{len(low)}d}"


def _is_number(text: str) -> bool:
    """Whether it is a whole number of at most 18 digits, written in ASCII."""
    return text.isascii() and text.isdecimal() and len(text) <= 18
