"""The table of trials: filtered, sorted and cut into pages by the server."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shoal.reporting.format import config, printable, value
from shoal.reporting.gantt import natural
from shoal.reporting.sections import KEYS, Rows, TrialTable
from shoal.reporting.tally import TrialRow
from shoal.ui.parts import OPEN, macros
from shoal.ui.studies import Seen

PAGE = 50  # rows at once
TERM = re.compile(r"([^<>=!]+)(<=|>=|!=|<|>|=)(.+)")
LESS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}


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


def answer(seen: Seen, question: Question) -> dict[str, Any]:
    """The page of the table that is asked for: its HTML, and how many trials there are."""
    rows = _sorted(seen, _filtered(seen, question), question)
    last = max(0, (len(rows) - 1) // PAGE)
    page = min(max(0, question.page), last)
    shown = rows[page * PAGE : (page + 1) * PAGE]
    return {
        "html": _html(seen, shown, question),
        "count": len(rows),
        "all": len(seen.account.trials),
        "page": page,
        "pages": last + 1,
    }


def whole(seen: Seen, question: Question) -> dict[str, Any]:
    """The texts of all trials that are asked for, as a CSV has them, with the heads' units."""
    rows = _sorted(seen, _filtered(seen, question), question)
    body = _rows(seen, rows)
    heads = [
        f"{head} ({unit})" if unit else head
        for head, unit in zip(body.heads, body.units, strict=True)
    ]
    texts = [[printable(head) for head in heads]]
    texts += [[printable(cell.value) for cell in row] for row in body.rows]
    return {"rows": texts}


# -- which trials ----------------------------------------------------------------------------------


def _filtered(seen: Seen, question: Question) -> Sequence[TrialRow]:
    """The trials that are wanted, the best first."""
    rows = seen.ranked
    if question.status:
        rows = [row for row in rows if row.status == question.status]
    for term in question.text.split():
        holds = _term(term, seen.account.metric)
        rows = [row for row in rows if holds(row)]
    return rows


def _term(term: str, metric: str | None) -> Callable[[TrialRow], bool]:
    """The condition that a term sets to trials."""
    match = TERM.fullmatch(term)
    if match is None:
        part = term.casefold()
        return lambda row: part in f"{row.id} {config(row.config)} {row.why}".casefold()
    name, sign, wanted = match.groups()

    def holds(row: TrialRow) -> bool:
        item = _figure(row, name, metric)
        if item is None:
            return False
        return _compared(item, sign, wanted)

    return holds


def _figure(row: TrialRow, name: str, metric: str | None) -> Any:
    """A value of the configuration, or a figure of the trial; None if it has none."""
    if name in row.config:
        return row.config[name]
    if name in (metric, "score"):
        return row.last
    if name in KEYS:
        return KEYS[name](row)
    return None


def _compared(item: Any, sign: str, wanted: str) -> bool:
    """Whether the comparison holds: of numbers if both are, else of texts."""
    left: Any = value(item)
    right: Any = wanted
    with suppress(TypeError, ValueError):
        left, right = float(item), float(wanted)
    if sign == "=":
        return bool(left == right)
    if sign == "!=":
        return bool(left != right)
    return LESS[sign](left, right)


# -- in which order --------------------------------------------------------------------------------


def _sorted(seen: Seen, rows: Sequence[TrialRow], question: Question) -> Sequence[TrialRow]:
    """The rows by the column; those without a value come last either way."""
    name = question.sort
    if name in ("", "#"):
        return rows[::-1] if question.down else rows
    metric = seen.account.metric
    have = []
    lack = []
    for row in rows:
        item = _column(row, name, metric)
        if item is None:
            lack.append(row)
        else:
            have.append((_key(item), row))
    have.sort(key=lambda pair: pair[0], reverse=question.down)
    return [row for _, row in have] + lack


def _column(row: TrialRow, name: str, metric: str | None) -> Any:
    """What a row has in a column: the columns of figures come before names of values."""
    if name == metric:
        return row.last
    if name in KEYS and name not in row.config:
        return KEYS[name](row)
    return row.config.get(name)


def _key(item: Any) -> tuple[Any, ...]:
    """The key that sorts numbers by size, and texts after them as people do."""
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return 0, item
    return 1, natural(value(item))


# -- as HTML ---------------------------------------------------------------------------------------


def _html(seen: Seen, rows: Sequence[TrialRow], question: Question) -> str:
    """The table of these rows."""
    body = _rows(seen, rows)
    stoppable = {row.id for row in rows if row.status in OPEN}
    ids = [row.id for row in rows]
    return str(macros().trials(body, ids, stoppable, question.sort, question.down))


def _rows(seen: Seen, rows: Sequence[TrialRow]) -> Rows:
    """The cells of these rows."""
    names = [parameter.name for parameter in seen.parameters[0]]
    if len(seen.account.trials) == 1:
        names += seen.parameters[1]
    trials = TrialTable(seen.account, names)
    places = {row.id: place for place, row in enumerate(seen.ranked, 1)}
    cells = [trials.cells(row, places[row.id]) for row in rows]
    return Rows(trials.heads(), cells, sortable=True, title="trials")
