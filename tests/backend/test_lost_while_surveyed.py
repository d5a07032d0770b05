"""A node or its process is lost while it looks at its shards, without a cluster."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.core.cluster import ShardId
from shoal.train.data.catalogue import Catalogue
from shoal.train.data.columns import DataError
from shoal.train.data.survey import Finding, Inspection, SurveyRequest
from shoal.train.data.url_cache import UrlCache

pytest.importorskip("ray", reason="the ray backend needs Ray")
import ray
from ray import exceptions

from shoal.backend.ray import cluster, node_survey

Look = Callable[[Inspection], Iterator[Finding]]
PLACES = {"s0": {"n0": "/s0.npz", "n1": "/s0.npz"}, "s1": {"n1": "/s1.npz"}}
ERRORS = [
    exceptions.ActorDiedError(),
    exceptions.LocalRayletDiedError(),
    exceptions.NodeDiedError("it is gone"),
    exceptions.ObjectLostError("00", None, ""),
    exceptions.OutOfMemoryError("killed"),
    exceptions.OwnerDiedError("00", None, ""),
    exceptions.TaskUnschedulableError("no such node"),
    exceptions.WorkerCrashedError(),
]


class Nodes:
    """Two nodes, of which n1 raises this error after its first shard, each time it is asked."""

    def __init__(self, patch: pytest.MonkeyPatch, error: Exception, leaves: bool) -> None:
        self.error = error
        self.leaves = leaves
        self.live = ["n0", "n1"]
        patch.setattr(ray, "is_initialized", lambda: True)
        patch.setattr(ray, "get", lambda finding: finding)
        patch.setattr(cluster, "live_nodes", self.nodes)
        patch.setattr(node_survey, "_begin", self.begin)

    def nodes(self) -> list[cluster.Node]:
        return [cluster.Node(name, name, 1, (name,)) for name in self.live]

    def begin(self, task: Inspection, *_: Any) -> Iterator[Finding]:
        for part, path in task.paths.items():
            if task.node == "n1" and part == "s1":
                if self.leaves:
                    self.live = ["n0"]
                raise self.error
            yield Finding(part, task.node, path)


def found(folder: Path, places: Any, begun: bool) -> list[Finding]:
    asked = SurveyRequest(Catalogue(places), UrlCache(1.0, str(folder)))
    return node_survey.survey_nodes(asked, None, begun)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_error_names_the_shard_at_which_a_process_ends(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Nodes(monkeypatch, error, leaves=False)
    with pytest.raises(DataError, match=r"at n1 ended twice while it read s1 \(/s1.npz\)"):
        found(tmp_path, PLACES, begun=False)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_node_that_leaves_is_as_one_that_was_never_there(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Nodes(monkeypatch, error, leaves=True)
    with pytest.raises(DataError, match="names n1, and the cluster has the nodes n0; s1 lies"):
        found(tmp_path, PLACES, begun=True)


def test_a_study_goes_on_without_a_node_whose_shards_others_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Nodes(monkeypatch, exceptions.NodeDiedError("it is gone"), leaves=True)
    both = {ShardId("s0"): PLACES["s0"], ShardId("s1"): {**PLACES["s1"], "n0": "/s1.npz"}}
    with pytest.warns(match="names n1, .* the others hold all shards"):
        seen = found(tmp_path, both, begun=True)
    assert {each.part for each in seen if each.node == "n0"} == {"s0", "s1"}


def test_a_recipe_that_does_not_load_at_a_node_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = ModuleNotFoundError("No module named 'pyarrow'")
    error = exceptions.RayTaskError("_look", "a traceback", cause)
    Nodes(monkeypatch, error, leaves=False)
    with pytest.raises(DataError, match="n1 cannot look at its shards: ModuleNotFoundError: No"):
        found(tmp_path, PLACES, begun=False)
