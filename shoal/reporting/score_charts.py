"""Drawings of the trials' scores: the best so far, which hyper-parameters matter, and how.

A row of `CHARTS` is a drawing of the report and of the live page. It is made of panels, which hold
a plotly figure each and stand side by side where there is room:

    {"note": text, "panels": [{"title": text, "figure": figure, "views": [view, …]}, …]}

In place of a figure there may be `lines` (see `_lines`). A view gives the figure's traces other
places: {"name", "title" of the x axis, "traces"}. Traces name their trials by number
(`customdata`); `hover` has the texts.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import ceil, floor, log10
from typing import Any, NamedTuple

from shoal.core.trial import Seconds, TrialId
from shoal.reporting.accounting import Account
from shoal.reporting.charts import (
    BASE,
    CLEAR,
    Figure,
    axis,
    drawable,
    label,
    layout,
    mix,
    value_axis,
)
from shoal.reporting.format import DASH, escape, number, plural, printable, time_unit
from shoal.reporting.importance import LEAST, Importance, Memory, scored_rows
from shoal.reporting.parameters import Parameter, Rows, parameters
from shoal.reporting.tally import TrialRow

Drawing = dict[str, Any]
Panel = dict[str, Any]
Look = dict[str, Any]  # a part of a plotly figure
Ticks = tuple[list[float], list[str]]  # where on the axis, and what stands there

SCALE = ((0.0, "#9db2cf"), (0.5, "#5b93d0"), (0.8, "#b15fd0"), (1.0, "#e8562a"))
SHADES = 16  # of the lines
FEW = 8  # values: each has a tick
NAMED = 12  # categories that have ticks
AXES = 12  # of the parallel coordinates
SLICES = 24  # panels of one study
BARS = 20  # of importances
DOTS = 2_000  # of one slice
BEST = 400  # of them are the best
DOT: Look = {"color": BASE[0], "size": 7, "opacity": 0.6}
CROSS: Look = {
    "color": "#d64561",
    "size": 8,
    "symbol": "x-thin",
    "line": {"color": "#d64561", "width": 2},
}
STAR: Look = {
    "color": BASE[1],
    "size": 15,
    "symbol": "star",
    "line": {"color": "#ffffff", "width": 1},
}
UNDER_WAY: Look = {
    "color": CLEAR,
    "size": 7,
    "line": {"color": BASE[0], "width": 1.5},
}
HOVER = "%{text}<extra></extra>"


# -- what drawings are made of ---------------------------------------------------------------------


@dataclass(frozen=True)
class Aim:
    """Trials that are ranked by one metric: all of them, or those of one recipe.

    `name`: the recipe's, or empty. `whole`: all its trials; `drawn`: those that are drawn.
    """

    name: str
    whole: Account
    drawn: Account
    memory: Memory

    @cached_property
    def varying(self) -> Sequence[Parameter]:
        """The hyper-parameters that vary."""
        return parameters(self.drawn)[0]

    @cached_property
    def importance(self) -> Importance | None:
        """How much each of them matters."""
        return self.memory.of(self.name, self.whole)

    @cached_property
    def by_importance(self) -> Sequence[Parameter]:
        """The hyper-parameters, the most important first; in their order where that is unclear."""
        found = self.importance
        if found is None or found.unclear:
            return self.varying
        return sorted(self.varying, key=lambda each: -found.parts.get(each.name, 0.0))

    @cached_property
    def frame(self) -> "Frame":
        """The axis of the scores."""
        return Frame.of(self.drawn)


@dataclass(frozen=True)
class View:
    """What the drawings show: each aim with at most `most` trials drawn."""

    account: Account
    most: int
    memory: Memory = field(default_factory=Memory)

    @cached_property
    def aims(self) -> Sequence[Aim]:
        """All trials by their one metric; or those of each recipe by its own."""
        accounts = self.account.by_recipe or {"": self.account}
        return [
            Aim(name, each, each.sampled(self.most, self.most // 5), self.memory)
            for name, each in accounts.items()
            if scored_rows(each)
        ]

    def hover(self) -> dict[str, str]:
        """What is shown where the pointer rests on a trial, by its number."""
        return {str(row.number): _hover(row) for aim in self.aims for row in aim.drawn.trials}


def _hover(row: TrialRow) -> str:
    text = label(row)
    if row.status == "failed":
        text += f"<br>failed: {escape(_short(row.why, 80))}"
    return text


class Frame(NamedTuple):
    """The axis of scores. `settings`: for plotly. `floor`: where trials stand that have no score.

    `outside`: how many trials the range leaves out.
    """

    settings: Mapping[str, Any]
    floor: float
    outside: int

    @classmethod
    def of(cls, account: Account) -> "Frame":
        """The axis that suits these scores."""
        rows = [row for row in account.ranked() if row.scored]
        scores = drawable([row.last or 0.0 for row in rows])
        best = drawable([row.last or 0.0 for row in rows[: max(1, len(rows) // 10)]])
        settings = value_axis(scores, best)
        on_log = settings.get("type") == "log"
        if "range" in settings:
            low, high = settings["range"]
        else:
            low, high = min(scores, default=0.0), max(scores, default=1.0)
            if on_log:
                low, high = log10(low), log10(high)
        reach = high - low or abs(low) or 1.0
        # At the end where the bad scores are.
        floor = high + 0.08 * reach if account.mode == "min" else low - 0.08 * reach
        if "range" in settings and any(row.status == "failed" for row in account.trials):
            ends = (low, high, floor)
            settings = {**settings, "range": [min(ends) - 0.03 * reach, max(ends) + 0.03 * reach]}
        inside = [10**low, 10**high] if on_log else [low, high]
        outside = 0
        if "range" in settings:
            outside = sum(not inside[0] <= score <= inside[1] for score in scores)
        return cls(settings, 10 ** min(floor, 300.0) if on_log else floor, outside)

    def axis(self, account: Account, **more: Any) -> Look:
        """The axis as plotly takes it."""
        return axis(account.metric or "", **self.settings, **more)

    @property
    def note(self) -> str:
        """What is to be said of trials out of the picture."""
        if not self.outside:
            return ""
        verb = "lies" if self.outside == 1 else "lie"
        return f" {plural(self.outside, 'trial')} {verb} outside; double-click to see all."


def _panel(aim: Aim, figure: Figure) -> Panel:
    """A panel, with the recipe's name above it."""
    return {"title": printable(aim.name), "figure": figure}


