"""Pairs of models by the five factors of Pack's Table 1, and what switching between models
costs (eq. 4).

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 4.
"""

from __future__ import annotations

from itertools import product
from statistics import median
from typing import Any

from packing_nets import Images, RawImages
from packing_page import STEPS
from packing_ways import Lanes

SHAPE = (1, 8, 8)
SAME = ("MLP-3 x64", "MobileNet-like", "ResNet-like")
DIFFERENT = (
    ("MLP-3 x64", "MobileNet-like"),
    ("CNN", "MobileNet-like"),
    ("MobileNet-like", "ResNet-like"),
)
SAMPLES = 800  # 25 steps at batch 32, 16 at batch 50
EPOCH, SWITCHED, FUSED = 2000, 2, 8  # images; models one after the other; models fused


def pairs(device: str, quick: bool = False) -> list[dict[str, Any]]:
    """T_s(Seq), T_s(Pack) and IMPV of every combination, a step being one at batch 32."""
    both: list[tuple[str, str]] = [*((net, net) for net in SAME), *DIFFERENT]
    rows = []
    for nets, other, raw, optimizers, batch in product(
        both[:1] if quick else both,
        (False, True),
        (False, True),
        (False, True),
        (False, True),
    ):
        row = {
            "pair": " + ".join(nets),
            "model": "same" if nets[0] == nets[1] else "different",
            "data": "different" if other else "same",
            "preprocessing": "yes" if raw else "no",
            "optimizer": "different" if optimizers else "same",
            "batch": "different" if batch else "same",
        }
        seq, pack = pair(nets, other, raw, optimizers, batch, device, 2 if quick else 7)
        rows.append(row | {"seq": seq, "pack": pack, "impv": 1 - pack / seq})
        print(
            "  ".join(
                f"{x:.4g}" if isinstance(x, float) else x for x in rows[-1].values()
            ),
            flush=True,
        )
    return rows


def pair(
    nets: tuple[str, str],
    other: bool,
    raw: bool,
    optimizers: bool,
    batch: bool,
    device: str,
    rounds: int,
) -> tuple[float, float]:
    """Seconds of a step of both, sequentially and as Shoal packs them."""
    recipe = (RawImages if raw else Images)(SHAPE, SAMPLES, shards=2)
    first = {
        "net": nets[0],
        "batch_size": 32,
        "seed": 0,
        "lr": 1e-3,
        "optimizer": "Adam",
    }
    second = {**first, "net": nets[1], "seed": 1}
    second |= {"optimizer": "SGD"} if optimizers else {}
    second |= {"batch_size": 50} if batch else {}
    at = (0, 1 if other else 0)
    ways = [
        Lanes(recipe, [first, second], how, device, at)
        for how in ("sequential", "chosen")
    ]
    for way in ways:
        way.settle()
    times: list[tuple[float, float]] = []
    for turn in range(rounds):
        found = {i: _ready(ways[i]) for i in ((0, 1) if turn % 2 else (1, 0))}
        times.append((found[0], found[1]))
    seq, share = median(a for a, _ in times), median(b / a for a, b in times)
    steps = SAMPLES / 32
    return seq / steps, share * seq / steps


def _ready(way: Lanes) -> float:
    way.ready()
    return way.visit()


def switching(device: str, quick: bool = False) -> list[dict[str, Any]]:
    """SwOH of each net, and of fusing and parting."""
    rows = []
    for net in (
        ("MLP-3 x64", "CNN")
        if quick
        else ("MLP-3 x64", "CNN", "MobileNet-like", "ResNet-like")
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
    given = [
        {"net": net, "batch_size": 32, "seed": i, "lr": 1e-3} for i in range(SWITCHED)
    ]
    lanes = Lanes(recipe, given, "sequential", device)
    begun, settled = lanes.visit(), 0.0  # the first pass builds both
    lanes.visit()  # and the meter is through with the second
    settled = min(lanes.visit() for _ in range(3))
    return begun, settled / SWITCHED, begun - settled


def repacked(net: str, device: str, quick: bool) -> dict[str, Any]:
    """Milliseconds to part so many fused models and to fuse them again."""
    given = [
        {"net": net, "batch_size": 32, "seed": i, "lr": 1e-3} for i in range(FUSED)
    ]
    lanes = Lanes(Images(SHAPE, STEPS * 32), given, "fused", device)
    lanes.settle()
    lanes.visit()
    extra = []
    for _ in range(2 if quick else 7):
        stay = _ready(lanes)
        lanes.ready()
        extra.append(lanes.parted() + lanes.visit() - stay)
    return {f"part and fuse {FUSED}, ms": 1e3 * median(extra)}
