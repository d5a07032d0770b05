"""Data that stays at its nodes, on a Ray cluster whose nodes have folders of their own."""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from ray_kit import Bench, Given, Tiny, trials_of

import shoal
from shoal.backend.ray import cluster as ray_cluster
from shoal.backend.ray.backend import Ray
from shoal.backend.ray.node_survey import survey_of
from shoal.core.errors import StudyError
from shoal.core.event import Joined, Left, Unread
from shoal.core.trial import TrialId
from shoal.policy import Hop
from shoal.train.recipe.recipe_data import bring

pytestmark = pytest.mark.slow
NODES = ("n0", "n1", "n2", "n3")
Tables = Mapping[str, Mapping[str, Mapping[str, str]]]  # table, part, node: path


class Placed(Tiny):
    """Shards at nodes. Each opening of a file is a line of the record: process, node, file."""

    def __init__(self, catalogue: Path, record: Path, slow: float = 0.0) -> None:
        super().__init__(slow=slow, columns=6)
        self.catalogue, self.record = catalogue, record

    def data(self) -> shoal.Data:
        return shoal.Data.shards(self.catalogue)

    def read(self, path: Path) -> Any:
        node = ray_cluster.node_here().host if ray.is_initialized() else "none"
        line = json.dumps({"pid": os.getpid(), "node": node, "path": str(path)})
        with self.record.open("a") as record:
            record.write(line + "\n")
        return super().read(path)

    @property
    def openings(self) -> list[Mapping[str, Any]]:
        return [json.loads(line) for line in self.record.read_text().splitlines()]


class Killing(Placed):
    """Reading shard s1 ends the process."""

    def read(self, path: Path) -> Any:
        if path.stem == "s1":
            os._exit(1)
        return super().read(path)


def placed(
    folder: Path, shards: int, replicas: int, nodes: tuple[str, ...] = NODES
) -> dict[str, dict[str, dict[str, str]]]:
    """Files of each node in a folder of its own, and the catalogue's tables."""
    rng = np.random.default_rng(0)
    tables: dict[str, dict[str, dict[str, str]]] = {"train": {}, "valid": {}}
    for number in range(shards + 1):
        name = f"s{number}" if number < shards else "held"
        x = rng.normal(size=(40, 6)).astype("float32")
        holders = [nodes[(number + k) % len(nodes)] for k in range(replicas)]
        table = "train"
        if name == "held":
            holders, table = list(nodes), "valid"
        places = {}
        for node in holders:
            (folder / node).mkdir(exist_ok=True)
            np.savez(folder / node / f"{name}.npz", x, x[:, :3].argmax(1))
            places[node] = str(folder / node / f"{name}.npz")
        tables[table][name] = places
    return tables


def at_local(tables: Tables, but: str = "") -> dict[str, dict[str, dict[str, str]]]:
    """The same files for a process in no cluster, of any node except `but`."""
    return {
        table: {
            part: {"local": next(places[n] for n in places if n != but)}
            for part, places in parts.items()
        }
        for table, parts in tables.items()
    }


def written(file: Path, tables: Tables) -> Path:
    lines = []
    for table, parts in tables.items():
        for part, places in parts.items():
            lines.append(f"[{table}.{part}]")
            lines += [f'"{node}" = "{path}"' for node, path in places.items()]
    file.write_text("\n".join(lines))
    return file


def opened(backend: Ray, names: Collection[str]) -> None:
    """Start slots at the new nodes, and wait until they are open: meanwhile nobody gets work."""
    backend._slots.look()
    processes = backend._slots.processes.values()
    fresh = [each for each in processes if each.slot is None and each.node in names]
    assert len(fresh) == 2
    ray.get([each.call("train", "forget", TrialId("none")) for each in fresh])


