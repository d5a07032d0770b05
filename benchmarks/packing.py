"""Several models on one slot: one after the other, in processes of their own, interleaved,
fused, and as Shoal's pack chooses.

A cell is one net, so many models of it, one batch size: Adam, 20 steps of every model, over
made-up images of 8x8 (64 inputs). All ways have the same means, one thread on one core (on a
GPU: that GPU, and two ways more: processes under MPS, and plain loops with a CUDA stream for
each model); they are timed side by side, each round in an order drawn anew (a way that always
follows the same other one finds its caches always in the same state), after a warm-up in which
what Shoal chooses is settled, and compared round by round. A cell whose choice looks slower
than the best way by more than 5 % is timed again with models made anew (where they lie in
memory makes 10 %), three times, if it still does four times more, and then 16 times; all rounds
count. Cells whose sequential passes would take longer than `--longest` are left out and listed
as such. Then plain PyTorch loops beside Shoal, pairs of models by the paper's five factors, and
what switching costs. The paper's own nets are in packing_four.py.

    python benchmarks/packing.py [--quick] [--device cuda] [--longest 0.6]
    # what the results lack of these cells
    python benchmarks/packing.py --add --models 64 --longest 4 --parts cells
    # these again; without either, all begin anew
    python benchmarks/packing.py --again --nets CNN --models 4 --parts cells
    python tools/figures.py --write     # the tables of docs/packing.md again, from the results
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from itertools import product
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import torch
from common import RESULTS, machine, versions, write
from mps import serving
from packing_nets import NETS, ON_CPU, ON_GPU, Images, configs
from packing_page import GPU_WAYS, STEPS, WAYS, is_cut_short
from packing_pairs import pairs, switching
from packing_plain import Streams, plain
from packing_ways import MOST_PROCESSES, Crew, Lanes, Processes, settle_down

MODELS, BATCHES = (2, 4, 8, 16, 32, 64), (32, 64, 128, 256)
GPU_BATCHES = (32, 128)
COMPARED = ("choice", "best", "chosen_over_best", "sequential_over_chosen", "fused_over_sequential")
PARTS = ("cells", "plain", "pairs", "switching")
FEWEST_STEPS = 5  # of a cell that is made shorter
ROUNDS, LOOKS, SLACK = 5, (1, 4, 8, 24), 1.05  # looked at after so many makings


def cell(
    net: str, models: int, batch: int, crews: Mapping[str, Crew], args: argparse.Namespace
) -> dict[str, Any]:
    """One row of the table."""
    device = args.device
    names = WAYS if device == "cpu" else GPU_WAYS
    recipe, given = Images(NETS[net].shape, STEPS * batch), configs(net, models, batch)
    alone = one_alone(recipe, given[0], device)
    steps = STEPS
    if args.shorten and alone * models > args.shorten:
        steps = max(FEWEST_STEPS, int(STEPS * args.shorten / (alone * models)))
        recipe = Images(NETS[net].shape, steps * batch)
    row: dict[str, Any] = {"net": net, "models": models, "batch": batch, "alone": alone}
    if args.shorten:
        row["steps"] = steps
    row |= dict.fromkeys((*names, "chosen", *COMPARED))
    if alone * models > args.longest:
        note = f"left out: sequential takes about {alone * models:.2g} s"
        return row | {"rounds": 0, "note": note}
    times: dict[str, list[float]] = {}
    choices: dict[str, None] = {}
    order = Random(f"{net} {models} {batch}")
    for made in range(args.makings):
        if made and made in LOOKS and over_best(times) <= SLACK:
            break
        ways = make_ways(recipe, given, batch, crews, device, steps)
        try:
            for way in ways.values():
                way.settle()
            why = ways["fused"].unfusable()
            if why is not None:
                ways.pop("fused")
            for how, seconds in timed(ways, args.rounds, order).items():
                times.setdefault(how, []).extend(seconds)
            width = ways["chosen"].width()
            choices[f"fused by {width}" if width > 1 else "interleaved"] = None
        finally:
            for name in crews:
                ways[name].close()
    return row | {
        **{how: median(seconds) for how, seconds in times.items()},
        "choice": ", ".join(choices),
        "best": best(times),
        "chosen_over_best": over_best(times),
        "sequential_over_chosen": against(times, "sequential", "chosen"),
        "fused_over_sequential": against(times, "fused", "sequential")
        if "fused" in times
        else None,
        "rounds": len(times["chosen"]),
        "note": "" if why is None else f"not fused: {why}",
    }


def make_ways(
    recipe: Images,
    given: list[dict[str, Any]],
    batch: int,
    crews: Mapping[str, Crew],
    device: str,
    steps: int = STEPS,
) -> dict[str, Any]:
    """All ways to train these models, by name."""
    ways: dict[str, Any] = {
        how: Lanes(recipe, given, how, device)
        for how in ("sequential", "interleaved", "fused", "chosen")
    }
    if device != "cpu":
        ways["streams"] = Streams(recipe, given, batch, device, steps)
    for name, crew in crews.items():
        ways[name] = Processes(crew, recipe, given, device)
    return ways


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
    return min((how for how in times if how != "chosen"), key=lambda how: median(times[how]))


def against(times: dict[str, list[float]], one: str, other: str) -> float:
    """How many times as long the one takes: the median over rounds, for a round's ways see the
    same weather.
    """
    return median(a / b for a, b in zip(times[one], times[other], strict=True))


def over_best(times: dict[str, list[float]]) -> float:
    return against(times, "chosen", best(times))


def goals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The ratios that the benchmark is for; a goal that cannot be judged from these rows is
    missing.
    """
    done = [row for row in rows if row["rounds"]]
    found: dict[str, Any] = {"cells": len(done), "left_out": len(rows) - len(done)}
    if done:
        worst = max(done, key=lambda row: row["chosen_over_best"])
        found["chosen_over_best"] = worst["chosen_over_best"]
        found["chosen_over_best_goal"] = SLACK
        found["chosen_over_best_at"] = named(worst)
        found["chosen_over_best_above_goal"] = [
            named(row) for row in done if row["chosen_over_best"] > SLACK
        ]
    small = [
        r
        for r in done
        if r["net"] in ("MLP-3 x16", "MLP-3 x64") and r["models"] >= 16 and r["batch"] == 32
    ]
    if small:
        found["sequential_over_chosen"] = min(row["sequential_over_chosen"] for row in small)
        found["sequential_over_chosen_goal"] = 3.0
        found["sequential_over_chosen_at"] = named(
            min(small, key=lambda row: row["sequential_over_chosen"])
        )
    return found


