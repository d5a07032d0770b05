"""What all drawings share: colours and style; and the learning curves.

A drawing is a plain plotly figure ({"data": …, "layout": …}).
Texts that a user wrote are escaped: plotly reads a few HTML tags in them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from math import log10
from typing import Any, NamedTuple

from shoal.core.trial import Seconds, TrialId
from shoal.reporting.accounting import Account
from shoal.reporting.format import config, escape, number, time_unit
from shoal.reporting.tally import Point, TrialRow

BASE = (
    "#3b82d6",
    "#e8743b",
    "#2fa36b",
    "#b15fd0",
    "#d64561",
    "#18a2b8",
    "#c9a227",
    "#7a68e0",
    "#8aa83a",
    "#d45fa4",
    "#4f9d9a",
    "#b0764a",
)
GREY = "#8b93a1"


class Cause(NamedTuple):
    """How a kind of a slot's time is drawn.

    `colour` None: the trial's own; `pattern` as plotly names it.
    """

    kind: str
    label: str
    colour: str | None
    pattern: str
    total: str  # its colour where all trials are drawn together
    text: str = "#ffffff"  # what reads on that; empty: the page's ink


CAUSES = (
    Cause("train", "training", None, "", "#2f6fb8"),
    Cause("evaluate", "evaluating", None, ".", "#9cc4f2", "#1c2430"),
    Cause("save", "saving", None, "|", "#6a58d0"),
    Cause("data", "waiting for data", "#c98a1b", "x", "#c98a1b", "#1c2430"),
    Cause("switch", "switching", "#6b7280", "/", "#6b7280"),
    Cause("lost", "cut off", "#e06a80", "\\", "#e06a80", "#1c2430"),
    Cause("other", "held, unreported", "#b3bac5", "", "#b3bac5", "#1c2430"),
    Cause("idle", "idle", "rgba(139,147,161,0.20)", "", "rgba(139,147,161,0.20)", ""),
)


def painted_by(account: Account) -> dict[TrialId, str]:
    """A colour for each trial, the same in all drawings.

    The best trials have a colour of their own, the others a shade of one.
    """
    names = [row.id for row in account.ranked()[: len(BASE)]]
    names += [row.id for row in account.trials]
    return numbered(list(dict.fromkeys(names)))


def numbered(trials: Iterable[TrialId]) -> dict[TrialId, str]:
    """A colour for each trial by its place, the first ones unshaded."""
    painted: dict[TrialId, str] = {}
    for index, trial in enumerate(trials):
        lap, place = divmod(index, len(BASE))
        colour = BASE[place]
        if lap > 0:
            colour = _shade(colour, lap % 2 == 1)
        painted[trial] = colour
    return painted


def mix(colour: str, other: str, part: float) -> str:
    """The colour with a part (0 to 1) of another one in it; both as #rrggbb."""
    mixed = "#"
    for a, b in zip(_rgb(colour), _rgb(other), strict=True):
        mixed += f"{round(a + (b - a) * part):02x}"
    return mixed


def _rgb(colour: str) -> tuple[int, ...]:
    """Red, green and blue of #rrggbb, from 0 to 255."""
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


@cache
def _shade(colour: str, darker: bool) -> str:
    """The colour of a trial that shares it with others: a darker or a lighter one."""
    if darker:
        return mix(colour, "#000000", 0.2)
    return mix(colour, "#ffffff", 0.3)


Figure = dict[str, Any]
Points = Sequence[Point]
Rows = Sequence[TrialRow]

TOP = 8  # curves that have their own colour and name
POINTS = 60_000  # of all curves of one drawing
LEAST_POINTS = 12  # of one curve, however many curves there are
MARKED = 30  # points of the longest curve up to which each point has a mark
HOVER = "%{text}<br>%{y:.5g} at %{x:.4g}<extra></extra>"
GRID = "rgba(139,147,161,0.22)"
CLEAR = "rgba(0,0,0,0)"
_AXIS = {
    "showgrid": True,
    "showline": True,
    "gridcolor": GRID,
    "zeroline": False,
    "linecolor": GRID,
    "automargin": True,
    "ticks": "outside",
    "tickcolor": GRID,
    "title": {"standoff": 12},
}
TEMPLATE = {
    "layout": {
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12},
        "hoverlabel": {"align": "left", "font": {"size": 12}},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "legend": {"bgcolor": CLEAR},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
}
"""The report's style, as a template of plotly; the page sets the colours of its theme."""


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with a title, which a user may have written."""
    return {"title": {"text": escape(title)}, **more}


def layout(height: int, **more: Any) -> dict[str, Any]:
    """A layout in the report's style, of so many pixels."""
    margin = {"l": 60, "r": 20, "t": 16, "b": 48}
    return {"template": TEMPLATE, "height": height, "margin": margin, **more}


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
    return [curves_of(account, name) for name in curve_names(account)]


