"""Ways to train the same models for the same steps on one slot, each ready to be timed again
and again.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import torch
from packing_nets import Images

from shoal.core.trial import Trial, TrialId, Visit
from shoal.options import Options
from shoal.train.fuse.gauge import Gauge
from shoal.train.fuse.graph import graph_key
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.unit import Done, TrialError, Unit
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer

MOST_PROCESSES = 8
# visits of 20 steps, after which widths that are in doubt have been tried twice at least
SETTLED = 8


class FullWidth(Gauge):
    """Always fuse all."""

    def wants(self, kind: str, lanes: int, mix: str = "", left: float = float("inf")) -> int | None:
        return None

    def choose(self, kind: str, lanes: int) -> int:
        return lanes


class InTurns(FullWidth):
    """Never train lanes in one step."""

    def choose(self, kind: str, lanes: int) -> int:
        return 1


class Lanes:
    """Models on one slot of this process, trained pass by pass.

    `how`: "sequential", one model's pass after the other's; "interleaved", "fused" (always, and
    all in one), "summed" (always: one backward pass of all), or "chosen": what Shoal makes of it by
    its own measurements. `at`: the shard
    each one reads; by default all read the first.
    """

    def __init__(
        self,
        recipe: Images,
        configs: Sequence[dict[str, Any]],
        how: str,
        device: str = "cpu",
        at: Sequence[int] | None = None,
    ) -> None:
        data = recipe.data()
        self.how, self.device = how, device
        self.trainer = SlotTrainer(
            recipe, data, None, TrainerSetup(Options(state_memory_gb=64.0), device=device)
        )
        if how == "fused":
            self.trainer.pack.fusion.gauge = FullWidth()
        if how == "summed":
            self.trainer.pack.summation.gauge = FullWidth()
        if how == "interleaved":
            self.trainer.pack.summation.gauge = InTurns()
        self.trials = [
            Trial(TrialId(f"t{i:03d}"), 1e12, c, shards=frozenset(data.shards))
            for i, c in enumerate(configs)
        ]
        self.shards = [data.shards[i] for i in (at or [0] * len(configs))]
        self.visits: dict[TrialId, tuple[Visit, ...]] = {trial.id: () for trial in self.trials}
        self.turn = 0

    def units(self) -> list[Unit]:
        return [
            Unit(trial, self.visits[trial.id], Visit(self.turn, shard, self.turn, 0))
            for trial, shard in zip(self.trials, self.shards, strict=True)
        ]

    def visit(self) -> float:
        """Seconds of one pass of all."""
        units = self.units()
        groups = [[unit] for unit in units] if self.how == "sequential" else [units]
        self.wait()
        begin = perf_counter()
        for group in groups:
            for trial, news in self.trainer.train_pack(group, self.how in ("fused", "chosen")):
                if isinstance(news, TrialError):
                    raise news
                if isinstance(news, Done):
                    self.visits[trial] = (*self.visits[trial], news.visit)
        self.wait()
        seconds = perf_counter() - begin
        self.turn += 1
        return seconds

    def ready(self) -> None:
        """Have no garbage collection fall into the next pass."""
        gc.collect()

    def settle(self) -> None:
        """Take the first passes, with all that happens only then."""
        for _ in range(SETTLED if self.how == "chosen" else 1):
            self.visit()

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def parted(self) -> float:
        """Seconds to part what is fused."""
        begin = perf_counter()
        self.trainer.pack.stacks.release(self._lane())
        self.wait()
        return perf_counter() - begin

    def unfusable(self) -> str | None:
        """Why the models are not fused; None: they may be."""
        return self.trainer.pack.fusion.gauge.why(self._kind())

    def width(self) -> int:
        """How many are fused in one by Shoal's choice; 1: interleaved."""
        return self.trainer.pack.fusion.gauge.choose(self._kind(), len(self.trials))

    def summed(self) -> int:
        """How many unlike models are summed by Shoal's choice; 1: they take turns."""
        signatures = {self.trainer.lanes.get(trial.id).lane.signature for trial in self.trials}
        kind = " ".join(sorted(signatures))
        return self.trainer.pack.summation.gauge.choose(kind, len(self.trials))

    def _kind(self) -> str:
        return graph_key(self._lane())

    def _lane(self) -> TrainingLane:
        return self.trainer.lanes.get(self.trials[0].id).lane

    def close(self) -> None:
        pass


class Processes:
    """The same models over as many processes as there are, each training its share one after
    the other.
    """

    def __init__(
        self, crew: Crew, recipe: Images, configs: Sequence[dict[str, Any]], device: str = "cpu"
    ) -> None:
        self.ends = crew.ends[: len(configs)]
        for i, end in enumerate(self.ends):
            end.send((recipe, list(configs[i :: len(self.ends)]), device))
        for end in self.ends:
            end.recv()

    def visit(self) -> float:
        begin = perf_counter()
        self._all("visit")
        return perf_counter() - begin

    def ready(self) -> None:
        self._all("ready")

    def settle(self) -> None:
        """They did, when they were made."""

    def close(self) -> None:
        self._all("drop")

    def _all(self, what: str) -> None:
        for end in self.ends:
            end.send(what)
        for end in self.ends:
            end.recv()


class Crew:
    """Processes that wait for models; made once, for starting them takes longer than any cell.

    `environment`: variables that they get beside this process's own.
    """

    def __init__(
        self, count: int, core: int | None, environment: Mapping[str, str] | None = None
    ) -> None:
        context = get_context("spawn")
        self.ends: list[Connection] = []
        self.processes = []
        before = dict(os.environ)
        os.environ.update(environment or {})
        for _ in range(count):
            end, other = context.Pipe()
            process = context.Process(target=serve, args=(other, core), daemon=True)
            process.start()
            self.ends.append(end)
            self.processes.append(process)
        os.environ.clear()
        os.environ.update(before)
        for end in self.ends:
            end.recv()

    def close(self) -> None:
        for end in self.ends:
            end.send("leave")
        for process in self.processes:
            process.join()


def serve(end: Connection, core: int | None) -> None:
    """A process of the crew."""
    settle_down(core)
    lanes: Lanes | None = None
    gc.disable()
    end.send("done")
    for said in iter(end.recv, "leave"):
        if said == "visit":
            assert lanes is not None
            lanes.visit()
        elif said == "ready":
            gc.collect()
        elif said == "drop":
            lanes = None
        else:
            recipe, configs, device = said
            lanes = Lanes(recipe, configs, "sequential", device)
            lanes.settle()
        end.send("done")


def settle_down(core: int | None) -> None:
    """One thread; and on this core alone, so that every way has the same means. None: on any."""
    torch.set_num_threads(1)
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
