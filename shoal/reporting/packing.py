"""The table of what packing gained, for the report's page."""

from collections.abc import Mapping
from typing import Any

from shoal.core.trial import Seconds
from shoal.reporting.facts.format import DASH, duration, escape, plural
from shoal.reporting.facts.metrics import Account
from shoal.reporting.facts.rows import first_config
from shoal.reporting.tables import folded, table

Figures = Mapping[str, float]  # measured, by name
Ways = dict[str, tuple[int, Seconds]]  # how many trials, and what their steps take

FUSED = "fused:"  # begins the names of figures: seconds of one common step of so many trials
HEADS = (
    "signature",
    "for example",
    "trials together",
    "seconds a step",
    "IMPV",
    "seconds a switch",
    "seconds a re-packing",
)
TEXT = (
    "<p>Trials that share a slot share its chunks of data, and wait for them once; "
    "they take turns, or those of one graph train in one step. "
    "IMPV: the part of the time saved against training them one after the other, "
    "by what was measured on their own first steps, the wait for data included; "
    "where a common step does not take 3 % less than theirs, the wait aside, they take turns. "
    "A switch: to put a trial's state onto a slot, as between trials that are not packed. "
    "A re-packing: to fuse the trials of a pack anew when one came or went.</p>"
)


def packs(account: Account) -> str:
    """What packing gained on this machine; nothing if none was tried.

    A row for each signature and number of trials. Liu et al. 2020: the improvement IMPV (eq. 3)
    against the same trials one after the other, and what a switch costs (eq. 4).
    """
    rows: list[list[Any]] = []
    trials = account.by_signature()
    for signature in account.figures:
        example = first_config(trials.get(signature, ()), 60)
        rows += _rows(account, signature, example)
    if not rows:
        return ""

    body = table(HEADS, rows, sortable=True)
    return TEXT + folded(f"{plural(len(rows), 'way')} to train them", body, len(rows))


def _rows(account: Account, signature: str, example: str) -> list[list[Any]]:
    """The rows of one signature: its trials alone if they cannot be fused, then together."""
    figures = account.figures[signature]
    code = (f"<code>{escape(signature)}</code>", signature, "html")
    first = [code, example]
    switch = figures.get("switch", figures.get("build"))
    last = [_seconds(switch), _seconds(figures.get("repack"))]
    middles = [*_alone(figures), *_together(figures, account.chart.shared)]
    return [[*first, *middle, *last] for middle in middles]


UNFUSABLE = ("steps cannot be fused", None)


def _alone(figures: Figures) -> list[list[Any]]:
    """Steps of one trial, if they cannot be fused: the width, what a step takes, the gain."""
    step = figures.get("step")
    if not step or "unfusable" not in figures:
        return []
    took = _seconds(step + _wait(figures))
    return [[("1", 1), took, UNFUSABLE]]


def _together(figures: Figures, shared: bool) -> list[list[Any]]:
    """The ways to train trials together, the fewest trials first. `shared`: they shared a slot."""
    step = figures.get("step")
    wait = _wait(figures)
    cells = []
    ways = _ways(figures, shared)
    for name, (width, took) in sorted(ways.items(), key=lambda way: way[1][0]):
        gain = _gain(took + wait, width, step, wait)
        cells.append([(name, width), _seconds(took + wait), gain])
    return cells


def _wait(figures: Figures) -> Seconds:
    """How long a step waits for its batch of data."""
    step = figures.get("step") or 0.0
    return figures.get("data", 0.0) * figures.get("rate", 0.0) * step


def _ways(figures: Figures, shared: bool) -> Ways:
    """The ways to train trials together: how many trials, and the seconds of their steps."""
    ways = _fused(figures)
    step = figures.get("step")
    if shared and step and _wait(figures):
        widths = {2}
        widths.update(width for width, _ in ways.values())
        for width in widths:
            ways[f"{width} in turn"] = (width, width * step)
    return ways


def _fused(figures: Figures) -> Ways:
    """The common steps that were measured."""
    ways: Ways = {}
    for name, took in figures.items():
        if name.startswith(FUSED):
            width = int(name.removeprefix(FUSED))
            ways[f"{width} in a step"] = (width, took)
    return ways


def _gain(took: Seconds, width: int, step: Seconds | None, wait: Seconds) -> tuple[str, Any]:
    """The part of the time that is saved against `width` trials one after the other."""
    if not step:
        return DASH, None
    gain = 1.0 - took / (width * (step + wait))
    return f"{100 * gain:+.0f} %", gain


def _seconds(length: Seconds | None) -> tuple[str, Seconds | None]:
    """A cell of the table."""
    return duration(length), length
