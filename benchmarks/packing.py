"""Several models on one slot: one after the other, in processes of their own, interleaved, fused, and as Shoal's pack chooses.

A cell is one net, so many models of it, one batch size: Adam, 20 steps of every model, over made-up images of 8x8 (64 inputs).
All ways have the same means, one thread on one core (on a GPU: that GPU); they are timed side by side, each round in an order
drawn anew (a way that always follows the same other one finds its caches always in the same state), after a warm-up in which what
Shoal chooses is settled, and compared round by round. A cell whose choice looks slower than the best way by more than 5 % is
timed again with models made anew (where they lie in memory makes 10 %), three times, if it still does four times more, and then
16 times; all rounds count. Cells whose sequential passes would take longer than `--longest` are left out and listed as such. Then
plain PyTorch loops beside Shoal, pairs of models by the paper's five factors, and what switching costs.

    python benchmarks/packing.py [--quick] [--device cuda] [--longest 0.6]
    python benchmarks/packing.py --add --models 64 --longest 4 --parts cells     # what the results lack of these cells
    python benchmarks/packing.py --again --nets CNN --models 4 --parts cells     # these again; without either, all begin anew
    python benchmarks/packing.py --markdown docs/packing.md     # the tables again, from the results
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import torch
from common import RESULTS, machine, versions, write
from packing_nets import NETS, ON_CPU, STEPS, Images, configs
from packing_pairs import pairs, switching
from packing_plain import plain
from packing_ways import MOST_PROCESSES, Crew, Lanes, Processes, settle_down

WAYS = ("sequential", "processes", "interleaved", "fused")  # and "chosen"
MODELS, BATCHES = (2, 4, 8, 16, 32, 64), (32, 64, 128, 256)
PARTS = ("cells", "plain", "pairs", "switching")
ROUNDS, LOOKS, SLACK = 5, (1, 4, 8, 24), 1.05  # looked at after so many makings


def cell(net: str, models: int, batch: int, crew: Crew, args: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    device = args.device
    row: dict[str, Any] = {"net": net, "models": models, "batch": batch}
    empty = dict.fromkeys(
        (*WAYS, "chosen", "choice", "best", "chosen_over_best", "sequential_over_chosen", "fused_over_sequential")
    )
    recipe, given = Images(NETS[net].shape, STEPS * batch), configs(net, models, batch)
    alone = one_alone(recipe, given[0], device)
    if alone * models > args.longest:
        return row | empty | {"rounds": 0, "note": f"left out: sequential takes about {alone * models:.2g} s"}
    times: dict[str, list[float]] = {}
    choices: dict[str, None] = {}
    order = Random(f"{net} {models} {batch}")
    for made in range(args.makings):
        if made and made in LOOKS and over_best(times) <= SLACK:
            break
        ways: dict[str, Any] = {
            how: Lanes(recipe, given, how, device) for how in ("sequential", "interleaved", "fused", "chosen")
        }
        ways["processes"] = Processes(crew, recipe, given, device)
        try:
            for way in ways.values():
                way.settle()
            why = ways["fused"].unfusable()
            if why is not None:
                ways.pop("fused")
            for how, seconds in timed(ways, args.rounds, order).items():
                times.setdefault(how, []).extend(seconds)
            choices[f"fused by {width}" if (width := ways["chosen"].width()) > 1 else "interleaved"] = None
        finally:
            ways["processes"].close()
    least = best(times)
    return row | {
        **{how: median(times[how]) if how in times else None for how in (*WAYS, "chosen")},
        "choice": ", ".join(choices),
        "best": least,
        "chosen_over_best": over_best(times),
        "sequential_over_chosen": against(times, "sequential", "chosen"),
        "fused_over_sequential": against(times, "fused", "sequential") if "fused" in times else None,
        "rounds": len(times["chosen"]),
        "note": "" if why is None else f"not fused: {why}",
    }


def one_alone(recipe: Images, config: dict[str, Any], device: str) -> float:
    """Seconds of one model's 20 steps."""
    lanes = Lanes(recipe, [config], "sequential", device)
    return min(lanes.visit() for _ in range(3))