def _failed(account: Account) -> list[TrialRow]:
    return [row for row in account.trials if row.status == "failed"]


def _numbers(rows: Iterable[TrialRow]) -> list[int]:
    return [row.number for row in rows]


def _crosses(view: View) -> str:
    """What the crosses are, if there are any."""
    if any(_failed(aim.drawn) for aim in view.aims):
        return " Crosses are trials that failed, without a score."
    return ""


def _of_all(view: View, most: int) -> str:
    """How many of the trials are drawn, if not all."""
    drawn = sum(min(most, len(aim.drawn.trials)) for aim in view.aims)
    total = sum(len(aim.whole.trials) for aim in view.aims)
    if drawn == total:
        return ""
    return f" Of {total:,} trials {drawn:,} are drawn: the best, and others spread evenly."


# -- the best so far -------------------------------------------------------------------------------


def history(view: View) -> Drawing | None:
    """Every trial's score as a dot, and the best so far as a line; over time or trials."""
    panels = [_history(aim) for aim in view.aims]
    if not panels:
        return None
    note = "Each dot is a trial, at the time of its newest score; the line is the best dot so far."
    note += _crosses(view) + _of_all(view, view.most)
    note += "".join(aim.frame.note for aim in view.aims)
    return {"note": note, "panels": panels}


