"""Several simulations of one study on one page: their figures in a table, and their Gantt charts on one axis of time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from shoal.core.event import Submitted
from shoal.core.trial import Seconds, TrialId
from shoal.engine.journal import Line
from shoal.report.figures import Figure, axis, layout
from shoal.report.format import duration, time_unit
from shoal.report.gantt import Chart, chart
from shoal.report.html import document
from shoal.report.lanes import drawn
from shoal.report.palette import CAUSES, numbered
from shoal.report.slots import bar_trace, legend, slot_axis
from shoal.report.tables import table

BARS = 9000  # of all charts together; more draw slowly
GAP, TOP, BOTTOM = 42, 64, 56  # pixels between charts, above them, below them


@dataclass(frozen=True, slots=True)
class Side:
    """One of those compared. `cells`: its row of the table, as `tables.table` takes them. `end`: when all was done; None: not."""

    label: str
    lines: Sequence[Line]
    cells: Sequence[Any]
    end: Seconds | None = None
    link: str | None = None  # its own report


def page(title: str, heads: Sequence[str], sides: Sequence[Side], note: str = "") -> str:
    """The whole page. `heads`: of the table, the first for the labels."""
    rows = [[(_linked(side), side.label, "html"), *side.cells] for side in sides]
    figure = gantts(sides)
    text = "A lane for each slot, coloured by trial, alike in all charts; drag to zoom all of them, double-click to see all."
    parts = {
        "figures": ("Side by side", table(heads, rows, sortable=True) + (f"<p>{escape(note)}</p>" if note else "")),
        "gantt": ("Slots", f'<p>{text}</p><div class="drawing" data-drawing="gantt"></div>' if figure else "<p>No slots.</p>"),
    }
    kinds = f"{len(sides)} {'policies' if len(sides) > 1 else 'policy'}"
    heading = f'<header><div class="name"><h1>{escape(title)}</h1><span class="chip">{kinds}, simulated</span></div></header>'
    return document(title, heading, parts, {"gantt": figure} if figure else {})


def gantts(sides: Sequence[Side]) -> Figure | None:
    """The Gantt charts below each other, with one axis of time; None: no slot was ever there."""
    charts = {side.label: chart(side.lines) for side in sides}
    if not any(found.spans for found in charts.values()):
        return None
    painted: Mapping[Any, str] = numbered(_trials(sides))
    end = max(found.end for found in charts.values())
    unit, name = time_unit(end)
    heights = [_height(found) for found in charts.values()]
    inner = sum(heights) + GAP * (len(heights) - 1)
    shape = layout(
        inner + TOP + BOTTOM,
        margin={"l": 70, "r": 20, "t": TOP, "b": BOTTOM},
        barmode="overlay",
        bargap=0,
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1 + 28 / inner, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
        xaxis=axis(
            f"{name} of the study", range=[0, 1.01 * max(end, 1e-3) / unit], anchor=f"y{len(sides)}" if len(sides) > 1 else "y"
        ),
        annotations=[],
        shapes=[],
    )
    data: list[dict[str, Any]] = []
    top = 1.0
    for number, (side, height) in enumerate(zip(sides, heights, strict=True), 1):
        bottom = max(0.0, top - height / inner)
        data += _panel(shape, number, side, charts[side.label], (bottom, top), height, painted, unit, BARS // len(sides))
        top = bottom - GAP / inner
    used = {trace["legendgroup"] for trace in data}
    return {"data": [*(legend(cause) for cause in CAUSES if cause.kind in used), *data], "layout": shape}


def _height(found: Chart) -> int:
    """In pixels: all slots can be told apart, where they are not too many."""
    count = max(1, len(found.spans))
    return max(40, min(420, count * (28 if count <= 8 else 16)))


def _trials(sides: Iterable[Side]) -> list[TrialId]:
    """All trials, in the order of their submission."""
    came = (line.entry.trial.id for side in sides for line in side.lines if isinstance(line.entry, Submitted))
    return list(dict.fromkeys(came))


def _panel(
    shape: dict[str, Any],
    number: int,
    side: Side,
    found: Chart,
    domain: tuple[float, float],
    height: int,
    painted: Mapping[Any, str],
    unit: Seconds,
    limit: int,
) -> list[dict[str, Any]]:
    """The bars of one chart; its axis, title and end go into the layout."""
    name = _axis(number)
    slots = list(found.spans)
    shape["yaxis" + name[1:]] = {**slot_axis(slots, max(1, height // 13)), "domain": list(domain), "anchor": "x"}
    said = f" · all done after {duration(side.end)}" if side.end is not None else ""
    title = {"text": f"<b>{escape(side.label)}</b>{said}", "xref": "paper", "yref": "paper", "x": 0, "y": domain[1]}
    shape["annotations"].append({**title, "xanchor": "left", "yanchor": "bottom", "showarrow": False, "font": {"size": 13}})
    if side.end is not None:
        line = {"color": "#d64561", "width": 1.5, "dash": "dot"}
        at = side.end / unit
        shape["shapes"].append({"type": "line", "yref": f"{name} domain", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line})
    place = {slot: n for n, slot in enumerate(slots)}
    bars = drawn(found, limit)
    traces = []
    for cause in CAUSES:
        mine = [item for item in bars if item.bar.kind == cause.kind]
        if mine:
            traces.append({**bar_trace(cause, mine, place, painted, unit), "yaxis": name, "xaxis": "x"})
    return traces


def _axis(number: int) -> str:
    return "y" if number == 1 else f"y{number}"


def _linked(side: Side) -> str:
    label = escape(side.label)
    return f'<a href="{escape(side.link, quote=True)}">{label}</a>' if side.link else label
