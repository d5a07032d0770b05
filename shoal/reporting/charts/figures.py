"""The style of the report's drawings, and the learning curves.

A drawing is a plain plotly figure ({"data": …, "layout": …}).
Texts that a user wrote are escaped: plotly reads a few HTML tags in them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import log10
from typing import Any

from shoal.core.trial import Seconds, TrialId
from shoal.reporting.charts.palette import GREY, painted_by
from shoal.reporting.facts.format import config, escape, number, time_unit
from shoal.reporting.facts.metrics import Account
from shoal.reporting.facts.rows import TrialRow
from shoal.reporting.facts.tally import Point

Figure = dict[str, Any]
Points = Sequence[Point]
Rows = Sequence[TrialRow]

TOP = 8  # curves that have their own colour and name
POINTS = 60_000  # of all curves of one drawing
LEAST_POINTS = 12  # of one curve, however many curves there are
MARKED = 30  # points of the longest curve up to which each point has a mark
HOVER = "%{text}<br>%{y:.5g} at %{x:.4g}<extra></extra>"
GRID = "rgba(139,147,161,0.22)"


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis in the report's style."""
    look = {
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": GRID,
        "automargin": True,
        "ticks": "outside",
        "tickcolor": GRID,
    }
    return {**look, "title": {"text": escape(title), "standoff": 12}, **more}


FONT = {
    "family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
    "size": 12,
}


