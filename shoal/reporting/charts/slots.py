"""Drawings of what the slots did: the Gantt chart and the use of each slot."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.trial import Seconds
from shoal.reporting.charts.figures import Figure, axis, layout
from shoal.reporting.charts.lanes import Drawn, drawn
from shoal.reporting.charts.palette import CAUSES, GREY, Cause, mix, painted_by
from shoal.reporting.facts.bars import Bar, Chart
from shoal.reporting.facts.format import duration, escape, share, time_unit
from shoal.reporting.facts.metrics import Account

BARS = 6000  # more than this many draw slowly


def gantt(account: Account, limit: int = BARS) -> tuple[Figure, int, int] | None:
    """A lane for each slot, coloured by trial, a trace for each cause.

    Also how many bars there are, and how many are drawn. None: no slot was ever there.
    """
    chart = account.chart
    if not chart.spans:
        return None

    bars = drawn(chart, limit)
    figure = {"data": _traces(account, bars), "layout": _chart_layout(chart)}
    every = sum(map(len, chart.bars.values()))
    return figure, every, len(bars)


def _traces(account: Account, bars: Sequence[Drawn]) -> list[dict[str, Any]]:
    """The bars of each cause, and what the legend shows of it."""
    chart = account.chart
    unit, _ = time_unit(chart.end - chart.start)
    lane = {slot: number for number, slot in enumerate(chart.spans)}
    painted: Mapping[Any, str] = painted_by(account)
    traces = []
    for cause in CAUSES:
        mine = [item for item in bars if item.bar.kind == cause.kind]
        if mine:
            traces.append(legend(cause))
            traces.append(bar_trace(cause, mine, lane, painted, unit))
    return traces


def _chart_layout(chart: Chart) -> dict[str, Any]:
    """The layout of the Gantt chart, with a mark where each later run begins."""
    unit, name = time_unit(chart.end - chart.start)
    later = [start / unit for start, _ in chart.runs[1:]]
    room = 0
    if later:
        room = 16
    end = max(chart.end, chart.start + 1e-3)
    return _lanes(
        list(chart.spans),
        room,
        barmode="overlay",
        bargap=0,
        xaxis=axis(f"{name} of the study", range=[chart.start / unit, end / unit]),
        shapes=[_run_mark(start) for start in later],
        annotations=[_run_name(start, run) for run, start in enumerate(later, 2)],
    )


def _lanes(slots: Sequence[str], room: int, **more: Any) -> dict[str, Any]:
    """A layout with a lane for each slot and the legend above, `room` pixels further up."""
    high = _lane_height(len(slots)) * len(slots)
    margin = {"l": 60, "r": 20, "t": 46 + room, "b": 60}
    shape = layout(
        high + margin["t"] + margin["b"],
        margin=margin,
        yaxis=slot_axis(slots),
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1 + (8 + room) / high,
            "yanchor": "bottom",
            "bgcolor": "rgba(0,0,0,0)",
        },
        showlegend=True,
    )
    return {**shape, **more}


def _lane_height(slots: int) -> int:
    """In pixels; lower where there are many slots."""
    for most, height in ((4, 40), (12, 30), (32, 20)):
        if slots <= most:
            return height
    return 14


def slot_axis(slots: Sequence[str], most: int = 64) -> dict[str, Any]:
    """An axis of lanes, the first slot above; at most so many of them are named."""
    every = max(1, -(-len(slots) // most))
    shown = range(0, len(slots), every)
    return axis(
        tickvals=list(shown),
        ticktext=[escape(slots[n]) for n in shown],
        range=[len(slots) - 0.45, -0.55],
        showgrid=False,
        fixedrange=True,
        ticks="",
    )


def legend(cause: Cause) -> dict[str, Any]:
    """A bar that only shows in the legend; it has the cause's pattern without a trial's colour."""
    colour = cause.colour or _grey(cause)
    return {
        "type": "bar",
        "x": [None],
        "y": [None],
        "name": cause.label,
        "marker": {"color": colour, "pattern": _pattern(cause), "line": {"width": 0}},
        "legendgroup": cause.kind,
    }


def _grey(cause: Cause) -> str:
    """The grey that stands for any trial's colour; validation is lighter."""
    lighter = 0.0
    if cause.kind == "evaluate":
        lighter = 0.35
    return mix(GREY, "#ffffff", lighter)


def _pattern(cause: Cause) -> dict[str, Any]:
    """The pattern that tells a cause from others, as plotly takes it."""
    if not cause.pattern:
        return {}
    return {
        "shape": cause.pattern,
        "fgcolor": "rgba(255,255,255,0.85)",
        "size": 6,
        "solidity": 0.3,
        "fillmode": "overlay",
    }