def _history(aim: Aim) -> Panel:
    """The panel of one aim."""
    account = aim.drawn
    times = _times(aim.whole)
    scored = [row for row in account.trials if row.scored]
    groups = [
        ("trials", [row for row in scored if row.status != "running"], DOT),
        ("under way", [row for row in scored if row.status == "running"], UNDER_WAY),
        ("failed", _failed(account), CROSS),
    ]
    groups = [group for group in groups if group[1]]
    end, unit = aim.whole.chart.end, time_unit(aim.whole.chart.end - aim.whole.chart.start)
    last = max((row.number for row in aim.whole.trials), default=0) + 1
    by_time = _steps(aim.whole, lambda row: times[row.id] / unit[0], end / unit[0])
    by_number = _steps(aim.whole, lambda row: row.number + 1, last)
    traces = [
        _dots(aim, rows, [times[row.id] / unit[0] for row in rows], marker, name=name)
        for name, rows, marker in groups
    ]
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "best so far",
            **by_time,
            "line": {"color": BASE[1], "width": 2.4, "shape": "hv"},
            "hoverinfo": "skip",
        }
    )
    numbers = [{"x": [row.number + 1 for row in rows]} for _, rows, _ in groups]
    time_title = f"{unit[1]} of the study"
    views = [
        {"name": "time", "title": time_title, "traces": [{}] * len(traces)},
        {"name": "trials", "title": "trial", "traces": [*numbers, by_number]},
    ]
    figure = {
        "data": traces,
        "layout": layout(
            380,
            xaxis=axis(time_title, rangemode="tozero"),
            yaxis=aim.frame.axis(account),
            hovermode="closest",
            showlegend=True,
            legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            margin={"l": 60, "r": 20, "t": 34, "b": 48},
        ),
    }
    return {**_panel(aim, figure), "views": views}


def _dots(aim: Aim, rows: Rows, across: Sequence[float], marker: Look, **more: Any) -> Look:
    """Trials that look alike, each at its score; those that failed where there is none."""
    return {
        "type": "scatter",
        "mode": "markers",
        **more,
        "x": across,
        "y": [aim.frame.floor if row.status == "failed" else row.last for row in rows],
        "marker": marker,
        "customdata": _numbers(rows),
        "hovertemplate": HOVER,
    }


def _times(account: Account) -> dict[TrialId, Seconds]:
    """When each trial's newest score came; of one without a score, when it ended."""
    curves = account.curves.get(account.metric or "", {})
    times = {}
    for row in account.trials:
        points = curves.get(row.id)
        if points and row.scored:
            times[row.id] = points[-1].time
        else:
            times[row.id] = row.end or row.start or account.chart.start
    return times


def _steps(account: Account, place: Callable[[TrialRow], float], end: float) -> Look:
    """The best score so far, where it changes, up to the end."""
    better: Callable[[float, float], bool] = float.__lt__
    if account.mode == "max":
        better = float.__gt__
    xs: list[float] = []
    ys: list[float] = []
    for row in sorted((row for row in account.trials if row.scored), key=place):
        score = float(row.last or 0.0)
        if not ys or better(score, ys[-1]):
            xs.append(place(row))
            ys.append(score)
    return {"x": [*xs, max(end, xs[-1])], "y": [*ys, ys[-1]]}


# -- importances -----------------------------------------------------------------------------------


def importances(view: View) -> Drawing | None:
    """How much each hyper-parameter matters."""
    aims = [aim for aim in view.aims if aim.varying]
    if not aims:
        return None
    notes = []
    panels = []
    for aim in aims:
        name = f"{printable(aim.name)}: " if aim.name else ""
        notes.append(name + _importance_note(aim))
        if aim.importance is not None:
            panels.append(_panel(aim, _importance_bars(aim.importance)))
    return {"note": " ".join(notes), "panels": panels}


