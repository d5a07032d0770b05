"""The ray backend on a cluster whose nodes come and go."""

from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray_kit import Bench, Given, Tiny, trials_of

from shoal.backend import ray_fleet
from shoal.backend.ray import Ray
from shoal.core.event import Ended, Fell, Joined, Left
from shoal.policy import Hop

pytestmark = pytest.mark.slow


def test_nodes_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state whose node is gone is lost, and its trial falls back to the durable one; data() runs once on each node."""
    monkeypatch.setattr(ray_fleet, "POLL", 0.5)
    (marks := tmp_path / "marks").mkdir()
    ray.shutdown()
    system = {"health_check_period_ms": 500, "health_check_failure_threshold": 2}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": system})
    nodes = [cluster.add_node(num_cpus=2)]
    bench = Bench(tmp_path, Tiny(slow=0.03, marks=marks))
    mine = len(list(marks.iterdir()))
    done: list[str] = []

    def churn(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            if not done:
                done.append("one comes")
                nodes.append(cluster.add_node(num_cpus=1))
            elif len(done) == 1 and len(state.slots) == 3 and all(len(v) >= 3 for v in state.visits.values()) and state.visits:
                done.append("one goes")
                cluster.remove_node(nodes[0], allow_graceful=False)
            elif len(done) == 2 and len(state.slots) == 1:
                done.append("it is gone")

        return watch

    searcher = Given([], trials_of(bench.data, [4, 5, 6, 7], 3), lambda view: len(view.slots) == 3)
    try:
        backend = bench.run(searcher, Hop(), churn, address=cluster.address, checkpoint_every=0.2)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert done == ["one comes", "one goes", "it is gone"]
    assert {len(slot.shards) for slot in bench.state.slots.values()} == {4}
    assert all(left.died for left in bench.events(Left))
    assert bench.events(Fell)
    assert len(list(marks.iterdir())) == mine + 2
    assert backend.moved > 0
    assert bench.events(Joined)
    assert bench.events(Ended)
    bench.check_visits(3)
    bench.check_weights()
