"""The tables of docs/packing.md, made from the results of `packing.py`; needs no torch.

`python tools/figures.py --write` puts them into the page.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

# Not from `common`: the folder papers/ has a module of that name, too.
RESULTS = Path(__file__).resolve().parent / "results"


STEPS = 20  # of a cell
FEWEST = 6  # turns of a pair; fewer have no interval of 95 %
CLOSE = 0.05  # a pair's IMPV is known once its interval reaches no further than this
WAYS = ("sequential", "processes", "interleaved", "fused")  # and "chosen"
GPU_WAYS = ("sequential", "processes", "processes, MPS", "interleaved", "streams", "fused")


def markdown(name: str, folder: Path) -> str:
    """All tables of the results of that name in the folder, as far as they are there, with heads.

    Raises:
        FileNotFoundError: there are none.
    """
    parts = [cells_markdown(name, folder)]
    for heading, of_results in (
        ("Against plain PyTorch loops", plain_markdown),
        ("Pairs of models, by the paper's five factors", pairs_markdown),
        ("Where pairs gained", gained_markdown),
        ("Switching", switching_markdown),
    ):
        with suppress(FileNotFoundError):
            parts.append(f"### {heading}\n\n{of_results(name, folder)}")
    return "\n".join(parts)


def cells_markdown(name: str = "packing", folder: Path = RESULTS) -> str:
    """The cells: each net, number of models and batch size, by the way they train."""
    found = read(name, folder)
    ratios, rows = found["ratios"], found["rows"]
    ways = [*(way for way in GPU_WAYS if way in rows[0]), "chosen"]
    on_gpu = ratios["device"] != "the CPU"
    means = "one GPU" if on_gpu else "one thread on one core"
    heads = ["net", "models", "batch", *ways, "choice", "chosen / best", "sequential / chosen"]
    lines = [
        [r["net"], r["models"], r["batch"], *(ms(r, how) for how in ways), *_rest(r)] for r in rows
    ]
    if on_gpu:
        heads.insert(3, "one model")
        for line, row in zip(lines, rows, strict=True):
            line.insert(3, short(1e3 * row["alone"]))
    return _joined(
        f"{found['machine']['cpu']}, {ratios['device']}, torch {found['versions']['torch']}; "
        f"{means}. Milliseconds for {STEPS} steps of all models; the best way is bold, a losing "
        "fused one in italics.",
        _summary(ratios, rows),
        table(heads, lines),
    )


def plain_markdown(name: str = "packing", folder: Path = RESULTS) -> str:
    """The chosen way beside plain loops of PyTorch."""
    rows = read(f"{name}-plain", folder)["rows"]
    names = [name for name in rows[0] if name != "batch"]
    return _joined(
        "The goal is to be three times as fast as one after the other with these models. The "
        "sequential way is Shoal's own, by Adam's fused kernel; a plain loop with torch's defaults "
        "takes longer. Milliseconds, medians of 15 rounds.",
        table(names, [[short(_thousandths(name, row[name])) for name in names] for row in rows]),
    )


def switching_markdown(name: str = "packing", folder: Path = RESULTS) -> str:
    """What it takes to change from one model to another, and to part a pack."""
    rows = read(f"{name}-switching", folder)["rows"]
    return _joined(
        "SwOH (eq. 4) is what two models one after the other, on a slot that has seen neither, "
        "take beyond the sum of their epochs, here of 2000 images. The last column is what it "
        "takes to part eight fused models and to fuse them again.",
        table(list(rows[0]), [[short(x) for x in row.values()] for row in rows]),
    )


def read(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """The results of that name."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


