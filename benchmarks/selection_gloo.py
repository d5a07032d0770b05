"""The two ways of `model_selection.py` that train one model at a time on all slots at once.

"ddp": DistributedDataParallel, a batch for each slot, gradients summed at each step. "averaging":
each slot trains on its own part, and weights are averaged after each epoch. One process a slot,
gloo over loopback. Each run is started by `model_selection.py`; it prints what it found.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from selection_task import (
    BATCHES,
    CONFIGS,
    RATES,
    ROWS,
    SEED,
    correct,
    emulate,
    named,
    network,
    optimizer,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WAYS = ("ddp", "averaging")
Found = dict[str, Any]
Rows = tuple[torch.Tensor, torch.Tensor]


class Rank:
    """One slot: its part of the data, and what it counts."""

    def __init__(self, way: str, rank: int, slots: int, folder: Path) -> None:
        self.way, self.rank, self.slots = way, rank, slots
        self.rows = opened(folder / f"n{rank}" / f"s{rank}.npz")
        self.held = opened(folder / "all" / "held.npz")
        self.train = 0.0  # seconds of steps, without the sums over slots
        self.sent = 0.0  # bytes that this slot sends

    def batches(self, size: int, epoch: int) -> Iterator[Rows]:
        """The rows in an order of this epoch."""
        x, y = self.rows
        drawn = np.random.default_rng([SEED, epoch, self.rank])
        for part in torch.from_numpy(drawn.permutation(len(x))).split(size):
            yield x[part], y[part]

    def learn(self, config: Any, epochs: int) -> list[float]:
        """Train a configuration; its accuracy after each epoch."""
        torch.manual_seed(SEED)
        bare = network()
        model = DistributedDataParallel(bare) if self.way == "ddp" else bare
        rule = optimizer(bare, config)
        scores = []
        for epoch in range(epochs):
            for batch in self.batches(config["batch_size"], epoch):
                self.step(model, rule, batch)
                if self.way == "ddp":
                    self.count(bare)
            if self.way == "averaging":
                self.average(bare)
            with torch.no_grad():
                scores.append(float(correct(bare, self.held).mean()))
        return scores

    def step(self, model: nn.Module, rule: Any, batch: Rows) -> None:
        begin = perf_counter()
        emulate(len(batch[0]))
        rule.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        self.train += perf_counter() - begin
        loss.backward()  # with ddp, also the sum over slots
        rule.step()

    def average(self, model: nn.Module) -> None:
        with torch.no_grad():
            flat = nn.utils.parameters_to_vector(model.parameters())
            dist.all_reduce(flat)
            nn.utils.vector_to_parameters(flat / self.slots, model.parameters())
        self.count(model)

    def count(self, model: nn.Module) -> None:
        """Count a sum over the slots: in a ring each sends all weights twice, less its share."""
        size = sum(each.nbytes for each in model.parameters())
        self.sent += 2 * (self.slots - 1) / self.slots * size


def opened(path: Path) -> Rows:
    with np.load(path) as file:
        return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])


def work(rank: int, way: str, slots: int, epochs: int, folder: Path, out: Path) -> None:
    """What a process does: all configurations, one after the other."""
    torch.set_num_threads(1)
    store = f"file://{out / 'meeting'}"
    dist.init_process_group("gloo", store, rank=rank, world_size=slots)
    slot = Rank(way, rank, slots, folder)
    curves, by_batch = {}, dict.fromkeys(map(str, BATCHES), 0.0)
    slot.learn(CONFIGS[0] | {"batch_size": ROWS}, 1)  # what only the first step takes
    slot.train = slot.sent = 0.0
    dist.barrier()
    begin = perf_counter()
    for config in CONFIGS:
        since = perf_counter()
        curves[named(config)] = slot.learn(config, epochs)
        took = (perf_counter() - since) / epochs / len(RATES)
        by_batch[str(config["batch_size"])] += took
    dist.barrier()
    found = {
        "seconds": perf_counter() - begin,
        "train": slot.train,
        "sent": slot.sent,
        "read": (folder / f"n{rank}" / f"s{rank}.npz").stat().st_size,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "curves": curves,
        "seconds_by_batch": by_batch,
    }
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def run(args: argparse.Namespace) -> Found:
    """All slots together."""
    given = (args.run, args.slots, args.epochs, args.data, args.folder)
    processes.start_processes(work, given, args.slots, start_method="spawn")
    ranks = [json.loads((args.folder / f"{rank}.json").read_text()) for rank in range(args.slots)]
    seconds = ranks[0]["seconds"]
    train = sum(each["train"] for each in ranks) / (args.slots * seconds)
    return {
        "seconds": seconds,
        "shares": {"train": train},
        "sent": sum(each["sent"] for each in ranks),
        "read": sum(each["read"] for each in ranks),
        "peak": max(each["peak"] for each in ranks),
        "saved": 0,
        "curves": ranks[0]["curves"],
        "seconds_by_batch": ranks[0]["seconds_by_batch"],
    }


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", choices=WAYS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--epochs", type=int)
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    main()
