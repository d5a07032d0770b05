"""The nets of Pack's evaluation as written, at 3x224x224: what switching between two of a kind
costs (Table 2), what packing them saves (Figure 4), and the memory that a step holds (Figure 6).

Times are those of two models with Adam on made-up images: a few images on a CPU, 100 steps at
batch 32 on a GPU. Memory is counted without computing: each net's step runs on torch's "meta"
device, which makes tensors of the right size without content, and their bytes are added up while
they live. What an allocator rounds up, and what kernels need for themselves, is not in it.

    python benchmarks/packing_four.py [--quick] [--device cuda] [--no-times]

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 4.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Any

import torch
from common import write
from packing_memory import Held
from packing_nets import Images
from packing_pairs import interval
from packing_ways import Lanes, settle_down
from packing_written import IMAGE, WRITTEN
from torch import nn

BATCHES = (32, 64, 80, 100)
WAYS = ("sequential", "interleaved", "fused")
GIB = 2**30
# Of the paper: Table 2, seconds of 10 000 images of one model, and of switching.
TABLE2 = {
    "MLP-3": (61, 11),
    "MobileNetV2": (107, 13),
    "ResNet-50": (130, 14),
    "DenseNet-121": (144, 17),
}
# Of section 4.3: so many, at this batch, had no room in 16 GiB.
WITHOUT_ROOM = (("ResNet-50", 2, 80), ("DenseNet-121", 2, 64), ("DenseNet-121", 4, 32))


def row(net: str, device: str, turns: int) -> dict[str, Any]:
    """Times of two such models, one after the other and packed, and bytes of one."""
    with torch.device("meta"):
        parameters = sum(each.numel() for each in WRITTEN[net]().parameters())
    found: dict[str, Any] = {"net": net, "parameters": parameters}
    if turns:
        found |= times(net, device, turns)
    for batch in BATCHES:
        found[f"GiB at {batch}"] = held([net], batch) / GIB
    found["two at 32, GiB"] = held([net, net], 32) / GIB
    found["two in turns at 32, GiB"] = held([net, net], 32, in_turns=True) / GIB
    return found


def times(net: str, device: str, turns: int) -> dict[str, Any]:
    """Seconds of both models' epoch, each way once a turn, in an order drawn anew."""
    batch, images = (2, 4) if device == "cpu" else (32, 3200)
    recipe = Images(IMAGE, images)
    given = [
        {"net": f"{net}, as written", "batch_size": batch, "seed": i, "lr": 1e-3} for i in range(2)
    ]
    ways = {how: Lanes(recipe, given, how, device) for how in WAYS}
    begun = ways["sequential"].visit()  # the first pass builds both
    for way in ways.values():
        way.visit()
    if ways["fused"].unfusable() is not None:
        ways.pop("fused")
    order = Random(net)
    seconds: dict[str, list[float]] = {how: [] for how in ways}
    for _ in range(turns):
        for how in order.sample(list(ways), len(ways)):
            ways[how].ready()
            seconds[how].append(ways[how].visit())
    least = min(seconds["sequential"])
    found: dict[str, Any] = {
        "batch": batch,
        "images": images,
        "Seq s": begun,
        "Single s": least / 2,
        "SwOH s": begun - least,
    }
    for how in WAYS[1:]:
        found |= saved(how, seconds["sequential"], seconds.get(how, []))
    return found


def saved(how: str, alone: Sequence[float], packed: Sequence[float]) -> dict[str, Any]:
    """IMPV (eq. 3), and between what it lies."""
    gains = [1 - pack / seq for seq, pack in zip(alone, packed, strict=False)]
    if not gains:
        return {f"IMPV, {how}": None, f"{how}, low": None, f"{how}, high": None}
    low, high = interval(gains)
    return {f"IMPV, {how}": median(gains), f"{how}, low": low, f"{how}, high": high}


def held(nets: Sequence[str], batch: int, in_turns: bool = False) -> int:
    """Bytes that tensors hold at most in a training step of these models together.

    Together, their losses are differentiated at once, as in the paper's pack. In turns, each model
    takes its step alone while the others' state is held.
    """
    with Held() as bytes_held, torch.device("meta"):
        images = torch.empty(batch, *IMAGE)
        labels = torch.empty(batch, dtype=torch.long)
        models = [WRITTEN[net]() for net in nets]
        optimizers = [torch.optim.Adam(model.parameters()) for model in models]
        parts = [[i] for i in range(len(models))] if in_turns else [range(len(models))]
        for _ in range(2):  # the optimizer's state is made in the first
            for part in parts:
                for i in part:
                    optimizers[i].zero_grad(set_to_none=False)
                step([models[i] for i in part], images, labels)
                for i in part:
                    optimizers[i].step()
    return bytes_held.most


def step(models: Sequence[nn.Module], images: torch.Tensor, labels: torch.Tensor) -> None:
    """Gradients of these models, all at once."""
    losses = [nn.functional.cross_entropy(model(images), labels) for model in models]
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]


def ratios(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures that the paper has, too, and the paper's."""
    found: dict[str, Any] = {}
    paper: dict[str, Any] = {}
    for each in rows:
        name = word(each["net"])
        found[f"parameters_{name}"] = each["parameters"]
        found[f"pack_over_sum_{name}"] = each["two at 32, GiB"] / (2 * each["GiB at 32"])
        found[f"turns_over_sum_{name}"] = each["two in turns at 32, GiB"] / (2 * each["GiB at 32"])
        paper[f"pack_over_sum_{name}"] = 1.0
        found[f"memory_100_over_32_{name}"] = each["GiB at 100"] / each["GiB at 32"]
        if "SwOH s" in each:
            image = each["Single s"] / each["images"]
            found[f"switch_images_{name}"] = each["SwOH s"] / image
            found[f"impv_{name}"] = each["IMPV, interleaved"]
            found[f"impv_fused_{name}"] = each["IMPV, fused"]
            single, switch = TABLE2[each["net"]]
            paper[f"switch_images_{name}"] = switch / (single / 10_000)
    paper["memory_100_over_32_mlp3"] = 1.0
    by_net = {each["net"]: each for each in rows}
    for net, count, batch in WITHOUT_ROOM:
        if net in by_net:
            key = f"gib_{count}_{word(net)}_{batch}"
            found[key] = count * by_net[net][f"GiB at {batch}"]
            paper[key] = "> 16"
    return found, paper


def word(net: str) -> str:
    """The net's name in a key."""
    return net.replace("-", "").lower()


def measure(device: str, quick: bool, turns: int) -> None:
    """Measure all nets, and write what was found."""
    nets = ("MLP-3", "MobileNetV2") if quick else tuple(WRITTEN)
    rows = []
    for net in nets:
        rows.append(row(net, device, turns))
        print(rows[-1], flush=True)
        gc.collect()
    found, paper = ratios(rows)
    found["device"] = "the CPU" if device == "cpu" else torch.cuda.get_device_name()
    name = ("packing_four" if device == "cpu" else "packing_four-gpu") + ("-quick" if quick else "")
    write(name, rows, found, more={"paper": paper})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="two nets, one turn")
    parser.add_argument("--no-times", action="store_true", help="count memory only")
    args = parser.parse_args()
    settle_down(None)
    turns = 0 if args.no_times else (1 if args.quick else 3)
    measure(args.device, args.quick, turns)


if __name__ == "__main__":
    main()
