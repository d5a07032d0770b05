"""Idle nodes as what Slurm's accounting leaves over: nodes that no allocation covers."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from math import inf

from shoal.simulate.source import Source
from shoal.simulate.trace import IdleLog

Span = tuple[float, float]
NEVER = ("Unknown", "None", "")  # of a start: there was none; of an end: there is none yet


def read_sacct(source: Source, text: str) -> IdleLog:
    """The log of the text of `sacct -P -a -X -o NodeList,Start,End`; other columns are not looked at.

    Allocations come in any order and may share nodes. Times without a zone are taken as UTC, so that they are the same on
    every machine: around a change of the clocks, ask for UTC (`TZ=UTC sacct …`).

    Raises:
        TraceError: a missing column, a row of another length, an unknown node, or a time that is none.
    """
    busy: dict[str, list[Span]] = {}
    for line, row in _rows(source, text):
        if row["Start"] in NEVER or row["NodeList"] in ("", "None assigned"):
            continue
        start, end = (_moment(source, line, name, row[name]) for name in ("Start", "End"))
        if end < start:
            raise source.wrong(line, f"an allocation must end after it starts; got {row['Start']} to {row['End']}")
        for given in hosts(source, line, row["NodeList"]):
            busy.setdefault(source.node(line, given), []).append((start, end))
    return _idle(source, busy)


def _rows(source: Source, text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    lines = text.splitlines()
    heads = [head.strip() for head in lines[0].split("|")]
    source.require([head for head in heads if head], ("NodeList", "Start", "End"))
    for line, raw in enumerate(lines[1:], 2):
        cells = [cell.strip() for cell in raw.split("|")]
        if not raw.strip():
            continue
        if len(cells) != len(heads):
            raise source.wrong(line, "a row must have as many fields as the header")
        yield line, dict(zip(heads, cells, strict=True))


def _idle(source: Source, busy: Mapping[str, list[Span]]) -> IdleLog:
    """What is not busy, from the first start to the last time told; allocations that share a node are merged."""
    if not busy:
        raise source.wrong(None, "no allocations: the log is empty")
    first = min(start for spans in busy.values() for start, _ in spans)
    finish = max(at for spans in busy.values() for span in spans for at in span if at < inf)
    fragments = []
    for name in source.nodes if source.nodes is not None else sorted(busy):
        at = first
        for start, end in sorted(busy.get(name, ())):
            if start > at:
                fragments.append((name, at - first, start - first))
            at = max(at, end)
        if at < finish:
            fragments.append((name, at - first, inf))
    return source.log(fragments, {}, finish - first)


def _moment(source: Source, line: int, name: str, text: str) -> float:
    if text in NEVER and name == "End":
        return inf  # still running
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise source.wrong(line, f"{name} must be a time such as 2026-01-31T12:00:00; got {text!r}") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def hosts(source: Source, line: int | None, listed: str) -> list[str]:
    """The nodes of a Slurm host list: "n[1-3,07],login" is n1 n2 n3 n07 login.

    Raises:
        TraceError: not such a list.
    """
    found: list[str] = []
    for part in re.split(r",(?![^\[]*\])", listed):
        names = [""]
        for text, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
            names = [name + more for name in names for more in ([text] if text else _range(source, line, listed, ranges))]
        plain = re.sub(r"\[[^\[\]]*\]", "", part)
        if not part or "[" in plain or "]" in plain:
            raise source.wrong(line, f"not a host list: {listed!r}")
        found += names
    return found


def _range(source: Source, line: int | None, listed: str, ranges: str) -> list[str]:
    """The numbers of "1-3,07", as they are written."""
    found: list[str] = []
    for piece in ranges.split(","):
        low, dash, high = piece.partition("-")
        high = high if dash else low
        if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
            raise source.wrong(line, f"not a host list: {listed!r}")
        found += [f"{n:0{len(low)}d}" for n in range(int(low), int(high) + 1)]
    return found
