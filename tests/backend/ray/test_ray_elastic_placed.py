"""Elastic trials over shards that stay at nodes, on real slots."""

from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray_wide_kit import gangs_of
from test_ray_joint import Exact
from test_ray_placed import NODES, at_local, placed, written

import shoal

pytestmark = pytest.mark.nightly


def test_two_elastic_trials_share_the_holders_of_all_shards(tmp_path: Path, head: Cluster) -> None:
    """Each slot reads what lies at its node; replay, which reads all shards alone, agrees."""
    for name in NODES:
        head.add_node(num_cpus=1, node_name=name)
    tables = placed(tmp_path, shards=8, replicas=1)
    recipe = Exact(written(tmp_path / "c.toml", tables), tmp_path / "record")
    study = shoal.create_study(
        recipe, storage=tmp_path / "study", search_space={"width": shoal.grid([4, 6])}
    )
    study.optimize(
        policy="elastic(objective=efficiency)",
        max_epochs=2,
        widths=(1, 4),
        backend="ray",
        address=head.address,
        progress=False,
    )
    assert set(study.state.ended.values()) == {"finished"}
    assert study.folder.head()["policy"]["placed"]
    gangs = gangs_of(study)
    assert any(gang.joint for gang in gangs)
    assert all(gang.quota is not None for gang in gangs)
    for opening in recipe.openings:
        if opening["node"] in NODES:
            assert Path(opening["path"]).parent.name == opening["node"]
    ray.shutdown()
    written(tmp_path / "c.toml", at_local(tables))
    rows = study.replay()
    assert all(
        row["verdict"] in ("equal", "agrees") and row["difference"] < 1e-8 for row in rows
    ), rows
