"""How a study stands: as plain data, as lines, and as a table for a terminal."""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from shoal.engine.journal import Line
from shoal.engine.snapshot import Snapshot
from shoal.reporting.accounting import account
from shoal.reporting.facts import LABEL, LINES, Bare, Facts
from shoal.reporting.format import DASH, config, duration, number, printable, score, status_words

if TYPE_CHECKING:
    from rich.table import Table

COLOURS = {"failed": "red", "finished": "green", "running": "cyan"}  # of a status


# -- as plain data ---------------------------------------------------------------------------------


def summary(
    lines: Iterable[Line],
    metric: str | None = None,
    mode: str | None = None,
    since: Snapshot | None = None,
) -> dict[str, Any]:
    """How the study stands, JSON-able; `metric` and `mode` as the journal says, unless given.

    Its keys:

    - study, recipe, metric, mode;
    - policy: what the automatic policy makes short, which policy it follows, and why; None: it
      is another policy;
    - status: empty, finished, added, open, or "stopped: why"; stopped: why, or None;
    - trials: how many by status, and `all`;
    - best: the best trial, or None without a score; top: the best few;
    - folds: the best means of configurations over their folds, if there are folds;
    - seconds, runs; starting: seconds in which runs waited for their first slots;
    - slots: seconds by kind of each slot; used: slot seconds by kind; idle: slot seconds by what
      idle slots waited for;
    - training: the share of slot time that went to it;
    - shares: as of `Account.shares`; waiting: seconds that each slot waited; formed: what the
      policy started at one time, and how long that ran, for `flotilla` and `rounds`;
    - harvest: of slots that came and went, the whole and bins: slot-seconds offered, used, useful,
      of the reference, preempted, rescaled; slots (eq. 18), efficiency (U), returned (Fig. 8);
    - rescales: what each change of a running trial's width cost and gained, in seconds;
    - samples; throughput: samples/s while there were slots; unit: of both, samples or reports;
    - repeated: falls, visits, samples, seconds, and the same by trial;
    - hops, moved_bytes; dealt_bytes: of samples that were dealt to shards of other nodes;
    - failures; splits: packs that had no room;
    - feeders: what they did, by run and node;
    - entries; since: of a long journal of which `lines` are the newest: entries, those that were
      not counted, and the time of the last of them; else None. `since` (the argument): what these
      come to. What is no part of a study's state is counted from then on: slots, used, idle,
      training, shares, waiting, formed, harvest, rescales, repeated, hops, bytes and splits;
    - figures: measured ones by signature; given: those given instead, by configuration.

    Raises:
        ValueError: the mode is neither "min" nor "max".
    """
    facts = Facts(account(lines, metric, mode, since))
    return {key: _plain(value) for key, value in facts.items()}


def _plain(item: Any) -> Any:
    """What JSON can hold: no number that it lacks, tuples as lists."""
    if isinstance(item, float):
        if isfinite(item):
            return item
        return None
    if isinstance(item, Mapping):
        return {str(key): _plain(part) for key, part in item.items()}
    if isinstance(item, (list, tuple)):
        return [_plain(part) for part in item]
    return item


# -- as lines --------------------------------------------------------------------------------------


def status_lines(facts: Mapping[str, Any]) -> list[str]:
    """A summary as lines for people."""
    lines = []
    for label, say in LINES:
        for text in say(facts):
            lines.append(str(text) if isinstance(text, Bare) else f"{label:<{LABEL}}{text}")
    return lines


# -- as a table ------------------------------------------------------------------------------------


def table(
    lines: Iterable[Line], metric: str | None = None, mode: str | None = None, top: int = 20
) -> "Table":
    """The best trials as a rich table."""
    from rich.markup import escape
    from rich.table import Table

    facts = account(lines, metric, mode)
    rows = facts.ranked()[:top]
    names = list(dict.fromkeys(name for row in rows for name in row.config))
    heads = [*names, "epochs", "training"]
    if facts.metric:
        heads = [facts.metric, "best", *heads]

    def cell(text: str) -> str:
        return escape(printable(text))

    grid = Table("#", "trial", header_style="bold", box=None, pad_edge=False)
    for head in heads:
        grid.add_column(cell(head), justify="right")
    grid.add_column("status")
    for place, row in enumerate(rows, 1):
        cells: list[str] = [row.id]
        if facts.metric:
            cells += [score(row.last), score(row.best)]
        cells += [config({"": row.config[n]})[1:] if n in row.config else DASH for n in names]
        cells += [number(row.epochs, 3), duration(row.spent.get("train"))]
        colour = COLOURS.get(row.status, "default")
        status = f"[{colour}]{status_words(row.status)}[/]"
        grid.add_row(str(place), *map(cell, cells), status)
    return grid
