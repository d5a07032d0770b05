"""A log of idle nodes as a file of events, which `read_log` reads."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from shoal.core.trial import Seconds
from shoal.engine.csv_cells import cells
from shoal.engine.files import replaced
from shoal.simulate.trace import IdleLog

HEAD = "time_s,joined,left\n"


def event(at: Seconds, joined: Iterable[str], left: Iterable[str]) -> str:
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
        lines.append(event(at, joined, left))
    lines.append(event(log.finish, (), ()))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as beside:
        beside.write_text("".join(lines), encoding="utf-8")
