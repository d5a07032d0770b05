"""The ray backend on nodes of which the ends are known: pilots with a time limit."""

import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray_kit import Bench, Given, Tiny, trials_of

from shoal.backend.ends import UNTIL
from shoal.backend.ray.backend import Ray
from shoal.core.event import Fell, Joined, Left
from shoal.policy import Fifo, Hop

pytestmark = pytest.mark.slow
LIMIT = 40.0  # seconds from the start of the first node until it is killed


def study(folder: Path, policy: Any) -> tuple[Bench, list[float]]:
    """A study on two nodes, of which one is killed at its time limit; how far from it, in seconds
    of the study, its slot left.

    Nothing becomes durable by itself until then: what a slot loses is trained again.
    """
    ray.shutdown()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False},
    )
    until = time.time() + LIMIT
    pilot = cluster.add_node(num_cpus=1, labels={UNTIL: str(until)})
    cluster.add_node(num_cpus=1)
    bench = Bench(folder, Tiny(slow=0.2))
    spare: list[float] = []
    killed: list[bool] = []

    def limit(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            for entry in entries:
                if isinstance(entry, Left):
                    spare.append(until - time.time())
            if not killed and time.time() > until:
                killed.append(True)
                cluster.remove_node(pilot, allow_graceful=False)

        return watch

    try:
        searcher = Given(trials_of(bench.data, [4, 5, 6], 12))
        bench.run(
            searcher, policy, limit, address=cluster.address, checkpoint_every=1e6
        )
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert killed, "the study was over before the limit: it must be longer"
    return bench, spare


@pytest.mark.parametrize("policy", [Fifo(), Hop()], ids=["fifo", "hop"])
def test_a_slot_leaves_before_its_node_and_nothing_is_lost(
    tmp_path: Path, policy: Any
) -> None:
    bench, spare = study(tmp_path, policy)
    known = [
        slot
        for joined in bench.events(Joined)
        for slot in joined.slots
        if slot.until < float("inf")
    ]
    assert {slot.id for slot in known} == {
        slot for left in bench.events(Left) for slot in left.slots
    }
    assert not any(left.died for left in bench.events(Left))
    assert spare and all(0 < each < LIMIT / 2 for each in spare)
    assert not bench.events(Fell)
    bench.check_visits(12)
    bench.check_weights()
