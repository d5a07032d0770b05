"""Packs that hop: each trial learns what it learns alone."""

from pathlib import Path

import pytest
from ray_kit import Bench, Given, Tiny, trials_of

from shoal.core.event import Planned
from shoal.policy.hop.hop import Hop
from shoal.policy.pack import packs_as_trials
from shoal.policy.pack.packs_as_trials import PacksAsTrials

pytestmark = pytest.mark.usefixtures("shared_ray")


@pytest.fixture(autouse=True)
def all_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs_as_trials, "gains", lambda *_: True)


@pytest.mark.slow
def test_packs_hop(tmp_path: Path) -> None:
    """With one that raises in the middle of its pack."""
    bench = Bench(tmp_path, Tiny())
    backend = bench.run(
        Given(trials_of(bench.data, [4, 13, 6, 7, 8], 2)), PacksAsTrials(Hop(), fuse=False), slots=2
    )
    assert bench.state.ended == {f"t{w}": "finished" for w in (4, 6, 7, 8)} | {
        "t13": "failed: ArithmeticError: thirteen"
    }
    gangs = [gang for planned in bench.events(Planned) for gang in planned.start]
    assert max(len(gang.lanes) for gang in gangs) >= 2
    assert backend.moved > 0
    bench.check_visits(2, but=["t13"])
    bench.check_weights()
