"""What each private part of torch in `shoal/train/private.py` saves: CPU time with it and without.

    python benchmarks/private_parts.py

It prints a table and writes benchmarks/results/private_parts.json. A piece that saves less than a
twentieth should go. Fused steps are `packing.py`'s: `SHOAL_PRIVATE=0` turns their pieces off.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

import torch
from common import write
from torch import nn

from shoal.train import private
from shoal.train.lane import optimizers
from shoal.train.rng import Rng

ROUNDS = 9
STEPS = 200
HERE = torch.device("cpu")
START = """
import torch
from shoal.train.private import delay_compiler
{delay}
weight = torch.zeros(1, requires_grad=True)
weight.sum().backward()
torch.optim.Adam([weight]).step()
"""


def main() -> None:
    torch.set_num_threads(1)
    rows = [around_a_step(16), around_a_step(64), turns(16), turns(64), compiler()]
    write("private_parts", rows, {"least": min(row["saves"] for row in rows)})


def around_a_step(hidden: int) -> dict[str, Any]:
    """A training step of an MLP, with what torch does around the optimizer's and without."""
    train = trainer(hidden)

    def run(on: bool) -> None:
        private.STEP = on
        train()

    return row(f"around a step, {hidden} units", *compared(run))


def turns(hidden: int) -> dict[str, Any]:
    """A training step of an MLP within a trial's random states, as lanes that take turns make."""
    train = trainer(hidden)
    rng = Rng(0, HERE)

    def run(on: bool) -> None:
        private.ALLOWED = on
        with rng:
            train()

    return row(f"the generator's memory, {hidden} units", *compared(run))


def compiler() -> dict[str, Any]:
    """A process's first optimizer, with the compiler delayed and without."""
    seconds = {}
    for name, delay in (("on", "delay_compiler()"), ("off", "")):
        times = [spent_by(START.format(delay=delay)) for _ in range(3)]
        seconds[name] = min(times)
    return row("the compiler delayed", seconds["on"], seconds["off"])


def trainer(hidden: int) -> Callable[[], None]:
    """A training step of an MLP with Adam, batch 32."""
    ends = (nn.Linear(20, hidden), nn.ReLU()), (nn.ReLU(), nn.Linear(hidden, 2))
    model = nn.Sequential(*ends[0], nn.Linear(hidden, hidden), *ends[1])
    optimizer = torch.optim.Adam(model.parameters())
    optimizers.quicken(optimizer, HERE)
    samples = torch.randn(32, 20)
    classes = torch.randint(0, 2, (32,))

    def train() -> None:
        optimizers.zero(optimizer)
        loss = nn.functional.cross_entropy(model(samples), classes)
        loss.backward()
        optimizers.step(optimizer)

    return train


def compared(run: Callable[[bool], None]) -> tuple[float, float]:
    """CPU seconds of a run with the piece and without; the least of several rounds each."""
    least = {True: float("inf"), False: float("inf")}
    for _ in range(ROUNDS):
        for on in (True, False):
            begin = process_time()
            for _ in range(STEPS):
                run(on)
            least[on] = min(least[on], (process_time() - begin) / STEPS)
    return least[True], least[False]


def spent_by(code: str) -> float:
    """CPU seconds of a process that runs this code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def row(piece: str, on: float, off: float) -> dict[str, Any]:
    return {
        "piece": piece,
        "with_ms": round(on * 1e3, 3),
        "without_ms": round(off * 1e3, 3),
        "saves": round(1 - on / off, 3),
    }


if __name__ == "__main__":
    main()
