"""Idle-node logs from files.

Intervals (CSV, `.csv.gz`, or Parquet with pyarrow): columns `node`, `start`, `end` in seconds, rows
in order of start. An empty end means still idle at the end of the log. `rack` is optional.

Events (likewise): columns `time_s` (or `time`), `joined`, `left`, which hold names separated by
spaces; rows in order of time.

Slurm: the text of `sacct -P -a -X -o NodeList,Start,End`, in any order. A node is idle while no
allocation covers it.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from math import inf, isfinite, isnan, nan
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.install import install
from shoal.core.trial import Seconds
from shoal.engine.csv_cells import cells, text_of
from shoal.engine.files import read_named, replaced
from shoal.engine.small import gunzip
from shoal.harvest.hosts import hosts
from shoal.simulate.idle_log import Fragment, IdleLog, TraceError


@dataclass(frozen=True)
class TraceSource:
    """A log being read: its file, the names of all nodes if they are known, and how places count.

    `counts`: what a place in the file is called in errors, "line" or "row".
    """

    path: Path
    nodes: Sequence[str] | None
    counts: str = "line"

    def wrong(self, line: int | None, rule: str) -> TraceError:
        """The error for that place in the file; None: for the whole file."""
        return TraceError(self.path, line, rule, self.counts)

    def require(self, names: Iterable[str], columns: Iterable[str]) -> None:
        """Raise TraceError unless all these columns are there."""
        missing = [column for column in columns if column not in names]
        if missing:
            known = ", ".join(sorted(names)) or "none"
            rule = f"missing column {', '.join(missing)}; there are {known}"
            raise self.wrong(1 if self.counts == "line" else None, rule)

    def number(self, line: int, name: str, value: Any) -> float:
        """The value of this column as seconds; an end may be infinite."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = nan
        is_end = name == "end" and not isnan(number)
        if not isfinite(number) and not is_end:
            raise self.wrong(line, f"{name} must be a number of seconds; got {value!r}")
        return number

    def node(self, line: int, value: Any) -> str:
        """A node's name. If all names are known, `value` is a name or a number."""
        name = "" if value is None else str(value).strip()
        if self.nodes is not None:
            name = self._known.get(name, "")
        if not name:
            raise self.wrong(line, f"unknown node {value!r}")
        return name

    @cached_property
    def _known(self) -> dict[str, str]:
        """The nodes' names, by number and by name."""
        names = self.nodes or ()
        known = {str(number): name for number, name in enumerate(names)}
        known |= {name: name for name in names}
        return known

    def log(
        self, fragments: list[Fragment], racks: Mapping[str, str], finish: float | None = None
    ) -> IdleLog:
        """The log of these fragments; with all nodes, idle or not, where they are known."""
        if not fragments:
            raise self.wrong(None, "no intervals: the log is empty")
        log = replace(IdleLog.of(fragments, finish), racks=racks)
        if self.nodes is None:
            return log

        nodes = tuple(self.nodes)
        number = {name: place for place, name in enumerate(nodes)}
        order = np.array([number[name] for name in log.nodes])
        return replace(log, nodes=nodes, node=order[log.node], machine=len(nodes))


Row = tuple[int, Mapping[str, Any]]  # line number, fields
Rows = tuple[set[str], Iterator[Row]]  # with the names of the columns
Columns = dict[str, list[Any]]
End = tuple[float, int]  # of a node's newest interval, and its line
Ends = dict[str, End]
OTHER_NAMES = {"node_id": "node", "start_s": "start", "end_s": "end"}  # of columns
NO_PARQUET = f"reading Parquet needs pyarrow: {install('pyarrow')}; or give the log as CSV"
LARGEST_LOG = 2**32  # bytes


def read_log(path: str | Path, nodes: Sequence[str] | None = None) -> IdleLog:
    """The log in this file; its kind is told by its name and header.

    `nodes`: the names of all nodes, in their order. With it a log that names other nodes is
    refused, and a number in the log is a position in `nodes`.

    Raises:
        TraceError: rows unsorted or overlapping, an unknown node, a missing column, a value that
            is not a number, or an unknown file format.
        OSError: as `open`.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        source = TraceSource(path, nodes, "row")
        return _log(source, *_parquet(source))
    source = TraceSource(path, nodes)
    text = _text(source)
    if "|" in text.partition("\n")[0]:
        return read_sacct(source, text)
    return _log(source, *_csv(source, text))


def _log(source: TraceSource, names: set[str], rows: Iterable[Row]) -> IdleLog:
    """The log of these rows: events or intervals, by the names of the columns."""
    if "joined" in names or "left" in names:
        clock = "time" if "time" in names else "time_s"
        source.require(names, ("joined", "left", clock))
        return _events(source, rows, clock)
    source.require(names, ("node", "start", "end"))
    return _intervals(source, rows)


def _text(source: TraceSource) -> str:
    """The file's text, decompressed if its name says so."""
    data = read_named(source.path, LARGEST_LOG)
    try:
        if source.path.suffix == ".gz":
            data = gunzip(data)
        return data.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        rule = f"it cannot be decompressed ({error}): get it again"
        raise source.wrong(None, rule) from error
    except UnicodeDecodeError as error:
        rule = f"it is not text in UTF-8 ({error}); for Parquet, call it .parquet"
        raise source.wrong(None, rule) from error
    except ValueError as error:
        raise source.wrong(None, str(error)) from error


