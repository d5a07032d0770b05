"""The ray backend on a cluster whose nodes come and go."""

from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray_kit import Bench, Given, Tiny, trials_of

from shoal.backend.ray import fleet as ray_fleet
from shoal.backend.ray.backend import Ray
from shoal.core.event import Advanced, Commanded, Ended, Failed, Fell, Joined, Left
from shoal.policy import Fifo, Hop

pytestmark = pytest.mark.slow


def test_nodes_come_and_go(tmp_path: Path, head: Cluster) -> None:
    """A state whose node is gone is lost, and its trial falls back to the durable one; data()
    runs once on each node.
    """
    (marks := tmp_path / "marks").mkdir()
    nodes = [head.add_node(num_cpus=2)]
    bench = Bench(tmp_path, Tiny(slow=0.03, marks=marks))
    mine = len(list(marks.iterdir()))
    done: list[str] = []

    def churn(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            if not done:
                done.append("one comes")
                nodes.append(head.add_node(num_cpus=1))
            elif (
                len(done) == 1
                and len(state.slots) == 3
                and all(len(v) >= 3 for v in state.visits.values())
                and state.visits
            ):
                done.append("one goes")
                head.remove_node(nodes[0], allow_graceful=False)
            elif len(done) == 2 and len(state.slots) == 1:
                done.append("it is gone")

        return watch

    searcher = Given([], trials_of(bench.data, [4, 5, 6, 7], 3), lambda view: len(view.slots) == 3)
    backend = bench.run(searcher, Hop(), churn, address=head.address, checkpoint_every=0.2)
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


def test_a_node_that_left_before_slots_opened_is_followed_by_others(
    tmp_path: Path, head: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a batch system takes the first node back at once."""
    monkeypatch.setattr(ray_fleet, "await_node", lambda say: None)
    bench = Bench(tmp_path, Tiny())
    came: list[Any] = []

    def late(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            if not came:
                came.append(head.add_node(num_cpus=1))

        return watch

    searcher = Given(trials_of(bench.data, [4], 1))
    bench.run(searcher, Fifo(), late, address=head.address)
    assert bench.state.ended == {"t4": "finished"}


@pytest.mark.nightly
def test_nodes_that_are_taken_back_are_no_strikes_against_trials(
    tmp_path: Path, head: Cluster
) -> None:
    """A trial whose slot dies three times without anything durable fails; but not where a batch
    system takes back the nodes, as often as it likes.
    """
    nodes = [head.add_node(num_cpus=1)]
    bench = Bench(tmp_path, Tiny(slow=0.03))
    taken: list[set[str]] = []

    def take_back(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            here = set(state.slots)
            if state.gangs and here not in taken and len(taken) < 4:
                taken.append(here)
                head.remove_node(nodes[-1], allow_graceful=True)
                nodes.append(head.add_node(num_cpus=1))

        return watch

    searcher = Given(trials_of(bench.data, [4], 2))
    bench.run(searcher, Fifo(), take_back, address=head.address, checkpoint_every=60)
    assert [left.died for left in bench.events(Left)] == [False] * 4
    assert bench.state.ended == {"t4": "finished"}


@pytest.mark.nightly
@pytest.mark.parametrize("why", ["asked for", "timeout"])
def test_a_run_left_without_nodes_can_be_ended(tmp_path: Path, head: Cluster, why: str) -> None:
    """It waits for nodes to come back; told to stop, or at its deadline, it ends with what it
    has.
    """
    node = head.add_node(num_cpus=1)
    bench = Bench(tmp_path, Tiny(slow=0.03))
    without: list[float] = []

    def churn(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            if any(isinstance(entry, Advanced) for entry in entries) and len(without) == 0:
                without.append(now)
                head.remove_node(node, allow_graceful=False)
            elif len(without) == 1 and not state.slots:
                without.append(now)
                if why == "asked for":
                    backend.tell(Commanded("stop", why))

        return watch

    deadline = 30.0 if why == "timeout" else None
    bench.run(
        Given(trials_of(bench.data, [4], 200)),
        Hop(),
        churn,
        deadline=deadline,
        address=head.address,
    )
    assert len(without) == 2
    assert [entry.why for entry in bench.events(Commanded)] == [why]
    assert len(bench.state.trials) == 1
    assert not bench.events(Failed)


@pytest.mark.nightly
def test_with_copies_a_lost_node_costs_no_finished_visit(tmp_path: Path, head: Cluster) -> None:
    """Whether its trial stays at a slot or hops, and whatever of the node ends first."""
    head.add_node(num_cpus=1)
    ways = (
        (Hop(), lambda node: head.remove_node(node, allow_graceful=False)),
        (Fifo(), lambda node: node.kill_raylet()),
    )
    for policy, lose in ways:
        node = head.add_node(num_cpus=1)
        folder = tmp_path / type(policy).__name__
        check_a_loss(folder, policy, lambda: lose(node), head.address)
        ray.shutdown()


def check_a_loss(folder: Path, policy: Any, lose: Any, address: str) -> None:
    """Lose a node while two trials train."""
    bench = Bench(folder, Tiny(slow=0.05))
    lost: list[str] = []

    def take(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            made = [len(visits) for visits in state.visits.values()]
            if not lost and len(made) == 2 and min(made) >= 4:
                lost.append("a node")
                lose()

        return watch

    trials = trials_of(bench.data, [4, 5], 4)
    searcher = Given([], trials, lambda view: len(view.slots) == 2)
    bench.run(searcher, policy, take, address=address, copies=2)
    assert lost and len(bench.events(Left)) == 1
    made = [visit for each in bench.events(Advanced) for visit in each.visits]
    assert len(made) == 2 * 4 * 4, "none was made twice"
    assert bench.events(Fell)
    bench.check_visits(4)
    bench.check_weights()
