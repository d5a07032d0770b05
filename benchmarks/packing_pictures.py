"""The pictures of docs/packing.md, as SVG, from the results that its tables show.

`python tools/figures.py --write` puts them into docs/assets/packing-*.svg, between the marks there.
Grey text and lines can be read on a light page and on a dark one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import log2
from typing import Any

from packing_page import read

GREY, FAINT = "#75808f", "#75808f55"
SHADES = {32: "#0f9d8a", 64: "#3987e5", 128: "#9a6bdc", 256: "#d9702b"}  # by batch size
GAIN, LOSS = "#0f9d8a", "#d9702b"
Point = tuple[float, float]


def text(at: Point, words: Any, anchor: str = "middle", size: int = 12, colour: str = GREY) -> str:
    x, y = at
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{colour}" '
        f'font-family="system-ui, sans-serif">{words}</text>'
    )


def line(start: Point, end: Point, colour: str = FAINT, width: float = 1) -> str:
    (x1, y1), (x2, y2) = start, end
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width:g}"/>'
    )


def curve(points: Sequence[Point], colour: str) -> list[str]:
    """A line through the points, and a dot at each."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    return [drawn, *(dot(point, colour) for point in points)]


def dot(at: Point, colour: str, radius: float = 3) -> str:
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:g}" fill="{colour}"/>'


def bar(left: float, top: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{colour}" rx="2"/>'
    )


def legend(left: float, top: float, entries: Iterable[tuple[str, str]]) -> list[str]:
    """Colours and what they mean, in a row."""
    parts = []
    for colour, words in entries:
        parts += [dot((left, top - 4), colour, 5), text((left + 10, top), words, "start")]
        left += 34 + 6.6 * len(words)
    return parts


def speed() -> str:
    """How many times as fast as one after the other: a panel for each net. 860 x 560."""
    rows = read("packing")["rows"]
    nets, counts = [list(dict.fromkeys(row[key] for row in rows)) for key in ("net", "models")]
    parts = legend(70, 20, [(colour, f"batch {batch}") for batch, colour in SHADES.items()])
    width, height, least, most = 225, 190, 0.8, 10.5
    for place, net in enumerate(nets):
        left, top = 55 + place % 3 * 275, 65 + place // 3 * 265

        def x(models: int, left: float = left) -> float:
            return left + width * (log2(models) - 1) / (log2(counts[-1]) - 1)

        def y(ratio: float, top: float = top) -> float:
            return top + height * (1 - log2(ratio / least) / log2(most / least))

        parts.append(text((left, top - 12), net, "start", 14))
        for tick in (1, 2, 4, 8):
            parts.append(
                line((left, y(tick)), (left + width, y(tick)), GREY if tick == 1 else FAINT)
            )
            parts.append(text((left - 8, y(tick) + 4), f"{tick}×", "end"))
        parts += [text((x(count), top + height + 18), count) for count in counts]
        for batch, colour in SHADES.items():
            cells = [row for row in rows if (row["net"], row["batch"]) == (net, batch)]
            ratios = [(row["models"], row["sequential_over_chosen"]) for row in cells]
            parts += curve([(x(models), y(ratio)) for models, ratio in ratios if ratio], colour)
    parts.append(text((440, 552), "models that train together"))
    return "\n".join(parts)


def pairs() -> str:
    """What 96 pairs gained, with the interval of each. 860 x 330."""
    rows = read("packing-pairs")["rows"]
    colours = {"yes": GAIN, "either": GREY, "no": LOSS}
    words = ("gains for sure", "may be either", "loses for sure")
    parts = legend(60, 20, zip(colours.values(), words, strict=True))
    parts.append(text((850, 20), "time saved against one after the other", "end"))

    def y(part: float) -> float:
        return 215 - 400 * part

    for tick in (-0.1, 0, 0.1, 0.2, 0.3):
        parts.append(line((50, y(tick)), (850, y(tick)), FAINT if tick else GREY))
        parts.append(text((44, y(tick) + 4), f"{tick:.0%}", "end"))
    for place, (data, prepared) in enumerate(product(("same", "different"), ("yes", "no"))):
        cells = [r for r in rows if (r["data"], r["preprocessing"]) == (data, prepared)]
        left = 62 + 200 * place
        for number, row in enumerate(sorted(cells, key=lambda row: row["impv"])):
            at, colour = left + 7.4 * number, colours[row["pack?"]]
            parts.append(line((at, y(row["low"])), (at, y(row["high"])), colour, 1.5))
            parts.append(dot((at, y(row["impv"])), colour))
        kind = "prepared in each pass" if prepared == "yes" else "nothing to prepare"
        parts.append(text((left + 85, 296), f"{data} data", size=13))
        parts.append(text((left + 85, 314), kind))
    return "\n".join(parts)


def memory() -> str:
    """Memory of two models by how they train, beside one. 860 x 285."""
    keys = ("GiB at 32", "two in turns at 32, GiB", "two at 32, GiB")
    shades = dict(zip(keys, (GREY, SHADES[64], LOSS), strict=True))
    words = ("one model", "two that take turns", "two in one step")
    parts = legend(60, 20, zip(shades.values(), words, strict=True))
    for tick in (0, 2, 4, 6, 8):
        parts.append(
            line((50, 250 - 25 * tick), (850, 250 - 25 * tick), GREY if not tick else FAINT)
        )
        parts.append(text((44, 254 - 25 * tick), tick, "end"))
    parts.append(text((14, 20), "GiB", "start"))
    for place, row in enumerate(read("packing_four")["rows"]):
        left = 80 + 200 * place
        for number, (key, colour) in enumerate(shades.items()):
            height = 25 * row[key]
            parts.append(bar(left + 50 * number, 250 - height, 40, height, colour))
            parts.append(text((left + 50 * number + 20, 244 - height), f"{row[key]:.1f}"))
        parts.append(text((left + 70, 272), row["net"], size=13))
    return "\n".join(parts)


PICTURES = {"speed": speed, "pairs": pairs, "memory": memory}