def _joined(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"


def gpu_markdown() -> str:
    """The part of docs/packing.md about GPUs: what `gpu.py` has written, device by device."""
    files = sorted(RESULTS.glob("gpu/*/items.json"))
    if not files:
        return "Not measured yet.\n"
    return "\n\n".join(map(_of_device, files)).rstrip() + "\n"


def _of_device(path: Path) -> str:
    """What came of the items on one device with one version of torch."""
    found = json.loads(path.read_text())
    place = found["place"]
    lines = [[name, _outcome(said)] for name, said in found["items"].items()]
    parts = [
        f"### {place['device']}, torch {place['torch']}",
        f"Python {place['python']}, without Ray.",
        table(["item of `benchmarks/gpu.py`", "what came of it"], lines),
    ]
    with suppress(FileNotFoundError):
        parts.append(_key_cells(json.loads((path.parent / "packing-key.json").read_text())))
    with suppress(FileNotFoundError):
        parts.append(markdown("packing-gpu", path.parent).rstrip())
    return "\n\n".join(parts)


def _key_cells(found: dict[str, Any]) -> str:
    """The cells that are timed first."""
    ways = ("sequential", "interleaved", "streams", "fused", "chosen")
    lines = [
        [*(row["net"], row["models"]), *(ms(row, way, row["steps"]) for way in ways), *_rest(row)]
        for row in found["rows"]
        if row["rounds"]
    ]
    heads = ["net", "models", *ways, "choice", "chosen / best", "sequential / chosen"]
    return "Milliseconds for a step of all models, batch 32:\n\n" + table(heads, lines)


def _outcome(said: dict[str, Any]) -> str:
    """A step's result in a cell of a table."""
    words = said["result"] if said["ok"] else f"**not ok**: {said['result']}"
    return " ".join([words, *(f"`{name}`" for name in said.get("failed", ()))])


def _summary(ratios: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """How well Shoal chose, and how often fusing lost."""
    done = [row for row in rows if row["rounds"]]
    if not done:
        return "No cell was measured."
    lost = [row for row in done if (row["fused_over_sequential"] or 0.0) > 1]
    words = (
        f"Shoal's choice took at most {ratios['chosen_over_best']:.2f} of the best way's time "
        f"({ratios['chosen_over_best_at']}). Fusing all lost to the sequential way in {len(lost)} "
        f"of {len(done)} cells."
    )
    if ratios["left_out"]:
        left = ratios["left_out"]
        words += f" {left} cells were left out: each way would have taken too long."
    return words


def _thousandths(name: str, value: Any) -> Any:
    """Seconds as milliseconds; ratios and numbers as they are."""
    return 1e3 * value if isinstance(value, float) and "/" not in name else value


def _rest(row: dict[str, Any]) -> list[str]:
    if not row["rounds"]:
        return [row["note"], "", ""]
    return [row["choice"], f"{row['chosen_over_best']:.2f}", f"{row['sequential_over_chosen']:.2f}"]


def ms(row: dict[str, Any], how: str, steps: int = 1) -> str:
    """Bold for the best way; what loses to the sequential way is in italics. Of `steps` one."""
    value = row.get(how)
    if value is None:
        return ""
    text = short(1e3 * value / steps)
    if how == row["best"]:
        return f"**{text}**"
    return f"*{text}*" if how == "fused" and value > row["sequential"] else text


def is_cut_short(row: dict[str, Any]) -> bool:
    """Whether a pair's interval reaches further than was asked for: its time was over."""
    widest = max(row["high"] - row["impv"], row["impv"] - row["low"])
    return bool(row["turns"] < FEWEST or widest > CLOSE)


def pairs_markdown(name: str = "packing", folder: Path = RESULTS) -> str:
    """What pairs gained, by the factors in which they differ."""
    rows = read(f"{name}-pairs", folder)["rows"]
    factors = ("model", "data", "preprocessing", "optimizer", "batch")
    means = []
    for factor in factors:
        for level in dict.fromkeys(row[factor] for row in rows):
            values = [row["impv"] for row in rows if row[factor] == level]
            worse = sum(value < 0 for value in values)
            spread = [f"{x:+.0%}" for x in (sum(values) / len(values), min(values), max(values))]
            means.append([factor, level, len(values), *spread, worse])
    heads = ["pair", *factors, "T_s(Seq) ms", "T_s(Pack) ms", "IMPV", "95 %", "turns"]
    cells = [
        [
            r["pair"],
            *(r[f] for f in factors),
            short(1e3 * r["seq"]),
            short(1e3 * r["pack"]),
            f"{r['impv']:+.0%}",
            f"{r['low']:+.0%} to {r['high']:+.0%}",
            r["turns"],
        ]
        for r in rows
    ]
    return _joined(
        "IMPV (eq. 3) is the part of the sequential time that packing saves. "
        "Over all pairs at each level of a factor:",
        table(["factor", "level", "cells", "mean IMPV", "least", "most", "slower"], means),
        "All pairs. Times are those of a step at batch 32:",
        table(heads, cells),
    )


def gained_markdown(name: str = "packing", folder: Path = RESULTS) -> str:
    """How many pairs gain and lose for sure, by what their models share."""
    rows = read(f"{name}-pairs", folder)["rows"]
    lines = []
    for data in ("same", "different"):
        for prepared in ("yes", "no"):
            cells = [r for r in rows if (r["data"], r["preprocessing"]) == (data, prepared)]
            told = [row["pack?"] for row in cells]
            middle = median(row["impv"] for row in cells)
            counts = [told.count(verdict) for verdict in ("yes", "no", "either")]
            lines.append([data, prepared, len(cells), f"{middle:+.0%}", *counts])
    cut = sum(map(is_cut_short, rows))
    known = (
        "Every interval reaches at most 5 points to each side."
        if not cut
        else f"Of {len(rows)} intervals {cut} reach further than 5 points to a side."
    )
    heads = ["data", "preprocessing", "cells", "median IMPV", "gain", "lose", "either"]
    return _joined(
        "A pair gains or loses where the whole interval of its IMPV lies on one side of 0. "
        f"Otherwise it may be either. {known}",
        table(heads, lines),
    )


def four_markdown() -> str:
    """The tables of the paper's four nets, from what `packing_four.py` has written."""
    found = read("packing_four")
    batches = [key for key in found["rows"][0] if key.startswith("GiB at ")]
    heads = ["net", "parameters", *batches, "two at 32", "two in turns at 32"]
    memory = [
        [
            row["net"],
            f"{row['parameters']:_}".replace("_", " "),
            *(f"{row[key]:.2f}" for key in batches),
            f"{row['two at 32, GiB']:.2f}",
            f"{row['two in turns at 32, GiB']:.2f}",
        ]
        for row in found["rows"]
    ]
    timed = [_four_times(row) for row in found["rows"] if "SwOH s" in row]
    return (
        "\n\n".join(
            [
                "GiB that the tensors of a training step hold at most, with Adam:",
                table(heads, memory),
                f"Seconds on {found['ratios']['device']}, one thread, of two models with so many "
                "images. IMPV is against one after the other, in brackets the least and most of "
                "three turns:",
                table(list(timed[0]), [list(line.values()) for line in timed]),
            ]
        )
        + "\n"
    )


def _four_times(row: dict[str, Any]) -> dict[str, Any]:
    line = {key: row[key] for key in ("net", "batch", "images")}
    line |= {key: short(row[key]) for key in ("Seq s", "Single s", "SwOH s")}
    for how in ("interleaved", "fused"):
        line[how] = ""
        if row[f"IMPV, {how}"] is not None:
            middle, low, high = (row[f"IMPV, {how}"], row[f"{how}, low"], row[f"{how}, high"])
            line[how] = f"{middle:+.0%} ({low:+.0%} to {high:+.0%})"
    return line


def table(heads: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(x) for x in line) + " |" for line in lines)


def short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# What stands in the page, by the names of its places there.
TABLES = {
    "cells": cells_markdown,
    "plain": plain_markdown,
    "pairs": pairs_markdown,
    "gained": gained_markdown,
    "switching": switching_markdown,
    "four": four_markdown,
    "gpu": gpu_markdown,
}
