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
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from shoal.core.install import install
from shoal.engine.csv_cells import text_of
from shoal.engine.files import read_named
from shoal.engine.small import gunzip
from shoal.simulate.sacct import read_sacct
from shoal.simulate.source import TraceSource
from shoal.simulate.trace import Fragment, IdleLog

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
        clock = _clock(names)
        source.require(names, ("joined", "left", clock))
        return _events(source, rows, clock)
    source.require(names, ("node", "start", "end"))
    return _intervals(source, rows)


def _clock(names: set[str]) -> str:
    """The column with the times of events."""
    if "time" in names:
        return "time"
    return "time_s"


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
        yield number, _parquet_row(columns, values)


def _parquet_row(names: Iterable[str], values: Iterable[Any]) -> dict[str, Any]:
    """One row, by the names of the columns."""
    row = dict(zip(names, values, strict=True))
    if row.get("right_censored"):  # still idle when the log ends
        row["end"] = inf
    return row


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
    """One row; an empty end means still idle."""
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
        other = f"{name} is idle until {until:g} by {source.counts} {where}"
        raise source.wrong(line, f"intervals of a node must not overlap; {other}")


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
        """All fragments that last, those without an end too."""
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
    for given in (value or "").split():
        yield source.node(line, given)
