"""Drawings of configuration against score: parallel coordinates, and a small scatter for each parameter."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import log10
from typing import Any

from shoal.core.trial import TrialId
from shoal.report.figures import Figure, axis, label, layout
from shoal.report.format import number
from shoal.report.metrics import Account, TrialRow
from shoal.report.params import Parameter

SCALE = [[0, "#9db2cf"], [0.5, "#5b93d0"], [0.8, "#b15fd0"], [1, "#e8562a"]]
COLUMNS = 3  # of the scatter plots
PANEL, SPACE = 270, 62  # pixels: a line of them, and what of it is for the axis below
GAP = 0.06  # between columns, as a part of the width


def parallel(account: Account, varying: Sequence[Parameter]) -> Figure | None:
    """Every scored trial as a line across its parameters to its score; None where there is nothing to compare."""
    rows = [row for row in account.ranked() if row.last is not None and row.status != "failed"]
    if len(rows) < 2 or not varying:
        return None
    scores = [row.last or 0.0 for row in rows]
    worst_first = list(reversed(rows))  # so that the best are drawn on top
    line = {"color": [row.last for row in worst_first], "colorscale": SCALE, "reversescale": account.mode == "min"}
    trace = {
        "type": "parcoords",
        "line": {**line, "cmin": min(scores), "cmax": max(scores)},
        "dimensions": [
            *(_dimension(parameter, worst_first) for parameter in varying),
            {"label": escape(account.metric or ""), "values": [row.last for row in worst_first], "tickformat": ".4~g"},
        ],
        "labelside": "bottom",
        "labelfont": {"size": 13},
        "tickfont": {"size": 11},
        "rangefont": {"size": 1, "color": "rgba(0,0,0,0)"},
    }
    return {"data": [trace], "layout": layout(400, margin={"l": 80, "r": 70, "t": 30, "b": 44})}


def _dimension(parameter: Parameter, rows: Sequence[TrialRow]) -> dict[str, Any]:
    values = [parameter.place(row.id) for row in rows]
    made: dict[str, Any] = {"label": escape(_short(parameter.name, 22)), "values": values}
    ticks = _ticks(parameter, [row.id for row in rows])
    if ticks is not None:
        made |= {"tickvals": ticks[0], "ticktext": ticks[1]}
    low, high = min(values), max(values)
    if parameter.scale == "category" or low == high:
        made["range"] = [low - 0.3, high + 0.3]
    return made


def _ticks(parameter: Parameter, trials: Iterable[TrialId]) -> tuple[list[float], list[str]] | None:
    """Ticks at the values where they are few, at decades on a log axis; None: as plotly likes."""
    if parameter.scale == "category":
        return list(map(float, range(len(parameter.categories)))), [escape(_short(text, 18)) for text in parameter.categories]
    numbers = sorted({value for trial in trials if not isinstance(value := parameter.values[trial], str)})
    if len(numbers) <= 8:
        return [log10(x) if parameter.scale == "log" else x for x in numbers], [number(x) for x in numbers]
    if parameter.scale == "linear":
        return None
    decades = range(int(log10(numbers[0])) - 1, int(log10(numbers[-1])) + 2)
    inside = [d for d in decades if log10(numbers[0]) <= d <= log10(numbers[-1])]
    ends = [log10(numbers[0]), *inside, log10(numbers[-1])]
    spread = [x for n, x in enumerate(ends) if n in (0, len(ends) - 1) or min(x - ends[0], ends[-1] - x) > 0.15]
    return spread, [number(10**x, 2) for x in spread]


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def scatters(account: Account, varying: Sequence[Parameter]) -> Figure | None:
    """The score over each parameter, a small drawing each, the best as a star; None where there is nothing to draw."""
    rows = [row for row in account.trials if row.last is not None and row.status != "failed"]
    if not rows or not varying:
        return None
    failed = [row for row in account.trials if row.status == "failed"]
    best = account.best()
    columns = min(COLUMNS, len(varying))
    lines = -(-len(varying) // columns)
    shape = layout(lines * PANEL + 36, showlegend=False, margin={"l": 60, "r": 20, "t": 36, "b": 50})
    figure: Figure = {"data": [], "layout": shape}
    scores = [row.last or 0.0 for row in rows]
    floor = min(scores) - 0.12 * (max(scores) - min(scores) or abs(scores[0]) or 1.0)
    for n, parameter in enumerate(varying):
        tag = "" if n == 0 else str(n + 1)
        figure["data"].append(_dots(parameter, rows, scores, tag, {"color": "#3b82d6", "size": 7, "opacity": 0.6}))
        if failed:
            cross = {"color": "#d64561", "size": 8, "symbol": "x-thin", "line": {"color": "#d64561", "width": 2}}
            figure["data"].append(_dots(parameter, failed, [floor] * len(failed), tag, cross))
        if best is not None:
            star = {"color": "#e8743b", "size": 15, "symbol": "star", "line": {"color": "#ffffff", "width": 1}}
            figure["data"].append(_dots(parameter, [best], [best.last or 0.0], tag, star))
        figure["layout"].update(_panel(parameter, divmod(n, columns), (lines, columns), tag, account.metric or ""))
    return figure


def _dots(
    parameter: Parameter, rows: Sequence[TrialRow], ys: Sequence[float], tag: str, marker: Mapping[str, Any]
) -> dict[str, Any]:
    shift = [0.0 if parameter.scale != "category" else (row.number * 0.618 % 1 - 0.5) * 0.3 for row in rows]
    raw = [parameter.values[row.id] for row in rows]
    xs = [parameter.place(row.id) + by if isinstance(at, str) else at for row, at, by in zip(rows, raw, shift, strict=True)]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": xs,
        "y": ys,
        "xaxis": f"x{tag}",
        "yaxis": f"y{tag}",
        "marker": marker,
        "text": [label(row) + (f"<br>failed: {escape(_short(row.why, 80))}" if row.status == "failed" else "") for row in rows],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _panel(parameter: Parameter, at: tuple[int, int], of: tuple[int, int], tag: str, metric: str) -> dict[str, Any]:
    """The axes of the drawing in that line and column, of so many."""
    whole = of[0] * PANEL - 50  # pixels between the margins
    top = at[0] * PANEL
    down = [max(0.0, 1 - (top + PANEL - SPACE) / whole), 1 - top / whole]
    width = (1 - GAP * (of[1] - 1)) / of[1]
    across = [at[1] * (width + GAP), min(1.0, at[1] * (width + GAP) + width)]
    x = axis(_short(parameter.name, 40), domain=across, anchor=f"y{tag}")
    ticks, texts = _ticks(parameter, parameter.values) or (None, None)
    if ticks is not None:
        x |= {"tickvals": [10**at for at in ticks] if parameter.scale == "log" else ticks, "ticktext": texts}
    if parameter.scale == "log":
        x["type"] = "log"
    if parameter.scale == "category":
        x["range"] = [-0.5, len(parameter.categories) - 0.5]
    return {f"xaxis{tag}": x, f"yaxis{tag}": axis(metric if at[1] == 0 else "", domain=down, anchor=f"x{tag}")}
