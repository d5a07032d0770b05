"""One HTML file that opens offline: all that a journal tells, for people."""

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from shoal.engine.files import write_whole
from shoal.engine.journal import Line, read
from shoal.engine.ownership import make_folder
from shoal.engine.plain_files import check_plain
from shoal.reporting.accounting import DRAWN, Account, account
from shoal.reporting.charts import learning
from shoal.reporting.facts import Tile, about, standing, tiles
from shoal.reporting.format import escape, printable
from shoal.reporting.parameters import parameters
from shoal.reporting.score_charts import CHARTS, View
from shoal.reporting.sections import LISTED, Block, Cell, Page, Rows, Section, sections, since
from shoal.reporting.slot_charts import gantt, harvest, use

if TYPE_CHECKING:
    from jinja2 import Environment

POLICY = (  # nothing is loaded from or sent to anywhere, and no text becomes a script
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; form-action 'none'; base-uri 'none'"
)


LONG = 44  # characters of a cell: of more the beginning is shown
BARE = re.compile(r"[^\s\"'`=<>]+")  # values of attributes that need no quotes


def write(
    journal_path: Path | str, html_path: Path | str, title: str | None = None, named: bool = True
) -> Path:
    """Write the report of that journal; returns the file's path.

    The page loads nothing from elsewhere. `named`: see `save`.

    Raises:
        JournalError: the journal cannot be read.
        OSError: the file cannot be written.
    """
    source = Path(journal_path)
    return save(account(read(source)), html_path, title, str(source.parent), named)


def save(
    account: Account,
    html_path: Path | str,
    title: str | None,
    folder: str | None,
    named: bool = True,
) -> Path:
    """Write the report with these figures; returns the file's path.

    `named`: the user named the file, which may then be a link or a device.

    Raises:
        OSError: the file cannot be written.
    """
    target = Path(html_path)
    text = page_of(account, title, folder)
    make_folder(target.parent)
    if named:
        place = target.resolve()  # a link stays one
        if place.exists() and not place.is_file():  # as /dev/stdout
            with open(place, "w", encoding="utf-8") as opened:
                opened.write(text)
            return target
    else:
        place = target
        check_plain(place)
    # A full disk leaves the former report, and no part of a new one.
    write_whole(place, text.encode())
    return target


def page(lines: Iterable[Line], title: str | None = None, folder: str | None = None) -> str:
    """The report's page of these lines.

    `folder`: the study's, for the command lines at the end; None: there is none (a simulation).
    """
    return page_of(account(lines), title, folder)


def page_of(account: Account, title: str | None, folder: str | None) -> str:
    """The report's page with these figures; for the rest see `page`."""
    name = title or str(account.head.get("study") or "study")
    sample = account.sampled()
    varying, same = parameters(sample)
    chart = gantt(account)
    figures = {
        "curves": learning(sample) or None,
        "gantt": chart and chart[0],
        "use": use(account),
        "harvest": harvest(account),
    }
    view = View(account, DRAWN)
    figures |= {name: each.make(view) for name, each in CHARTS.items()}
    drawings = {key: figure for key, figure in figures.items() if figure is not None}
    bars = chart and chart[1:]
    parts = sections(Page(account, sample, varying, same, folder, drawings, bars))
    top = heading(account, name, folder) + shown(since(account, folder))
    return document(name, top, parts, drawings, view.hover())


def heading(account: Account, name: str, folder: str | None, status: str | None = None) -> Markup:
    """The head of a page: name, facts and figures. `status`: as the journal says, unless given."""
    words, kind = standing(account, status or account.status)
    return plain_heading(name, words, kind, about(account, folder), tiles(account))


def plain_heading(
    name: str,
    status: str,
    kind: str = "",
    about: Mapping[str, str] | None = None,
    tiles: Sequence[Tile] = (),
) -> Markup:
    """The head of a page that is of no study. `kind`: what the status is coloured by."""
    return Markup(macros().heading(name, status, kind, about, tiles))


def document(
    name: str,
    top: Markup,
    parts: Sequence[Section],
    drawings: Mapping[str, Any],
    hover: Mapping[str, str] | None = None,
) -> str:
    """A page of these parts, and of the drawings in them by name.

    `top`: what stands above. `hover`: see `score_charts.View.hover`.
    """
    return str(
        macros().document(
            title=name,
            top=top,
            sections=parts,
            policy=POLICY,
            style=Markup(asset("page.css")),
            script=Markup(asset("charts.js") + asset("tables.js") + asset("page.js")),
            drawings=Markup(embedded({**drawings, "hover": hover or {}})),
            plotly=Markup(plotly_source() if drawings else ""),
        )
    )