def _importance_note(aim: Aim) -> str:
    """Who says so and of how many trials; or why nothing is said."""
    found = aim.importance
    if found is None:
        count = len(scored_rows(aim.whole))
        if count >= LEAST:
            return "The trials with a score so far have the same hyper-parameters."
        return f"To tell what matters takes {LEAST} trials with a score; there are {count}."
    of = plural(found.trials, "trial")
    if found.trials < found.scored:
        of = f"{found.trials:,} of {found.scored:,} trials with a score"
    text = f"Parts of 1, by {found.by}, from the ranks of the scores of {of}."
    if found.unclear:
        return (
            f"{text} No hyper-parameter tells good trials from bad ones here: a forest grown on "
            "some of the trials does not predict the others. Read nothing into the order."
        )
    share = f"{100 * found.explained:.0f} %"
    return f"{text} A forest predicts {share} of the variance of trials it has not seen."


def _importance_bars(found: Importance) -> Figure:
    """A bar for each hyper-parameter, the most important above."""
    shown = list(found.parts.items())[:BARS]
    shown.reverse()
    places = list(range(len(shown)))
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [part for _, part in shown],
        "y": places,
        "text": [f"{part:.2f}" if part >= 0.005 else "< 0.01" for _, part in shown],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": BASE[0], "opacity": 0.45 if found.unclear else 1},
        "hovertemplate": "%{text}<extra></extra>",
    }
    names = [escape(_short(name, 30)) for name, _ in shown]
    shape = layout(
        26 * len(shown) + 76,
        bargap=0.35,
        showlegend=False,
        xaxis=axis("importance", rangemode="tozero", range=[0, 1.12 * max(found.parts.values())]),
        yaxis=axis(tickvals=places, ticktext=names, showgrid=False, ticks="", fixedrange=True),
        margin={"l": 60, "r": 30, "t": 12, "b": 48},
    )
    if not max(found.parts.values()):
        shape["xaxis"]["range"] = [0, 1]
    return {"data": [trace], "layout": shape}


# -- parallel coordinates --------------------------------------------------------------------------


def parallel(view: View) -> Drawing | None:
    """Every scored trial as a line across its hyper-parameters to its score.

    charts.js draws the lines, the axes beside each other or, on a narrow page, below. (Plotly's own
    parallel coordinates need WebGL and programs made as they run, which the live page forbids.)
    None where there is nothing to compare.
    """
    panels = []
    note = "Every line is a trial; drag across an axis to pick a range, double-click to see all."
    for aim in view.aims:
        account = aim.drawn.sampled(DOTS, BEST)
        rows = [row for row in account.ranked() if row.scored]
        if len(rows) < 2 or not aim.varying:
            continue
        important = {each.name for each in aim.by_importance[:AXES]}
        chosen = [each for each in aim.varying if each.name in important]
        if len(chosen) < len(aim.varying):
            note += f" Of {len(aim.varying)} hyper-parameters {len(chosen)} are drawn."
        rows.reverse()  # so that the best are drawn on top
        panels.append({"title": printable(aim.name), "lines": _lines(aim, rows, chosen)})
    if not panels:
        return None
    return {"note": note + _of_all(view, min(view.most, DOTS)), "panels": panels}


def _lines(aim: Aim, rows: Rows, chosen: Sequence[Parameter]) -> dict[str, Any]:
    """The lines of these trials: of each axis its ticks, and where each trial crosses it, 0 to 1.

    `shades`: of each trial, which of the `colours` it has, the best last.
    """
    score = _score_axis(aim, rows)
    good = score["at"] if aim.drawn.mode == "max" else [1 - at for at in score["at"]]
    return {
        "axes": [*(_parallel_axis(each, rows) for each in chosen), score],
        "customdata": _numbers(rows),
        "shades": [min(SHADES - 1, int(at * SHADES)) for at in good],
        "colours": [_between(SCALE, shade / (SHADES - 1)) for shade in range(SHADES)],
    }


