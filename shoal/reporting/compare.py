"""Several simulations of one study on one page.

Their figures stand in a table, their Gantt charts below each other on one axis of time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.event import Submitted
from shoal.core.trial import Seconds
from shoal.engine.journal import Line
from shoal.reporting.charts import CAUSES, Figure, axis, layout, numbered
from shoal.reporting.format import duration, escape, time_unit
from shoal.reporting.gantt import Chart, chart
from shoal.reporting.html import document, plain_heading
from shoal.reporting.sections import Block, Cell, Cells, Section, drawing, note, table
from shoal.reporting.slot_charts import bar_trace, drawn, even_lanes, legend, slot_axis

BARS = 9000  # of all charts together; more draw slowly
GAP = 42  # pixels between charts
TOP = 64  # pixels above them
BOTTOM = 56  # pixels below them
TEXT = (
    "A row for each slot, coloured by trial, alike in all charts; "
    "drag to zoom all of them, double-click to see all."
)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the simulations that are compared.

    `cells`: its row of the table. `end`: when all trials were done;
    None: they were not. `link`: the page of its own report.
    """

    label: str
    lines: Sequence[Line]
    cells: Cells
    end: Seconds | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class _Panel:
    """One Gantt chart of the drawing, and where it stands."""

    side: Side
    chart: Chart
    height: int  # pixels
    axis: str  # its y axis in plotly's words: y, y2, …
    bottom: float  # parts of the drawing's height
    top: float

    @property
    def layout_axis(self) -> str:
        """The axis as a key of plotly's layout."""
        return "yaxis" + self.axis.removeprefix("y")


def page(title: str, heads: Sequence[str], sides: Sequence[Side], remark: str = "") -> str:
    """The whole page. `heads`: of the table, the first for the labels."""
    rows = [[Cell(side.label, side.label, "link", side.link or ""), *side.cells] for side in sides]
    figures = [table("side by side", heads, rows, sortable=True)]
    if remark:
        figures.append(note(remark))
    drawings = {}
    slots: list[Block] = [note("No slots.")]
    figure = gantts(sides)
    if figure is not None:
        drawings["gantt"] = figure
        slots = [note(TEXT), drawing("gantt")]
    parts = [Section("figures", "Side by side", figures), Section("gantt", "Slots", slots)]
    noun = "policies" if len(sides) > 1 else "policy"
    top = plain_heading(title, f"{len(sides)} {noun}, simulated")
    return document(title, top, parts, drawings)


def gantts(sides: Sequence[Side]) -> Figure | None:
    """The Gantt charts below each other, with one axis of time; None: no slot was ever there."""
    charts = [chart(side.lines) for side in sides]
    if not any(each.spans for each in charts):
        return None

    panels = _panels(sides, charts)
    end = max(each.end for each in charts)
    unit, _ = time_unit(end)
    entries = [line.entry for side in sides for line in side.lines]
    trials = [each.trial.id for each in entries if isinstance(each, Submitted)]
    painted: Mapping[Any, str] = numbered(dict.fromkeys(trials))
    bars: list[dict[str, Any]] = []
    for panel in panels:
        bars += _bars(panel, painted, unit, BARS // len(sides))

    used = {trace["legendgroup"] for trace in bars}
    legends = [legend(cause) for cause in CAUSES if cause.kind in used]
    return {"data": [*legends, *bars], "layout": _layout(panels, end)}


def _panels(sides: Sequence[Side], charts: Sequence[Chart]) -> list[_Panel]:
    """The charts from top to bottom, with gaps between them."""
    counts = [max(1, len(each.spans)) for each in charts]
    heights = [max(40, min(420, n * (28 if n <= 8 else 16))) for n in counts]  # pixels
    inner = _inner(heights)
    panels = []
    top = 1.0
    for number, side in enumerate(sides):
        height = heights[number]
        bottom = max(0.0, top - height / inner)
        y_axis = f"y{number + 1}" if number else "y"
        panels.append(_Panel(side, charts[number], height, y_axis, bottom, top))
        top = bottom - GAP / inner
    return panels


def _inner(heights: Sequence[int]) -> int:
    """The height of all charts with the gaps between them, in pixels."""
    return sum(heights) + GAP * (len(heights) - 1)


def _layout(panels: Sequence[_Panel], end: Seconds) -> dict[str, Any]:
    """The layout of all charts, the axis of time below the last one."""
    inner = _inner([panel.height for panel in panels])
    unit, name = time_unit(end)
    titles = [_title(panel) for panel in panels]
    ends = [_end(panel, panel.side.end / unit) for panel in panels if panel.side.end is not None]
    shape = layout(
        inner + TOP + BOTTOM,
        margin={"l": 70, "r": 20, "t": TOP, "b": BOTTOM},
        barmode="overlay",
        bargap=0,
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1 + 28 / inner, "yanchor": "bottom"},
        xaxis=axis(
            f"{name} of the study", range=[0, 1.01 * max(end, 1e-3) / unit], anchor=panels[-1].axis
        ),
        annotations=titles,
        shapes=ends,
    )
    for panel in panels:
        shape[panel.layout_axis] = {
            **slot_axis(even_lanes(panel.chart.spans), max(1, panel.height // 13)),
            "domain": [panel.bottom, panel.top],
            "anchor": "x",
        }
    return shape


def _title(panel: _Panel) -> dict[str, Any]:
    """What stands above a chart: the policy's label, and when its trials were done."""
    text = f"<b>{escape(panel.side.label)}</b>"
    if panel.side.end is not None:
        text += f" · all done after {duration(panel.side.end)}"
    return {
        "text": text,
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": panel.top,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 13},
    }


def _end(panel: _Panel, time: float) -> dict[str, Any]:
    """A line across the chart where all trials were done."""
    return {
        "type": "line",
        "yref": f"{panel.axis} domain",
        "x0": time,
        "x1": time,
        "y0": 0,
        "y1": 1,
        "line": {"color": "#d64561", "width": 1.5, "dash": "dot"},
    }


def _bars(
    panel: _Panel, painted: Mapping[Any, str], unit: Seconds, limit: int
) -> list[dict[str, Any]]:
    """The bars of one chart, a trace for each cause."""
    lanes = even_lanes(panel.chart.spans)
    bars = drawn(panel.chart, limit)
    traces = []
    for cause in CAUSES:
        of_cause = [item for item in bars if item.bar.kind == cause.kind]
        if of_cause:
            trace = bar_trace(cause, of_cause, lanes, painted, unit)
            traces.append({**trace, "yaxis": panel.axis, "xaxis": "x"})
    return traces