def layout(height: int, **more: Any) -> dict[str, Any]:
    """A layout in the report's style; the page sets the colours of its theme."""
    common: dict[str, Any] = {
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 16, "b": 48},
        "font": FONT,
        "hoverlabel": {"align": "left", "font": {"size": 12}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
    return {**common, **more}


def label(row: TrialRow) -> str:
    """A trial in a hover text: name, score, configuration."""
    score = ""
    if row.last is not None:
        score = f" · {number(row.last)}"
    return f"<b>{escape(row.id)}</b>{score}<br>{escape(config(row.config, 110))}"


# -- learning curves -------------------------------------------------------------------------------


def learning(account: Account) -> list[dict[str, Any]]:
    """Learning curves of each value that was recorded, the study's metric first.

    Each has a `name`, a `figure` over epochs, its traces' x as `times` of the study instead, in
    `unit`s, and the number of points that lie `outside` the range that is drawn at first.
    """

    def order(name: str) -> tuple[bool, bool, str]:
        return name != account.metric, name.endswith(")"), name

    return [curves_of(account, name) for name in sorted(account.curves, key=order)]


def curves_of(
    account: Account, name: str, trials: Collection[TrialId] | None = None
) -> dict[str, Any]:
    """The curves of one value, as an item of `learning`. `trials`: only these; None: all."""
    curves = _Curves(account, name, trials)
    values = curves.values(curves.rows)
    kept = _range(values, curves.values(curves.top))
    length, unit = time_unit(account.chart.end - account.chart.start)
    return {
        "name": name,
        "figure": {"data": curves.traces(), "layout": _curve_layout(curves, kept)},
        "times": curves.times(length),
        "unit": unit,
        "outside": _outside(values, kept),
    }


class _Curves:
    """The curves of one value: the best trials each by itself, the others in one trace.

    `rows`: the trials that have the value, the best first; `points`: of each, not too many.
    """

    def __init__(self, account: Account, name: str, trials: Collection[TrialId] | None) -> None:
        every = account.curves[name]
        chosen = set(every)
        if trials is not None:
            chosen &= set(trials)
        self.name = name
        self.rows = [row for row in account.ranked() if row.id in chosen]
        budget = max(LEAST_POINTS, POINTS // max(1, len(self.rows)))
        self.points = {row.id: thinned(every[row.id], budget) for row in self.rows}
        self.top = self.rows[:TOP]
        self._rest = self.rows[TOP:]
        self._painted = painted_by(account)

    def of(self, row: TrialRow) -> Points:
        """The points of one trial's curve."""
        return self.points[row.id]

    def values(self, rows: Rows) -> list[float]:
        """All values of these trials."""
        return [point.value for row in rows for point in self.of(row)]

    def last_epoch(self) -> float:
        """Where the longest curve ends."""
        return max((points[-1].epoch for points in self.points.values()), default=0.0)

    def traces(self) -> list[dict[str, Any]]:
        """The others first, then the best trials up to the very best, which lies on top."""
        traces = []
        if self._rest:
            traces.append(self._others())
        few = max(map(len, self.points.values()), default=0) <= MARKED
        for row in reversed(self.top):
            traces.append(self._curve(row, few))
        return traces

    def times(self, unit: Seconds) -> list[list[float | None]]:
        """The times of each trace's points, in units of so many seconds."""
        times: list[list[float | None]] = []
        if self._rest:
            times.append(_joined(self._times(row, unit) for row in self._rest))
        for row in reversed(self.top):
            times.append([*self._times(row, unit)])
        return times

    def _times(self, row: TrialRow, unit: Seconds) -> list[float]:
        """The times of one trial's points."""
        return [point.time / unit for point in self.of(row)]

    def _curve(self, row: TrialRow, few: bool) -> dict[str, Any]:
        """The curve of one of the best trials. `few`: points, so that each has a mark."""
        points = self.of(row)
        width, size = 1.8, 5
        if row is self.top[0]:
            width, size = 3.4, 7
        colour = self._painted[row.id]
        return {
            "type": "scatter",
            "mode": _mode(few or len(points) == 1),
            "name": escape(row.id),
            "x": [point.epoch for point in points],
            "y": [point.value for point in points],
            "text": label(row),
            "line": {"color": colour, "width": width},
            "marker": {"size": size, "color": colour},
            "hovertemplate": HOVER,
        }

    def _others(self) -> dict[str, Any]:
        """The curves of all other trials, in grey."""
        rows = self._rest
        mode = "lines"
        if all(len(self.of(row)) == 1 for row in rows):
            mode = "markers"
        opacity = 0.3
        if len(rows) < 60:
            opacity = 0.5
        return {
            "type": "scatter",
            "mode": mode,
            "name": f"{len(rows)} others",
            "x": _joined([point.epoch for point in self.of(row)] for row in rows),
            "y": _joined([point.value for point in self.of(row)] for row in rows),
            "text": _joined(self._names(row) for row in rows),
            "line": {"color": GREY, "width": 0.8},
            "marker": {"color": GREY, "size": 4},
            "opacity": opacity,
            "connectgaps": False,
            "hovertemplate": HOVER,
        }

    def _names(self, row: TrialRow) -> list[str]:
        """The trial's name for each of its points."""
        return [f"<b>{escape(row.id)}</b>"] * len(self.of(row))


def _mode(marked: bool) -> str:
    """How plotly draws a curve; `marked`: with a mark at each point."""
    if marked:
        return "lines+markers"
    return "lines"


CURVE_MARGIN = {"l": 60, "r": 20, "t": 34, "b": 48}
# A legend to the right of the curves, the best trial above.
BESIDE = {"traceorder": "reversed", "x": 1.01, "y": 1, "bgcolor": "rgba(0,0,0,0)"}


def _curve_layout(curves: _Curves, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The layout of one value's curves. `kept`: of its axis, as `_range` gives it."""
    epochs = axis("epochs", rangemode="tozero")
    if 1 <= curves.last_epoch() <= 12:
        epochs["dtick"] = 1
    return layout(
        430,
        xaxis=epochs,
        yaxis=axis(curves.name, **kept),
        hovermode="closest",
        legend=BESIDE,
        margin=CURVE_MARGIN,
        showlegend=True,
    )


def _joined(parts: Iterable[Sequence[Any]]) -> list[Any]:
    """The parts one after another, with a gap after each."""
    joined: list[Any] = []
    for part in parts:
        joined += part
        joined.append(None)
    return joined


def thinned(points: Points, limit: int) -> Points:
    """At most about so many of them, evenly spread, the last one included."""
    if len(points) <= limit:
        return points
    stride = -(-len(points) // limit)
    kept = list(points[::stride])
    if kept[-1] is not points[-1]:
        kept.append(points[-1])
    return kept


# -- the axis of a value ---------------------------------------------------------------------------


def _range(values: Sequence[float], best: Sequence[float]) -> dict[str, Any]:
    """A log axis for values that span decades.

    The range lets a few diverging curves leave the picture.
    """
    finite = sorted(_drawable(values))
    if len(finite) < 3:
        return {}

    low, high = _usual(finite, _drawable(best))
    usual = (high - low) or 0.1 * abs(high) or 1.0
    strays = finite[-1] - finite[0] > 3 * usual
    if low > 0 and high / low > 40:
        kept: dict[str, Any] = {"type": "log"}
        if strays:
            kept["range"] = [log10(low) - 0.1, log10(high) + 0.1]
        return kept

    if not strays:
        return {}
    pad = 0.06 * usual
    return {"range": [low - pad, high + pad]}


def _usual(ordered: Sequence[float], best: Sequence[float]) -> tuple[float, float]:
    """From where to where most values lie, and all of the best trials."""
    low = ordered[int(0.02 * len(ordered))]
    high = ordered[int(0.98 * (len(ordered) - 1))]
    return min([low, *best]), max([high, *best])


def _drawable(values: Sequence[float]) -> list[float]:
    """Those that plotly can draw."""
    return [value for value in values if abs(value) < 1e300]


def _outside(values: Sequence[float], kept: Mapping[str, Any]) -> int:
    """How many points the drawn range leaves out."""
    if "range" not in kept:
        return 0
    low, high = _drawn_range(kept)
    return sum(not low <= value <= high for value in values)


def _drawn_range(kept: Mapping[str, Any]) -> tuple[float, float]:
    """The lowest and the highest value that is drawn, also on a log axis."""
    low, high = kept["range"]
    if "type" in kept:  # a log axis
        return 10**low, 10**high
    return low, high