def _between(scale: Sequence[tuple[float, str]], part: float) -> str:
    """The colour there."""
    for (low, colour), (high, other) in pairwise(scale):
        if part <= high:
            return mix(colour, other, (part - low) / (high - low))
    return scale[-1][1]


def _score_axis(aim: Aim, rows: Rows) -> dict[str, Any]:
    """The axis of the scores; what lies outside the usual range ends at an end."""
    scores = [float(row.last or 0.0) for row in rows]
    usual = drawable(scores)
    low, high = min(usual, default=0.0), max(usual, default=0.0)
    scores = [min(max(score, low), high) for score in scores]
    settings = aim.frame.settings
    ticks = None
    if settings.get("type") == "log":
        scores = [log10(score) for score in scores]
        ticks = _log_ticks(min(scores), max(scores))
    low, high = settings.get("range", (min(scores), max(scores)))
    scores = [min(max(score, low), high) for score in scores]
    return _placed(aim.drawn.metric or "", scores, ticks)


def _parallel_axis(parameter: Parameter, rows: Rows) -> dict[str, Any]:
    """One of the axes; trials without the hyper-parameter stand below the others."""
    has = [row.id for row in rows if row.id in parameter.values]
    places = [parameter.place(trial) for trial in has] or [0.0]
    low, high = min(places), max(places)
    below = low - 0.14 * (high - low or 1.0)
    values = [parameter.place(row.id) if row.id in parameter.values else below for row in rows]
    ticks = _ticks(parameter, has)
    if len(has) < len(rows):
        at, texts = ticks or _even_ticks(low, high)
        ticks = [below, *at], [DASH, *texts]
    return _placed(parameter.name, values, ticks)


def _placed(name: str, values: Sequence[float], ticks: Ticks | None) -> dict[str, Any]:
    """An axis with its values and ticks from 0 to 1."""
    low, high = min(values), max(values)
    length = high - low

    def part(value: float) -> float:
        return round((value - low) / length, 4) if length else 0.5

    at, texts = ticks or _even_ticks(low, high)
    marks = [(part(value), text) for value, text in zip(at, texts, strict=True)]
    marks = [mark for mark in marks if -0.01 <= mark[0] <= 1.01]
    return {"name": escape(_short(name, 40)), "ticks": marks, "at": [part(each) for each in values]}


def _even_ticks(low: float, high: float) -> Ticks:
    """Ticks at round numbers, and at both ends."""
    length = high - low
    if not length:
        return [low], [number(low)]
    step = 10.0 ** floor(log10(length / 3))
    step *= next(times for times in (1, 2, 5, 10) if length / (step * times) <= 5)
    inner = [n * step for n in range(ceil(low / step), floor(high / step) + 1)]
    inner = [at for at in inner if min(at - low, high - at) > 0.08 * length]
    places = [low, *inner, high]
    return places, [number(place, 3) for place in places]


# -- ticks -----------------------------------------------------------------------------------------


