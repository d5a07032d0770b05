"""Pairs of models by the five factors of Pack's Table 1, and what switching between models
costs (eq. 4).

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 4.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median
from time import monotonic, process_time
from typing import Any

import numpy as np
from packing_nets import Images, RawImages
from packing_page import FEWEST, STEPS, is_cut_short
from packing_ways import Lanes
from scipy.stats import quantile_test

SHAPE = (1, 8, 8)
SAME = ("MLP-3 x64", "MobileNet-like", "ResNet-like")
DIFFERENT = (
    ("MLP-3 x64", "MobileNet-like"),
    ("CNN", "MobileNet-like"),
    ("MobileNet-like", "ResNet-like"),
)
# Seconds for all pairs, with what comes before the first turn.
LONGEST, QUICK = 500.0, 5.0
# A turn's samples: those of 20 steps at batch 32, and fewer where a step is long, for many short
# turns say more than few long ones.
SAMPLES, FEW = STEPS * 32, 200
EPOCH, SWITCHED, FUSED = 2000, 2, 8  # images; models one after the other; models fused


class Pair:
    """Two models, trained one after the other and packed; each turn times both ways.

    `levels`: of the paper's five factors. The models stay in memory from turn to turn, so that
    all pairs take turns and a slow minute of the machine falls on all of them.
    """

    def __init__(self, nets: tuple[str, str], different: Mapping[str, bool], device: str) -> None:
        self.levels = {"pair": " + ".join(nets), **levels(nets, different)}
        raw = different["preprocessing"]
        self.samples = SAMPLES if set(nets) == {"MLP-3 x64"} else FEW
        recipe = (RawImages if raw else Images)(SHAPE, self.samples, shards=2)
        first = {"net": nets[0], "batch_size": 32, "seed": 0, "lr": 1e-3}
        second = {**first, "net": nets[1], "seed": 1, "optimizer": "Adam"}
        first["optimizer"] = "Adam"
        if different["optimizer"]:
            second["optimizer"] = "SGD"
        if different["batch"]:
            second["batch_size"] = 50
        at = (0, int(different["data"]))
        self._ways = [
            Lanes(recipe, [first, second], how, device, at) for how in ("sequential", "chosen")
        ]
        self._times: list[tuple[float, float]] = []
        for way in self._ways:
            # Unlike models cannot be fused: there is no choice to wait for.
            if nets[0] == nets[1]:
                way.settle()
            else:
                way.visit()

    def turn(self) -> None:
        """Time both ways once, in the other order than the last time."""
        seconds = [0.0, 0.0]
        first = len(self._times) % 2
        for at in (first, 1 - first):
            self._ways[at].ready()
            seconds[at] = timed(self._ways[at])
        self._times.append((seconds[0], seconds[1]))

    @property
    def turns(self) -> int:
        """How often both ways were timed."""
        return len(self._times)

    def row(self) -> dict[str, Any]:
        """Seconds of a step at batch 32, IMPV (eq. 3) and its interval."""
        steps = self.samples / 32
        gains = [1 - pack / seq for seq, pack in self._times]
        low, high = interval(gains)
        told = "either"
        if self.turns >= FEWEST:
            told = verdict(low, high)
        return {
            **self.levels,
            "seq": median(seq for seq, _ in self._times) / steps,
            "pack": median(pack for _, pack in self._times) / steps,
            "impv": median(gains),
            "low": low,
            "high": high,
            "turns": self.turns,
            "pack?": told,
        }

    def is_known(self) -> bool:
        """Whether IMPV is known as well as is asked for."""
        return not is_cut_short(self.row())


def timed(way: Lanes) -> float:
    """Seconds of a pass.

    On a CPU they are those that this process had the core: one thread keeps it busy all the time,
    and what other processes take of it is not in them.
    """
    begin = process_time()
    seconds = way.visit()
    return process_time() - begin if way.device == "cpu" else seconds


def levels(nets: tuple[str, str], different: Mapping[str, bool]) -> dict[str, str]:
    """The level of each of the five factors, in words."""
    said = {"model": "same" if nets[0] == nets[1] else "different"}
    for factor, other in different.items():
        words = ("no", "yes") if factor == "preprocessing" else ("same", "different")
        said[factor] = words[other]
    return said


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, whatever the values' distribution."""
    found = quantile_test(np.asarray(values), p=0.5).confidence_interval(0.95)
    low, high = float(found.low), float(found.high)
    if not (low > float("-inf") and high < float("inf")):  # too few values
        return min(values), max(values)
    return low, high