def bar_trace(
    cause: Cause,
    bars: Sequence[Drawn],
    lane: Mapping[Any, int],
    painted: Mapping[Any, str],
    unit: Seconds,
) -> dict[str, Any]:
    """The bars of one cause.

    `lane`: each slot's number; `painted`: each trial's colour; `unit`: seconds of the time axis.
    """
    colours = []
    for item in bars:
        colour = _colour(cause, painted.get(item.bar.trial, GREY))
        colours.append(_sheer(colour))
    return {
        "type": "bar",
        "orientation": "h",
        "name": cause.label,
        "legendgroup": cause.kind,
        "showlegend": False,
        "base": [_rounded(item.bar.start / unit) for item in bars],
        "x": [_rounded((item.bar.end - item.bar.start) / unit) for item in bars],
        "y": [lane[item.bar.slot] for item in bars],
        "offset": list(map(_offset, bars)),
        "width": list(map(_width, bars)),
        "marker": {
            "color": colours,
            "pattern": _pattern(cause),
            "line": {"width": 0},
        },
        "text": [_hover(item, cause) for item in bars],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }


def _offset(item: Drawn) -> float:
    """Where a bar begins across its lane, in parts of the lane from its middle."""
    return round(-0.4 + 0.8 * item.row / item.rows, 3)


def _width(item: Drawn) -> float:
    """How much of its lane's width a bar takes."""
    return round(0.8 / item.rows, 3)


def _rounded(value: float) -> float:
    """The value with eight digits, which keeps the page small."""
    return float(f"{value:.8g}")


def _sheer(colour: str) -> str:
    """Almost opaque: plotly widens opaque bars to a pixel, however short they are."""
    if colour.startswith("#"):
        return colour + "fe"
    return colour


def _colour(cause: Cause, trial: str) -> str:
    """A bar's colour: the cause's own, or a shade of its trial's."""
    if cause.colour:
        return cause.colour
    if cause.kind == "evaluate":
        return mix(trial, "#ffffff", 0.35)
    if cause.kind == "save":
        return mix(trial, "#000000", 0.3)
    return trial


def _hover(item: Drawn, cause: Cause) -> str:
    """What is shown where the pointer rests on a bar."""
    text = f"{_what(item.bar, cause)}<br>{_place(item.bar)}"
    if item.units > 1:
        text += f"<br>mostly; {item.units} intervals drawn as one"
    return text


def _what(bar: Bar, cause: Cause) -> str:
    """The bar's trial and cause, and how long it is."""
    label = f"{cause.label}: {bar.why}," if bar.why else cause.label
    what = f"{label} {duration(bar.end - bar.start)}"
    if bar.trial is None:
        return what
    return f"<b>{escape(bar.trial)}</b> {what}"


def _place(bar: Bar) -> str:
    """The bar's slot, and when it begins."""
    return f"{escape(bar.slot)}, from {duration(bar.start)}"


def _run_mark(at: float) -> dict[str, Any]:
    """A line across the chart where a run begins."""
    line = {"color": "#d64561", "width": 1.5, "dash": "dot"}
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "line": line,
    }


def _run_name(at: float, number: int) -> dict[str, Any]:
    """The number of a run, above the line where it begins."""
    font = {"color": "#d64561", "size": 11}
    return {
        "x": at,
        "y": 1,
        "xref": "x",
        "yref": "paper",
        "yanchor": "bottom",
        "xanchor": "center",
        "text": f"run {number}",
        "showarrow": False,
        "font": font,
    }


def use(account: Account) -> Figure | None:
    """For each slot, how its seconds divide by cause; None: no slot was ever there."""
    slots = list(account.use)
    if not any(sum(kinds.values()) > 0 for kinds in account.use.values()):
        return None

    used = account.used
    traces = []
    for cause in CAUSES:
        if used[cause.kind]:
            traces.append(_use_trace(account, cause))
    shape = _lanes(
        slots,
        room=0,
        barmode="stack",
        xaxis=axis("% of the time the slot was there", range=[0, 100]),
        uniformtext={"minsize": 9, "mode": "hide"},
    )
    shape["legend"]["traceorder"] = "normal"
    return {"data": traces, "layout": shape}


def _use_trace(account: Account, cause: Cause) -> dict[str, Any]:
    """What each slot spent on one cause."""
    percents = []
    texts = []
    hovers = []
    for slot, kinds in account.use.items():
        length = kinds.get(cause.kind, 0.0)
        total = sum(kinds.values()) or 1.0
        percents.append(_rounded(100 * length / total))
        texts.append(_use_text(length, total))
        hovers.append([escape(slot), duration(length), share(length, total)])
    title = f"<b>%{{customdata[0]}}</b><br>{cause.label} "
    return {
        "type": "bar",
        "orientation": "h",
        "name": cause.label,
        "x": percents,
        "y": list(range(len(percents))),
        "width": 0.72,
        "marker": {
            "color": cause.total,
            # Fainter than beside it: text stands on it.
            "pattern": _pattern(cause) | {"fgcolor": "rgba(255,255,255,0.3)"},
            "line": {"width": 0},
        },
        "text": texts,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "insidetextfont": {"color": cause.text},
        "textangle": 0,
        "customdata": hovers,
        "hovertemplate": title + "%{customdata[1]} (%{customdata[2]})<extra></extra>",
    }


def _use_text(length: Seconds, total: Seconds) -> str:
    """What stands in a bar: its share of the total, where the bar is wide enough."""
    if length > 0.12 * total:
        return share(length, total)
    return ""
