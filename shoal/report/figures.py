"""The report's drawings are plain plotly figures ({"data": …, "layout": …}); here their style, and the learning curves.

Texts that a user wrote are escaped: plotly reads a few HTML tags in them.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import log10
from typing import Any

from shoal.core.trial import TrialId
from shoal.report.format import config, number, time_unit
from shoal.report.metrics import Account, TrialRow
from shoal.report.palette import GREY, painted_by
from shoal.report.tally import Point

Figure = dict[str, Any]

TOP = 8  # curves that have their own colour and name
POINTS = 60_000  # of all curves of one drawing
GRID = "rgba(139,147,161,0.22)"


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis in the report's style."""
    look = {"gridcolor": GRID, "zeroline": False, "linecolor": GRID, "automargin": True, "ticks": "outside", "tickcolor": GRID}
    return {**look, "title": {"text": escape(title), "standoff": 12}, **more}


def layout(height: int, **more: Any) -> dict[str, Any]:
    """A layout in the report's style; the page sets the colours of its theme."""
    common: dict[str, Any] = {
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 16, "b": 48},
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12},
        "hoverlabel": {"align": "left", "font": {"size": 12}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
    return {**common, **more}


def label(row: TrialRow) -> str:
    """A trial in a hover text: name, score, configuration."""
    score = f" · {number(row.last)}" if row.last is not None else ""
    return f"<b>{escape(row.id)}</b>{score}<br>{escape(config(row.config, 110))}"


# -- learning curves ---------------------------------------------------------------------------------------------------


def learning(account: Account) -> list[dict[str, Any]]:
    """Learning curves of each value that was recorded, the study's metric first.

    Each has a `name`, a `figure` over epochs, its traces' x as `times` of the study instead, in `unit`s, and the number
    of points that lie `outside` the range that is drawn at first.
    """
    names = sorted(account.curves, key=lambda name: (name != account.metric, name.endswith(")"), name))
    return [_learning(account, name) for name in names]


def _learning(account: Account, name: str) -> dict[str, Any]:
    curves = account.curves[name]
    rows = [row for row in account.ranked() if row.id in curves]
    budget = max(12, POINTS // len(rows))
    thin = {row.id: thinned(curves[row.id], budget) for row in rows}
    top, rest = rows[:TOP], rows[TOP:]
    few = max(map(len, thin.values())) <= 30
    painted = painted_by(account)
    traces = [_others(rest, thin)] if rest else []
    length, unit = time_unit(account.chart.end - account.chart.start)
    times = [_joined([point.time / length for point in thin[row.id]] for row in rest)] if rest else []
    for place, row in reversed(list(enumerate(top))):
        traces.append(_curve(row, thin[row.id], painted[row.id], place, few))
        times.append([point.time / length for point in thin[row.id]])
    last = max(points[-1].epoch for points in thin.values())
    values = [point.value for points in thin.values() for point in points]
    kept = _range(values, [point.value for row in top for point in thin[row.id]])
    shape = layout(
        430,
        xaxis=axis("epochs", rangemode="tozero", **({"dtick": 1} if 1 <= last <= 12 else {})),
        yaxis=axis(name, **kept),
        hovermode="closest",
        legend={"traceorder": "reversed", "x": 1.01, "y": 1, "bgcolor": "rgba(0,0,0,0)"},
        margin={"l": 60, "r": 20, "t": 34, "b": 48},
        showlegend=True,
    )
    return {
        "name": name,
        "figure": {"data": traces, "layout": shape},
        "times": times,
        "unit": unit,
        "outside": _outside(values, kept),
    }


def _curve(row: TrialRow, points: Sequence[Point], colour: str, place: int, few: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if few or len(points) == 1 else "lines",
        "name": escape(row.id),
        "x": [point.epoch for point in points],
        "y": [point.value for point in points],
        "text": label(row),
        "line": {"color": colour, "width": 3.4 if place == 0 else 1.8},
        "marker": {"size": 7 if place == 0 else 5, "color": colour},
        "hovertemplate": "%{text}<br>%{y:.5g} at %{x:.4g}<extra></extra>",
    }


def _others(rows: Sequence[TrialRow], thin: Mapping[TrialId, Sequence[Point]]) -> dict[str, Any]:
    lone = all(len(thin[row.id]) == 1 for row in rows)
    return {
        "type": "scatter",
        "mode": "markers" if lone else "lines",
        "name": f"{len(rows)} others",
        "x": _joined([point.epoch for point in thin[row.id]] for row in rows),
        "y": _joined([point.value for point in thin[row.id]] for row in rows),
        "text": _joined([f"<b>{escape(row.id)}</b>"] * len(thin[row.id]) for row in rows),
        "line": {"color": GREY, "width": 0.8},
        "marker": {"color": GREY, "size": 4},
        "opacity": 0.5 if len(rows) < 60 else 0.3,
        "connectgaps": False,
        "hovertemplate": "%{text}<br>%{y:.5g} at %{x:.4g}<extra></extra>",
    }


def _joined(parts: Iterable[Sequence[Any]]) -> list[Any]:
    """The parts one after another, with a gap after each."""
    return [item for part in parts for item in (*part, None)]


def thinned(points: Sequence[Point], limit: int) -> Sequence[Point]:
    """At most about so many of them, evenly spread, the last one included."""
    if len(points) <= limit:
        return points
    stride = -(-len(points) // limit)
    kept = list(points[::stride])
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]


def _range(values: Sequence[float], best: Sequence[float]) -> dict[str, Any]:
    """A log axis for values that span decades; a range that lets a few diverging curves leave the picture."""
    finite = sorted(value for value in values if abs(value) < 1e300)
    if len(finite) < 3:
        return {}
    low, high = finite[int(0.02 * len(finite))], finite[int(0.98 * (len(finite) - 1))]
    kept = [value for value in best if abs(value) < 1e300]
    low, high = min([low, *kept]), max([high, *kept])
    usual = (high - low) or 0.1 * abs(high) or 1.0
    wide = finite[-1] - finite[0] > 3 * usual
    if low > 0 and high / low > 40:
        return {"type": "log", **({"range": [log10(low) - 0.1, log10(high) + 0.1]} if wide else {})}
    pad = 0.06 * usual
    return {"range": [low - pad, high + pad]} if wide else {}


def _outside(values: Sequence[float], kept: Mapping[str, Any]) -> int:
    """How many points the drawn range leaves out."""
    if "range" not in kept:
        return 0
    low, high = (10**end if kept.get("type") == "log" else end for end in kept["range"])
    return sum(not low <= value <= high for value in values)
