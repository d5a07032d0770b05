"""Chunks made once for two nodes: each is made at one of them, and sent to the other."""

import hashlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.cluster_utils import Cluster
from ray_kit import Bench, Given, trials_of
from ray_wide_kit import Exact, check_replay, gangs_of
from test_ray_feeder import Costly

import shoal
from shoal.core.event import Fed
from shoal.policy.fifo import Fifo
from shoal.train.data.data import Data

pytestmark = pytest.mark.slow


class Notes:
    """What every process prepared, by the samples that came of it: a file for each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def take(self, hook: str, made: Any) -> None:
        digest = hashlib.sha1(np.ascontiguousarray(made[0]).tobytes()).hexdigest()
        with (self.folder / f"{hook}-{digest}").open("a") as note:
            note.write(f"{os.getpid()}\n")

    def times(self, hook: str) -> Counter[str]:
        """How often each chunk was prepared."""
        files = self.folder.glob(f"{hook}-*")
        return Counter({path.name: len(path.read_text().split()) for path in files})

    def processes(self) -> set[str]:
        return {pid for path in self.folder.iterdir() for pid in path.read_text().split()}


class Noted(Costly):
    """In chunks of 16 samples."""

    notes: Notes

    def data(self) -> Data:
        made = super().data()
        made.chunk = 16
        return made

    def prepare(self, samples: Any) -> Any:
        time.sleep(self.pause)  # longer than to send it
        made = super().prepare(samples)
        self.notes.take("prepare", made)
        return made

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        made = super().augment(samples, rng)
        self.notes.take("augment", made)
        return made


class NotedWide(Exact):
    """What is prepared differs in each pass."""

    notes: Notes

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        time.sleep(0.3)  # longer than to send it, also on a busy machine
        x, y = samples
        made = x + rng.normal(scale=0.1, size=x.shape).astype(np.float32), y
        self.notes.take("augment", made)
        return made


@pytest.fixture
def pair(head: Cluster) -> Cluster:
    """Two nodes with a processor each."""
    for name in ("n0", "n1"):
        head.add_node(num_cpus=1, node_name=name)
    return head


def test_each_chunk_is_made_once_for_two_nodes(tmp_path: Path, pair: Cluster) -> None:
    recipe = Noted(shards=2, pause=0.3)
    recipe.notes = Notes(tmp_path / "notes")
    bench = Bench(tmp_path, recipe)
    epochs = 2
    searcher = Given([], trials_of(bench.data, [4, 5], epochs), lambda view: len(view.slots) == 2)
    bench.run(searcher, Fifo(), address=pair.address, feeders=1)
    blocks = [-(-size // 16) for size in bench.data.sizes.values()]
    prepared, augmented = recipe.notes.times("prepare"), recipe.notes.times("augment")
    assert len(augmented) == epochs * sum(blocks)
    assert set(augmented.values()) == {1}, "each chunk once in each pass"
    assert set(prepared.values()) == {1}, "and what is the same in all passes once"
    fed = bench.events(Fed)[-1].figures
    assert fed["received"] > 0 and fed["received_bytes"] > fed["received"]
    bench.check_visits(epochs)
    bench.check_weights()


@pytest.mark.nightly
def test_a_wide_lane_over_two_nodes_shares_the_preparing(tmp_path: Path, pair: Cluster) -> None:
    """In a flotilla with another trial. `replay` trains each trial alone, and prepares all."""
    recipe = NotedWide(tmp_path / "traces", samples=803, shards=2, slow=0.01)
    recipe.notes = Notes(tmp_path / "notes")
    study = shoal.create_study(
        recipe, storage=tmp_path / "study", search_space={"width": shoal.grid([4, 16])}
    )
    study.optimize(
        "grid",
        policy="flotilla",
        max_epochs=2,
        widths=(1, 2),
        backend="ray",
        address=pair.address,
        feeders=1,
        progress=False,
    )
    assert max(len(gang.slots) for gang in gangs_of(study)) == 2, "over both nodes"
    data = recipe.data()
    blocks = sum(-(-size // data.chunk) for size in data.sizes.values())
    made = recipe.notes.times("augment")
    assert len(made) == 2 * blocks
    assert set(made.values()) == {1}, "each chunk once in each pass"
    assert len(recipe.notes.processes()) == 2, "the feeder of each node has its part"
    check_replay(study, trials=2)
