"""Idle-node logs from files.

Intervals (CSV, `.csv.gz`, or Parquet with pyarrow): columns `node`, `start`, `end` in seconds, rows in order of start; an
empty end means still idle at the end of the log; `rack` is optional.
Events (likewise): columns `time_s` (or `time`), `joined`, `left`: names separated by spaces; rows in order of time.
Slurm: the text of `sacct -P -a -X -o NodeList,Start,End`, in any order; nodes are idle where no allocation covers them.
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

from shoal.simulate.sacct import read_sacct
from shoal.simulate.source import Fragment, Source
from shoal.simulate.trace import IdleLog

Row = tuple[int, Mapping[str, Any]]  # line number, fields
OLD = {"node_id": "node", "start_s": "start", "end_s": "end"}  # names of columns that are also understood


def read_log(path: str | Path, nodes: Sequence[str] | None = None) -> IdleLog:
    """The log in this file; its kind is told by its name and header.

    `nodes`: the names of all nodes, in their order; a log that names others is refused, and numbers stand for positions.

    Raises:
        TraceError: unsorted, overlapping, an unknown node, a missing column, a number that is none, or no such file format.
        OSError: as `open`.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        source = Source(path, nodes, "row")
        return _log(source, *_parquet(source))
    source = Source(path, nodes)
    text = _text(source)
    if "|" in text.partition("\n")[0]:
        return read_sacct(source, text)
    return _log(source, *_csv(source, text))


def _log(source: Source, names: set[str], rows: Iterable[Row]) -> IdleLog:
    if "joined" in names or "left" in names:
        clock = "time" if "time" in names else "time_s"
        source.require(names, ("joined", "left", clock))
        return _events(source, rows, clock)
    source.require(names, ("node", "start", "end"))
    return _intervals(source, rows)


def _text(source: Source) -> str:
    data = source.path.read_bytes()
    try:
        return (gzip.decompress(data) if source.path.suffix == ".gz" else data).decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise source.wrong(None, f"it cannot be decompressed ({error}): get it again") from error
    except UnicodeDecodeError as error:
        raise source.wrong(None, f"it is not text in UTF-8 ({error}); for Parquet, call it .parquet") from error


def _csv(source: Source, text: str) -> tuple[set[str], Iterator[Row]]:
    csv.field_size_limit(1 << 30)
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    reader.fieldnames = names = [OLD.get(name.strip(), name.strip()) for name in reader.fieldnames or ()]

    def rows() -> Iterator[Row]:
        try:
            for row in reader:
                if None in row or None in row.values():
                    raise source.wrong(reader.line_num, "a row must have as many fields as the header")
                yield reader.line_num, row
        except csv.Error as error:
            raise source.wrong(reader.line_num, f"it is not CSV: {error}") from error

    return set(names), rows()


def _parquet(source: Source) -> tuple[set[str], Iterator[Row]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise source.wrong(
            None, "reading Parquet needs pyarrow: pip install -e '.[parquet]' in Shoal's checkout; or give the log as CSV"
        ) from error
    if not source.path.exists():
        raise FileNotFoundError(f"there is no {source.path}")
    try:
        table = parquet.read_table(source.path)
    except (ArrowException, OSError) as error:
        raise source.wrong(None, f"it cannot be read as Parquet ({str(error).splitlines()[0]})") from error
    columns = {OLD.get(name, name): table.column(name).to_pylist() for name in table.column_names}

    def rows() -> Iterator[Row]:
        open_ = columns.get("right_censored")
        for i, values in enumerate(zip(*columns.values(), strict=True)):
            row = dict(zip(columns, values, strict=True))
            yield i + 1, row | ({"end": inf} if open_ is not None and open_[i] else {})

    return set(columns), rows()


def _intervals(source: Source, rows: Iterable[Row]) -> IdleLog:
    until: dict[str, tuple[float, int]] = {}
    fragments: list[Fragment] = []
    racks: dict[str, str] = {}
    last = -inf
    for line, row in rows:
        name = source.node(line, row["node"])
        start = source.number(line, "start", row["start"])
        end = inf if row["end"] in ("", None) else source.number(line, "end", row["end"])
        if start < last:
            raise source.wrong(line, f"rows must be in order of start; {start:g} comes after {last:g}")
        if not end > start:
            raise source.wrong(line, f"an interval must end after it starts; got {start:g} to {end:g}")
        before, where = until.get(name, (-inf, 0))
        if start < before:
            said = f"{name} is idle until {before:g} by {source.counts} {where}"
            raise source.wrong(line, f"intervals of a node must not overlap; {said}")
        until[name], last = (end, line), start
        fragments.append((name, start, end))
        if row.get("rack"):
            racks[name] = str(row["rack"])
    return source.log(fragments, racks)


def _events(source: Source, rows: Iterable[Row], clock: str) -> IdleLog:
    since: dict[str, float] = {}
    fragments: list[Fragment] = []
    last, first = -inf, inf
    for line, row in rows:
        now = source.number(line, clock, row[clock])
        if now < last:
            raise source.wrong(line, f"rows must be in order of time; {now:g} comes after {last:g}")
        last, first = now, min(first, now)
        for column in ("left", "joined"):
            for given in _words(source, line, column, row[column]):
                name = source.node(line, given)
                if (name in since) == (column == "joined"):
                    raise source.wrong(line, f"{name} {column}, but was {'idle already' if name in since else 'not idle'}")
                if column == "left":
                    fragments.append((name, since.pop(name), now))
                else:
                    since[name] = now
    fragments += [(name, start, inf) for name, start in since.items()]
    log = source.log([f for f in fragments if f[2] > f[1]], {}, last)
    return replace(log, begin=first)


def _words(source: Source, line: int, column: str, value: Any) -> list[str]:
    if value is not None and not isinstance(value, str):
        raise source.wrong(line, f"{column} must be names separated by spaces; got {value!r}")
    return (value or "").split()
