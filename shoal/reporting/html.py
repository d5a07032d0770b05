"""One HTML file that opens offline: all that a journal tells, for people."""

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from shoal.engine.files import write_whole
from shoal.engine.journal import Line, read
from shoal.engine.own import make_folder
from shoal.engine.plain_files import check_plain
from shoal.reporting import sections, tables
from shoal.reporting.accounting import Account, account
from shoal.reporting.charts import Figure, Parameter, learning, parallel, parameters, scatters
from shoal.reporting.format import escape
from shoal.reporting.slot_charts import gantt, use
from shoal.reporting.slot_charts import harvest as harvest_drawing

POLICY = (  # nothing is loaded from or sent to anywhere; plotly makes its WebGL programs with eval
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; form-action 'none'; base-uri 'none'"
)


Parts = Mapping[str, tuple[str, str]]  # title and HTML of each, by its anchor
Gantt = tuple[Figure, int, int]  # the chart, its intervals, the bars that are drawn


def write(
    journal_path: Path | str,
    html_path: Path | str,
    title: str | None = None,
    named: bool = True,
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
    facts: Account,
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
    text = page_of(facts, title, folder)
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
    """The whole page.

    `folder`: the study's, for the command lines at the end; None: there is none (a simulation).
    """
    return page_of(account(lines), title, folder)


def page_of(facts: Account, title: str | None, folder: str | None) -> str:
    """The whole page with these figures; for the rest see `page`."""
    name = title or str(facts.head.get("study") or "study")
    some = facts.sampled()
    varying, same = parameters(some)
    chart = gantt(facts)
    drawings = _drawings(some, varying, chart)
    best = sections.sampled(facts, some)
    best += tables.trials(some, varying, same, "all" if some is facts else "these")
    parts: Parts = {
        "best": ("Trials", best),
        "curves": ("Learning curves", sections.curves(drawings["curves"] or ())),
        "slots": ("Slots", _slots(facts, chart, drawings)),
        "harvest": ("Harvest", sections.harvest(facts)),
        "overhead": ("What the policy took", sections.overhead(facts)),
        "feeders": ("Feeders", sections.feeders(facts)),
        "configs": ("Configuration and score", _configs(facts, drawings)),
        "failures": ("Failures", tables.failures(facts)),
        "splits": ("Packs out of memory", tables.splits(facts)),
        "packs": ("Packing", sections.packs(facts)),
        "repeated": ("Repeated work", tables.repeated(facts)),
        "figures": ("Measured figures", sections.measured(facts)),
        "run": ("How it was run", sections.setup(facts)),
        "next": ("What to do next", sections.following(facts, folder)),
    }
    shown = {key: part for key, part in parts.items() if part[1]}
    drawn = {key: figure for key, figure in drawings.items() if figure is not None}
    top = sections.heading(facts, name, folder) + sections.since(facts, folder)
    return document(name, top, shown, drawn)


def _drawings(facts: Account, varying: Sequence[Parameter], chart: Gantt | None) -> dict[str, Any]:
    """The page's drawings by their names; None: there is nothing to draw."""
    bars = None
    if chart is not None:
        bars = chart[0]
    return {
        "curves": learning(facts) or None,
        "gantt": bars,
        "use": use(facts),
        "harvest": harvest_drawing(facts),
        "parallel": parallel(facts, varying),
        "scatter": scatters(facts, varying),
    }


def _slots(facts: Account, chart: Gantt | None, drawings: Mapping[str, Any]) -> str:
    """The part of the page about slots."""
    bars = None
    if chart is not None:
        bars = chart[1:]
    return sections.slots(facts, bars, drawings["use"] is not None)


def _configs(facts: Account, drawings: Mapping[str, Any]) -> str:
    """The part of the page about configurations."""
    return sections.configs(facts, drawings["parallel"], drawings["scatter"])


def document(name: str, heading: str, parts: Parts, figures: Mapping[str, Any]) -> str:
    """A page of these parts, and of the drawings in them by name."""
    links = ""
    body = ""
    for key, (title, text) in parts.items():
        links += f'<a href="#{key}">{escape(title)}</a>'
        body += f'<section id="{key}"><h2>{escape(title)}</h2>{text}</section>'
    plotly = ""
    if figures:
        plotly = plotly_source()
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(name)} · Shoal</title>"
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{asset('page.css')}</style></head><body>"
        f'{heading}<nav>{links}<button id="theme" type="button" title="light or dark"></button>'
        f"</nav><main>{body}</main>"
        f'<script type="application/json" id="drawings">{embedded(figures)}</script>'
        f"<script>{plotly}</script><script>{asset('page.js')}</script></body></html>\n"
    )


def asset(name: str) -> str:
    """The text of a file of this package."""
    return files("shoal.reporting").joinpath(name).read_text(encoding="utf-8")


def plotly_source() -> str:
    """The source of plotly.js."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def embedded(value: Any) -> str:
    """JSON that may stand in a script element.

    It has no number that JSON lacks, and nothing that could end the element.
    """
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _plain_number(value: float) -> float | None:
    """Ten digits of a number; None if it is not finite."""
    if not isfinite(value):
        return None
    return float(f"{value:.10g}")


def _plain(value: Any) -> Any:
    """The value with ten digits of each number, and null where JSON has no number."""
    if isinstance(value, float):
        return _plain_number(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