def test_two_of_four_holders_die_and_come_back(tmp_path: Path, head: Cluster) -> None:
    """Six shards with three copies each. Every trial visits every shard once an epoch, learns what
    it learns alone, and no process reads a shard that does not lie at its node. Meanwhile some
    copies are damaged: their slot goes on without them.
    """
    nodes = {name: head.add_node(num_cpus=1, node_name=name) for name in NODES}
    tables = placed(tmp_path, shards=6, replicas=3)
    recipe = Placed(written(tmp_path / "c.toml", tables), tmp_path / "record")
    data = bring(recipe, survey_of(head.address, begun=False))
    bench = Bench(tmp_path, recipe, data)
    epochs, gone = 5, ("n0", "n2")
    damaged = {"s1", "s3", "s5"}  # n3 has good copies
    done: list[str] = []

    def churn(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            least = min((len(v) for v in state.visits.values()), default=0) / 6
            if not done and least > 1:
                done.append("gone")
                for name in gone:
                    head.remove_node(nodes[name], allow_graceful=False)
                for name in damaged:
                    file = tmp_path / "n1" / f"{name}.npz"
                    file.write_bytes(b"x" * file.stat().st_size)
            elif len(done) == 1 and least > 3 and len(state.slots) == 2:
                done.append("back")
                back = [head.add_node(num_cpus=1, node_name=name) for name in gone]
                opened(backend, [node.node_id for node in back])

        return watch

    searcher = Given([], trials_of(data, [4, 5, 6], epochs), lambda v: len(v.slots) == 4)
    how = {"checkpoint_every": 0.2, "data_memory_gb": 0.0, "feeders": 0}
    bench.run(searcher, Hop(), churn, address=head.address, **how)
    assert done == ["gone", "back"]
    assert len([slot for left in bench.events(Left) for slot in left.slots]) >= 2
    assert len(bench.state.slots) == 4, "they are back"
    for joined in bench.events(Joined):
        for slot in joined.slots:
            assert slot.shards == data.catalogue.shards_at((slot.node,))  # type: ignore[union-attr]
    unread = {(each.shard, each.why) for each in bench.events(Unread)}
    assert unread and {shard for shard, _ in unread} <= damaged
    for shard, why in unread:
        assert f"{shard} at n1" in why and "and held" in why, why
    bench.check_visits(epochs)
    for opening in recipe.openings:
        assert opening["node"] in NODES and opening["pid"] != os.getpid()
        assert Path(opening["path"]).parent.name == opening["node"]
    ray.shutdown()
    written(tmp_path / "c.toml", at_local(tables, but="n1"))
    bench.data = bring(recipe)
    assert bench.data.fingerprint == data.fingerprint
    bench.check_weights()


@pytest.mark.nightly
def test_one_error_before_any_work(tmp_path: Path, head: Cluster) -> None:
    for name in NODES[:2]:
        head.add_node(num_cpus=1, node_name=name)
    tables = placed(tmp_path, shards=3, replicas=1, nodes=NODES[:2])
    recipe = Placed(tmp_path / "c.toml", tmp_path / "record")

    def refused(folder: str, policy: str = "hop", recipe: Placed = recipe) -> str:
        study = shoal.create_study(
            recipe,
            storage=tmp_path / folder,
            metric="accuracy",
            mode="max",
            search_space={"width": shoal.grid([4])},
        )
        with pytest.raises(StudyError) as raised:
            study.optimize(
                max_epochs=1, policy=policy, backend="ray", address=head.address, progress=False
            )
        assert not (tmp_path / folder / "journal.jsonl").exists()
        return str(raised.value)

    train = tables["train"]
    written(recipe.catalogue, {**tables, "train": {**train, "s1": {"n9": "/x.npz"}}})
    text = refused("unknown")
    assert "names n9, and the cluster has the nodes" in text
    assert "s1 lies nowhere else" in text

    missing = {"n1": str(tmp_path / "none.npz")}
    other = {"n0": train["s0"]["n0"], "n1": train["s1"]["n1"]}
    written(recipe.catalogue, {**tables, "train": {**train, "s1": missing, "s0": other}})
    text = refused("missing")
    assert "s1 at n1" in text and "there is no such file" in text
    assert "the copies of s0 differ" in text

    killing = Killing(recipe.catalogue, recipe.record)
    written(recipe.catalogue, tables)
    text = refused("killed", recipe=killing)
    assert f"the process at n1 ended twice while it read s1 ({train['s1']['n1']})" in text
    assert "n0" not in text and "the recipe's read(path) ends its process" in text

    text = refused("whole", policy="fifo")
    assert "policy fifo reads the whole data set" in text and "hop" in text