def _csv(source: TraceSource, text: str) -> Rows:
    """The names of a CSV file's columns, and its rows."""
    csv.field_size_limit(1 << 30)
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    heads = [name.strip() for name in reader.fieldnames or ()]
    names = [OTHER_NAMES.get(head, head) for head in heads]
    reader.fieldnames = names
    return set(names), _csv_rows(source, reader)


def _csv_rows(source: TraceSource, reader: "csv.DictReader[str]") -> Iterator[Row]:
    """The rows below the header, with their line numbers."""
    try:
        for row in reader:
            if None in row or None in row.values():
                rule = "a row must have as many fields as the header"
                raise source.wrong(reader.line_num, rule)
            yield reader.line_num, {name: text_of(text) for name, text in row.items()}
    except csv.Error as error:
        raise source.wrong(reader.line_num, f"it is not CSV: {error}") from error


def _parquet(source: TraceSource) -> Rows:
    """The names of a Parquet file's columns, and its rows."""
    columns: Columns = {}
    for name, values in _parquet_columns(source).items():
        columns[OTHER_NAMES.get(name, name)] = values
    return set(columns), _parquet_rows(columns)


def _parquet_columns(source: TraceSource) -> Columns:
    """The values of each column, by the names that the file has."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise source.wrong(None, NO_PARQUET) from error
    if not source.path.exists():
        raise FileNotFoundError(f"there is no {source.path}")

    try:
        table = parquet.read_table(source.path)
        return {name: table.column(name).to_pylist() for name in table.column_names}
    except (ArrowException, OSError, ValueError, OverflowError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise source.wrong(None, f"it cannot be read as Parquet ({why})") from error


def _parquet_rows(columns: Columns) -> Iterator[Row]:
    """The rows, numbered from 1."""
    for number, values in enumerate(zip(*columns.values(), strict=True), 1):
        row = dict(zip(columns, values, strict=True))
        if row.get("right_censored"):  # still idle when the log ends
            row["end"] = inf
        yield number, row


# -- intervals -------------------------------------------------------------------------------------


def _intervals(source: TraceSource, rows: Iterable[Row]) -> IdleLog:
    """The log of a file of intervals."""
    until: Ends = {}
    fragments: list[Fragment] = []
    racks: dict[str, str] = {}
    last = -inf
    for line, row in rows:
        name, start, end = _interval(source, line, row)
        if start < last:
            rule = f"rows must be in order of start; {start:g} comes after {last:g}"
            raise source.wrong(line, rule)
        _check_overlap(source, line, until.get(name), (name, start, end))

        until[name] = end, line
        last = start
        fragments.append((name, start, end))
        if row.get("rack"):
            racks[name] = str(row["rack"])
    return source.log(fragments, racks)


def _interval(source: TraceSource, line: int, row: Mapping[str, Any]) -> Fragment:
    """The fragment of a row; an empty end means still idle."""
    name = source.node(line, row["node"])
    start = source.number(line, "start", row["start"])
    if row["end"] in ("", None):
        return name, start, inf
    return name, start, source.number(line, "end", row["end"])


def _check_overlap(source: TraceSource, line: int, before: End | None, fragment: Fragment) -> None:
    """Raise TraceError unless the interval has a length and begins after the node's last one."""
    name, start, end = fragment
    if not end > start:
        rule = f"an interval must end after it starts; got {start:g} to {end:g}"
        raise source.wrong(line, rule)
    if before is not None and start < before[0]:
        until, where = before
        overlap = f"{name} is idle until {until:g} by {source.counts} {where}"
        raise source.wrong(line, f"intervals of a node must not overlap; {overlap}")


# -- events ----------------------------------------------------------------------------------------


