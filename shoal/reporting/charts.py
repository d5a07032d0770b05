"""The report's drawings of trials: learning curves, configurations.

A drawing is a plain plotly figure ({"data": …, "layout": …}).
Texts that a user wrote are escaped: plotly reads a few HTML tags in them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isfinite, log10
from statistics import median
from typing import Any, NamedTuple, TypeGuard

from shoal.core.trial import Seconds, TrialId, Value
from shoal.reporting.accounting import Account
from shoal.reporting.format import DASH, config, escape, number, time_unit, value
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
    text: str = "#ffffff"  # what reads on that


CAUSES = (
    Cause("train", "training", None, "", "#3b82d6"),
    Cause("evaluate", "evaluating", None, ".", "#9cc4f2", "#1c2430"),
    Cause("save", "saving", None, "|", "#7a68e0"),
    Cause("data", "waiting for data", "#c98a1b", "x", "#c98a1b"),
    Cause("switch", "switching", "#6b7280", "/", "#6b7280"),
    Cause("lost", "cut off", "#e06a80", "\\", "#e06a80"),
    Cause("other", "held, unreported", "#b3bac5", "", "#b3bac5", "#1c2430"),
    Cause("idle", "idle", "rgba(139,147,161,0.20)", "", "rgba(139,147,161,0.20)", GREY),
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
    settings = _axis_settings(values, curves.values(curves.top))
    length, unit = time_unit(account.chart.end - account.chart.start)
    return {
        "name": name,
        "figure": {"data": curves.traces(), "layout": _curve_layout(curves, settings)},
        "times": curves.times(length),
        "unit": unit,
        "outside": _outside(values, settings),
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
    """The layout of one value's curves. `settings`: of its axis, as of `_axis_settings`."""
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


def _axis_settings(values: Sequence[float], best: Sequence[float]) -> dict[str, Any]:
    """What plotly is to know of the values' axis: log for values that span decades, and its range.

    The range lets a few diverging curves leave the picture.
    """
    finite = sorted(_drawable(values))
    if len(finite) < 3:
        return {}

    # From where to where most values lie, and all of the best trials.
    drawn = _drawable(best)
    low = min([finite[int(0.02 * len(finite))], *drawn])
    high = max([finite[int(0.98 * (len(finite) - 1))], *drawn])
    usual = (high - low) or 0.1 * abs(high) or 1.0
    strays = finite[-1] - finite[0] > 3 * usual
    if low > 0 and high / low > 40:
        settings: dict[str, Any] = {"type": "log"}
        if strays:
            settings["range"] = [log10(low) - 0.1, log10(high) + 0.1]
        return settings

    if not strays:
        return {}
    pad = 0.06 * usual
    return {"range": [low - pad, high + pad]}


def _drawable(values: Sequence[float]) -> list[float]:
    """The values that plotly can draw."""
    return [value for value in values if abs(value) < 1e300]


def _outside(values: Sequence[float], settings: Mapping[str, Any]) -> int:
    """How many points the drawn range leaves out."""
    if "range" not in settings:
        return 0
    low, high = settings["range"]
    if "type" in settings:  # a log axis
        low, high = 10**low, 10**high
    return sum(not low <= value <= high for value in values)


Values = Mapping[TrialId, Value]  # of one parameter

SPAN = 8.0  # values of a smaller ratio stay on a linear axis


@dataclass(frozen=True, slots=True)
class Parameter:
    """One name of the configurations. `scale`: "log", "linear" or "category".

    The values of a category are texts.
    """

    name: str
    scale: str
    values: Mapping[TrialId, float | str]
    categories: tuple[str, ...] = ()  # in the order they are drawn
    places: Mapping[str, int] = field(init=False)  # of each in that order

    def __post_init__(self) -> None:
        places = {text: place for place, text in enumerate(self.categories)}
        object.__setattr__(self, "places", places)

    def place(self, trial: TrialId) -> float:
        """Where the trial's value lies on a linear axis.

        log10, the number itself, or the index of the category.
        """
        item = self.values[trial]
        if isinstance(item, str):
            return float(self.places[item])
        if self.scale == "log":
            return log10(item)
        return item


def parameters(account: Account) -> tuple[list[Parameter], dict[str, str]]:
    """The parameters that vary, and those that have one value in all trials, as text."""
    rows = account.trials
    varying: list[Parameter] = []
    same: dict[str, str] = {}
    for name in dict.fromkeys(name for row in rows for name in row.config):
        values = {row.id: row.config[name] for row in rows if name in row.config}
        texts = {value(item) for item in values.values()}
        if len(texts) == 1 and len(values) == len(rows):
            same[name] = texts.pop()
        else:
            varying.append(_parameter(name, values, rows))
    return varying, same


