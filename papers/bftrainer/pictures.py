"""BFTrainer's Figures 7 to 9, 11, 13, 14 and 16 from papers/results/bftrainer.json, on one page.

`python papers/bftrainer/pictures.py OUT.html`; needs plotly.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

PALETTE = ("#4363d8", "#e6692d", "#7b3fa0", "#2e8b57", "#1f9fb5", "#b0305c")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "bftrainer.json"
TITLE = "BFTrainer, replayed by Shoal. U: samples, over those of as many static nodes"
Rows = dict[str, dict[str, Any]]
Line = tuple[str, list[float], list[float]]  # its name, x, y


def curve(rows: Rows, pattern: str, key: str = "ours") -> tuple[list[float], list[float]]:
    """The rows whose names match, by the number in the pattern's group."""
    found = [(re.fullmatch(pattern, what), row[key]) for what, row in rows.items() if key in row]
    points = sorted((float(match[1]), value) for match, value in found if match)
    return [x for x, _ in points], [y for _, y in points]


def pictures(rows: Rows) -> Iterable[tuple[str, str, list[Line]]]:
    """Title, what x is, and lines of each picture."""
    seconds = "forward time, s"
    rescaled = curve(rows, r"Fig\. 7 \(b\), (\d+) s, samples an event")
    yield "Fig. 7 (b): rescaling, samples an event", seconds, [("MILP", *rescaled)]
    returned = curve(rows, r"Fig\. 8, (\d+) s", "return")
    yield "Fig. 8: samples for each that rescaling cost", seconds, [("MILP", *returned)]
    accountings = ("authors' accounting", "completion events")
    used = [(name, *curve(rows, rf"Fig\. 9, (\d+), {name}")) for name in accountings]
    yield "Fig. 9: U", seconds, used
    for letter, name in (("a", "preemption"), ("b", "rescaling")):
        row = rows[f"Fig. 11 ({letter}), {name}, heuristic / MILP"]
        bins = [(who, row[f"{who}, samples by six hours"]) for who in ("heuristic", "MILP")]
        lines = [(who, [6.0 * i for i in range(len(ys))], ys) for who, ys in bins]
        yield f"Fig. 11 ({letter}): {name}, samples", "hours", lines
    objectives = ("throughput", "efficiency")
    lines = [(name, *curve(rows, r"Fig\. 13, (\d+) s", name)) for name in objectives]
    yield "Fig. 13: U by objective", seconds, lines
    for key in ("node-hours", "mean hours", "U"):
        pattern = r"Fig\. 14, {}, (\d+) in parallel"
        lines = [(name, *curve(rows, pattern.format(name), key)) for name in objectives]
        yield f"Fig. 14: {key}", "trials in parallel", lines
    yield (
        "Fig. 16: U",
        "rescaling costs, times the measured ones",
        [("MILP", *curve(rows, r"Fig\. 16, costs x(\d+)"))],
    )


def page(rows: Rows) -> go.Figure:
    drawn = list(pictures(rows))
    figure = make_subplots(
        rows=-(-len(drawn) // 2),
        cols=2,
        subplot_titles=[t for t, _, _ in drawn],
        vertical_spacing=0.07,
    )
    colours: dict[str, str] = {}  # one for each name, on all pictures
    for i, (_, what, lines) in enumerate(drawn):
        place = {"row": i // 2 + 1, "col": i % 2 + 1}
        for name, x, y in lines:
            known = name in colours
            colour = colours.setdefault(name, PALETTE[len(colours) % len(PALETTE)])
            figure.add_scatter(
                x=x,
                y=y,
                name=name,
                legendgroup=name,
                showlegend=not known,
                line={"color": colour},
                mode="lines+markers",
                **place,
            )
        figure.update_xaxes(title_text=what, **place)
    return figure.update_layout(
        title={"text": TITLE, "y": 0.985},
        margin={"t": 150},
        height=330 * -(-len(drawn) // 2),
        template="plotly_white",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: pictures.py OUT.html")
    listed = json.loads(RESULTS.read_text())["rows"]
    page({row["what"]: row for row in listed}).write_html(sys.argv[1], include_plotlyjs=True)
