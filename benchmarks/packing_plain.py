"""What a plain PyTorch loop takes for the models that packing helps most: the baseline that is
not Shoal's own.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import torch
from packing_nets import NETS, Images, configs
from packing_page import STEPS
from packing_ways import Lanes
from torch.nn.functional import cross_entropy

SMALL = ("MLP-3 x16", "MLP-3 x64")
MODELS = (16, 32, 64)
BATCH = 32


class Plain:
    """One model after the other, as in PyTorch's tutorials; `fused`: by Adam's fused kernel,
    which torch has to be asked for.
    """

    def __init__(
        self,
        recipe: Images,
        configs: list[dict[str, Any]],
        device: str,
        fused: bool | None,
        batch: int = BATCH,
        steps: int = STEPS,
    ) -> None:
        self.models = [recipe.configure_model(config).to(device) for config in configs]
        rates = [config["lr"] for config in configs]
        self.optimizers = [
            torch.optim.Adam(m.parameters(), lr, fused=fused)
            for m, lr in zip(self.models, rates, strict=True)
        ]
        self.batch = batch
        self.x = torch.randn(steps * batch, *recipe.shape, device=device)
        self.y = torch.randint(0, 10, (steps * batch,), device=device)
        self.device = device

    def visit(self) -> float:
        """Seconds of one pass of all."""
        begin = perf_counter()
        for place in range(len(self.models)):
            for at in range(0, len(self.x), self.batch):
                self.step(place, at)
        self.wait()
        return perf_counter() - begin

    def step(self, place: int, at: int) -> None:
        """One step of one model, on the batch that begins there."""
        optimizer = self.optimizers[place]
        optimizer.zero_grad()
        x, y = self.x[at : at + self.batch], self.y[at : at + self.batch]
        cross_entropy(self.models[place](x), y).backward()
        optimizer.step()

    def wait(self) -> None:
        """Return when the device has done all of it."""
        if self.device == "cuda":
            torch.cuda.synchronize()


class Streams:
    """Plain models on a GPU, each on a stream of its own; their steps are begun in turn.

    On a CPU there are no streams, and the steps just follow each other.
    """

    def __init__(
        self,
        recipe: Images,
        configs: Sequence[dict[str, Any]],
        batch: int,
        device: str,
        steps: int = STEPS,
    ) -> None:
        self.loop = Plain(recipe, list(configs), device, True, batch, steps)
        self.streams = [
            torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else nullcontext()
            for _ in configs
        ]
        self.loop.wait()  # the models are there before other streams use them

    def visit(self) -> float:
        """Seconds of one pass of all."""
        begin = perf_counter()
        for at in range(0, len(self.loop.x), self.loop.batch):
            for place, stream in enumerate(self.streams):
                with stream:
                    self.loop.step(place, at)
        self.loop.wait()
        return perf_counter() - begin

    def ready(self) -> None:
        """Have no garbage collection fall into the next pass."""
        gc.collect()

    def settle(self) -> None:
        """Take the first pass, with all that happens only then."""
        self.visit()


def plain(device: str, quick: bool = False) -> list[dict[str, Any]]:
    """Medians of each way, and of what the ratios to Shoal's choice were in each round."""
    rows = []
    for net, models in product(SMALL[:1] if quick else SMALL, MODELS[:1] if quick else MODELS):
        recipe, given = (Images(NETS[net].shape, STEPS * BATCH), configs(net, models, BATCH))
        shoals = {how: Lanes(recipe, given, how, device) for how in ("sequential", "chosen")}
        for lanes in shoals.values():
            lanes.settle()
        loops = {
            "plain": Plain(recipe, given, device, None),
            "plain, fused Adam": Plain(recipe, given, device, True),
        }
        ways: dict[str, Any] = {**loops, **shoals}
        for way in ways.values():
            way.visit()
        times: dict[str, list[float]] = {how: [] for how in ways}
        order = Random(f"{net} {models}")
        gc.disable()
        for _ in range(2 if quick else 15):
            for how in order.sample(list(ways), len(ways)):
                gc.collect()
                times[how].append(ways[how].visit())
        gc.enable()
        row: dict[str, Any] = {
            "net": net,
            "models": models,
            "batch": BATCH,
            **{how: median(t) for how, t in times.items()},
        }
        for how in ("plain", "plain, fused Adam", "sequential"):
            row[f"{how} / chosen"] = median(
                a / b for a, b in zip(times[how], times["chosen"], strict=True)
            )
        rows.append(row)
        print(
            "  ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()),
            flush=True,
        )
    return rows
