"""The report's drawings of slots: the Gantt chart, the use of each slot, the harvest."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.core.trial import Seconds, TrialId
from shoal.reporting.accounting import Account
from shoal.reporting.charts import BASE, CAUSES, GREY, Cause, Figure, axis, layout, mix, painted_by
from shoal.reporting.format import duration, escape, share, time_unit
from shoal.reporting.gantt import Bar, Chart
from shoal.reporting.harvest import Yield, hours

Who = TrialId | None  # None: no trial, the slot is idle


class Drawn(NamedTuple):
    """A bar in the `row`th of `rows` equal parts of its slot's lane.

    `units`: the number of bars it stands for.
    """

    bar: Bar
    row: int
    rows: int
    units: int = 1


Row = list[Drawn]  # in one part of one lane, by start


def drawn(chart: Chart, limit: int) -> list[Drawn]:
    """The chart's bars as they are to be drawn, at most about `limit` of them.

    When there are more, each bar shorter than some width is drawn together with its neighbours, as
    the trial and kind that most of their seconds went to, and as long as they are together.
    """
    rows: list[Row] = []
    for bars in chart.bars.values():
        lane: dict[tuple[int, int], Row] = {}
        for item in stacked(bars):
            lane.setdefault((item.row, item.rows), []).append(item)
        rows += lane.values()

    if sum(map(len, rows)) > limit:
        width = 2 * sum(row[-1].bar.end - row[0].bar.start for row in rows) / limit
        rows = [_coarse(row, width) for row in rows]
    return [item for row in rows for item in row]


# -- rows of bars that overlap ---------------------------------------------------------------------


def stacked(bars: Iterable[Bar]) -> list[Drawn]:
    """A row for each of the bars that overlap; one that overlaps none has the whole lane.

    `bars`: one slot's, by start.
    """
    laid: list[Drawn] = []
    seen: dict[Who, int] = {}
    cluster: list[Bar] = []
    end = 0.0
    for bar in bars:
        seen.setdefault(bar.trial, len(seen))
        if cluster and bar.start >= end:
            laid += _stack(cluster, seen)
            cluster = []
        if not cluster:
            end = bar.end
        end = max(end, bar.end)
        cluster.append(bar)
    return laid + _stack(cluster, seen)


def _stack(cluster: Sequence[Bar], seen: dict[Who, int]) -> list[Drawn]:
    """Bars that overlap, each in a row. `seen`: in which order trials came to the slot."""
    if len(cluster) == 1:
        return [Drawn(cluster[0], 0, 1)]

    free: list[Seconds] = []  # from when on each row is free
    home: dict[Who, int] = {}  # the row of each trial
    placed: list[tuple[Bar, int]] = []
    for bar in sorted(cluster, key=lambda bar: (bar.start, seen[bar.trial])):
        row = home.get(bar.trial)
        if row is None or free[row] > bar.start:
            row = _free_row(free, bar.start)
            home[bar.trial] = row
        free[row] = bar.end
        placed.append((bar, row))
    return [Drawn(bar, row, len(free)) for bar, row in placed]


def _free_row(free: list[Seconds], start: Seconds) -> int:
    """The first row that is free at that time, a new one if there is none."""
    for row, end in enumerate(free):
        if end <= start:
            return row
    free.append(0.0)
    return len(free) - 1


# -- short neighbours as one -----------------------------------------------------------------------


def _coarse(row: Row, width: Seconds) -> Row:
    """The row with bars of about this width or more."""
    done: Row = []
    block: Row = []
    for item in row:
        bar = item.bar
        if block:
            is_wide = bar.end - bar.start >= width
            if is_wide or bar.end - block[0].bar.start > width:
                done.append(_merged(block))
                block = []
        block.append(item)
    if block:
        done.append(_merged(block))
    return done


def _merged(block: Row) -> Drawn:
    """One bar for several neighbours."""
    if len(block) == 1:
        return block[0]

    share: dict[tuple[Who, str], Seconds] = {}
    for item in block:
        bar = item.bar
        key = bar.trial, bar.kind
        share[key] = share.get(key, 0.0) + bar.end - bar.start
    trial, kind = max(share, key=lambda key: share[key])
    first = block[0]
    start = first.bar.start
    end = min(block[-1].bar.end, start + sum(share.values()))
    whole = Bar(first.bar.slot, start, end, trial, kind)
    return Drawn(whole, first.row, first.rows, len(block))


BARS = 6000  # more than this many draw slowly
FILLED = 0.8  # part of a lane's height that the bars of one trial have
GAPPED = 0.92  # part of its row that a bar has where there are others above or below
ROW = 12.0  # pixels of each of the bars that lie above each other, at most
THIN = 2.0  # and at least
LANE = 320.0  # pixels of a lane's bars, as far as they are not too thin
LANES = 1400.0  # likewise of all lanes


def gantt(account: Account, limit: int = BARS) -> tuple[Figure, int, int] | None:
    """A lane for each slot, as high as what trains there together; a trace for each cause.

    Also how many bars there are, and how many are drawn. None: no slot was ever there.
    """
    chart = account.chart
    if not chart.spans:
        return None

    bars = drawn(chart, limit)
    lanes = high_lanes(chart.spans, bars)
    figure = {"data": _traces(account, bars, lanes), "layout": _chart_layout(chart, lanes)}
    total = sum(map(len, chart.bars.values()))
    return figure, total, len(bars)


# -- lanes -----------------------------------------------------------------------------------------


class Lane(NamedTuple):
    """A slot's part of the drawing: its middle, its height and that of its bars.

    All are in units of the y axis.
    """

    middle: float
    height: float
    bars: float


Lanes = Mapping[Any, Lane]  # by slot, from above


def even_lanes(slots: Iterable[Any]) -> Lanes:
    """A lane of height 1 for each slot."""
    return {slot: Lane(number, 1.0, FILLED) for number, slot in enumerate(slots)}


def high_lanes(slots: Collection[Any], bars: Iterable[Drawn]) -> Lanes:
    """Lanes as high as what trains there together, in pixels.

    Of many together the bars get thin before the lane gets huge.
    """
    rows = dict.fromkeys(slots, 1)
    for item in bars:
        rows[item.bar.slot] = max(rows[item.bar.slot], item.rows)
    row = min(ROW, LANE / max(rows.values()), LANES / sum(rows.values()))
    top = 0.0
    lanes = {}
    for slot in slots:
        bars_high = max(FILLED * _least(len(slots)), rows[slot] * max(THIN, row))
        height = bars_high + (1 - FILLED) * _least(len(slots))
        lanes[slot] = Lane(top + height / 2, height, bars_high)
        top += height
    return lanes


def _least(slots: int) -> int:
    """The height of a lane that one trial at a time has, in pixels."""
    heights = ((4, 40), (12, 30), (32, 20))  # by the number of slots
    return next((height for most, height in heights if slots <= most), 14)


def _traces(account: Account, bars: Sequence[Drawn], lanes: Lanes) -> list[dict[str, Any]]:
    """The bars of each cause, and what the legend shows of it."""
    chart = account.chart
    unit, _ = time_unit(chart.end - chart.start)
    painted: Mapping[Any, str] = painted_by(account)
    traces = []
    for cause in CAUSES:
        of_cause = [item for item in bars if item.bar.kind == cause.kind]
        if of_cause:
            traces.append(legend(cause))
            traces.append(bar_trace(cause, of_cause, lanes, painted, unit))
    return traces


def _chart_layout(chart: Chart, lanes: Lanes) -> dict[str, Any]:
    """The layout of the Gantt chart, with a mark where each later run begins."""
    unit, name = time_unit(chart.end - chart.start)
    later = [start / unit for start, _ in chart.runs[1:]]
    room = 0
    if later:
        room = 16
    end = max(chart.end, chart.start + 1e-3)
    return _layout(
        lanes,
        round(sum(lane.height for lane in lanes.values())),
        room,
        barmode="overlay",
        bargap=0,
        xaxis=axis(f"{name} of the study", range=[chart.start / unit, end / unit]),
        shapes=[_run_mark(start) for start in later],
        annotations=[
            _run_name(start, run) for run, start in _apart(later, (end - chart.start) / unit)
        ],
    )


def _layout(lanes: Lanes, high: int, room: int, **more: Any) -> dict[str, Any]:
    """A layout of lanes, together so many pixels high, and the legend `room` pixels above."""
    margin = {"l": 60, "r": 20, "t": 46 + room, "b": 60}
    shape = layout(
        high + margin["t"] + margin["b"],
        margin=margin,
        yaxis=slot_axis(lanes),
        legend={"orientation": "h", "x": 0, "y": 1 + (8 + room) / high, "yanchor": "bottom"},
        showlegend=True,
    )
    return {**shape, **more}


def slot_axis(lanes: Lanes, most: int = 64) -> dict[str, Any]:
    """An axis of lanes, the first slot above; at most so many of them are named."""
    stride = max(1, -(-len(lanes) // most))
    shown = list(lanes)[::stride]
    top = min((lane.middle - lane.height / 2 for lane in lanes.values()), default=0.0)
    bottom = max((lane.middle + lane.height / 2 for lane in lanes.values()), default=1.0)
    return axis(
        tickvals=[lanes[slot].middle for slot in shown],
        ticktext=[escape(slot) for slot in shown],
        range=[bottom, top],
        showgrid=False,
        fixedrange=True,
        ticks="",
    )


def _apart(starts: Sequence[float], length: float) -> Iterator[tuple[int, float]]:
    """The numbers and starts of later runs, without those whose names would cover each other."""
    last = -length
    for run, start in enumerate(starts, 2):
        if start - last >= 0.12 * length:
            last = start
            yield run, start


def legend(cause: Cause) -> dict[str, Any]:
    """A bar that only shows in the legend; it has the cause's pattern without a trial's colour."""
    # A grey stands for any trial's colour; that of validation is lighter.
    grey = mix(GREY, "#ffffff", 0.35 if cause.kind == "evaluate" else 0.0)
    colour = cause.colour or grey
    return {
        "type": "bar",
        "x": [None],
        "y": [None],
        "name": cause.label,
        "marker": {"color": colour, "pattern": _pattern(cause), "line": {"width": 0}},
        "legendgroup": cause.kind,
    }


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
    lanes: Lanes,
    painted: Mapping[Any, str],
    unit: Seconds,
) -> dict[str, Any]:
    """The bars of one cause.

    `painted`: each trial's colour; `unit`: seconds of the time axis.
    """
    colours = []
    for item in bars:
        colour = _colour(cause, painted.get(item.bar.trial, GREY))
        # Almost opaque: plotly widens opaque bars to a pixel, however short they are.
        colours.append(colour + "fe" if colour.startswith("#") else colour)
    across = [(item, lanes[item.bar.slot].bars) for item in bars]
    return {
        "type": "bar",
        "orientation": "h",
        "name": cause.label,
        "legendgroup": cause.kind,
        "showlegend": False,
        "base": [_rounded(item.bar.start / unit) for item in bars],
        "x": [_rounded((item.bar.end - item.bar.start) / unit) for item in bars],
        "y": [round(lanes[item.bar.slot].middle, 3) for item in bars],
        # From the lane's middle: where a bar begins across it, and how wide it is.
        "offset": [round(height * (item.row / item.rows - 0.5), 3) for item, height in across],
        "width": [
            round(height / item.rows * (GAPPED if item.rows > 1 else 1), 3)
            for item, height in across
        ],
        "marker": {"color": colours, "pattern": _pattern(cause), "line": {"width": 0}},
        "text": [_hover(item, cause) for item in bars],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }


def _rounded(value: float) -> float:
    """The value with eight digits, which keeps the page small."""
    return float(f"{value:.8g}")


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
    bar = item.bar
    label = f"{cause.label}: {bar.why}," if bar.why else cause.label
    text = f"{label} {duration(bar.end - bar.start)}"
    if bar.trial is not None:
        text = f"<b>{escape(bar.trial)}</b> {text}"
    text += f"<br>{escape(bar.slot)}, from {duration(bar.start)}"
    if item.units > 1:
        text += f"<br>mostly; {item.units} intervals drawn as one"
    return text


def _run_mark(time: float) -> dict[str, Any]:
    """A line across the chart where a run begins."""
    line = {"color": "#d64561", "width": 1.5, "dash": "dot"}
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": time,
        "x1": time,
        "y0": 0,
        "y1": 1,
        "line": line,
    }


def _run_name(time: float, number: int) -> dict[str, Any]:
    """The number of a run, above the line where it begins."""
    font = {"color": "#d64561", "size": 11}
    return {
        "x": time,
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
    if not any(sum(kinds.values()) > 0 for kinds in account.use.values()):
        return None

    used = account.used
    traces = []
    for cause in CAUSES:
        if used[cause.kind]:
            traces.append(_use_trace(account, cause))
    lanes = even_lanes(account.use)
    shape = _layout(
        lanes,
        len(lanes) * _least(len(lanes)),
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
        # A text only where the bar is wide enough.
        texts.append(share(length, total) if length > 0.12 * total else "")
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
            # Fainter than in the Gantt chart: text stands on it.
            "pattern": _pattern(cause) | {"fgcolor": "rgba(255,255,255,0.3)"},
            "line": {"width": 0},
        },
        "text": texts,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "insidetextfont": {"color": cause.text or GREY},
        "meta": None if cause.text else "ink",
        "textangle": 0,
        "customdata": hovers,
        "hovertemplate": title + "%{customdata[1]} (%{customdata[2]})<extra></extra>",
    }


LOSS = "#e06a80"
STOOD = "#6b7280"
OFFERED = "rgba(139,147,161,0.35)"
PERCENT = 100.0

Pick = Callable[[Yield], float | None]


def harvest(account: Account) -> Figure | None:
    """Two rows over one axis of time: slot-hours of each bin; and U with the return on rescaling.

    None: slots stayed.
    """
    harvested = account.harvest
    if harvested is None:
        return None
    whole = harvested.whole
    bins = harvested.bins
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
    bins: tuple[Yield, ...], unit: float, name: str, colour: str, pick: Pick, part: float = 1.0
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
    bins: tuple[Yield, ...], unit: float, name: str, colour: str, y_axis: str, pick: Pick
) -> dict[str, Any]:
    """A point for each bin, joined by a line."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": _middles(bins, unit),
        "y": [pick(each) for each in bins],
        "yaxis": y_axis,
        "line": {"color": colour, "width": 2},
        "marker": {"size": 6, "color": colour},
        "hovertemplate": f"{name} %{{y:.4g}}<extra></extra>",
    }
