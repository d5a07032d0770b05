"""The table of trials: filtered, sorted and cut into pages by the server."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape as exact
from typing import Any

from shoal.reporting.format import config, escape, value
from shoal.reporting.gantt import natural
from shoal.reporting.tables import TrialTable
from shoal.reporting.tally import TrialRow
from shoal.ui.live import Seen

PAGE = 50  # rows at once
TERM = re.compile(r"([^<>=!]+)(<=|>=|!=|<|>|=)(.+)")
LESS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}
# Names that stand for figures of a trial, beside those of its configuration.
FIGURES: Mapping[str, Callable[[TrialRow], Any]] = {
    "trial": lambda row: row.id,
    "best": lambda row: row.best,
    "at epoch": lambda row: row.best_epoch,
    "slots": lambda row: row.widths[1],
    "priority": lambda row: row.priority,
    "epochs": lambda row: row.epochs,
    "training": lambda row: row.spent.get("train"),
    "from": lambda row: row.start,
    "status": lambda row: row.status,
}
OPEN = ("running", "waiting")  # these can be stopped
ENDED_WELL = (*OPEN, "finished")  # these can be extended


@dataclass(frozen=True, slots=True)
class Question:
    """Which trials are wanted, and in which order.

    `sort`: the head of a column; empty: by score. `text`: terms with spaces between them, all of
    which must hold: a part of a name or of a value, or a comparison such as lr<0.01.
    """

    sort: str = ""
    down: bool = False
    status: str = ""
    text: str = ""
    page: int = 0


def answer(seen: Seen, asked: Question) -> dict[str, Any]:
    """The page of the table that is asked for: its HTML, and how many trials there are."""
    rows = _sorted(seen, _filtered(seen, asked), asked)
    last = max(0, (len(rows) - 1) // PAGE)
    page = min(max(0, asked.page), last)
    shown = rows[page * PAGE : (page + 1) * PAGE]
    return {
        "html": _html(seen, shown, asked),
        "count": len(rows),
        "all": len(seen.account.trials),
        "page": page,
        "pages": last + 1,
    }


# -- which of them ---------------------------------------------------------------------------------


def _filtered(seen: Seen, asked: Question) -> Sequence[TrialRow]:
    """The trials that are wanted, the best first."""
    rows = seen.ranked
    if asked.status:
        rows = [row for row in rows if row.status == asked.status]
    for term in asked.text.split():
        holds = _term(term, seen.account.metric)
        rows = [row for row in rows if holds(row)]
    return rows


def _term(term: str, metric: str | None) -> Callable[[TrialRow], bool]:
    """What one term asks of a trial."""
    found = TERM.fullmatch(term)
    if found is None:
        part = term.casefold()
        return lambda row: part in _text(row).casefold()
    name, sign, wanted = found.groups()

    def holds(row: TrialRow) -> bool:
        item = _figure(row, name, metric)
        if item is None:
            return False
        return _compared(item, sign, wanted)

    return holds


def _text(row: TrialRow) -> str:
    """All that can be searched of a trial."""
    return f"{row.id} {config(row.config)} {row.why}"


def _figure(row: TrialRow, name: str, metric: str | None) -> Any:
    """A value of the configuration, or a figure of the trial; None if it has none."""
    if name in row.config:
        return row.config[name]
    if name in (metric, "score"):
        return row.last
    if name in FIGURES:
        return FIGURES[name](row)
    return None


def _compared(item: Any, sign: str, wanted: str) -> bool:
    """Whether the comparison holds: of numbers if both are, else of texts."""
    one: Any = value(item)
    other: Any = wanted
    with suppress(TypeError, ValueError):
        one, other = float(item), float(wanted)
    if sign == "=":
        return bool(one == other)
    if sign == "!=":
        return bool(one != other)
    return LESS[sign](one, other)


# -- in which order --------------------------------------------------------------------------------


def _sorted(seen: Seen, rows: Sequence[TrialRow], asked: Question) -> Sequence[TrialRow]:
    """The rows by the column; those without a value come last either way."""
    name = asked.sort
    if name in ("", "#"):
        return rows[::-1] if asked.down else rows
    metric = seen.account.metric
    have = []
    lack = []
    for row in rows:
        item = _column(row, name, metric)
        if item is None:
            lack.append(row)
        else:
            have.append((_key(item), row))
    have.sort(key=lambda pair: pair[0], reverse=asked.down)
    return [row for _, row in have] + lack


def _column(row: TrialRow, name: str, metric: str | None) -> Any:
    """What a row has in a column: the columns of figures come before names of values."""
    if name == metric:
        return row.last
    if name in FIGURES and name not in row.config:
        return FIGURES[name](row)
    return row.config.get(name)


def _key(item: Any) -> tuple[Any, ...]:
    """What sorts numbers by size, and texts after them as people do."""
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return 0, item
    return 1, natural(value(item))


# -- as HTML ---------------------------------------------------------------------------------------


def _html(seen: Seen, rows: Sequence[TrialRow], asked: Question) -> str:
    """The table of these rows."""
    names = [parameter.name for parameter in seen.parameters[0]]
    if len(seen.account.trials) == 1:
        names += seen.parameters[1]
    made = TrialTable(seen.account, names)
    places = {row.id: place for place, row in enumerate(seen.ranked, 1)}
    cells = [made.cells(row, places[row.id]) for row in rows]
    heads = ""
    for column, head in enumerate(made.heads()):
        right = bool(cells) and not any(isinstance(line[column][1], str) for line in cells)
        heads += _head(head, asked, right)
    body = "".join(map(_line, cells, rows))
    if not rows:
        span = len(made.heads()) + 2
        body = f'<tr><td colspan="{span}">No trial is like that.</td></tr>'
    return (
        '<table><thead><tr><th scope="col"><span class="hidden">draw</span></th>'
        f'{heads}<th scope="col"><span class="hidden">actions</span></th></tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _head(head: str, asked: Question, right: bool) -> str:
    """The head of a column, which sorts by it."""
    order = ""
    if head == (asked.sort or "#"):
        order = ' aria-sort="ascending"'
        if asked.down:
            order = ' aria-sort="descending"'
    side = ""
    if right:
        side = " class=r"
    name = exact(head)
    return (
        f'<th scope="col"{side}{order}><button type="button" data-sort="{name}" '
        f'data-key="sort {name}">{escape(head)}</button></th>'
    )


def _line(cells: Sequence[Sequence[Any]], row: TrialRow) -> str:
    """The row of one trial, with what can be done to it."""
    name = exact(row.id)
    tick = (
        f'<td><input type="checkbox" data-tick="{name}" data-key="tick {name}" '
        f'aria-label="draw the curve of {escape(row.id)}"></td>'
    )
    body = "".join(map(_cell, cells))
    does = _button("open", "details", row.id)
    if row.status in OPEN:
        does = _button("stop", "stop", row.id) + does
    return f"<tr>{tick}{body}<td class=does>{does}</td></tr>"


def _button(what: str, text: str, name: str) -> str:
    """A button that does something to the trial of that name."""
    return (
        f'<button type="button" data-do="{what}" data-trial="{exact(name)}" '
        f'data-key="{what} {exact(name)}" aria-label="{text}: {escape(name)}">{text}</button>'
    )


def _cell(cell: Any) -> str:
    """A cell: a text, or HTML that the report made."""
    html = cell[0]
    if len(cell) == 2:
        html = escape(str(html))
    side = ""
    if not isinstance(cell[1], str):
        side = " class=r"
    return f"<td{side}>{html}</td>"