def timed(ways: dict[str, Any], rounds: int, order: Random) -> dict[str, list[float]]:
    """Seconds of each way in each round, the order drawn anew."""
    times: dict[str, list[float]] = {how: [] for how in ways}
    gc.disable()
    try:
        for _ in range(rounds):
            for how in order.sample(list(ways), len(ways)):
                ways[how].ready()
                times[how].append(ways[how].visit())
    finally:
        gc.enable()
    return times


def best(times: dict[str, list[float]]) -> str:
    """The quickest way but Shoal's own choice."""
    return min((how for how in WAYS if how in times), key=lambda how: median(times[how]))


def against(times: dict[str, list[float]], one: str, other: str) -> float:
    """How many times as long the one takes: the median over rounds, for a round's ways see the same weather."""
    return median(a / b for a, b in zip(times[one], times[other], strict=True))


def over_best(times: dict[str, list[float]]) -> float:
    return against(times, "chosen", best(times))


def goals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The ratios that the benchmark is for; a goal that cannot be judged from these rows is missing."""
    done = [row for row in rows if row["rounds"]]
    found: dict[str, Any] = {"cells": len(done), "left_out": len(rows) - len(done)}
    if done:
        worst = max(done, key=lambda row: row["chosen_over_best"])
        found["chosen_over_best"] = worst["chosen_over_best"]
        found["chosen_over_best_goal"] = SLACK
        found["chosen_over_best_at"] = named(worst)
        found["chosen_over_best_above_goal"] = [named(row) for row in done if row["chosen_over_best"] > SLACK]
    small = [r for r in done if r["net"] in ("MLP-3 x16", "MLP-3 x64") and r["models"] >= 16 and r["batch"] == 32]
    if small:
        found["sequential_over_chosen"] = min(row["sequential_over_chosen"] for row in small)
        found["sequential_over_chosen_goal"] = 3.0
        found["sequential_over_chosen_at"] = named(min(small, key=lambda row: row["sequential_over_chosen"]))
    return found


def named(row: dict[str, Any]) -> str:
    return f"{row['net']}, {row['models']} models, batch {row['batch']}"


def measure(args: argparse.Namespace) -> None:
    cpu = args.device == "cpu"
    core = max(os.sched_getaffinity(0)) if cpu and hasattr(os, "sched_getaffinity") else None
    name = ("packing" if cpu else "packing-gpu") + ("-quick" if args.quick else "")
    if "cells" in args.parts:
        crew = Crew(2 if args.quick else MOST_PROCESSES, core)
        settle_down(core)
        try:
            cells(args, crew, name)
        finally:
            crew.close()
    settle_down(core)
    if "plain" in args.parts:
        found = plain(args.device, args.quick)
        least = {how: min(row[f"{how} / chosen"] for row in found) for how in ("plain", "plain, fused Adam", "sequential")}
        write(f"{name}-plain", found, {f"{how}, least over chosen": ratio for how, ratio in least.items()})
    if "pairs" in args.parts:
        two = pairs(args.device, args.quick)
        write(f"{name}-pairs", two, {"pairs_slower": sum(row["impv"] < 0 for row in two), "pairs": len(two)})
    if "switching" in args.parts:
        write(f"{name}-switching", switching(args.device, args.quick), {})


def cells(args: argparse.Namespace, crew: Crew, name: str) -> None:
    """Time them, and write what there is after each one: a run that is cut, or made in parts, loses nothing."""
    cpu = args.device == "cpu"
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = {"rows": [], "ratios": {}}
    if (args.add or args.again) and path.exists():
        found = json.loads(path.read_text())
        if (found["machine"], found["versions"]) != (machine(), versions()):
            raise SystemExit(f"{path.name} is of another machine or other versions; without --add they begin anew")
    ratios: dict[str, Any] = {"minutes": found["ratios"].get("minutes", 0.0)}
    rows = {(row["net"], row["models"], row["batch"]): row for row in found["rows"]}

    def save() -> None:
        given = sorted(rows.values(), key=lambda row: (list(NETS).index(row["net"]), row["models"], row["batch"]))
        ratios.update(goals(given), device="the CPU" if cpu else torch.cuda.get_device_name())
        write(name, given, ratios)

    nets = args.nets or (["MLP-3 x16", "CNN"] if args.quick else ON_CPU if cpu else list(NETS))
    models, batches = ((2, 16), (32,)) if args.quick else (MODELS, BATCHES)
    for at in product(nets, args.models or models, args.batches or batches):
        if at in rows and rows[at]["rounds"] and not args.again:
            continue
        begin = perf_counter()
        row = cell(*at, crew, args)
        if row["rounds"] or not rows.get(at, row)["rounds"]:  # one left out now says nothing against one that was measured
            rows[at] = row
        ratios["minutes"] += (perf_counter() - begin) / 60
        print(told(row), flush=True)
        with redirect_stdout(StringIO()):
            save()
    save()


def told(row: dict[str, Any]) -> str:
    if not row["rounds"]:
        return f"{named(row):38} {row['note']}"
    times = "  ".join(f"{how} {1e3 * row[how]:.1f}" if row[how] else f"{how} -" for how in (*WAYS, "chosen"))
    return f"{named(row):38} ms: {times}  {row['choice']}, {row['chosen_over_best']:.3f} of best, {row['rounds']} rounds"


# -- the page ----------------------------------------------------------------------------------------------------------


def markdown(name: str) -> str:
    """The tables of docs/packing.md, from the results of that name.

    Raises:
        FileNotFoundError: there are none.
    """
    found = json.loads((RESULTS / f"{name}.json").read_text())
    ratios, rows = found["ratios"], found["rows"]
    done = [row for row in rows if row["rounds"]]
    lost = [row for row in done if row["fused_over_sequential"] and row["fused_over_sequential"] > 1]
    parts = [
        f"{found['machine']['cpu']}, {ratios['device']}, torch {found['versions']['torch']}; one thread on one core. "
        f"Milliseconds for {STEPS} steps of all models; the best way is bold, a losing fused one in italics.",
        f"Shoal's choice took at most {ratios['chosen_over_best']:.2f} of the best way's time ({ratios['chosen_over_best_at']}). "
        f"Fusing all lost to the sequential way in {len(lost)} of {len(done)} cells."
        + (f" {ratios['left_out']} cells were left out: each way would have taken too long." if ratios["left_out"] else ""),
        table(
            ["net", "models", "batch", *WAYS, "chosen", "choice", "chosen / best", "sequential / chosen"],
            [[r["net"], r["models"], r["batch"], *(ms(r, how) for how in (*WAYS, "chosen")), *_rest(r)] for r in rows],
        ),
    ]
    with suppress(FileNotFoundError):
        loops = json.loads((RESULTS / f"{name}-plain.json").read_text())["rows"]
        names = [name for name in loops[0] if name != "batch"]
        parts += [
            "### Against plain PyTorch loops",
            "The goal is to be three times as fast as one after the other with these models. The sequential way is Shoal's own, "
            "by Adam's fused kernel; a plain loop with torch's defaults takes longer. Milliseconds, medians of 15 rounds.",
            table(names, [[short(_thousandths(name, row[name])) for name in names] for row in loops]),
        ]
    with suppress(FileNotFoundError):
        two = json.loads((RESULTS / f"{name}-pairs.json").read_text())["rows"]
        parts += ["### Pairs of models, by the paper's five factors", *_pairs(two)]
        cost = json.loads((RESULTS / f"{name}-switching.json").read_text())["rows"]
        parts += [
            "### Switching",
            "SwOH (eq. 4): what two models one after the other, on a slot that has seen neither, take beyond the sum of their "
            "epochs, here of 2000 images; and what it takes to part eight fused models and to fuse them again.",
            table(list(cost[0]), [[short(x) for x in row.values()] for row in cost]),
        ]
    return "\n\n".join(parts) + "\n"


def _thousandths(name: str, value: Any) -> Any:
    """Seconds as milliseconds; ratios and numbers as they are."""
    return 1e3 * value if isinstance(value, float) and "/" not in name else value


def _rest(row: dict[str, Any]) -> list[str]:
    if not row["rounds"]:
        return [row["note"], "", ""]
    return [row["choice"], f"{row['chosen_over_best']:.2f}", f"{row['sequential_over_chosen']:.2f}"]


def ms(row: dict[str, Any], how: str) -> str:
    """Bold for the best way; what loses to the sequential way is in italics."""
    value = row.get(how)
    if value is None:
        return ""
    text = short(1e3 * value)
    if how == row["best"]:
        return f"**{text}**"
    return f"*{text}*" if how == "fused" and value > row["sequential"] else text


def _pairs(rows: Sequence[dict[str, Any]]) -> list[str]:
    factors = ("model", "data", "preprocessing", "optimizer", "batch")
    means = []
    for factor in factors:
        for level in dict.fromkeys(row[factor] for row in rows):
            values = [row["impv"] for row in rows if row[factor] == level]
            worse = sum(value < 0 for value in values)
            spread = [f"{x:+.0%}" for x in (sum(values) / len(values), min(values), max(values))]
            means.append([factor, level, len(values), *spread, worse])
    heads = ["pair", *factors, "T_s(Seq) ms", "T_s(Pack) ms", "IMPV"]
    cells = [
        [r["pair"], *(r[f] for f in factors), short(1e3 * r["seq"]), short(1e3 * r["pack"]), f"{r['impv']:+.0%}"] for r in rows
    ]
    return [
        "IMPV (eq. 3) is the part of the sequential time that packing saves. Over all pairs at each level of a factor:",
        table(["factor", "level", "cells", "mean IMPV", "least", "most", "slower"], means),
        "All of them; a step is one at batch 32:",
        table(heads, cells),
    ]


def table(heads: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(x) for x in line) + " |" for line in lines)


def short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="a few cells, to see that it works")
    parser.add_argument("--longest", type=float, help="seconds of a sequential pass, above which a cell is left out")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--nets", nargs="*", choices=list(NETS))
    parser.add_argument("--models", type=int, nargs="*")
    parser.add_argument("--batches", type=int, nargs="*")
    parser.add_argument("--makings", type=int, default=max(LOOKS), help="how often at most a cell's models are made anew")
    parser.add_argument("--add", action="store_true", help="to the results there are, the cells that they lack")
    parser.add_argument("--again", action="store_true", help="to the results there are, these cells, also those that they have")
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--markdown", type=Path, help="put the tables of the last results between this page's marks")
    args = parser.parse_args()
    if args.makings < 1 or args.rounds < 1:
        parser.error("--makings and --rounds must be >= 1")
    if args.quick:
        args.rounds, args.makings = 2, 1
    if args.longest is None:
        args.longest = 0.6 if args.device == "cpu" else 3.0
    if args.markdown is None:
        measure(args)
        return
    for name in ("packing", "packing-gpu"):
        with suppress(FileNotFoundError):
            include(args.markdown, name, markdown(name))


def include(page: Path, name: str, text: str) -> None:
    """Put the text between <!-- name --> and <!-- end of name -->."""
    before, mark, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not (mark and end):
        raise SystemExit(f"{page} has no place for the tables: <!-- {name} --> … <!-- end of {name} -->")
    page.write_text(before + mark + "\n" + text + "\n" + end + after)
    print(f"written: {name} into {page}")


if __name__ == "__main__":
    main()