def verdict(low: float, high: float) -> str:
    """Whether packing pays, as far as the interval tells."""
    if low > 0:
        return "yes"
    if high < 0:
        return "no"
    return "either"


def pairs(device: str, quick: bool = False) -> list[dict[str, Any]]:
    """T_s(Seq), T_s(Pack) and IMPV of every combination, a step being one at batch 32.

    Pairs take turns until each IMPV's interval is within +-5 points, or time is over. Those
    that are still open then are cut short: their intervals are wider.
    """
    until = monotonic() + (QUICK if quick else LONGEST)
    both: list[tuple[str, str]] = [*((net, net) for net in SAME), *DIFFERENT]
    if quick:
        both = both[:1]
    factors = ("data", "preprocessing", "optimizer", "batch")
    cells = [
        Pair(nets, dict(zip(factors, other, strict=True)), device)
        for nets in both
        for other in product((False, True), repeat=len(factors))
    ]
    take_turns(cells, until)
    return [cell.row() for cell in cells]


def take_turns(cells: Sequence[Pair], until: float) -> None:
    """Time each pair in turn until it is known, or the clock is at `until`.

    Every pair has one turn at least. What the garbage collector would look through again and
    again, all models of all pairs, is taken from it for that time.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    left = list(cells)
    try:
        while left:
            for cell in left:
                if cell.turns and monotonic() > until:
                    return
                cell.turn()
            left = [cell for cell in left if not cell.is_known()]
            known = len(cells) - len(left)
            print(f"{known} of {len(cells)} pairs are known", flush=True)
    finally:
        gc.enable()
        gc.unfreeze()


def switching(device: str, quick: bool = False) -> list[dict[str, Any]]:
    """SwOH of each net, and of fusing and parting."""
    rows = []
    for net in (
        ("MLP-3 x64", "CNN") if quick else ("MLP-3 x64", "CNN", "MobileNet-like", "ResNet-like")
    ):
        found = [switched(net, device) for _ in range(2 if quick else 5)]
        seq, single, over = (median(x) for x in zip(*found, strict=True))
        rows.append(
            {"net": net, "Seq s": seq, "Single s": single, "SwOH ms": 1e3 * over}
            | repacked(net, device, quick)
        )
        print(rows[-1], flush=True)
    return rows


def switched(net: str, device: str) -> tuple[float, float, float]:
    """T_e(Seq) of two models never seen, T_e of one that stayed, and eq. 4."""
    recipe = Images(SHAPE, EPOCH)
    given = [{"net": net, "batch_size": 32, "seed": i, "lr": 1e-3} for i in range(SWITCHED)]
    lanes = Lanes(recipe, given, "sequential", device)
    begun, settled = lanes.visit(), 0.0  # the first pass builds both
    lanes.visit()  # and the meter is through with the second
    settled = min(lanes.visit() for _ in range(3))
    return begun, settled / SWITCHED, begun - settled


def repacked(net: str, device: str, quick: bool) -> dict[str, Any]:
    """Milliseconds to part so many fused models and to fuse them again."""
    given = [{"net": net, "batch_size": 32, "seed": i, "lr": 1e-3} for i in range(FUSED)]
    lanes = Lanes(Images(SHAPE, STEPS * 32), given, "fused", device)
    lanes.settle()
    lanes.visit()
    extra = []
    for _ in range(2 if quick else 7):
        lanes.ready()
        stay = lanes.visit()
        lanes.ready()
        extra.append(lanes.parted() + lanes.visit() - stay)
    return {f"part and fuse {FUSED}, ms": 1e3 * median(extra)}
