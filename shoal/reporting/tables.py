"""The tables of the report's page, as HTML. Every text that comes from the journal is escaped."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from shoal.reporting.accounting import Account
from shoal.reporting.charts import Parameter, painted_by
from shoal.reporting.format import (
    DASH,
    config,
    count,
    duration,
    escape,
    number,
    plural,
    score,
    share,
    size,
    value,
)
from shoal.reporting.tally import Split, TrialRow

# What is shown and what it sorts by; with "html" behind if it is not a plain text.
Cell = tuple[Any, ...]

# Rows of one table: of more the page gets slow.
LISTED = 10_000
# Rows shown at once: of trials the best, of others all or, folded away, more.
SHOWN = 20
TAG = re.compile(r"<[^>]*>")


# -- HTML ------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], sortable: bool = False) -> str:
    """A table. Columns of numbers stand right.

    A cell is a text, or (what is shown, what it sorts by), or (HTML, what it sorts by, "html").
    """
    body = [[_pair(cell) for cell in row] for row in islice(rows, LISTED)]
    right = [_is_numeric(column, body) for column in range(len(heads))]

    top = ""
    for head, numeric in zip(heads, right, strict=True):
        top += f'<th scope="col"{_side(numeric)}>{escape(head)}</th>'
    lines = "".join(_line(row, right) for row in body)

    kind = ""
    if sortable:
        kind = ' class="sortable"'
    whole = f"<table{kind}><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"
    more = ""
    if len(body) == LISTED:
        more = f"<p>{LISTED:,} rows are listed at most.</p>"
    return f'<div class="wide">{whole}</div>{more}'


def details(title: str, body: str, opened: bool = False) -> str:
    """A part of the page that is folded away unless it is opened."""
    state = ""
    if opened:
        state = " open"
    return f"<details{state}><summary>{title}</summary>{body}</details>"


def folded(title: str, body: str, rows: int) -> str:
    """A table of so many rows, folded away if they are many."""
    return details(title, body, rows <= SHOWN)


def _pair(cell: Any) -> Cell:
    """A cell with what it sorts by."""
    if isinstance(cell, tuple):
        return cell
    return cell, cell


def _is_numeric(column: int, body: Sequence[Sequence[Sequence[Any]]]) -> bool:
    """Whether no cell of the column sorts by a text."""
    return all(not isinstance(row[column][1], str) for row in body)


def _line(row: Sequence[Sequence[Any]], right: Sequence[bool]) -> str:
    """A line of the table's body.

    HTML lets the end tags of lines and cells be left out. Without them ten thousand trials are
    more than half a megabyte smaller.
    """
    return "<tr>" + "".join(map(_cell, row, right))


def _side(right: bool) -> str:
    """The attribute of a cell that stands right."""
    if right:
        return " class=r"
    return ""


def _cell(cell: Sequence[Any], right: bool) -> str:
    """A cell of the table's body."""
    text = cell[0]
    if len(cell) == 2:
        text = escape(str(text))
    return f"<td{_side(right)}{_sort_key(text, cell[1])}>{text}"


def _sort_key(html: str, key: Any) -> str:
    """The attribute that the page sorts by; none where the cell's text is the same key.

    Ten thousand trials are a megabyte smaller without the keys that only repeat the text.
    """
    if key is None:
        return ' data-k=""'
    if not isinstance(key, str) and _reads_as(html, key):
        return ""

    escaped = escape(str(key))
    if html == escaped or TAG.sub("", html) == escaped:
        return ""
    return f' data-k="{escaped}"'


def _reads_as(text: str, key: float) -> bool:
    """Whether the text, read as a number, is the key."""
    try:
        return float(text) == key
    except ValueError:
        return False


# -- trials ----------------------------------------------------------------------------------------


def trials(
    account: Account,
    varying: Sequence[Parameter],
    same: Mapping[str, str],
    whole: str = "all",
) -> str:
    """The best trials, and all of them folded away. `whole`: instead of "all", of a sample."""
    if not account.trials:
        return "<p>No trial was submitted.</p>"

    if account.by_recipe:
        own = account.by_recipe.items()
        parts = [f"<h3>{escape(n)}</h3>{trials(each, varying, same, whole)}" for n, each in own]
        return "".join(parts)
    names = [parameter.name for parameter in varying]
    note = ""
    if len(account.trials) == 1:
        names += same
    elif same:
        note = f"<p>The same in all trials: {escape(config(same))}.</p>"

    made = TrialTable(account, names)
    first = made.html(SHOWN)
    every = len(account.trials)
    if every <= SHOWN:
        return note + first
    return note + first + details(f"{whole} {every:,} trials", made.html(every))


class TrialTable:
    """A line for each trial, the best first. `names`: the parts of the configuration to show."""

    def __init__(self, account: Account, names: Sequence[str]) -> None:
        self._names = names
        self._metric = account.metric
        self._ranked = account.ranked()
        self._painted = painted_by(account)
        self._slots = any(row.widths != (1, 1) for row in account.trials)
        self._priority = any(row.priority != 1.0 for row in account.trials)

    def html(self, most: int) -> str:
        """The table of the best `most` trials."""
        rows = [self.cells(row, place) for place, row in enumerate(self._ranked[:most], 1)]
        return table(self.heads(), rows, sortable=True)

    def heads(self) -> list[str]:
        """The heads of the columns."""
        heads = ["#", "trial"]
        if self._metric:
            heads += [self._metric, "best", "at epoch"]
        heads += self._names
        if self._slots:
            heads.append("slots")
        if self._priority:
            heads.append("priority")
        return [*heads, "epochs", "training", "from", "status"]

    def cells(self, row: TrialRow, place: int) -> list[Cell]:
        """The line of one trial."""
        cells = [(str(place), place), self._name(row)]
        if self._metric:
            cells += _scores(row)
        cells += [_config_cell(row, name) for name in self._names]
        if self._slots:
            cells.append(_widths(row))
        if self._priority:
            cells.append((number(row.priority), row.priority))
        return cells + _course(row)

    def _name(self, row: TrialRow) -> Cell:
        """The trial's name, with its colour."""
        dot = f'<i class="dot" style="background:{self._painted[row.id]}"></i>'
        return dot + escape(row.id), str(row.id), "html"


