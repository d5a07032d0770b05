"""Drawings of configuration against score: parallel coordinates, and small scatters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

from shoal.core.trial import TrialId
from shoal.reporting.charts.figures import Figure, axis, label, layout
from shoal.reporting.facts.format import escape, number
from shoal.reporting.facts.metrics import Account
from shoal.reporting.facts.params import Parameter
from shoal.reporting.facts.rows import TrialRow

Rows = Sequence[TrialRow]
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
        {
            "label": escape(account.metric or ""),
            "values": scores,
            "tickformat": ".4~g",
        }
    )
    trace = {
        "type": "parcoords",
        "line": _score_colours(scores, account.mode),
        "dimensions": dimensions,
        "labelside": "bottom",
        "labelfont": {"size": 13},
        "tickfont": {"size": 11},
        "rangefont": {"size": 1, "color": "rgba(0,0,0,0)"},
    }
    shape = layout(400, margin={"l": 80, "r": 70, "t": 30, "b": 44})
    return {"data": [trace], "layout": shape}


def _score_colours(scores: Sequence[float], mode: str) -> Look:
    """A colour for each line, by its score."""
    return {
        "color": scores,
        "colorscale": SCALE,
        "reversescale": mode == "min",
        "cmin": min(scores),
        "cmax": max(scores),
    }


def _dimension(parameter: Parameter, rows: Rows) -> Look:
    """One of the parallel axes."""
    values = [parameter.place(row.id) for row in rows]
    made: Look = {"label": escape(_short(parameter.name, 22)), "values": values}

    ticks = _ticks(parameter, [row.id for row in rows])
    if ticks is not None:
        made["tickvals"], made["ticktext"] = ticks

    low = min(values)
    high = max(values)
    if parameter.scale == "category" or low == high:
        made["range"] = [low - 0.3, high + 0.3]
    return made


# -- ticks -----------------------------------------------------------------------------------------


def _ticks(parameter: Parameter, trials: Iterable[TrialId]) -> Ticks | None:
    """Ticks at the values where they are few, at decades on a log axis.

    They are places on a linear axis. None: as plotly likes.
    """
    if parameter.scale == "category":
        return _category_ticks(parameter.categories)
    numbers = sorted(_numbers(parameter, trials))
    if len(numbers) <= FEW:
        return _value_ticks(numbers, parameter.scale)
    if parameter.scale == "linear":
        return None
    places = _decades(log10(numbers[0]), log10(numbers[-1]))
    return places, [number(10**place, 2) for place in places]


def _category_ticks(categories: Sequence[str]) -> Ticks:
    """A tick at each category."""
    places = [float(place) for place in range(len(categories))]
    return places, [escape(_short(text, 18)) for text in categories]


def _value_ticks(numbers: list[float], scale: str) -> Ticks:
    """A tick at each of these values."""
    texts = [number(value) for value in numbers]
    if scale == "log":
        return [log10(value) for value in numbers], texts
    return numbers, texts


def _numbers(parameter: Parameter, trials: Iterable[TrialId]) -> set[float]:
    """The values of these trials, each once."""
    values = {parameter.values[trial] for trial in trials}
    return {value for value in values if not isinstance(value, str)}


def _decades(low: float, high: float) -> list[float]:
    """Both ends of a log axis, and the whole decades that are not too near to an end."""
    decades = range(int(low) - 1, int(high) + 2)
    inner = [at for at in decades if min(at - low, high - at) > 0.15]
    return [low, *inner, high]


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
        grid.lines * PANEL + 36,
        showlegend=False,
        margin={"l": 60, "r": 20, "t": 36, "b": 50},
    )
    for place, parameter in enumerate(varying):
        tag = _tag(place)
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
        floor = _below(scores)
        layers.append(_Dots(failed, [floor] * len(failed), CROSS))

    best = account.best()
    if best is not None:
        layers.append(_Dots([best], [best.last or 0.0], STAR))
    return layers


def _below(scores: Sequence[float]) -> float:
    """A place below all scores, for trials that have none."""
    reach = max(scores) - min(scores) or abs(scores[0]) or 1.0
    return min(scores) - 0.12 * reach


def _tag(place: int) -> str:
    """What plotly puts behind the names of a small drawing's axes."""
    if place == 0:
        return ""
    return str(place + 1)


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

    Over a category it stands a little aside, so that trials do not hide each other.
    """
    value = parameter.values[row.id]
    if not isinstance(value, str):
        return value
    return parameter.place(row.id) + _aside(row.number)


def _aside(number: int) -> float:
    """How far aside the trial of this number stands: -0.15 to 0.15 of a category's width."""
    return (number * 0.618 % 1 - 0.5) * 0.3


def _shown_ticks(parameter: Parameter) -> Look:
    """The ticks of a small drawing, whose log axes plotly makes itself."""
    ticks = _ticks(parameter, parameter.values)
    if ticks is None:
        return {}
    places, texts = ticks
    if parameter.scale == "log":
        places = [10**place for place in places]
    return {"tickvals": places, "ticktext": texts}


def _hover(row: TrialRow) -> str:
    """What is shown where the pointer rests on a dot."""
    text = label(row)
    if row.status == "failed":
        text += f"<br>failed: {escape(_short(row.why, 80))}"
    return text


def _parameter_axis(parameter: Parameter, across: list[float], tag: str) -> Look:
    """The x axis of a small drawing. `across`: from where to where it reaches."""
    made = axis(_short(parameter.name, 40), domain=across, anchor=f"y{tag}")
    made |= _shown_ticks(parameter)
    if parameter.scale == "log":
        made["type"] = "log"
    if parameter.scale == "category":
        made["range"] = [-0.5, len(parameter.categories) - 0.5]
    return made
