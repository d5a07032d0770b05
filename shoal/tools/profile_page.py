"""What `shoal profile` shows and writes: tables, a page with a chart, and a profile as TOML."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.profile.signatures import TUNING
from shoal.reporting.charts import BASE, Figure, axis, layout
from shoal.reporting.format import DASH, count, duration, escape, plural, size
from shoal.reporting.format import config as config_text
from shoal.reporting.html import document, plain_heading
from shoal.reporting.sections import (
    Cell,
    Cells,
    Section,
    drawing,
    note,
    of_code,
    of_config,
    of_count,
    of_number,
    table,
)

# The parts of a step.
CAUSES = ("forward", "backward", "reduce", "step", "data")
HEADS = (
    "width",
    "forward",
    "backward",
    "all-reduce",
    "optimizer",
    "data",
    "step ms",
    "samples/s",
    "efficiency",
)


ProfileFigures = Mapping[str, Any]  # what `profile.profiled` returns
KindFigures = Mapping[str, Any]  # one of its kinds
Config = Mapping[str, Any]


def lines(figures: ProfileFigures) -> list[str]:
    """The figures for people: a table for each kind, times in milliseconds a step."""
    shown: list[str] = []
    for kind in figures["kinds"]:
        shown += [*_kind_lines(kind), ""]
    if figures["feeders"]:
        shown.append(_line(("feeders", "samples/s")))
        shown += [_line((str(n), count(rate))) for n, rate in figures["feeders"].items()]
        needed = "more than were tried" if figures["needed"] is None else figures["needed"]
        shown.append(f"feeders needed, whichever kinds train on one slot each: {needed}")
    shown += _sharing_lines(figures)
    return shown


def _sharing_lines(figures: ProfileFigures) -> list[str]:
    """A remark if slots had to share CPUs."""
    widest = 1
    for kind in figures["kinds"]:
        widest = max([widest, *kind["widths"]])
    if figures["device"] == "cuda" or widest * figures["threads"] <= figures["cpus"]:
        return []
    threads = plural(figures["threads"], "thread")
    cpus = plural(figures["cpus"], "CPU")
    return ["", f"{widest} slots of {threads} share {cpus}."]


def _kind_lines(kind: KindFigures) -> Iterator[str]:
    """The table of a kind, what else was measured, and why it failed."""
    title = f"{kind['signature']}: {plural(len(kind['configs']), 'trial')}"
    example = config_text(kind["configs"][0], 60)
    yield f"{title}, for example {example}" if example else title
    if kind["widths"]:
        yield _line(HEADS)
    for width, row in sorted(kind["widths"].items()):
        times = [_milliseconds(row.get(name)) for name in (*CAUSES, "total")]
        yield _line([str(width), *times, count(row["rate"]), f"{row['efficiency']:.2f}"])
    costs = dict(kind["figures"])
    texts = {name: duration(value) for name, value in costs.items()}
    if "memory" in costs:  # in GiB
        texts["memory"] = size(costs["memory"] * 2**30)
    if costs:
        yield ", ".join(f"{name} {text}" for name, text in texts.items())
    if kind["failed"]:
        yield f"failed: {kind['failed']}"


def _step(seconds: float | None) -> Cell:
    """The time of a step as a cell, in milliseconds as the head of its column says."""
    return Cell(_milliseconds(seconds), None if seconds is None else 1000 * seconds)


def _milliseconds(seconds: float | None) -> str:
    """A time of the table; a dash for None."""
    if seconds is None:
        return DASH
    return f"{1000 * seconds:.2f}"


def _line(cells: Sequence[str]) -> str:
    """A line of a table."""
    return "".join(f"{cell:>11}" for cell in cells)


def chart(figures: ProfileFigures) -> Figure | None:
    """Samples/s against width, a line for each kind, as FLEET's figure 9.

    Dotted: so many times what one slot makes.

    None: nothing was timed at more than one width.
    """
    timed = [kind for kind in figures["kinds"] if len(kind["widths"]) > 1]
    if not timed:
        return None
    curves: list[dict[str, Any]] = []
    for number, (kind, config) in enumerate(zip(timed, _short_configs(timed), strict=True)):
        widths = sorted(kind["widths"])
        rates = [kind["widths"][width]["rate"] for width in widths]
        ideal = [rates[0] * width / widths[0] for width in widths]
        name = config_text(config, 40) or kind["signature"]
        colour = BASE[number % len(BASE)]
        curves.append(_curve(escape(name), colour, widths, rates))
        curves.append(_curve(escape(name), colour, widths, ideal, ideal=True))
    ticks = sorted({width for kind in timed for width in kind["widths"]})
    shape = layout(
        420,
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        margin={"l": 60, "r": 20, "t": 60, "b": 48},
        xaxis=axis("slots", tickvals=ticks),
        yaxis=axis("samples/s", rangemode="tozero"),
    )
    return {"data": curves, "layout": shape}


def _curve(
    name: str, colour: str, widths: Sequence[int], rates: Sequence[float], ideal: bool = False
) -> dict[str, Any]:
    """The rates of a kind as measured; or those it would have if slots cost nothing."""
    curve: dict[str, Any] = {
        "type": "scatter",
        "name": name,
        "legendgroup": name,
        "showlegend": not ideal,
        "x": widths,
        "y": rates,
        "mode": "lines" if ideal else "lines+markers",
        "line": {"color": colour, "dash": "dot" if ideal else "solid"},
        "hoverinfo": "skip" if ideal else "all",
    }
    if ideal:
        curve["line"]["width"] = 1
    else:
        curve["hovertemplate"] = f"{name}<br>%{{y:.4g}} samples/s on %{{x}}<extra></extra>"
    return curve


def write_page(figures: ProfileFigures, path: str | Path) -> Path | None:
    """Write the chart and its figures as a page; None: there is nothing to draw.

    Raises:
        OSError: the file cannot be written.
    """
    drawn = chart(figures)
    if drawn is None:
        return None
    heads = ("kind", "for example", "slots", "samples/s", "efficiency", "step, ms")
    rows: list[Cells] = [
        [
            of_code(kind["signature"]),
            of_config(kind["configs"][0]),
            of_number(width),
            of_count(row["rate"]),
            Cell(f"{row['efficiency']:.2f}", row["efficiency"]),
            _step(row.get("total")),
        ]
        for kind in figures["kinds"]
        for width, row in sorted(kind["widths"].items())
    ]
    text = (
        "A line for each kind of trial, as measured; dotted: what it would be if more slots "
        "cost nothing."
    )
    remarks = [note(line) for line in _sharing_lines(figures) if line]
    title = "Rates against width"
    heading = plain_heading(title, plural(len(figures["kinds"]), "kind"))
    parts = [
        Section("rates", "Samples/s", [note(text), drawing("rates"), *remarks]),
        Section("figures", "Figures", [table("figures", heads, rows, sortable=True)]),
    ]
    target = Path(path)
    target.write_text(document(title, heading, parts, {"rates": drawn}), encoding="utf-8")
    return target


def write(figures: ProfileFigures, path: str | Path) -> Path:
    """Write a profile for `profile=` and `shoal simulate`.

    It has a row for each kind, with the values of a configuration on which its speed depends.

    Raises:
        OSError: the file cannot be written.
    """
    timed = [kind for kind in figures["kinds"] if kind["widths"]]
    threads = plural(figures["threads"], "thread")
    text = [f"# made by shoal profile, on {figures['device']}, {threads} a slot"]
    for number, rate in figures["feeders"].items():
        text.append(f"# {plural(number, 'feeder')}: {rate:.6g} samples/s")
    for config, kind in distinct_configs(timed):
        points = [f"{width} = {row['rate']:.6g}" for width, row in sorted(kind["widths"].items())]
        text += ["", "[[rows]]", f"config = {toml(config)}", f"points = {{ {', '.join(points)} }}"]
        text += [f"{name} = {float(value):.6g}" for name, value in kind["figures"].items()]
    target = Path(path)
    target.write_text("\n".join(text) + "\n", encoding="utf-8")
    return target


def distinct_configs(kinds: Sequence[KindFigures]) -> Iterator[tuple[Config, KindFigures]]:
    """Kinds with the values that tell them apart.

    Values that differ within a kind are left out. If two kinds are then alike, both have a row for
    each of their configurations, with all values.
    """
    short = _short_configs(kinds)
    for kind, config in zip(kinds, short, strict=True):
        if short.count(config) == 1:
            yield config, kind
            continue
        for full in kind["configs"]:
            yield full, kind


def _short_configs(kinds: Sequence[KindFigures]) -> list[Config]:
    """A configuration of each kind, without the values that differ within some kind."""
    tuned = set(TUNING)
    for kind in kinds:
        first, *others = kind["configs"]
        for config in others:
            tuned |= {name for name in config if config[name] != first.get(name)}
    return [
        {name: value for name, value in kind["configs"][0].items() if name not in tuned}
        for kind in kinds
    ]


def toml(value: Any) -> str:
    """A value as TOML writes it; of a table without what is None, which TOML lacks."""
    if isinstance(value, Mapping):
        pairs = [
            f"{json.dumps(name)} = {toml(cell)}" for name, cell in value.items() if cell is not None
        ]
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)
