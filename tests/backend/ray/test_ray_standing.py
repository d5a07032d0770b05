"""`shoal status` beside a study that trains: a slot goes down with its node, and comes up again."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from test_ray_placed import Placed, placed, written

import shoal

pytestmark = pytest.mark.nightly
NODES = ("n0", "n1")
Rows = list[dict[str, Any]]


class Beside:
    """Asks for the slots of the study in this folder, as a user does in another terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *words: str) -> str:
        line = [sys.executable, "-m", "shoal.cli", words[0], str(self.folder), *words[1:]]
        return subprocess.run(line, check=False, capture_output=True, text=True, timeout=60).stdout

    def until(self, fits: Callable[[Rows], bool]) -> Rows:
        """The slots, once that holds of them."""
        end = time.monotonic() + 120
        while True:
            said = self.command("status", "--json")
            rows: Rows = json.loads(said).get("standing", []) if said else []
            if fits(rows):
                return rows
            assert time.monotonic() < end, rows
            time.sleep(0.5)


def at(rows: Rows, node: str, state: str) -> Rows:
    return [row for row in rows if (row["node"], row["state"]) == (node, state)]


def train(study: shoal.Study, address: str) -> None:
    """Train until it is stopped."""
    study.optimize(
        max_epochs=2000,
        policy="hop",
        backend="ray",
        address=address,
        checkpoint_every=0.2,
        progress=False,
    )


def test_a_slot_is_seen_to_go_down_and_come_up(tmp_path: Path, head: Cluster) -> None:
    nodes = {name: head.add_node(num_cpus=1, node_name=name) for name in NODES}
    tables = placed(tmp_path, shards=2, replicas=2, nodes=NODES)
    recipe = Placed(written(tmp_path / "c.toml", tables), tmp_path / "record", slow=0.05)
    study = shoal.create_study(
        recipe,
        storage=tmp_path / "study",
        metric="accuracy",
        mode="max",
        search_space={"width": shoal.grid([4, 5])},
    )
    beside = Beside(tmp_path / "study")

    def alive(rows: Rows) -> bool:
        return all(at(rows, node, "alive") for node in NODES)

    training = threading.Thread(target=train, args=(study, head.address))
    training.start()
    try:
        before = beside.until(alive)
        head.remove_node(nodes["n1"], allow_graceful=False)
        down = beside.until(lambda rows: bool(at(rows, "n1", "gone")))
        said = beside.command("status")
        head.add_node(num_cpus=1, node_name="n1")
        up = beside.until(alive)
    finally:
        beside.command("stop")
        training.join()
    assert [row["shards"] for row in before] == [["s0", "s1"]] * 2
    [lost] = at(down, "n1", "gone")
    assert lost["why"] == "it died" and not lost["trials"]
    assert at(down, "n0", "alive")[0]["trials"], "the other slot trains on"
    assert f"{lost['slot']:<8} n1, cpu: gone; holds s0, s1 (it died)" in said
    [back] = at(up, "n1", "alive")
    assert back["slot"] != lost["slot"]
    for visits in study.state.visits.values():
        assert set(Counter((v.epoch, v.shard) for v in visits).values()) == {1}
