"""Unlike models of one data set on one slot: in turns, and differentiated in one step.

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 3.1. Each row is a pack of unlike models, each with its own optimizer; all
ways train the same models on the same chunks, in turn with each other. "chosen" is what Shoal makes
of it by its own measured steps.

Then their memory (section 4.5): the bytes that tensors of a pack hold at once, by the way it is
trained, beside the sum of what its models hold alone, and beside what Shoal counts for the pack.

    python benchmarks/packing_unlike.py [--short] [--device cuda]
"""

from __future__ import annotations

import argparse
import gc
from statistics import median
from typing import Any

import torch
from common import show, write
from packing_memory import Held
from packing_nets import Images
from packing_page import STEPS
from packing_ways import Lanes

SHAPE = (1, 8, 8)
PACKS = (
    ("MLP-3 x16", "MLP-3 x64"),
    ("MLP-3 x16", "MLP-3 x64", "CNN", "MobileNet-like"),
    ("CNN", "MobileNet-like"),
    ("MobileNet-like", "ResNet-like"),
)
WAYS = ("sequential", "interleaved", "summed", "chosen")
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    rounds = 5 if options.short else 15
    packs = PACKS[:2] if options.short else PACKS
    rows = [row(nets, options.device, rounds) for nets in packs]
    ratios = {
        "chosen_over_best_unlike": max(each["chosen / best"] for each in rows),
        "turns_over_summed": max(each["turns / summed"] for each in rows),
    }
    taken = [memory(nets) for nets in packs]
    show(taken)
    ratios["turns_over_sum_memory"] = max(each["turns / sum"] for each in taken)
    ratios["held_over_counted"] = max(each["turns / counted"] for each in taken)
    write("packing_unlike", rows, ratios, more={"memory": taken})


def lanes(nets: tuple[str, ...], how: str, device: str, steps: int = STEPS) -> Lanes:
    """A model of each net, with Adam and SGD in alternation."""
    given = [
        {"net": net, "batch_size": BATCH, "seed": at, "lr": 1e-3, "optimizer": kind}
        for at, (net, kind) in enumerate(zip(nets, ("Adam", "SGD") * 2, strict=False))
    ]
    return Lanes(Images(SHAPE, steps * BATCH), given, how, device)


def memory(nets: tuple[str, ...]) -> dict[str, Any]:
    """MiB that tensors of the pack hold at once on a CPU, and what Shoal counts for it in turns."""
    alone = [held((net,), "interleaved")[0] for net in nets]
    turns, counted = held(nets, "interleaved")
    summed, _ = held(nets, "summed")
    mib = {
        "sum of all alone": sum(alone),
        "in turns": turns,
        "summed": summed,
        "counted for turns": counted,
    }
    return {
        "nets": " + ".join(nets),
        **{f"{name} MiB": round(each / 2**20, 2) for name, each in mib.items()},
        "turns / sum": round(turns / sum(alone), 3),
        "turns / counted": round(turns / counted, 3),
    }


def held(nets: tuple[str, ...], how: str) -> tuple[float, float]:
    """The most bytes that the pack's tensors held at once, and what the meter counts."""
    gc.collect()
    with Held() as tensors:
        made = lanes(nets, how, "cpu", steps=6)
        made.visit()
        made.visit()
    station = made.station
    of = [station.lanes.get(trial.id).lane for trial in made.trials]
    return float(tensors.most), station.at.meter.together(of)


def row(nets: tuple[str, ...], device: str, rounds: int) -> dict[str, Any]:
    """A pack's times: the median over the rounds, each of which times all ways."""
    ways = {how: lanes(nets, how, device) for how in WAYS}
    for way in ways.values():
        way.settle()
    times: dict[str, list[float]] = {how: [] for how in WAYS}
    for turn in range(rounds):
        for how in WAYS[turn % 4 :] + WAYS[: turn % 4]:
            gc.collect()
            times[how].append(ways[how].visit())
    took = {how: median(each) for how, each in times.items()}
    best = [
        c / min(a, b)
        for a, b, c in zip(
            times["interleaved"], times["summed"], times["chosen"], strict=True
        )
    ]
    return {
        "nets": " + ".join(nets),
        **{f"{how} ms": round(1e3 * each, 2) for how, each in took.items()},
        "choice": ways["chosen"].summed(),
        "turns / summed": round(_ratio(times["interleaved"], times["summed"]), 3),
        "chosen / best": round(median(best), 3),
    }


def _ratio(one: list[float], other: list[float]) -> float:
    """The median of the rounds' ratios."""
    return median(a / b for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    main()