def _parameter(name: str, values: Values, rows: Rows) -> Parameter:
    """A parameter that varies: of numbers, if all trials have one."""
    numbers = {trial: float(item) for trial, item in values.items() if _is_number(item)}
    if len(numbers) == len(rows):
        return Parameter(name, _scale(sorted(numbers.values())), numbers)

    texts = {}
    order: dict[str, tuple[bool, float, str]] = {}  # numbers before the rest, by size
    for row in rows:
        item = values.get(row.id)
        text = value(item) if row.id in values else DASH
        texts[row.id] = text
        order[text] = (False, float(item), text) if _is_number(item) else (True, 0.0, text)
    categories = sorted(order, key=lambda text: order[text])
    return Parameter(name, "category", texts, tuple(categories))


def _scale(ordered: Sequence[float]) -> str:
    """The axis on which the values' median lies nearer to the middle."""
    low, high = ordered[0], ordered[-1]
    if low <= 0 or high < SPAN * low:
        return "linear"

    middle = median(ordered)
    on_linear = (middle - low) / (high - low)
    on_log = log10(middle / low) / log10(high / low)
    if abs(on_log - 0.5) < abs(on_linear - 0.5):
        return "log"
    return "linear"


def _is_number(item: Any) -> TypeGuard[float]:
    """Whether this is a finite number."""
    if isinstance(item, bool) or not isinstance(item, (int, float)):
        return False
    return isfinite(item)


Ticks = tuple[list[float], list[str]]  # where on the axis, and what stands there
Look = dict[str, Any]  # a part of a plotly figure

SCALE = [[0, "#9db2cf"], [0.5, "#5b93d0"], [0.8, "#b15fd0"], [1, "#e8562a"]]
FEW = 8  # values: each has a tick
COLUMNS = 3  # of the scatter plots
PANEL = 270  # pixels: the height of one scatter plot with its axis
SPACE = 62  # pixels of it, for the axis below
GAP = 0.06  # between columns, as a part of the width
DOT: Look = {"color": "#3b82d6", "size": 7, "opacity": 0.6}
CROSS: Look = {
    "color": "#d64561",
    "size": 8,
    "symbol": "x-thin",
    "line": {"color": "#d64561", "width": 2},
}
STAR: Look = {
    "color": "#e8743b",
    "size": 15,
    "symbol": "star",
    "line": {"color": "#ffffff", "width": 1},
}

# -- parallel coordinates --------------------------------------------------------------------------


def parallel(account: Account, varying: Sequence[Parameter]) -> Figure | None:
    """Every scored trial as a line across its parameters to its score.

    None where there is nothing to compare.
    """
    rows = [row for row in account.ranked() if row.scored]
    if len(rows) < 2 or not varying:
        return None

    rows.reverse()  # so that the best are drawn on top
    scores = [row.last or 0.0 for row in rows]
    dimensions = [_dimension(parameter, rows) for parameter in varying]
    dimensions.append(
        {"label": escape(account.metric or ""), "values": scores, "tickformat": ".4~g"}
    )
    trace = {
        "type": "parcoords",
        "line": {
            "color": scores,
            "colorscale": SCALE,
            "reversescale": account.mode == "min",
            "cmin": min(scores),
            "cmax": max(scores),
        },
        "dimensions": dimensions,
        "labelside": "bottom",
        "labelfont": {"size": 13},
        "tickfont": {"size": 11},
        "rangefont": {"size": 1, "color": CLEAR},
    }
    shape = layout(400, margin={"l": 80, "r": 70, "t": 30, "b": 44})
    return {"data": [trace], "layout": shape}


def _dimension(parameter: Parameter, rows: Rows) -> Look:
    """One of the parallel axes."""
    values = [parameter.place(row.id) for row in rows]
    dimension: Look = {"label": escape(_short(parameter.name, 22)), "values": values}

    ticks = _ticks(parameter, [row.id for row in rows])
    if ticks is not None:
        dimension["tickvals"], dimension["ticktext"] = ticks

    low = min(values)
    high = max(values)
    if parameter.scale == "category" or low == high:
        dimension["range"] = [low - 0.3, high + 0.3]
    return dimension


# -- ticks -----------------------------------------------------------------------------------------


def _ticks(parameter: Parameter, trials: Iterable[TrialId]) -> Ticks | None:
    """Ticks at the values where they are few, at decades on a log axis.

    They are places on a linear axis. None: as plotly likes.
    """
    if parameter.scale == "category":
        places = [float(place) for place in range(len(parameter.categories))]
        return places, [escape(_short(text, 18)) for text in parameter.categories]
    values = {parameter.values[trial] for trial in trials}
    numbers = sorted(value for value in values if not isinstance(value, str))
    if len(numbers) <= FEW:
        texts = [number(value) for value in numbers]
        if parameter.scale == "log":
            numbers = [log10(value) for value in numbers]
        return numbers, texts
    if parameter.scale == "linear":
        return None
    # Both ends, and the whole decades that are not too near to an end.
    low, high = log10(numbers[0]), log10(numbers[-1])
    decades = range(int(low) - 1, int(high) + 2)
    places = [low, *(at for at in decades if min(at - low, high - at) > 0.15), high]
    return places, [number(10**place, 2) for place in places]


