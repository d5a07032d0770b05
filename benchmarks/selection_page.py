"""Cerebro's Figures 7 to 11, in kind, from results/model_selection.json, on one page.

`python benchmarks/selection_page.py OUT.html`; needs plotly.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import plotly.graph_objects as go
from common import RESULTS
from plotly.subplots import make_subplots

PALETTE = {"hop": "#4363d8", "copies": "#e6692d", "ddp": "#7b3fa0", "averaging": "#2e8b57"}
Line = tuple[str, list[Any], list[float]]  # its way, x, y


def pictures(found: Mapping[str, Any]) -> Iterable[tuple[str, str, list[Line]]]:
    """Title, what x is, and lines of each picture."""
    rows, remote = found["rows"], found["remote"]
    details = {(each["way"], each["slots"]): each for each in found["runs"]}
    most = max(row["slots"] for row in rows)
    of = {way: [row for row in rows if row["way"] == way] for way in PALETTE}
    at = {way: next(r for r in of[way] if r["slots"] == most) for way in PALETTE}
    for key, what in (
        ("epoch_s", "seconds an epoch"),
        ("sent_MB", "MB sent"),
        ("utilisation", "share of time in training"),
    ):
        lines = [
            (way, [r["slots"] for r in each], [r[key] for r in each]) for way, each in of.items()
        ]
        yield f"Fig. 7, 8: {what}", "slots", lines
    accuracy = [
        (way, list(range(1, len(r["mean_accuracy"]) + 1)), r["mean_accuracy"])
        for way, r in at.items()
    ]
    yield f"Fig. 7: mean accuracy, {most} slots", "epochs", accuracy
    for key, what in (
        ("seconds_by_batch", "seconds a model's epoch"),
        ("accuracy_by_batch", "best accuracy"),
    ):
        figures = {way: details[way, most][key] for way in PALETTE}
        lines = [(way, [*each], [*each.values()]) for way, each in figures.items()]
        yield f"Fig. 9: {what}, {most} slots", "batch size", lines
    for key, what in (("fetched_MB", "MB fetched"), ("epoch_s", "seconds an epoch, with fetching")):
        lines = []
        for way in ("hop", "copies"):
            mine = [row for row in remote if row["way"] == way]
            lines.append((way, [r["replicas"] for r in mine], [r[key] for r in mine]))
        yield f"Fig. 10, 11: {what}", "nodes at which a shard lies", lines


def page(found: Mapping[str, Any]) -> go.Figure:
    drawn = list(pictures(found))
    figure = make_subplots(
        rows=-(-len(drawn) // 2),
        cols=2,
        subplot_titles=[t for t, _, _ in drawn],
        vertical_spacing=0.09,
    )
    for i, (_, what, lines) in enumerate(drawn):
        place = {"row": i // 2 + 1, "col": i % 2 + 1}
        for way, x, y in lines:
            figure.add_scatter(
                x=x,
                y=y,
                name=way,
                legendgroup=way,
                showlegend=i == 0,
                line={"color": PALETTE[way]},
                mode="lines+markers",
                **place,
            )
        measured = sorted({value for _, x, _ in lines for value in x})
        figure.update_xaxes(title_text=what, tickvals=measured, **place)
    return figure.update_layout(height=330 * -(-len(drawn) // 2), template="plotly_white")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: selection_page.py OUT.html")
    found = json.loads((RESULTS / "model_selection.json").read_text())
    page(found).write_html(sys.argv[1], include_plotlyjs=True)