def named(row: dict[str, Any]) -> str:
    return f"{row['net']}, {row['models']} models, batch {row['batch']}"


def measure(args: argparse.Namespace) -> None:
    cpu = args.device == "cpu"
    core = max(os.sched_getaffinity(0)) if cpu and hasattr(os, "sched_getaffinity") else None
    name = args.write or (("packing" if cpu else "packing-gpu") + ("-quick" if args.quick else ""))
    if "cells" in args.parts:
        with ExitStack() as stack:
            crews = {} if args.no_processes else make_crews(args, core, stack)
            settle_down(core)
            cells(args, crews, name)
    settle_down(core)
    if "plain" in args.parts:
        found = plain(args.device, args.quick)
        least = {
            how: min(row[f"{how} / chosen"] for row in found)
            for how in ("plain", "plain, fused Adam", "sequential")
        }
        write(
            f"{name}-plain",
            found,
            {f"{how}, least over chosen": ratio for how, ratio in least.items()},
        )
    if "pairs" in args.parts:
        two = pairs(args.device, args.quick)
        write(
            f"{name}-pairs",
            two,
            {
                "pairs_slower": sum(row["pack?"] == "no" for row in two),
                "pairs_quicker": sum(row["pack?"] == "yes" for row in two),
                "pairs_cut_short": sum(is_cut_short(row) for row in two),
                "pairs": len(two),
            },
        )
    if "switching" in args.parts:
        write(f"{name}-switching", switching(args.device, args.quick), {})


def make_crews(args: argparse.Namespace, core: int | None, stack: ExitStack) -> dict[str, Crew]:
    """The processes of each way that has some; on a GPU, with and without MPS."""
    count = 2 if args.quick else MOST_PROCESSES
    crews = {"processes": Crew(count, core)}
    if args.device != "cpu":
        environment = stack.enter_context(serving())
        if isinstance(environment, str):
            print(f"without MPS: {environment}", flush=True)
        else:
            crews["processes, MPS"] = Crew(count, core, environment)
    for crew in crews.values():
        stack.callback(crew.close)
    return crews