def curve_names(account: Account) -> list[str]:
    """The values that have curves, the study's metric first, those seen while training last."""

    def order(name: str) -> tuple[bool, bool, str]:
        return name != account.metric, name.endswith(")"), name

    return sorted(account.curves, key=order)


def curves_of(
    account: Account, name: str, trials: Collection[TrialId] | None = None
) -> dict[str, Any]:
    """The curves of one value, as an item of `learning`. `trials`: only these; None: all."""
    curves = _Curves(account, name, trials)
    values = curves.values(curves.rows)
    settings = value_axis(values, curves.values(curves.top))
    length, unit = time_unit(account.chart.end - account.chart.start)
    return {
        "name": name,
        "figure": {"data": curves.traces(), "layout": _curve_layout(curves, settings)},
        "times": curves.times(length),
        "unit": unit,
        "outside": outside(values, settings),
    }


class _Curves:
    """The curves of one value: the best trials each by itself, the others in one trace.

    `rows`: the trials that have the value, the best first; `points`: of each, not too many.
    """

    def __init__(self, account: Account, name: str, trials: Collection[TrialId] | None) -> None:
        curves = account.curves[name]
        chosen = set(curves)
        if trials is not None:
            chosen &= set(trials)
        self.name = name
        self.rows = [row for row in account.ranked() if row.id in chosen]
        budget = max(LEAST_POINTS, POINTS // max(1, len(self.rows)))
        self.points = {row.id: thinned(curves[row.id], budget) for row in self.rows}
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
        """The traces from below: the others, then the best trials, the very best on top."""
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
            "mode": "lines+markers" if few or len(points) == 1 else "lines",
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
            "text": _joined([f"<b>{escape(row.id)}</b>"] * len(self.of(row)) for row in rows),
            "line": {"color": GREY, "width": 0.8},
            "marker": {"color": GREY, "size": 4},
            "opacity": opacity,
            "connectgaps": False,
            "hovertemplate": HOVER,
        }


def _curve_layout(curves: _Curves, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The layout of one value's curves. `settings`: of its axis, as of `value_axis`."""
    epochs = axis("epochs", rangemode="tozero")
    if 1 <= curves.last_epoch() <= 12:
        epochs["dtick"] = 1
    return layout(
        430,
        xaxis=epochs,
        yaxis=axis(curves.name, **settings),
        hovermode="closest",
        legend={"traceorder": "reversed", "x": 1.01, "y": 1},  # beside them, the best above
        margin={"l": 60, "r": 20, "t": 34, "b": 48},
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
    """At most about `limit` of the points, evenly spread, the last one included."""
    if len(points) <= limit:
        return points
    stride = -(-len(points) // limit)
    thin = list(points[::stride])
    if thin[-1] is not points[-1]:
        thin.append(points[-1])
    return thin


# -- the axis of a value ---------------------------------------------------------------------------


def value_axis(values: Sequence[float], best: Sequence[float]) -> dict[str, Any]:
    """What plotly is to know of the values' axis: log for values that span decades, and its range.

    The range lets a few diverging curves leave the picture. A log axis loses no value: all are
    above 0.
    """
    finite = sorted(drawable(values))
    if len(finite) < 3:
        return {}

    # From where to where most values lie, and all of the best trials.
    drawn = drawable(best)
    low = min([finite[int(0.02 * len(finite))], *drawn])
    high = max([finite[int(0.98 * (len(finite) - 1))], *drawn])
    usual = (high - low) or 0.1 * abs(high) or 1.0
    strays = finite[-1] - finite[0] > 3 * usual
    if finite[0] > 0 and high / low > 40:
        settings: dict[str, Any] = {"type": "log"}
        if strays:
            settings["range"] = [log10(low) - 0.1, log10(high) + 0.1]
        return settings

    if not strays:
        return {}
    pad = 0.06 * usual
    return {"range": [low - pad, high + pad]}


def drawable(values: Sequence[float]) -> list[float]:
    """The values that plotly can draw."""
    return [value for value in values if abs(value) < 1e300]


def outside(values: Sequence[float], settings: Mapping[str, Any]) -> int:
    """How many points the drawn range leaves out."""
    if "range" not in settings:
        return 0
    low, high = settings["range"]
    if "type" in settings:  # a log axis
        low, high = 10**low, 10**high
    return sum(not low <= value <= high for value in values)
