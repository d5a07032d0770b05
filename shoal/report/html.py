"""One HTML file that opens offline: all that a journal tells, for people."""

import json
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from shoal.engine.journal import Line, read
from shoal.report import sections, tables
from shoal.report.configs import parallel, scatters
from shoal.report.figures import learning
from shoal.report.metrics import account
from shoal.report.params import parameters
from shoal.report.slots import gantt, use

POLICY = (  # nothing is loaded from or sent to anywhere; plotly makes its WebGL programs with eval
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; form-action 'none'; base-uri 'none'"
)


def write(journal_path: Path | str, html_path: Path | str, title: str | None = None) -> Path:
    """Write the report of that journal; returns the file's path. The page loads nothing from elsewhere.

    Raises:
        JournalError: the journal cannot be read.
        OSError: the file cannot be written.
    """
    target = Path(html_path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(read(Path(journal_path)), title, str(Path(journal_path).parent)), encoding="utf-8")
    return target


def page(lines: Iterable[Line], title: str | None = None, folder: str | None = None) -> str:
    """The whole page. `folder`: the study's, for the command lines at the end; None: there is none (a simulation)."""
    told = account(lines)
    name = title or str(told.head.get("study") or "study")
    varying, same = parameters(told)
    curves = learning(told)
    chart = gantt(told)
    figures: dict[str, Any] = {
        "curves": curves or None,
        "gantt": chart[0] if chart else None,
        "use": use(told),
        "parallel": parallel(told, varying),
        "scatter": scatters(told, varying),
    }
    parts = {
        "best": ("Trials", tables.trials(told, varying, same)),
        "curves": ("Learning curves", sections.curves(curves)),
        "slots": ("Slots", sections.slots(told, chart[1:] if chart else None, figures["use"] is not None)),
        "feeders": ("Feeders", tables.feeders(told)),
        "configs": ("Configuration and score", sections.configs(told, figures["parallel"], figures["scatter"])),
        "failures": ("Failures", tables.failures(told)),
        "splits": ("Packs out of memory", tables.splits(told)),
        "packs": ("Packing", tables.packs(told)),
        "repeated": ("Repeated work", tables.repeated(told)),
        "figures": ("Measured figures", tables.measured(told)),
        "run": ("How it was run", sections.setup(told)),
        "next": ("What to do next", sections.following(told, folder)),
    }
    shown = {key: part for key, part in parts.items() if part[1]}
    return document(name, sections.heading(told, name, folder), shown, {k: v for k, v in figures.items() if v is not None})


def document(name: str, heading: str, parts: Mapping[str, tuple[str, str]], figures: Mapping[str, Any]) -> str:
    """A page of these parts, {anchor: (title, HTML)}, and of the drawings that they have places for."""
    links = "".join(f'<a href="#{key}">{escape(title)}</a>' for key, (title, _) in parts.items())
    body = "".join(f'<section id="{key}"><h2>{escape(title)}</h2>{text}</section>' for key, (title, text) in parts.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(name)} · Shoal</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_asset("page.css")}</style></head><body>'
        f'{heading}<nav>{links}<button id="theme" type="button" title="light or dark"></button></nav><main>{body}</main>'
        f'<script type="application/json" id="drawings">{embedded(figures)}</script>'
        f"<script>{_plotly() if figures else ''}</script><script>{_asset('page.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return files("shoal.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def embedded(value: Any) -> str:
    """JSON that may stand in a script element: no number that JSON lacks, nothing that could end the element."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.10g}") if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
