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


Found = Mapping[str, Any]  # what `profile.profiled` returns
KindFigures = Mapping[str, Any]  # one of its kinds
Config = Mapping[str, Any]


def lines(found: Found) -> list[str]:
    """The figures for people: a table for each kind, times in milliseconds a step."""
    shown: list[str] = []
    for kind in found["kinds"]:
        shown += [*_kind_lines(kind), ""]
    if found["feeders"]:
        shown += _feeder_lines(found)
    shown += _sharing_lines(found)
    return shown


def _sharing_lines(found: Found) -> list[str]:
    """A remark if slots had to share CPUs."""
    widest = 1
    for kind in found["kinds"]:
        widest = max([widest, *kind["widths"]])
    if found["device"] == "cuda" or widest * found["threads"] <= found["cpus"]:
        return []
    threads = plural(found["threads"], "thread")
    cpus = plural(found["cpus"], "CPU")
    return ["", f"{widest} slots of {threads} share {cpus}."]


def _kind_lines(kind: KindFigures) -> Iterator[str]:
    """The table of a kind, what else was measured, and why it failed."""
    yield _title(kind)
    if kind["widths"]:
        yield _line(HEADS)
    for width, row in sorted(kind["widths"].items()):
        yield _width_line(width, row)
    if kind["figures"]:
        costs = [f"{name} {_cost(name, x)}" for name, x in kind["figures"].items()]
        yield ", ".join(costs)
    if kind["failed"]:
        yield f"failed: {kind['failed']}"


def _title(kind: KindFigures) -> str:
    """The kind's signature, its number of trials, and one of them."""
    title = f"{kind['signature']}: {plural(len(kind['configs']), 'trial')}"
    example = config_text(kind["configs"][0], 60)
    if example:
        title += f", for example {example}"
    return title


def _width_line(width: int, row: Mapping[str, float]) -> str:
    """Milliseconds of a step's parts at this width, and what comes of them."""
    times = [_milliseconds(row.get(name)) for name in (*CAUSES, "total")]
    efficiency = f"{row['efficiency']:.2f}"
    return _line([str(width), *times, count(row["rate"]), efficiency])


def _milliseconds(seconds: float | None) -> str:
    """A time of the table; a dash for None."""
    if seconds is None:
        return DASH
    return f"{1000 * seconds:.2f}"


def _line(cells: Sequence[str]) -> str:
    """A line of a table."""
    return "".join(f"{cell:>11}" for cell in cells)


def _cost(name: str, value: float) -> str:
    """What one slot costs: memory is in GiB, all else in seconds."""
    if name == "memory":
        return size(value * 2**30)
    return duration(value)


def _feeder_lines(found: Found) -> Iterator[str]:
    """What feeders prepare, and how many are needed."""
    yield _line(("feeders", "samples/s"))
    for number, rate in found["feeders"].items():
        yield _line((str(number), count(rate)))
    needed = _needed(found["needed"])
    yield f"feeders needed, whichever kinds train on one slot each: {needed}"


def _needed(feeders: int | None) -> str:
    """How many feeders are needed; None: more than were tried."""
    if feeders is None:
        return "more than were tried"
    return str(feeders)


def chart(found: Found) -> Figure | None:
    """Samples/s against width, a line for each kind, as FLEET's figure 9.

    Dotted: so many times what one slot makes.

    None: nothing was timed at more than one width.
    """
    timed = [kind for kind in found["kinds"] if len(kind["widths"]) > 1]
    if not timed:
        return None
    lines: list[dict[str, Any]] = []
    for number, (kind, config) in enumerate(zip(timed, _short_configs(timed), strict=True)):
        widths = sorted(kind["widths"])
        rates = [kind["widths"][width]["rate"] for width in widths]
        ideal = [rates[0] * width / widths[0] for width in widths]
        name = config_text(config, 40) or kind["signature"]
        colour = BASE[number % len(BASE)]
        lines.append(_curve(escape(name), colour, widths, rates))
        lines.append(_curve(escape(name), colour, widths, ideal, ideal=True))
    ticks = sorted({width for kind in timed for width in kind["widths"]})
    shape = layout(
        420,
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        margin={"l": 60, "r": 20, "t": 60, "b": 48},
        xaxis=axis("slots", tickvals=ticks),
        yaxis=axis("samples/s", rangemode="tozero"),
    )
    return {"data": lines, "layout": shape}