def _scores(row: TrialRow) -> list[Cell]:
    """The last score and the best one."""
    return [
        (score(row.last), row.last),
        (score(row.best), row.best),
        (number(row.best_epoch, 3), row.best_epoch),
    ]


def _widths(row: TrialRow) -> Cell:
    """On how many slots a trial may train."""
    text = "–".join(map(str, dict.fromkeys(row.widths)))
    return text, row.widths[1]


def _course(row: TrialRow) -> list[Cell]:
    """How far a trial came, how long that took, and how it ended."""
    training = row.spent.get("train")
    chip = f'<span class="chip {row.status}">{row.status}</span>'
    return [
        (_epochs(row), row.epochs),
        (duration(training), training),
        (duration(row.start), row.start),
        (chip, row.status, "html"),
    ]


def _config_cell(row: TrialRow, name: str) -> tuple[str, Any]:
    """A value of the trial's configuration; a dash if it lacks that name."""
    if name not in row.config:
        return DASH, None
    item = row.config[name]
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return number(item), item
    return value(item), value(item)


def _epochs(row: TrialRow) -> str:
    """The epochs that a trial trained, and of how many, unless it is over."""
    if row.epochs is None:
        return f"{count(row.samples)} samples"
    trained = number(row.epochs, 3)
    if row.status in ("running", "waiting") and row.samples:
        asked = row.epochs * row.asked / row.samples
        return f"{trained} of {number(asked, 3)}"
    return trained


# -- what went wrong -------------------------------------------------------------------------------


def failures(account: Account) -> str:
    """Which trials failed, and why; equal reasons together. Nothing if none did."""
    failed = [row for row in account.trials if row.status == "failed"]
    if not failed:
        return ""

    heads = ["trial", "why", "epochs", "at", "configuration"]
    whole = table(heads, map(_failure, failed), sortable=True)
    title = plural(len(failed), "failed trial")
    return _reasons(failed) + folded(title, whole, len(failed))


def _failure(row: TrialRow) -> list[Any]:
    """The line of a trial that failed."""
    values = config(row.config, 90)
    return [row.id, _why(row), _epochs_cell(row), (duration(row.end), row.end), values]


def _epochs_cell(row: TrialRow) -> Cell:
    """The epochs that a trial has trained."""
    return number(row.epochs, 3), row.epochs


def _why(row: TrialRow) -> str:
    """Why a trial failed."""
    return row.why or "no reason given"


def _reasons(failed: Iterable[TrialRow]) -> str:
    """A list of the reasons, the most frequent first."""
    reasons = Counter(map(_why, failed))
    lines = ""
    for why, times in sorted(reasons.items(), key=lambda item: -item[1]):
        trials = escape(plural(times, "trial"))
        lines += f"<li><b>{trials}</b>: <code>{escape(why)}</code></li>"
    return f'<ul class="reasons">{lines}</ul>'


SPLIT_HEADS = ["at", "trials", "why", "each trial's memory, by signature, since"]


def splits(account: Account) -> str:
    """Which packs ran out of memory, and when; nothing if none did.

    The last column says what each of their trials is believed to need since.
    """
    if not account.splits:
        return ""

    packs = escape(plural(len(account.splits), "pack"))
    text = f"<p>{packs} had no room: split, and gone on with in smaller packs.</p>"
    return text + table(SPLIT_HEADS, map(_split, account.splits), sortable=True)


def _split(split: Split) -> list[Any]:
    """The line of a pack that had no room."""
    needs = []
    for signature, need in split.needs.items():
        needs.append(f"{signature}: {size(need * 2**30)}")
    believed = "; ".join(needs) or "not known"
    at = (duration(split.time), split.time)
    return [at, ", ".join(split.trials), split.why, believed]


def repeated(account: Account) -> str:
    """What was trained and then lost, trial by trial. Nothing if nothing was."""
    rows = [row for row in account.trials if row.repeated.falls]
    if not rows:
        return ""
    rows.sort(key=lambda row: -row.repeated.samples)
    heads = ["trial", "times", "visits void", "samples void", "slot time void"]
    body = table(heads, map(_lost, rows), sortable=True)

    total = sum(row.repeated.samples for row in rows)
    part = share(total, account.trained)
    text = (
        f"<p>{escape(plural(len(rows), 'trial'))} went back to a durable state: "
        f"{count(total)} samples, {part} of all that was trained, were void.</p>"
    )
    return text + folded("by trial", body, len(rows))


def _lost(row: TrialRow) -> list[Any]:
    """The line of a trial that lost work."""
    void = row.repeated
    return [
        row.id,
        (str(void.falls), void.falls),
        (str(void.visits), void.visits),
        (count(void.samples), void.samples),
        (duration(void.seconds), void.seconds),
    ]