def cells(args: argparse.Namespace, crews: Mapping[str, Crew], name: str) -> None:
    """Time them, and write what there is after each one: a run that is cut, or made in parts,
    loses nothing.
    """
    cpu = args.device == "cpu"
    device = "the CPU" if cpu else torch.cuda.get_device_name()
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = {"rows": [], "ratios": {}}
    if (args.add or args.again) and path.exists():
        found = json.loads(path.read_text())
        if not same_place(found, device):
            raise SystemExit(
                f"{path.name} is of another machine or other versions; without "
                "--add they begin anew"
            )
    ratios: dict[str, Any] = {"minutes": found["ratios"].get("minutes", 0.0)}
    rows = {(row["net"], row["models"], row["batch"]): row for row in found["rows"]}

    def save() -> None:
        given = sorted(
            rows.values(),
            key=lambda row: (list(NETS).index(row["net"]), row["models"], row["batch"]),
        )
        ratios.update(goals(given), device=device, cells_missing=len(wanted - rows.keys()))
        write(name, given, ratios)

    every = cells_of(args)
    wanted = set(every)
    begun = perf_counter()
    for at in every:
        if at in rows and (rows[at]["rounds"] or args.seconds) and not args.again:
            continue
        begin = perf_counter()
        if begin - begun > args.seconds > 0:
            break
        row = cell(*at, crews, args)
        if (
            row["rounds"] or not rows.get(at, row)["rounds"]
        ):  # one left out now says nothing against one that was measured
            rows[at] = row
        ratios["minutes"] += (perf_counter() - begin) / 60
        print(told(row), flush=True)
        with redirect_stdout(StringIO()):
            save()
    save()


def cells_of(args: argparse.Namespace) -> list[tuple[str, int, int]]:
    """What is to be timed. On a GPU small batches and few models come first, for time may be up."""
    cpu = args.device == "cpu"
    nets = args.nets or (ON_CPU if cpu else ON_GPU)
    models, batches = MODELS, BATCHES if cpu else GPU_BATCHES
    if args.quick:
        nets = args.nets or ("MLP-3 x16", "CNN")
        models, batches = (2, 16), (32,)
    listed = list(product(nets, args.models or models, args.batches or batches))
    return listed if cpu else sorted(listed, key=lambda at: (at[2], at[1]))


def same_place(found: dict[str, Any], device: str) -> bool:
    """Whether results are of this machine and these versions; on a GPU of such a one and torch."""
    if found["ratios"].get("device", device) != device:
        return False
    if device != "the CPU":
        return bool(found["versions"].get("torch") == versions().get("torch"))
    return bool(found["versions"] == versions() and found["machine"] == machine())


def told(row: dict[str, Any]) -> str:
    if not row["rounds"]:
        return f"{named(row):38} {row['note']}"
    times = "  ".join(
        f"{how} {1e3 * row[how]:.1f}" if row[how] else f"{how} -"
        for how in (*(name for name in GPU_WAYS if name in row), "chosen")
    )
    return (
        f"{named(row):38} ms: {times}  {row['choice']}, "
        f"{row['chosen_over_best']:.3f} of best, {row['rounds']} rounds"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="a few cells, to see that it works")
    parser.add_argument(
        "--longest", type=float, help="seconds of a sequential pass, above which a cell is left out"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--nets", nargs="*", choices=list(NETS))
    parser.add_argument("--models", type=int, nargs="*")
    parser.add_argument("--batches", type=int, nargs="*")
    parser.add_argument(
        "--makings",
        type=int,
        default=max(LOOKS),
        help="how often at most a cell's models are made anew",
    )
    parser.add_argument(
        "--add", action="store_true", help="to the results there are, the cells that they lack"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="to the results there are, these cells, also those that they have",
    )
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="begin no cell later than this; 0: no limit"
    )
    parser.add_argument(
        "--shorten",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help=f"fewer steps, {FEWEST_STEPS} at least, where a sequential pass takes longer",
    )
    parser.add_argument(
        "--no-processes",
        action="store_true",
        help="without the ways of processes, whose start takes longer than most cells",
    )
    parser.add_argument("--write", metavar="NAME", help="the name of the results")
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    args = parser.parse_args()
    if args.makings < 1 or args.rounds < 1:
        parser.error("--makings and --rounds must be >= 1")
    if args.quick:
        args.rounds, args.makings = 2, 1
    if args.longest is None:
        args.longest = 0.6 if args.device == "cpu" else 10.0
    measure(args)


if __name__ == "__main__":
    main()
