"""Slots of these tests begin with torch loaded; and clusters whose nodes come and go."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def preloaded_workers() -> None:
    import one_cluster

    if find_spec("ray"):
        one_cluster.preload()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster whose head has no room for slots, and which soon notes that a node is gone.

    Slots follow its nodes soon.
    """
    import ray
    from ray.cluster_utils import Cluster

    from shoal.backend.ray import cluster, slots

    monkeypatch.setattr(slots, "POLL", 0.5)
    ray.shutdown()
    cluster._forget_token()  # of a run that a failed test left open
    system = {"health_check_period_ms": 500, "health_check_failure_threshold": 2}
    options = {"num_cpus": 0, "include_dashboard": False, "_system_config": system}
    made = Cluster(initialize_head=True, head_node_args=options)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