def _ticks(parameter: Parameter, trials: Iterable[TrialId]) -> Ticks | None:
    """Ticks at the values where they are few, at decades on a log axis.

    They are places on a linear axis. None: as plotly likes.
    """
    if parameter.scale == "category":
        stride = -(-len(parameter.categories) // NAMED)
        places = [float(place) for place in range(0, len(parameter.categories), stride)]
        return places, [escape(_short(text, 18)) for text in parameter.categories[::stride]]
    values = {parameter.values[trial] for trial in trials}
    numbers = sorted(value for value in values if not isinstance(value, str))
    if parameter.scale == "log":
        places = [log10(value) for value in numbers]
        if len(numbers) > FEW:
            return _log_ticks(places[0], places[-1])
        return places, [number(value) for value in numbers]
    if len(numbers) <= FEW:
        return numbers, [number(value) for value in numbers]
    return None


def _log_ticks(low: float, high: float) -> Ticks:
    """Both ends, and the whole decades that are not too near to an end."""
    decades = range(int(low) - 1, int(high) + 2)
    near = max(0.15, 0.12 * (high - low))
    stride = max(1, round((high - low) / 6))
    inner = [at for at in decades if min(at - low, high - at) > near][::stride]
    places = [low, *map(float, inner), high]
    return places, [number(10**place, 2) for place in places]


def _short(text: str, limit: int) -> str:
    """The text, cut to so many characters."""
    if len(text) <= limit:
        return text
    return text[: limit - 1] + "…"


# -- slices ----------------------------------------------------------------------------------------


def slices(view: View) -> Drawing | None:
    """The score over each hyper-parameter, the best as a star; None: there is nothing to draw."""
    panels = []
    left_out = 0
    for aim in view.aims:
        chosen = aim.by_importance[:SLICES]
        left_out += len(aim.varying) - len(chosen)
        account = aim.drawn.sampled(DOTS, BEST)
        panels += [_panel(aim, _slice(aim, account, parameter)) for parameter in chosen]
    if not panels:
        return None
    note = "The star is the best trial." + _crosses(view) + _of_all(view, min(view.most, DOTS))
    if left_out:
        note += f" {plural(left_out, 'hyper-parameter')} of less importance are left out."
    note += "".join(aim.frame.note for aim in view.aims)
    return {"note": note, "panels": panels}


def _slice(aim: Aim, account: Account, parameter: Parameter) -> Figure:
    """The scores over one hyper-parameter."""
    layers: list[tuple[list[TrialRow], Look]] = [
        ([row for row in account.trials if row.scored], DOT),
        (_failed(account), CROSS),
        ([row for row in (account.best(),) if row is not None], STAR),
    ]
    traces = []
    for group, marker in layers:
        rows = [row for row in group if row.id in parameter.values]
        if rows:
            traces.append(_dots(aim, rows, [_across(parameter, row) for row in rows], marker))
    shape = layout(
        270,
        showlegend=False,
        xaxis=_parameter_axis(parameter),
        yaxis=aim.frame.axis(account, nticks=6),
        hovermode="closest",
        margin={"l": 56, "r": 14, "t": 12, "b": 46},
    )
    return {"data": traces, "layout": shape}


def _across(parameter: Parameter, row: TrialRow) -> float:
    """Where a trial stands over a parameter.

    Over a category it stands aside, by -0.15 to 0.15 of its width, so that trials do not hide each
    other.
    """
    value = parameter.values[row.id]
    if not isinstance(value, str):
        return value
    return parameter.place(row.id) + (row.number * 0.618 % 1 - 0.5) * 0.3


def _parameter_axis(parameter: Parameter) -> Look:
    """The x axis of a slice."""
    x_axis = axis(_short(parameter.name, 40))
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


# -- the table -------------------------------------------------------------------------------------


class Chart(NamedTuple):
    """A drawing of both pages. `make` returns None where there is nothing to draw."""

    section: str  # its anchor, of SECTIONS
    title: str  # empty: the section's
    make: Callable[[View], Drawing | None]


SECTIONS = {"history": "Best so far", "configs": "Configuration and score"}
CHARTS: Mapping[str, Chart] = {
    "history": Chart("history", "", history),
    "importances": Chart("configs", "Importance of hyper-parameters", importances),
    "parallel": Chart("configs", "All hyper-parameters at once", parallel),
    "slices": Chart("configs", "Score over each hyper-parameter", slices),
}
"""The drawings of scores by name, in their order on both pages."""


def titles(section: str, names: Container[str] = CHARTS) -> dict[str, str]:
    """The titles of a section's drawings by their names. `names`: only these."""
    return {
        name: CHARTS[name].title
        for name in CHARTS
        if name in names and CHARTS[name].section == section
    }