def _events(source: TraceSource, rows: Iterable[Row], clock: str) -> IdleLog:
    """The log of a file of events. `clock`: the name of the column with their times."""
    events = _Events(source)
    last = -inf
    first = inf
    for line, row in rows:
        now = source.number(line, clock, row[clock])
        if now < last:
            rule = f"rows must be in order of time; {now:g} comes after {last:g}"
            raise source.wrong(line, rule)
        last = now
        first = min(first, now)
        for name in _names(source, line, "left", row):
            events.leave(line, name, now)
        for name in _names(source, line, "joined", row):
            events.join(line, name, now)
    return replace(source.log(events.fragments(), {}, last), begin=first)


class _Events:
    """The nodes that are idle now, and the fragments that have ended."""

    def __init__(self, source: TraceSource) -> None:
        self._source = source
        self._since: dict[str, float] = {}
        self._ended: list[Fragment] = []

    def leave(self, line: int, name: str, now: float) -> None:
        """A node is idle no longer."""
        if name not in self._since:
            raise self._source.wrong(line, f"{name} left, but was not idle")
        self._ended.append((name, self._since.pop(name), now))

    def join(self, line: int, name: str, now: float) -> None:
        """A node becomes idle."""
        if name in self._since:
            raise self._source.wrong(line, f"{name} joined, but was idle already")
        self._since[name] = now

    def fragments(self) -> list[Fragment]:
        """All fragments with a length, those without an end too."""
        fragments = list(self._ended)
        for name, start in self._since.items():
            fragments.append((name, start, inf))
        return [fragment for fragment in fragments if fragment[2] > fragment[1]]


def _names(source: TraceSource, line: int, column: str, row: Mapping[str, Any]) -> Iterator[str]:
    """The nodes that a row names in this column."""
    value = row[column]
    if value is not None and not isinstance(value, str):
        rule = f"{column} must be names separated by spaces; got {value!r}"
        raise source.wrong(line, rule)
    for node in (value or "").split():
        yield source.node(line, node)


Span = tuple[float, float]  # from when to when
SacctRow = Mapping[str, str]  # by column
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
        for node in _hosts(source, line, row["NodeList"]):
            busy.setdefault(source.node(line, node), []).append(span)
    # When no allocation covers a node, from the first start to the last time in the log.
    if not busy:
        raise source.wrong(None, "no allocations: the log is empty")
    allocations = [span for spans in busy.values() for span in spans]
    first = min(start for start, _ in allocations)
    finish = max(at for span in allocations for at in span if at < inf)

    names = sorted(busy) if source.nodes is None else source.nodes
    fragments = []
    for name in names:
        for start, end in _gaps(busy.get(name, []), first, finish):
            fragments.append((name, start - first, end - first))
    return source.log(fragments, {}, finish - first)


def _span(source: TraceSource, line: int, row: SacctRow) -> Span:
    """From when to when an allocation lasted."""
    start = _moment(source, line, "Start", row["Start"])
    end = _moment(source, line, "End", row["End"])
    if end < start:
        span = f"{row['Start']} to {row['End']}"
        raise source.wrong(line, f"an allocation must end after it starts; got {span}")
    return start, end


def _rows(source: TraceSource, text: str) -> Iterator[tuple[int, SacctRow]]:
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
    """A time in seconds since 1970; one without a zone is in UTC."""
    if text in NEVER and name == "End":
        return inf  # still running
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except ValueError:
        rule = f"{name} must be a time such as 2026-01-31T12:00:00; got {text!r}"
        raise source.wrong(line, rule) from None


def _hosts(source: TraceSource, line: int | None, listed: str) -> list[str]:
    """The nodes of a Slurm host list.

    Raises:
        TraceError: not such a list.
    """
    try:
        return hosts(listed)
    except ValueError as error:
        raise source.wrong(line, str(error)) from None


HEAD = "time_s,joined,left\n"


def event_line(at: Seconds, joined: Iterable[str], left: Iterable[str]) -> str:
    """A line of the file: at this time these nodes became idle, and these did so no longer."""
    line = io.StringIO()
    row = cells((f"{at:.12g}", " ".join(joined), " ".join(left)))
    csv.writer(line, lineterminator="\n").writerow(row)
    return line.getvalue()


def write_log(log: IdleLog, path: Path) -> None:
    """Write the log, whole or not at all; its last line says when it ends."""
    lines = [HEAD]
    for at, came, went in log.changes():
        joined = [log.nodes[node] for node in came]
        left = [log.nodes[node] for node in went]
        lines.append(event_line(at, joined, left))
    lines.append(event_line(log.finish, (), ()))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as beside:
        beside.write_text("".join(lines), encoding="utf-8")
