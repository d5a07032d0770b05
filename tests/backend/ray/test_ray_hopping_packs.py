"""Packs that hop: each trial learns what it learns alone."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from ray_kit import Bench, Given, Tiny, trials_of

from shoal.backend.ray.backend import Ray
from shoal.core.cluster import SlotId
from shoal.core.event import Left, Planned
from shoal.policy.hop.hop import Hop
from shoal.policy.pack import packs_as_trials
from shoal.policy.pack.packs_as_trials import PacksAsTrials


@pytest.fixture(autouse=True)
def all_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs_as_trials, "gains", lambda *_: True)


@pytest.mark.slow
def test_packs_hop(tmp_path: Path) -> None:
    """With one that raises in the middle of its pack."""
    bench = Bench(tmp_path, Tiny())
    backend = bench.run(
        Given(trials_of(bench.data, [4, 13, 6, 7, 8], 2)),
        PacksAsTrials(Hop(), fuse=False),
        slots=2,
    )
    assert bench.state.ended == {f"t{w}": "finished" for w in (4, 6, 7, 8)} | {
        "t13": "failed: ArithmeticError: thirteen"
    }
    gangs = [gang for planned in bench.events(Planned) for gang in planned.start]
    assert max(len(gang.lanes) for gang in gangs) >= 2
    assert backend.moved > 0
    bench.check_visits(2, but=["t13"])
    bench.check_weights()


@pytest.mark.slow
def test_a_slot_dies_under_a_pack(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tiny(slow=0.01))
    died: list[bool] = []

    def killer(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            if not died and sum(map(len, state.visits.values())) >= 6:
                died.append(True)
                os.kill(backend.pids()[SlotId("slot1")], signal.SIGKILL)

        return watch

    bench.run(
        Given(trials_of(bench.data, [4, 5, 6, 7], 2)),
        PacksAsTrials(Hop(), fuse=False),
        killer,
        slots=2,
        checkpoint_every=0.2,
    )
    assert [left.died for left in bench.events(Left)] == [True]
    assert set(bench.state.ended.values()) == {"finished"}
    bench.check_visits(2)
    bench.check_weights()
