"""Drawings of what a study made of slots that came and went."""

from collections.abc import Callable
from typing import Any

from shoal.reporting.charts.figures import Figure, axis, layout
from shoal.reporting.charts.palette import BASE, GREY
from shoal.reporting.facts.format import time_unit
from shoal.reporting.facts.harvest import Yield, hours
from shoal.reporting.facts.metrics import Account

LOSS = "#e06a80"
STOOD = "#6b7280"
OFFERED = "rgba(139,147,161,0.35)"
PERCENT = 100.0

Pick = Callable[[Yield], float | None]


def harvest(account: Account) -> Figure | None:
    """Two rows over one axis of time: slot-hours of each bin; and U with the return on rescaling.

    None: slots stayed.
    """
    found = account.harvest
    if found is None:
        return None
    whole = found.whole
    bins = found.bins
    returned = any(each.returned is not None for each in bins)
    unit, name = time_unit(whole.end - whole.start)
    # A bin without slots has no efficiency, and the line a gap.
    shape = layout(
        430,
        barmode="overlay",
        bargap=0.08,
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        margin={"l": 60, "r": 60, "t": 46, "b": 60},
        xaxis=axis(f"{name} of the study", anchor="y2"),
        yaxis=axis("slot-hours", domain=[0.44, 1.0], rangemode="tozero"),
        yaxis2=axis("U, %", domain=[0.0, 0.34], rangemode="tozero"),
        yaxis3=axis(
            "return on rescaling",
            overlaying="y2",
            side="right",
            showgrid=False,
            rangemode="tozero",
            visible=returned,
        ),
    )
    data = [
        _bars(bins, unit, "offered", OFFERED, lambda bin_: bin_.offered),
        _bars(bins, unit, "used", BASE[0], lambda bin_: bin_.used),
        _bars(bins, unit, "lost to preemption", LOSS, lambda bin_: bin_.preempted),
        _bars(bins, unit, "lost to rescaling", STOOD, lambda bin_: bin_.rescaled, 0.5),
    ]
    if whole.efficiency is not None:
        data.append(_line(bins, unit, "U", BASE[2], "y2", _percent))
    if returned:
        data.append(_line(bins, unit, "return", GREY, "y3", lambda bin_: bin_.returned))
    return {"data": data, "layout": shape}


def _percent(bin_: Yield) -> float | None:
    """U in percent."""
    if bin_.efficiency is None:
        return None
    return bin_.efficiency * PERCENT


def _middles(bins: tuple[Yield, ...], unit: float) -> list[float]:
    return [(each.start + each.end) / 2 / unit for each in bins]


def _bars(
    bins: tuple[Yield, ...],
    unit: float,
    name: str,
    colour: str,
    pick: Pick,
    part: float = 1.0,
) -> dict[str, Any]:
    """A bar for each bin, of this part of its width."""
    return {
        "type": "bar",
        "name": name,
        "x": _middles(bins, unit),
        "y": [hours(pick(each)) for each in bins],
        "width": [0.92 * part * (each.end - each.start) / unit for each in bins],
        "marker": {"color": colour},
        "hovertemplate": f"{name} %{{y:.4g}} slot-hours<extra></extra>",
    }


def _line(
    bins: tuple[Yield, ...],
    unit: float,
    name: str,
    colour: str,
    across: str,
    pick: Pick,
) -> dict[str, Any]:
    """A point for each bin, joined by a line."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": _middles(bins, unit),
        "y": [pick(each) for each in bins],
        "yaxis": across,
        "line": {"color": colour, "width": 2},
        "marker": {"size": 6, "color": colour},
        "hovertemplate": f"{name} %{{y:.4g}}<extra></extra>",
    }