def _curve(
    name: str,
    colour: str,
    widths: Sequence[int],
    rates: Sequence[float],
    ideal: bool = False,
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


def write_page(found: Found, path: str | Path) -> Path | None:
    """Write the chart and its figures as a page; None: there is nothing to draw.

    Raises:
        OSError: the file cannot be written.
    """
    drawn = chart(found)
    if drawn is None:
        return None
    heads = ("kind", "for example", "slots", "samples/s", "efficiency", "step, ms")
    rows: list[Cells] = [
        [
            of_code(kind["signature"]),
            config_text(kind["configs"][0], 60),
            of_number(width),
            of_count(row["rate"]),
            Cell(f"{row['efficiency']:.2f}", row["efficiency"]),
            Cell(_milliseconds(row.get("total")), row.get("total")),
        ]
        for kind in found["kinds"]
        for width, row in sorted(kind["widths"].items())
    ]
    text = (
        "A line for each kind of trial, as measured; dotted: what it would be if more slots "
        "cost nothing."
    )
    remarks = [note(line) for line in _sharing_lines(found) if line]
    title = "Rates against width"
    heading = plain_heading(title, plural(len(found["kinds"]), "kind"))
    parts = [
        Section("rates", "Samples/s", [note(text), drawing("rates"), *remarks]),
        Section("figures", "Figures", [table(heads, rows, sortable=True)]),
    ]
    target = Path(path)
    target.write_text(document(title, heading, parts, {"rates": drawn}), encoding="utf-8")
    return target


def write(found: Found, path: str | Path) -> Path:
    """Write a profile for `profile=` and `shoal simulate`.

    It has a row for each kind, with the values of a configuration on which its speed depends.

    Raises:
        OSError: the file cannot be written.
    """
    timed = [kind for kind in found["kinds"] if kind["widths"]]
    text = _remarks(found)
    for config, kind in distinct_configs(timed):
        text += ["", *_toml_row(config, kind)]
    target = Path(path)
    target.write_text("\n".join(text) + "\n", encoding="utf-8")
    return target


def _remarks(found: Found) -> list[str]:
    """The comments at the head of a profile."""
    threads = plural(found["threads"], "thread")
    text = [f"# made by shoal profile, on {found['device']}, {threads} a slot"]
    for number, rate in found["feeders"].items():
        text.append(f"# {plural(number, 'feeder')}: {rate:.6g} samples/s")
    return text


def _toml_row(config: Config, kind: KindFigures) -> Iterator[str]:
    """The lines of a profile's row: its trials, samples/s by width, what one slot costs."""
    yield "[[rows]]"
    yield f"config = {toml(config)}"
    points = []
    for width, row in sorted(kind["widths"].items()):
        points.append(f"{width} = {row['rate']:.6g}")
    yield f"points = {{ {', '.join(points)} }}"
    for name, value in kind["figures"].items():
        yield f"{name} = {float(value):.6g}"


def distinct_configs(
    kinds: Sequence[KindFigures],
) -> Iterator[tuple[Config, KindFigures]]:
    """Kinds with the values that tell them apart.

    Values that differ within a kind are left out. If two kinds are then alike, both have a row for
    each of their configurations, with all values.
    """
    short = _short_configs(kinds)
    for kind, config in zip(kinds, short, strict=True):
        if short.count(config) == 1:
            yield config, kind
            continue
        for each in kind["configs"]:
            yield each, kind


def _short_configs(kinds: Sequence[KindFigures]) -> list[Config]:
    """A configuration of each kind, without the values that differ within some kind."""
    tuned = set(TUNING)
    for kind in kinds:
        tuned |= _differing(kind["configs"])
    return [_without(kind["configs"][0], tuned) for kind in kinds]


def _differing(configs: Sequence[Config]) -> set[str]:
    """The names whose values are not as in the first configuration."""
    first = configs[0]
    names: set[str] = set()
    for config in configs:
        names |= {name for name in config if config[name] != first.get(name)}
    return names


def _without(config: Config, names: set[str]) -> Config:
    return {name: value for name, value in config.items() if name not in names}


def toml(value: Any) -> str:
    """A value as TOML writes it; it has no None."""
    if isinstance(value, Mapping):
        return _toml_table(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def _toml_table(values: Mapping[str, Any]) -> str:
    """An inline table of the values that are not None."""
    given = [_toml_pair(*item) for item in values.items() if item[1] is not None]
    return "{ " + ", ".join(given) + " }"


def _toml_pair(name: str, value: Any) -> str:
    """A name and its value, within an inline table."""
    return f"{json.dumps(name)} = {toml(value)}"
