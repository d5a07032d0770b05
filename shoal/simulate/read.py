"""Idle-node logs from files.

Intervals (CSV, `.csv.gz`, or Parquet with pyarrow): columns `node`, `start`, `end` in seconds, rows in order of start; an
empty end means still idle at the end of the log; `rack` is optional.
Events (CSV): columns `time_s` (or `time`), `joined`, `left`: names separated by spaces; rows in order of time.
Slurm: the text of `sacct -P -a -X -o NodeList,Start,End`; nodes are idle where no allocation covers them.
"""

import csv
import gzip
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from math import inf, isnan
from pathlib import Path
from typing import Any

import numpy as np

from shoal.simulate.trace import IdleLog, TraceError

Row = tuple[int, Mapping[str, Any]]  # line number, fields


def read_log(path: str | Path, nodes: Sequence[str] | None = None) -> IdleLog:
    """The log in this file; its kind is told by its name and header.

    `nodes`: the names of all nodes, in their order; a log that names others is refused, and numbers stand for positions.

    Raises:
        TraceError: unsorted, overlapping, an unknown node, a missing column, or a number that is none.
        OSError: as `open`.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        return _intervals(path, _parquet(path), nodes)
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    header = text.partition("\n")[0]
    if "|" in header:
        return _sacct(path, text, nodes)
    rows = _csv(path, text)
    names = {name.strip() for name in header.split(",")}
    if "joined" in names or "left" in names:
        _require(path, names, ("joined", "left", "time_s" if "time" not in names else "time"))
        return _events(path, rows, nodes, "time" if "time" in names else "time_s")
    _require(path, names, ("node", "start", "end"))
    return _intervals(path, rows, nodes)


def _require(path: Path, names: Iterable[str], columns: Iterable[str]) -> None:
    missing = [c for c in columns if c not in names]
    if missing:
        raise TraceError(path, 1, f"missing column {', '.join(missing)}; there are {', '.join(sorted(names)) or 'none'}")


def _csv(path: Path, text: str) -> Iterator[Row]:
    csv.field_size_limit(1 << 30)
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), 2):
        if None in row or None in row.values():
            raise TraceError(path, number, "a row must have as many fields as the header")
        yield number, row


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pandas

        table = pandas.read_parquet(path)
    except ImportError as error:
        raise TraceError(path, None, f"reading Parquet needs pandas and pyarrow ({error}); or give the log as CSV") from error
    table = table.rename(columns={"node_id": "node", "start_s": "start", "end_s": "end"})
    _require(path, table.columns, ("node", "start", "end"))
    censored = table.get("right_censored")
    for i, (node, start, end) in enumerate(zip(table["node"], table["start"], table["end"], strict=True)):
        yield i + 2, {"node": str(node), "start": start, "end": inf if censored is not None and censored.iloc[i] else end}


def _number(path: Path, line: int, name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isnan(number):
        raise TraceError(path, line, f"{name} must be a number of seconds; got {value!r}")
    return number


def _names(path: Path, nodes: Sequence[str] | None) -> tuple[dict[str, str], bool]:
    known = {name: name for name in nodes or ()}
    known |= {str(i): name for i, name in enumerate(nodes or ())}
    return known, nodes is not None


def _intervals(path: Path, rows: Iterable[Row], nodes: Sequence[str] | None) -> IdleLog:
    known, closed = _names(path, nodes)
    until: dict[str, tuple[float, int]] = {}
    fragments, racks, last = [], {}, -inf
    for line, row in rows:
        name = known.get(row["node"].strip(), None if closed else row["node"].strip())
        if not name:
            raise TraceError(path, line, f"unknown node {row['node']!r}")
        start = _number(path, line, "start", row["start"])
        end = inf if row["end"] == "" else _number(path, line, "end", row["end"])
        if start < last:
            raise TraceError(path, line, f"rows must be in order of start; {start:g} comes after {last:g}")
        if not end > start:
            raise TraceError(path, line, f"an interval must end after it starts; got {start:g} to {end:g}")
        before, where = until.get(name, (-inf, 0))
        if start < before:
            raise TraceError(path, line, f"intervals of a node must not overlap; {name} is idle until {before:g} by line {where}")
        until[name], last = (end, line), start
        fragments.append((name, start, end))
        if row.get("rack"):
            racks[name] = row["rack"]
    return _made(path, fragments, nodes, racks)


def _made(
    path: Path,
    fragments: list[tuple[str, float, float]],
    nodes: Sequence[str] | None,
    racks: Mapping[str, str],
    finish: float | None = None,
) -> IdleLog:
    if not fragments:
        raise TraceError(path, None, "no intervals: the log is empty")
    log = IdleLog.of(fragments, finish)
    if nodes is not None:
        number = {name: i for i, name in enumerate(nodes)}
        order = np.array([number[name] for name in log.nodes])
        log = IdleLog(tuple(nodes), order[log.node], log.start, log.end, log.begin, log.finish, machine=len(nodes))
    return IdleLog(log.nodes, log.node, log.start, log.end, log.begin, log.finish, racks, log.machine)


def _events(path: Path, rows: Iterable[Row], nodes: Sequence[str] | None, clock: str) -> IdleLog:
    known, closed = _names(path, nodes)
    since: dict[str, float] = {}
    fragments, last, first = [], -inf, inf
    for line, row in rows:
        now = _number(path, line, clock, row[clock])
        if now < last:
            raise TraceError(path, line, f"rows must be in order of time; {now:g} comes after {last:g}")
        last, first = now, min(first, now)
        for column in ("left", "joined"):
            for given in row[column].split():
                name = known.get(given, None if closed else given)
                if name is None:
                    raise TraceError(path, line, f"unknown node {given!r}")
                if (name in since) == (column == "joined"):
                    raise TraceError(path, line, f"{name} {column}, but was {'idle already' if name in since else 'not idle'}")
                if column == "left":
                    fragments.append((name, since.pop(name), now))
                else:
                    since[name] = now
    fragments += [(name, start, inf) for name, start in since.items()]
    log = _made(path, [f for f in fragments if f[2] > f[1]], nodes, {}, last)
    return IdleLog(log.nodes, log.node, log.start, log.end, first, log.finish, log.racks, log.machine)


def _sacct(path: Path, text: str, nodes: Sequence[str] | None) -> IdleLog:
    lines = list(enumerate(text.splitlines(), 1))
    heads = [h.strip() for h in lines[0][1].split("|")]
    _require(path, heads, ("NodeList", "Start", "End"))
    known, closed = _names(path, nodes)
    busy: dict[str, list[tuple[float, float, int]]] = {}
    for line, raw in lines[1:]:
        cells = raw.split("|")
        if not raw.strip():
            continue
        if len(cells) < len(heads):
            raise TraceError(path, line, "a row must have as many fields as the header")
        row = dict(zip(heads, cells, strict=False))
        if row["Start"] in ("Unknown", "None") or row["NodeList"] in ("", "None assigned"):
            continue  # never started
        start, end = (_moment(path, line, name, row[name]) for name in ("Start", "End"))
        if end < start:
            raise TraceError(path, line, f"an allocation must end after it starts; got {row['Start']} to {row['End']}")
        for given in hosts(path, line, row["NodeList"]):
            name = known.get(given, None if closed else given)
            if name is None:
                raise TraceError(path, line, f"unknown node {given!r}")
            busy.setdefault(name, []).append((start, end, line))
    return _idle(path, busy, nodes)


def _idle(path: Path, busy: Mapping[str, list[tuple[float, float, int]]], nodes: Sequence[str] | None) -> IdleLog:
    """The complement of what is busy; allocations that share a node are merged."""
    if not busy:
        raise TraceError(path, None, "no allocations: the log is empty")
    first = min(start for spans in busy.values() for start, _, _ in spans)
    finish = max([end for spans in busy.values() for _, end, _ in spans if end < inf] or [first])
    fragments = []
    for name in nodes if nodes is not None else sorted(busy):
        now = 0.0
        for start, end, _ in sorted(busy.get(name, [])):
            if start - first > now:
                fragments.append((name, now, start - first))
            now = max(now, end - first)
        if now < finish - first:
            fragments.append((name, now, inf))
    return _made(path, fragments, nodes, {}, finish - first)


def _moment(path: Path, line: int, name: str, text: str) -> float:
    if text in ("Unknown", "None") and name == "End":
        return inf  # still running
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise TraceError(path, line, f"{name} must be a time such as 2026-01-31T12:00:00; got {text!r}") from None


def hosts(path: object, line: int | None, listed: str) -> list[str]:
    """The nodes of a Slurm host list: "n[1-3,07],login" is n1 n2 n3 n07 login."""
    found: list[str] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)?", listed):
        match = re.fullmatch(r"([^\[]*)\[([^\]]+)\](.*)", part)
        if match is None:
            found.append(part)
            continue
        head, ranges, tail = match.groups()
        for piece in ranges.split(","):
            low, _, high = piece.partition("-")
            if not low.isdigit() or not (high or low).isdigit():
                raise TraceError(path, line, f"not a host list: {listed!r}")
            found += [f"{head}{n:0{len(low)}d}{tail}" for n in range(int(low), int(high or low) + 1)]
    return found
