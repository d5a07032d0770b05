"""What it costs to move a trial from one slot of the ray backend to another, ready to train,
against one copy of its state.

Two slots take turns with one trial, one shard each time. A hop is all that lies between the end
of one unit's training and the beginning of the next one's: packing the state, the object store,
the driver's part, loading. Medians after one warm-up.

    python benchmarks/hop.py
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from common import write
from torch import nn

import shoal
from shoal.backend.positions import Positions
from shoal.backend.ray.backend import Ray
from shoal.backend.ray.setup import RaySetup
from shoal.core.cluster import SlotId
from shoal.core.event import Advanced
from shoal.core.plan import solo
from shoal.core.trial import Trial, TrialId
from shoal.options import Options

SIDE, LAYERS = 1000, 25  # 25 million parameters, 100 MB
HOPS = 10
ALLOWANCE = 0.05  # seconds


class Large(shoal.Recipe):
    """A model of 100 MB, and hardly any data."""

    batch_size = 8

    def data(self) -> shoal.Data:
        rows = np.random.default_rng(0).normal(size=(4 * self.batch_size, SIDE)).astype("float32")
        return shoal.Data.arrays(rows, shards=4, validation=None)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)))

    def configure_optimizers(
        self, model: nn.Module, config: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        kind = torch.optim.Adam if config["adam"] else torch.optim.SGD
        return kind(model.parameters(), lr=1e-4)

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0]).square().mean()


def copying(size: int) -> float:
    """Seconds of one warm copy of so many bytes."""
    source, target = torch.rand(size // 4), torch.rand(size // 4)
    times = []
    for _ in range(HOPS + 1):
        begin = perf_counter()
        target.copy_(source)
        times.append(perf_counter() - begin)
    return median(times[1:])


def hopping(backend: Ray, moments: Any, trial: Trial) -> tuple[list[dict[str, float]], int]:
    """Seconds of each hop, warm-up left out: in all, and loading; and the bytes of a state."""
    backend.submit(trial)
    shards = sorted(backend.course.sizes)
    hops, size = [], 0
    for turn in range(HOPS + 2):  # the first unit builds the model, the second is the warm-up
        slot, shard = SlotId(f"slot{turn % 2}"), shards[turn % len(shards)]
        begin = perf_counter()
        backend.change(None, solo(trial.id, slot, turn, shard, backend.course.sizes[shard]))
        spent, moved = until_visited(moments, trial.id)
        took = perf_counter() - begin
        size = moved or size
        hops.append({"hop": took - spent["train"] - spent["data"], "load": spent["switch"]})
    return hops[2:], size


def until_visited(moments: Iterator[Any], trial: TrialId) -> tuple[Counter[str], int]:
    """Wait for the end of a unit: its seconds by what they went to, and the bytes that it moved.

    A unit that takes longer than two seconds reports how far it is, before its visit is complete.
    """
    spent: Counter[str] = Counter()
    moved = 0
    for _, events in moments:
        for event in events:
            if not isinstance(event, Advanced):
                continue
            spent.update(event.spent.get(trial, {}))
            moved += event.moved.get(trial, 0)
            if event.visits.get(trial):
                return spent, moved
    raise RuntimeError("the backend ended before the unit did")


def main() -> None:
    torch.set_num_threads(1)
    recipe = Large()
    data = recipe.data()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = str(Path(folder) / "checkpoints")
        setup = RaySetup(checkpoints, 1, Options("ray", slots=2, checkpoint_every=1e9))
        backend = Ray(recipe, data, Positions(0, data.sizes), setup)
        try:
            moments = backend.moments()
            next(moments)
            for name, adam in (("SGD", False), ("Adam", True)):
                trial = Trial(TrialId(name), 1e9, {"adam": adam}, shards=frozenset(data.shards))
                hops, size = hopping(backend, moments, trial)
                copy, hop = copying(size), median(h["hop"] for h in hops)
                times = {
                    "copy_ms": 1e3 * copy,
                    "hop_ms": 1e3 * hop,
                    "of_it_load_ms": 1e3 * median(h["load"] for h in hops),
                }
                slowest = {"slowest_hop_ms": 1e3 * max(h["hop"] for h in hops)}
                rows.append(
                    {
                        "optimizer": name,
                        "MB": size / 1e6,
                        **times,
                        **slowest,
                        "ratio": (hop - ALLOWANCE) / copy,
                    }
                )
        finally:
            backend.close()
    write("hop", rows, {"hop_over_copy": rows[0]["ratio"]})


if __name__ == "__main__":
    main()
