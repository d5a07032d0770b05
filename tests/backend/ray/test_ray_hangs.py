"""Slots that hang: processes that are stopped, and code that never returns."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from ray_kit import Bench, Given, Tiny, trials_of
from torch import nn

from shoal.backend.ray.backend import Ray
from shoal.core.cluster import SlotId
from shoal.core.event import Left
from shoal.policy import Hop, WaterFill

pytestmark = pytest.mark.slow
SLOT1 = SlotId("slot1")


class Stopper:
    """Stops the second slot once some visits are made, and remembers its process."""

    def __init__(self, visits: int) -> None:
        self.visits = visits
        self.pid = 0
        self.back = False

    def __call__(self, backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            made = sum(map(len, state.visits.values()))
            if not self.pid and made >= self.visits and SLOT1 in state.busy:
                self.pid = backend.pids()[SLOT1]
                os.kill(self.pid, signal.SIGSTOP)
            new = backend.pids().get(SLOT1, self.pid)
            self.back |= self.pid != 0 and new != self.pid

        return watch


@pytest.mark.usefixtures("shared_ray")
def test_a_stopped_slot_is_given_up_and_comes_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tiny(slow=0.03))
    stopper = Stopper(6)
    trials = trials_of(bench.data, [4, 5, 6, 7], 3)
    later = trials_of(bench.data, [8], 2)
    bench.run(
        Given(trials, later, lambda view: stopper.back),
        Hop(),
        stopper,
        slots=2,
        hang_after=2.0,
        checkpoint_every=0.2,
    )
    (left,) = bench.events(Left)
    assert left.died and left.slots == {SLOT1}
    assert left.why.startswith("it hung: no answer for")
    assert not Path(f"/proc/{stopper.pid}").exists()
    assert bench.state.ended == {f"t{w}": "finished" for w in (4, 5, 6, 7, 8)}
    bench.check_visits(3, but=["t8"])
    bench.check_weights()


class Stuck(Tiny):
    """A step of width 5 never returns, once: while that file is there."""

    def __init__(self, stone: Path) -> None:
        super().__init__()
        self.stone = stone

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        if model[0].out_features == 5 and self.stone.exists():  # type: ignore[index, operator]
            self.stone.unlink()
            time.sleep(1e6)
        return super().training_step(model, batch)


@pytest.mark.usefixtures("shared_ray")
def test_code_that_never_returns_costs_its_slot(tmp_path: Path) -> None:
    """The process answers, but its work stands still: longer than ten times what is usual.

    That it costs nobody else is tested without processes: on a busy machine others may be slow.
    """
    bench = Bench(tmp_path, Stuck(stone := tmp_path / "stone"))
    trials = trials_of(bench.data, [4, 5, 6], 3)

    def throw(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            if not thrown and len(state.visits["t5"]) == 5:
                thrown.append(now)
                stone.touch()

        thrown: list[float] = []
        return watch

    bench.run(Given(trials), Hop(), throw, slots=2, hang_after=1.0)
    assert any(left.why.startswith("it hung: no progress for") for left in bench.events(Left))
    assert not stone.exists()
    assert set(bench.state.ended.values()) == {"finished"}
    bench.check_visits(3)
    bench.check_weights()


class Compiles(Tiny):
    """The first step of each process takes long. One process stops there: it finds that file."""

    def __init__(self, stone: Path, long: float) -> None:
        super().__init__()
        self.stone = stone
        self.long = long

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        if os.getpid() not in COMPILED:
            COMPILED.add(os.getpid())
            with suppress(FileNotFoundError):
                self.stone.unlink()
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(self.long)
        return super().training_step(model, batch)


COMPILED: set[int] = set()  # this process, once it made a step


@pytest.mark.nightly
@pytest.mark.usefixtures("shared_ray")
def test_a_slot_that_stops_in_its_first_call_is_not_taken_for_a_slow_one(tmp_path: Path) -> None:
    """The others are as slow, longer than a slot may be silent: they answer meanwhile."""
    (stone := tmp_path / "stone").touch()
    bench = Bench(tmp_path, Compiles(stone, long=20.0))
    bench.run(Given(trials_of(bench.data, [4, 5], 1)), Hop(), slots=2, hang_after=3.0)
    (left,) = bench.events(Left)
    assert left.why.startswith("it hung: no answer for")
    assert not stone.exists()
    assert bench.state.ended == {"t4": "finished", "t5": "finished"}
    bench.check_visits(1)


@pytest.mark.nightly
def test_a_stopped_slot_on_another_node_is_ended_there(tmp_path: Path, head: Cluster) -> None:
    """Also: two slots train one trial, and the one that goes on does not wait for ever."""
    head.add_node(num_cpus=2)
    bench = Bench(tmp_path, Tiny(slow=0.03))
    trials = trials_of(bench.data, [4], 6)
    wide = [replace(trial, widths=(2, 2)) for trial in trials]
    stopper = Stopper(4)
    options = {"hang_after": 2.0, "checkpoint_every": 0.2}
    bench.run(Given(wide), WaterFill(), stopper, address=head.address, **options)
    (left,) = bench.events(Left)
    assert left.why.startswith("it hung: no answer for")
    assert bench.state.ended == {"t4": "finished"}
    until = time.monotonic() + 60
    while Path(f"/proc/{stopper.pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.1)
