"""Drawings of what the slots did: the Gantt chart and the use of each slot, as plain plotly figures."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from shoal.core.trial import Seconds
from shoal.report.figures import Figure, axis, layout
from shoal.report.format import duration, share, time_unit
from shoal.report.lanes import Drawn, drawn
from shoal.report.metrics import Account
from shoal.report.palette import CAUSES, GREY, Cause, mix, painted_by

BARS = 6000  # more than this many draw slowly


def gantt(account: Account, limit: int = BARS) -> tuple[Figure, int, int] | None:
    """A lane for each slot, coloured by trial, a trace for each cause; how many bars there are, and how many are drawn.

    None: no slot was ever there.
    """
    chart = account.chart
    if not chart.spans:
        return None
    bars = drawn(chart, limit)
    place = {slot: n for n, slot in enumerate(chart.spans)}
    unit, name = time_unit(chart.end - chart.start)
    painted: Mapping[Any, str] = painted_by(account)
    traces = []
    for cause in CAUSES:
        mine = [item for item in bars if item.bar.kind == cause.kind]
        if mine:
            traces += [legend(cause), bar_trace(cause, mine, place, painted, unit)]
    shape = _lanes(
        list(place),
        room=16 if len(chart.runs) > 1 else 0,
        barmode="overlay",
        bargap=0,
        xaxis=axis(f"{name} of the study", range=[chart.start / unit, max(chart.end, chart.start + 1e-3) / unit]),
        shapes=[_run_mark(start / unit) for start, _ in chart.runs[1:]],
        annotations=[_run_name(start / unit, n) for n, (start, _) in enumerate(chart.runs[1:], 2)],
    )
    return {"data": traces, "layout": shape}, sum(map(len, chart.bars.values())), len(bars)


def _lanes(slots: Sequence[str], room: int, **more: Any) -> dict[str, Any]:
    """A layout with a lane for each slot and the legend above, `room` pixels further up."""
    lane = 40 if len(slots) <= 4 else 30 if len(slots) <= 12 else 20 if len(slots) <= 32 else 14
    high = lane * len(slots)
    place = {"orientation": "h", "x": 0, "y": 1 + (8 + room) / high, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"}
    margin = {"l": 60, "r": 20, "t": 46 + room, "b": 60}
    shape = layout(high + margin["t"] + margin["b"], margin=margin, yaxis=slot_axis(slots), legend=place, showlegend=True)
    return {**shape, **more}


def slot_axis(slots: Sequence[str], most: int = 64) -> dict[str, Any]:
    """An axis of lanes, the first slot above; at most so many of them are named."""
    every = -(-len(slots) // most)
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
    colour = cause.colour or mix(GREY, "#ffffff", 0.35 if cause.kind == "evaluate" else 0.0)
    marker = {"color": colour, "pattern": _pattern(cause), "line": {"width": 0}}
    return {"type": "bar", "x": [None], "y": [None], "name": cause.label, "marker": marker, "legendgroup": cause.kind}


def _pattern(cause: Cause) -> dict[str, Any]:
    if not cause.pattern:
        return {}
    return {"shape": cause.pattern, "fgcolor": "rgba(255,255,255,0.85)", "size": 6, "solidity": 0.3, "fillmode": "overlay"}


def bar_trace(
    cause: Cause, bars: Sequence[Drawn], place: Mapping[Any, int], painted: Mapping[Any, str], unit: Seconds
) -> dict[str, Any]:
    """The bars of one cause. `place`: each slot's lane; `painted`: each trial's colour; `unit`: seconds of the time axis."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": cause.label,
        "legendgroup": cause.kind,
        "showlegend": False,
        "base": [_rounded(item.bar.start / unit) for item in bars],
        "x": [_rounded((item.bar.end - item.bar.start) / unit) for item in bars],
        "y": [place[item.bar.slot] for item in bars],
        "offset": [round(-0.4 + 0.8 * item.row / item.rows, 3) for item in bars],
        "width": [round(0.8 / item.rows, 3) for item in bars],
        "marker": {
            "color": [_sheer(cause.colour or _tinted(cause, painted.get(item.bar.trial, GREY))) for item in bars],
            "pattern": _pattern(cause),
            "line": {"width": 0},
        },
        "text": [_hover(item, cause) for item in bars],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }


def _rounded(value: float) -> float:
    return float(f"{value:.8g}")


def _sheer(colour: str) -> str:
    """Almost opaque: such bars are rounded to pixels, while opaque ones are widened to one, however short they are."""
    return colour + "fe" if colour.startswith("#") else colour


def _tinted(cause: Cause, colour: str) -> str:
    if cause.kind == "evaluate":
        return mix(colour, "#ffffff", 0.35)
    return mix(colour, "#000000", 0.3) if cause.kind == "save" else colour


def _hover(item: Drawn, cause: Cause) -> str:
    bar = item.bar
    who = f"<b>{escape(bar.trial)}</b> " if bar.trial is not None else ""
    many = f"<br>mostly; {item.units} intervals drawn as one" if item.units > 1 else ""
    return f"{who}{cause.label} {duration(bar.end - bar.start)}<br>{escape(bar.slot)}, from {duration(bar.start)}{many}"


def _run_mark(at: float) -> dict[str, Any]:
    line = {"color": "#d64561", "width": 1.5, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line}


def _run_name(at: float, number: int) -> dict[str, Any]:
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
    traces = []
    for cause in CAUSES:
        lengths = [account.use[slot].get(cause.kind, 0.0) for slot in slots]
        if not sum(lengths):
            continue
        totals = [sum(account.use[slot].values()) or 1.0 for slot in slots]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": cause.label,
                "x": [_rounded(100 * a / b) for a, b in zip(lengths, totals, strict=True)],
                "y": list(range(len(slots))),
                "width": 0.72,
                "marker": {"color": cause.total, "pattern": _pattern(cause), "line": {"width": 0}},
                "text": [share(a, b) if a > 0.12 * b else "" for a, b in zip(lengths, totals, strict=True)],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "insidetextfont": {"color": cause.text},
                "textangle": 0,
                "customdata": [[escape(s), duration(a), share(a, b)] for s, a, b in zip(slots, lengths, totals, strict=True)],
                "hovertemplate": f"<b>%{{customdata[0]}}</b><br>{cause.label} "
                + "%{customdata[1]} (%{customdata[2]})<extra></extra>",
            }
        )
    shape = _lanes(
        slots,
        room=0,
        barmode="stack",
        xaxis=axis("% of the time the slot was there", range=[0, 100]),
        uniformtext={"minsize": 9, "mode": "hide"},
    )
    shape["legend"]["traceorder"] = "normal"
    return {"data": traces, "layout": shape}
