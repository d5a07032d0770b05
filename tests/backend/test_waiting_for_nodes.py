"""How long a run waits for nodes when nothing can go on, without a cluster."""

from dataclasses import dataclass
from typing import Any

import pytest

from shoal.core.cluster import ShardId
from shoal.train.data.catalogue import Catalogue

pytest.importorskip("ray", reason="the ray backend needs Ray")
from shoal.backend.ray import backend
from shoal.backend.ray.shard_register import NodeShards, ShardRegister

PLACES = {"s0": {"n0": "/s0.npz"}, "s1": {"n1": "/s1.npz", "n2": "/s1.npz"}}


@dataclass
class Held:
    """A slot that holds these shards."""

    holds: frozenset[ShardId]


def slots(*shards: str) -> Any:
    return [Held(frozenset([ShardId(shard)])) for shard in shards]


def test_only_the_holder_of_a_shard_is_waited_for_with_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placed = NodeShards(Catalogue(PLACES), whole=False)  # type: ignore[arg-type]
    now = [100.0]
    monkeypatch.setattr(backend, "monotonic", lambda: now[0])
    wait = backend.NodeWait(placed)
    with pytest.warns(match="no slot holds s1, which lies at n1, n2: waiting"):
        assert wait.goes_on(slots("s0"))
    now[0] += backend.HOLDER_PATIENCE + 1
    with pytest.warns(match="on the 0 slots there are"):
        assert wait.goes_on([]), "any node may help"
    with pytest.warns(match="on the 2 slots there are"):
        assert wait.goes_on(slots("s0", "s1")), "more slots may help"
    with pytest.warns(match="no slot holds s1"):
        assert not wait.goes_on(slots("s0"))
    with pytest.warns(match="no slot holds s0"):
        assert wait.goes_on(slots("s1")), "another shard, another wait"


def test_each_wait_for_a_holder_has_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder of a shard is lost, comes back, and is lost again much later."""
    placed = NodeShards(Catalogue(PLACES), whole=False)  # type: ignore[arg-type]
    now = [100.0]
    monkeypatch.setattr(backend, "monotonic", lambda: now[0])
    wait = backend.NodeWait(placed)
    with pytest.warns(match="no slot holds s1"):
        assert wait.goes_on(slots("s0"))
    wait.over()
    now[0] += 10 * backend.HOLDER_PATIENCE
    with pytest.warns(match="no slot holds s1"):
        assert wait.goes_on(slots("s0"))


def test_shards_that_every_node_has_are_never_missing() -> None:
    assert not ShardRegister((ShardId("s0"),), 1).missing([])
