"""Unlike models of one data set on one slot: in turns, and differentiated in one step.

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 3.1. Each row is a pack of unlike models, each with its own optimizer; all
ways train the same models on the same chunks, in turn with each other. "chosen" is what Shoal makes
of it by its own measured steps.

Then their memory (section 4.5): the bytes that tensors of a pack hold at once, by the way it is
trained, beside the sum of what its models hold alone, and beside what Shoal counts for the pack.

Last (section 3.2), heads on one frozen trunk, of which each trial makes a copy: the memory that the
process takes more for them on a CPU, and their time, with the trunk held once and without.

    python benchmarks/packing_unlike.py [--short] [--device cuda]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
from collections.abc import Mapping
from math import inf
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from common import show, write
from packing_memory import Held
from packing_nets import Images
from packing_page import STEPS
from packing_ways import Lanes
from torch import nn

from shoal.train.lane import trunk

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
    more: dict[str, Any] = {"memory": taken}
    if options.device == "cpu" and trunk.POSSIBLE:
        more["trunk"] = [
            of_trunk(each, rounds=5) for each in ((2, 8) if options.short else (2, 4, 8, 16))
        ]
        show(more["trunk"])
        ratios["trunk_memory"] = more["trunk"][-1]["once / each"]
        ratios["trunk_time"] = max(each["time once / each"] for each in more["trunk"])
    write("packing_unlike", rows, ratios, more=more)


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
    trainer = made.trainer
    of = [trainer.lanes.get(trial.id).lane for trial in made.trials]
    return float(tensors.most), trainer.context.meter.together(of)


class Heads(Images):
    """A head of the trial's own width on a frozen trunk, the same one in each trial."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        state = torch.get_rng_state()
        torch.manual_seed(1)
        layers = [nn.Flatten(), nn.Linear(64, 1024), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Linear(1024, 1024), nn.ReLU()]
        body = nn.Sequential(*layers).requires_grad_(False)
        torch.set_rng_state(state)
        width = config["width"]
        head = nn.Sequential(nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, 10))
        return nn.Sequential(body, head)

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(model[1].parameters(), lr=config["lr"])  # type: ignore[index]


def of_trunk(count: int, rounds: int) -> dict[str, Any]:
    """So many heads on one trunk, which is held once, and by each."""
    configs = [
        {"width": 8 + at, "batch_size": BATCH, "seed": at, "lr": 1e-3} for at in range(count)
    ]
    recipe = Heads(SHAPE, 6 * BATCH)
    Lanes(recipe, configs[:1], "interleaved").visit()  # what only the first run takes
    made: dict[str, Lanes] = {}
    mib: dict[str, float] = {}
    for how, least in (("once", trunk.LEAST), ("each", inf)):
        before = resident()
        with patch.object(trunk, "LEAST", least):
            made[how] = Lanes(recipe, configs, "interleaved")
            made[how].visit()
        mib[how] = (resident() - before) / 2**20
    times: dict[str, list[float]] = {how: [] for how in made}
    for turn in range(rounds):
        for how in ("once", "each") if turn % 2 else ("each", "once"):
            times[how].append(made[how].visit())
    return {
        "heads": count,
        **{f"{how} MiB": round(each, 1) for how, each in mib.items()},
        "once / each": round(mib["once"] / mib["each"], 3),
        **{f"{how} ms": round(1e3 * median(each), 1) for how, each in times.items()},
        "time once / each": round(_ratio(times["once"], times["each"]), 3),
    }


def resident() -> int:
    """Bytes that this process takes; pages that it has mapped several times count once.

    What was freed and is kept for later does not count.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup") as lines:
        return next(1024 * int(x.split()[1]) for x in lines if x.startswith("Pss:"))


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
        for a, b, c in zip(times["interleaved"], times["summed"], times["chosen"], strict=True)
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
