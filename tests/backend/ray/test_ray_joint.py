"""Few trials on shards at unlike nodes: they read several at once, each slot its own."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from ray_kit import Bench, Given, trials_of
from ray_wide_kit import gangs_of
from test_ray_placed import NODES, Placed, at_local, placed, written
from torch import nn

import shoal
from shoal.backend.ray.backend import Ray
from shoal.backend.ray.node_survey import survey_of
from shoal.core.event import Ended, Left
from shoal.core.plan import Gang
from shoal.policy import Hybrid
from shoal.train.recipe.recipe_data import bring

pytestmark = pytest.mark.slow


class Exact(Placed):
    """Nothing random, in float64: shares of a batch must add up to rounding."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Linear(self.columns, config["width"]), nn.Tanh(), nn.Linear(config["width"], 3)
        ).double()

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        time.sleep(self.slow * len(batch[0]) / self.batch_size)
        return nn.functional.cross_entropy(model(batch[0].double()), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"accuracy": (model(batch[0].double()).argmax(1) == batch[1]).float()}


def test_a_searchs_last_trials_read_shards_of_several_nodes_together(
    tmp_path: Path, head: Cluster
) -> None:
    """Hyperband with more trials than nodes at its begin, and one at its end. No process reads
    what lies at another node, and replay, which reads all shards alone, agrees.
    """
    for name in NODES:
        head.add_node(num_cpus=1, node_name=name)
    tables = placed(tmp_path, shards=8, replicas=1)
    recipe = Exact(written(tmp_path / "c.toml", tables), tmp_path / "record")
    study = shoal.create_study(
        recipe,
        storage=tmp_path / "study",
        metric="accuracy",
        mode="max",
        search_space={"width": shoal.randint(4, 9)},
    )
    study.optimize(
        shoal.Hyperband(max_epochs=4, reduction_factor=2, concurrent=False),
        "hybrid",
        widths=(1, 4),
        backend="ray",
        address=head.address,
        progress=False,
    )
    assert set(study.state.ended.values()) <= {"finished", "retired"}
    joint = [gang for gang in gangs_of(study) if gang.joint]
    assert joint and max(len(gang.slots) for gang in joint) > 1
    for visits in study.state.visits.values():
        for epoch in range(len(visits) // 8):
            seen = {visit.shard for visit in visits[8 * epoch : 8 * epoch + 8]}
            assert len(seen) == 8
    for opening in recipe.openings:
        if opening["node"] in NODES:
            assert Path(opening["path"]).parent.name == opening["node"]
    ray.shutdown()
    written(tmp_path / "c.toml", at_local(tables))
    rows = study.replay()
    assert [row for row in rows if row["wide"]]
    assert all(
        row["verdict"] in ("equal", "agrees") and row["difference"] < 1e-8 for row in rows
    ), rows


@pytest.mark.nightly
def test_a_joint_unit_that_loses_a_slot_is_void(tmp_path: Path, head: Cluster) -> None:
    """A node dies while two trials read shards of all nodes; others hold what it held. What the
    unit had made does not count, and each trial learns what it learns alone.
    """
    nodes = {name: head.add_node(num_cpus=1, node_name=name) for name in NODES}
    tables = placed(tmp_path, shards=8, replicas=2)
    recipe = Exact(written(tmp_path / "c.toml", tables), tmp_path / "record", slow=0.1)
    data = bring(recipe, survey_of(head.address, begun=False))
    bench = Bench(tmp_path, recipe, data)
    hit: list[Gang] = []

    def kill(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            joint = [gang for gang in state.gangs if gang.joint]
            if joint and not hit and min(map(len, state.visits.values())) >= 8:
                hit.extend(joint)
                node = state.slots[joint[0].lanes[0].slots[-1]].node
                head.remove_node(nodes[node], allow_graceful=False)

        return watch

    trials = [replace(t, widths=(1, 4)) for t in trials_of(data, [4, 5], 3)]
    searcher = Given([], trials, lambda v: len(v.slots) == 4)
    bench.run(searcher, Hybrid(), kill, address=head.address, checkpoint_every=0.2)
    (left,) = bench.events(Left)
    assert not left.slots.isdisjoint(hit[0].slots)
    ended = [each.gang for each in bench.events(Ended)]
    assert any(gang.joint and len(gang.shards) > len(gang.lanes[0].slots) for gang in ended)
    bench.check_visits(3)
    ray.shutdown()
    written(tmp_path / "c.toml", at_local(tables))
    bench.data = bring(recipe)
    bench.check_weights(1e-8)
