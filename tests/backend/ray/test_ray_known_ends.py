"""The ray backend on nodes of which the ends are known: pilots with a time limit."""

import time
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from ray_kit import Bench, Given, Tiny, trials_of

from shoal.backend.cluster_start import UNTIL
from shoal.backend.ray import slot_watch
from shoal.backend.ray.backend import Ray
from shoal.core.event import Fell, Left
from shoal.policy import Fifo, Hop

pytestmark = pytest.mark.slow
LABEL = 5000.0  # seconds from the start of the node until its end, as its label says
LIMIT = 20.0  # seconds from when both slots are there, however long they took to start


@pytest.mark.parametrize(
    "policy",
    [pytest.param(Fifo(), id="fifo", marks=pytest.mark.nightly), pytest.param(Hop(), id="hop")],
)
def test_a_slot_leaves_before_its_node_and_nothing_is_lost(
    tmp_path: Path, head: Cluster, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing becomes durable by itself until then: what a slot loses is trained again."""
    monkeypatch.setattr(slot_watch, "SPARE", 8.0)  # a busy machine leaves later than it meant to
    label = time.time() + LABEL
    pilot = head.add_node(num_cpus=1, labels={UNTIL: str(label)})
    head.add_node(num_cpus=1)
    bench = Bench(tmp_path, Tiny(slow=0.2))
    ends: list[float] = []  # of the pilot, in seconds of the study
    left: list[float] = []
    killed: list[bool] = []

    def limit(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            known = [slot for slot in state.slots.values() if slot.until < inf]
            if not ends and len(state.slots) == 2:
                assert known[0].until - now == pytest.approx(label - time.time(), abs=5)
                process = backend._slots.processes[known[0].id]
                process.slot = replace(process.ready_slot, until=now + LIMIT)
                ends.append(now + LIMIT)
            left.extend(now for entry in entries if isinstance(entry, Left))
            if ends and not killed and now > ends[0]:
                killed.append(True)
                head.remove_node(pilot, allow_graceful=False)

        return watch

    searcher = Given(trials_of(bench.data, [4, 5, 6], 6))
    bench.run(searcher, policy, limit, address=head.address, checkpoint_every=1e6)
    assert killed, "the study was over before the limit: it must be longer"
    assert len(left) == 1 and left[0] < ends[0]
    assert not any(each.died for each in bench.events(Left))
    assert not bench.events(Fell)
    bench.check_visits(6)
    bench.check_weights()