# -- the template ----------------------------------------------------------------------------------


@cache
def environment() -> "Environment":
    """Where templates come from: `reporting/page.html.j2`, `ui/page.html.j2`.

    Every text is made visible (`format.printable`), then escaped.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("shoal", ""),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    templates.filters |= {
        "lines": _lines,
        "exact": lambda text: Markup(html.escape(text)),  # a value that a page sends back
        "cells": _cells,
        "plain": lambda cell: Markup(_looked(cell, escape(cell.text))),
    }
    templates.globals["listed"] = LISTED
    return templates


def macros() -> Any:
    """The macros of the page's template."""
    return environment().get_template("reporting/page.html.j2").module


def shown(blocks: Sequence[Block]) -> Markup:
    """Blocks as HTML."""
    return Markup(macros().blocks(blocks))


def _visible(text: Any) -> Any:
    """Texts without what is not seen; HTML as it is."""
    if isinstance(text, str) and not isinstance(text, Markup):
        return printable(text)
    return text


def _lines(rows: Rows) -> Markup:
    """The lines of a table's body.

    HTML lets the end tags of lines and cells be left out. Without them ten thousand trials are
    more than half a megabyte smaller.
    """
    sides = [" class=r" if numeric else "" for numeric in rows.numeric]
    lines = []
    for row in rows.rows:
        lines.append("<tr>")
        for cell, side in zip(row, sides, strict=True):
            lines.append(f"<td{side}{_keys(cell)}>{_cell(cell)}")
    return Markup("".join(lines))


def _cells(row: Sequence[Cell], numeric: Sequence[bool]) -> Markup:
    """Cells of a line whose attributes no script needs."""
    sides = [" class=r" if each else "" for each in numeric]
    return Markup(
        "".join(f"<td{side}>{_cell(cell)}" for cell, side in zip(row, sides, strict=True))
    )


def _cell(cell: Cell) -> str:
    """What a cell shows, as HTML: of a long text the beginning, until it has the focus."""
    text = escape(cell.text)
    if len(cell.text) > LONG and cell.look != "link":
        text = f"<span class=long tabindex=0>{text}</span>"
    return _looked(cell, text)


def _looked(cell: Cell, text: str) -> str:
    """The text of a cell with the cell's look."""
    if not cell.look:
        return text
    match cell.look:
        case "code":
            return f"<code>{text}</code>"
        case "dot":
            return f"<i class=dot style={_quoted('background:' + cell.extra)}></i>{text}"
        case "chip":
            return f'<i class="chip {cell.extra}">{text}</i>'
        case "link" if cell.extra:
            return f'<a href="{html.escape(cell.extra)}">{text}</a>'
    return text


def _keys(cell: Cell) -> str:
    """What the page sorts by, `data-k`, and what its CSV has, `data-v`, as attributes.

    Ten thousand trials are a megabyte smaller without the keys that only repeat the text, and the
    values that only repeat the key.
    """
    key = "" if cell.key is None else str(cell.key)
    known = _is_said(cell.text, cell.key)
    keys = "" if known else f" data-k={_quoted(key)}"
    if cell.exact is None or cell.exact == (cell.text if known else key):
        return keys
    return f"{keys} data-v={_quoted(cell.exact)}"


def _is_said(text: str, key: Any) -> bool:
    """Whether a cell's text says its key: the same text, or a number as large."""
    if key is None or isinstance(key, str):
        return bool(key == text)
    with suppress(ValueError):  # the text is no number
        return bool(float(text) == key)
    return False


def _quoted(text: str) -> str:
    """An attribute's value, in quotes where it needs them."""
    shown = escape(text)
    return shown if BARE.fullmatch(shown) else f'"{shown}"'


def asset(name: str) -> str:
    """The text of a file of this package."""
    return files("shoal.reporting").joinpath(name).read_text(encoding="utf-8")


def plotly_source() -> str:
    """The source of plotly.js with the kinds of traces that Shoal draws."""
    return asset("vendor/plotly.min.js")


def embedded(value: Any) -> str:
    """JSON that may stand in a script element.

    It has no number that JSON lacks, and nothing that could end the element.
    """
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    """The value with ten digits of each number, and null where JSON has no number."""
    if isinstance(value, float):
        return float(f"{value:.10g}") if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
