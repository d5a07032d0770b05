"""Idle nodes as what Slurm's accounting leaves over: nodes that no allocation covers."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from math import inf

from shoal.harvest.hosts import hosts
from shoal.simulate.source import TraceSource
from shoal.simulate.trace import IdleLog

Span = tuple[float, float]  # from when to when
Row = Mapping[str, str]  # by column
NEVER = ("Unknown", "None", "")  # of a start: there was none; of an end: none yet


def read_sacct(source: TraceSource, text: str) -> IdleLog:
    """The log of the text of `sacct -P -a -X -o NodeList,Start,End`; other columns are ignored.

    Allocations come in any order and may share nodes. Times without a zone are taken as UTC, so
    that they are the same on every machine. Around a change of the clocks, ask for UTC
    (`TZ=UTC sacct …`).

    Raises:
        TraceError: a missing column, a row of another length, an unknown node, or a value that is
            not a time.
    """
    busy: dict[str, list[Span]] = {}
    for line, row in _rows(source, text):
        if row["Start"] in NEVER or row["NodeList"] in ("", "None assigned"):
            continue
        span = _span(source, line, row)
        for given in _hosts(source, line, row["NodeList"]):
            busy.setdefault(source.node(line, given), []).append(span)
    return _idle(source, busy)


def _span(source: TraceSource, line: int, row: Row) -> Span:
    """From when to when an allocation lasted."""
    start = _moment(source, line, "Start", row["Start"])
    end = _moment(source, line, "End", row["End"])
    if end < start:
        span = f"{row['Start']} to {row['End']}"
        raise source.wrong(line, f"an allocation must end after it starts; got {span}")
    return start, end


def _rows(source: TraceSource, text: str) -> Iterator[tuple[int, Row]]:
    """The rows below the header, with their line numbers."""
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


def _idle(source: TraceSource, busy: Mapping[str, list[Span]]) -> IdleLog:
    """When no allocation covers a node, from the first start to the last time in the log."""
    if not busy:
        raise source.wrong(None, "no allocations: the log is empty")
    every = [span for spans in busy.values() for span in spans]
    first = min(start for start, _ in every)
    finish = max(at for span in every for at in span if at < inf)

    names = source.nodes
    if names is None:
        names = sorted(busy)
    fragments = []
    for name in names:
        for start, end in _gaps(busy.get(name, []), first, finish):
            fragments.append((name, start - first, end - first))
    return source.log(fragments, {}, finish - first)


def _gaps(spans: list[Span], first: float, finish: float) -> Iterator[Span]:
    """What the spans, which may overlap, leave free; the last gap has no end."""
    at = first
    for start, end in sorted(spans):
        if start > at:
            yield at, start
        at = max(at, end)
    if at < finish:
        yield at, inf


def _moment(source: TraceSource, line: int, name: str, text: str) -> float:
    """A time in seconds since 1970."""
    if text in NEVER and name == "End":
        return inf  # still running
    try:
        return _timestamp(text)
    except ValueError:
        rule = f"{name} must be a time such as 2026-01-31T12:00:00; got {text!r}"
        raise source.wrong(line, rule) from None


def _timestamp(text: str) -> float:
    """Seconds since 1970; a time without a zone is in UTC."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return found.timestamp()


def _hosts(source: TraceSource, line: int | None, listed: str) -> list[str]:
    """The nodes of a Slurm host list.

    Raises:
        TraceError: not such a list.
    """
    try:
        return hosts(listed)
    except ValueError as error:
        raise source.wrong(line, str(error)) from None