def _short(text: str, limit: int) -> str:
    """The text, cut to so many characters."""
    if len(text) <= limit:
        return text
    return text[: limit - 1] + "…"


# -- scatters --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Dots:
    """Trials that look alike in all small drawings. `heights`: where each stands on the y axis."""

    rows: Rows
    heights: Sequence[float]
    marker: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Grid:
    """Small drawings in lines and columns."""

    lines: int
    columns: int

    def down(self, line: int) -> list[float]:
        """From where to where a line of drawings reaches, in parts of the height."""
        whole = self.lines * PANEL - 50  # pixels between the margins
        top = line * PANEL
        return [max(0.0, 1 - (top + PANEL - SPACE) / whole), 1 - top / whole]

    def across(self, column: int) -> list[float]:
        """From where to where a column reaches, in parts of the width."""
        width = (1 - GAP * (self.columns - 1)) / self.columns
        left = column * (width + GAP)
        return [left, min(1.0, left + width)]


def scatters(account: Account, varying: Sequence[Parameter]) -> Figure | None:
    """The score over each parameter, a small drawing each, the best as a star.

    None where there is nothing to draw.
    """
    layers = _layers(account)
    if not layers or not varying:
        return None

    columns = min(COLUMNS, len(varying))
    grid = _Grid(-(-len(varying) // columns), columns)
    traces = []
    shape = layout(
        grid.lines * PANEL + 36, showlegend=False, margin={"l": 60, "r": 20, "t": 36, "b": 50}
    )
    for place, parameter in enumerate(varying):
        # What plotly puts behind the names of a small drawing's axes.
        tag = str(place + 1) if place else ""
        for dots in layers:
            traces.append(_trace(parameter, dots, tag))
        line, column = divmod(place, columns)
        title = ""
        if column == 0:
            title = account.metric or ""
        shape[f"xaxis{tag}"] = _parameter_axis(parameter, grid.across(column), tag)
        shape[f"yaxis{tag}"] = axis(title, domain=grid.down(line), anchor=f"x{tag}")
    return {"data": traces, "layout": shape}


def _layers(account: Account) -> list[_Dots]:
    """Trials with a score, below them those that failed, and the best; none without a score."""
    rows = [row for row in account.trials if row.scored]
    if not rows:
        return []
    scores = [row.last or 0.0 for row in rows]
    layers = [_Dots(rows, scores, DOT)]

    failed = [row for row in account.trials if row.status == "failed"]
    if failed:
        # Below all scores, for they have none.
        reach = max(scores) - min(scores) or abs(scores[0]) or 1.0
        floor = min(scores) - 0.12 * reach
        layers.append(_Dots(failed, [floor] * len(failed), CROSS))

    best = account.best()
    if best is not None:
        layers.append(_Dots([best], [best.last or 0.0], STAR))
    return layers


def _trace(parameter: Parameter, dots: _Dots, tag: str) -> Look:
    """The dots over one parameter."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [_across(parameter, row) for row in dots.rows],
        "y": dots.heights,
        "xaxis": f"x{tag}",
        "yaxis": f"y{tag}",
        "marker": dots.marker,
        "text": [_hover(row) for row in dots.rows],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _across(parameter: Parameter, row: TrialRow) -> float:
    """Where a trial stands over a parameter.

    Over a category it stands aside, by -0.15 to 0.15 of its width, so that trials do not hide each
    other.
    """
    value = parameter.values[row.id]
    if not isinstance(value, str):
        return value
    return parameter.place(row.id) + (row.number * 0.618 % 1 - 0.5) * 0.3


def _hover(row: TrialRow) -> str:
    """What is shown where the pointer rests on a dot."""
    text = label(row)
    if row.status == "failed":
        text += f"<br>failed: {escape(_short(row.why, 80))}"
    return text


def _parameter_axis(parameter: Parameter, across: list[float], tag: str) -> Look:
    """The x axis of a small drawing. `across`: from where to where it reaches."""
    x_axis = axis(_short(parameter.name, 40), domain=across, anchor=f"y{tag}")
    ticks = _ticks(parameter, parameter.values)
    if ticks is not None:
        x_axis["tickvals"], x_axis["ticktext"] = ticks
    if parameter.scale == "log":
        x_axis["type"] = "log"
        if ticks is not None:
            x_axis["tickvals"] = [10**place for place in ticks[0]]
    if parameter.scale == "category":
        x_axis["range"] = [-0.5, len(parameter.categories) - 0.5]
    return x_axis
