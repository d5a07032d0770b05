"""A device that is not there: a model whose steps take the time they are told to, so that slots
are independent on few cores.

What is real: Shoal's processes, data, gradients and their sums over the slots of a wide lane,
states, the journal. What is not: the time of a step, slept on top of that: `fixed` milliseconds
a step and `per_sample` for each sample of this slot's share.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import shoal
from shoal.backend.sim.sim import Sim
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Finished, Left, Opened, Planned, Retired, Submitted
from shoal.core.fold import fold
from shoal.core.ports import Policy, Searcher
from shoal.core.state import State
from shoal.engine.journal import Journal, Line
from shoal.engine.run import run

BATCH, SAMPLES = 32, 256
Found = dict[str, Any]


class Emulated(shoal.Recipe):
    """`model`: a number; `fixed`, `per_sample`: milliseconds of its steps. `slower`: how many times
    as long steps take `after` so many. `prepare_ms`: of varying a sample, in each pass.
    """

    batch_size = BATCH

    def __init__(self, samples: int = SAMPLES, shards: int = 1, prepare_ms: float = 0.0) -> None:
        self.samples, self.shards, self.prepare_ms = samples, shards, prepare_ms

    def data(self) -> shoal.Data:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(self.samples, 64)).astype(np.float32)
        data = shoal.Data.arrays(
            x, (x.sum(1) > 0).astype(np.int64), validation=None, shards=self.shards
        )
        data.chunk = 2 * BATCH
        return data

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        x, y = samples
        time.sleep(self.prepare_ms * len(x) / 1000)
        return x + rng.normal(scale=0.01, size=x.shape).astype(np.float32), y

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        hidden = 64 + int(config["model"])  # a signature of its own
        model = nn.Sequential(nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 2))
        model.register_buffer("steps", torch.zeros(()))
        return model

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        model.emulated = (float(config["fixed"]), float(config["per_sample"]))  # type: ignore[assignment]
        model.slower = (float(config.get("slower", 1)), int(config.get("after", 0)))  # type: ignore[assignment]
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def training_step(self, model: Any, batch: Any) -> Any:
        x, y = batch
        fixed, per_sample = model.emulated
        times, after = model.slower
        # What reads a number of the model cannot be fused: each lane has its own sleep.
        made = float(model.steps)
        model.steps += 1
        longer = times if made >= after else 1.0
        time.sleep(longer * (fixed + per_sample * len(x)) / 1000)
        return nn.functional.cross_entropy(model(x), y)


@dataclass(frozen=True)
class FromTheStart:
    """A searcher whose time begins when the first slots are there, however long they took to
    start.
    """

    inner: Any

    def start(self) -> Any:
        return [None, self.inner.start()]

    def propose(self, view: Any, memory: Any) -> Any:
        begin = view.now if memory[0] is None else memory[0]
        asked, after = self.inner.propose(replace(view, now=view.now - begin), memory[1])
        wake = None if asked.wake_at is None else asked.wake_at + begin
        return replace(asked, wake_at=wake), [begin, after]


def rate(config: Mapping[str, Any], width: int, batch: int = BATCH) -> float:
    """Samples/s that such a trial would have if nothing else took time."""
    return 1000 * batch / (config["fixed"] + config["per_sample"] * batch / width)


def profile_of(configs: Iterable[Mapping[str, Any]], widths: int, folder: Path) -> Path:
    """A profile of the rates that were asked for, at each width; all else is left to be
    measured.
    """
    lines = []
    for config in configs:
        points = ", ".join(f"{w} = {rate(config, w):.6g}" for w in range(1, widths + 1))
        values = ", ".join(f"{name} = {value}" for name, value in config.items())
        lines += ["[[rows]]", f"config = {{ {values} }}", f"points = {{ {points} }}"]
    path = folder / "profile.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def own_process(script: str, variant: str, *arguments: str) -> Found:
    """One run of this script as a process of its own: Ray starts afresh for each."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, script, "--run", variant, "--folder", folder, *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{variant} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: Found = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def times(lines: Sequence[Line]) -> Found:
    """When trials came and were through, in seconds from the first decision; the slots' seconds
    at work and idle.
    """
    begin = next(line.time for line in lines if isinstance(line.entry, Planned))
    came = {
        line.entry.trial.id: max(line.time, begin)
        for line in reversed(lines)
        if isinstance(line.entry, Submitted)
    }
    ends = {
        line.entry.trial: line.time for line in lines if isinstance(line.entry, Finished | Retired)
    }
    took = [ends[trial] - came[trial] for trial in ends]
    died = sum(isinstance(line.entry, Left) for line in lines)
    return {
        "trials": len(came),
        "finished": len(ends),
        "mean_completion_s": sum(took) / len(took) if took else None,
        "makespan_s": max(ends.values()) - begin if ends else None,
        "slots_lost": died,
    }


def simulated(
    searcher: Searcher[Any],
    policy: Policy[Any],
    profile: Any,
    slots: int,
    shards: Mapping[Any, int],
) -> Found:
    """The same study in virtual time. `profile`: a `Table`."""
    opened = Opened(1, shards)
    journal = Journal()
    journal.append(0.0, opened)
    there = [
        Slot(SlotId(f"slot{i}"), "node", "cpu", shards=frozenset(shards)) for i in range(slots)
    ]
    sim = Sim(profile.of, there, shards=shards)
    believe: Any = profile.believe
    run(searcher, policy, sim, believe, journal, fold(State(), [opened]))
    return times(journal.lines)
