"""Data that stays at its nodes on Ray, as a user meets it: shards that are lost, URLs, policies."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from test_ray_placed import Placed, at_local, placed, written

import shoal
from shoal.backend.ray import backend
from shoal.core.event import Joined, Planned
from shoal.engine.run import Stalled

pytestmark = pytest.mark.nightly
NODES = ("n0", "n1", "n2")


class After(shoal.Callback):
    """Does something after the first evaluation that it sees."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act: Callable[[], Any] | None = act

    def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:
        if self.act is not None:
            self.act()
            self.act = None


def study_of(recipe: Placed, folder: Path) -> shoal.Study:
    return shoal.create_study(
        recipe,
        storage=folder,
        metric="accuracy",
        mode="max",
        search_space={"width": shoal.grid([4, 5])},
    )


def check_visits(study: shoal.Study, shards: int, epochs: int) -> None:
    """Each trial finished, and visited each shard once an epoch."""
    assert [trial.status for trial in study.trials] == ["finished"] * 2
    for visits in study.state.visits.values():
        assert set(Counter((v.epoch, v.shard) for v in visits).values()) == {1}
        assert len(visits) == shards * epochs


def test_lost_shards_stop_nobody_else_and_resume_finishes(
    tmp_path: Path, head: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is deleted, one is cut, and then the node of the third is lost."""
    monkeypatch.setattr(backend, "HOLDER_PATIENCE", 2.0)
    nodes = {name: head.add_node(num_cpus=1, node_name=name) for name in NODES}
    tables = placed(tmp_path, shards=3, replicas=1, nodes=NODES)
    recipe = Placed(written(tmp_path / "c.toml", tables), tmp_path / "record", slow=0.02)
    study = study_of(recipe, tmp_path / "s")
    options: dict[str, Any] = {"policy": "hop-lrw", "max_epochs": 4, "progress": False}
    options |= {"backend": "ray", "address": head.address, "feeders": 0}
    options |= {"checkpoint_every": 0, "data_memory_gb": 0.0}
    gone, cut = (Path(tables["train"][f"s{i}"][f"n{i}"]) for i in (1, 2))
    whole = {file: file.read_bytes() for file in (gone, cut)}

    def spoil() -> None:
        gone.unlink()
        os.truncate(cut, 300)

    with pytest.raises(shoal.StudyPaused) as told:
        study.optimize(callbacks=[After(spoil)], **options)
    assert "s1 at n1" in str(told.value) and "s2 at n2" in str(told.value)
    state = study.state
    assert {state.pending[trial] for trial in state.known} == {frozenset(("s1", "s2"))}

    for file, content in whole.items():
        file.write_bytes(content)
    lose = partial(head.remove_node, nodes["n0"], allow_graceful=False)
    with pytest.raises(Stalled, match="s0 lie at no slot since n0 left"):
        study.resume(progress=False, callbacks=[After(lose)])
    state = study.state
    assert {state.pending[trial] for trial in state.known} == {frozenset(("s0",))}

    head.add_node(num_cpus=1, node_name="n0")
    study.resume(progress=False)
    check_visits(study, shards=3, epochs=4)
    ray.shutdown()
    written(recipe.catalogue, at_local(tables))
    recipe.slow = 0.0
    assert [row["equal"] for row in study.replay()] == [True] * 2


# -- URLs and policies ---------------------------------------------------------------------------


class Fetched(Placed):
    """Shards that are URLs."""

    cache_gb = 20.0

    def data(self) -> shoal.Data:
        cache = self.catalogue.parent / f"cache-{self.cache_gb}"
        return shoal.Data.shards(self.catalogue, cache=str(cache), cache_gb=self.cache_gb)


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.gets[Path(self.path).stem] += 1  # type: ignore[attr-defined]
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Counter[str]]]:
    """A server of the folder: its address, and how often each file was fetched."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path))
    gets = server.gets = Counter[str]()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", gets
    finally:
        server.shutdown()
        server.server_close()


Places = Mapping[str, tuple[str, ...]]  # the nodes of each shard


def table_of(folder: str, places: Places) -> dict[str, dict[str, dict[str, str]]]:
    """The shards' tables of a catalogue, and the validation part at both nodes."""

    def at(part: str, nodes: tuple[str, ...]) -> dict[str, str]:
        return dict.fromkeys(nodes, f"{folder}/{part}.npz")

    train = {shard: at(shard, nodes) for shard, nodes in places.items()}
    return {"train": train, "valid": {"held": at("held", NODES[:2])}}


def gangs_of(study: shoal.Study) -> list[Any]:
    entries = [line.entry for line in study.lines()]
    return [gang for e in entries if isinstance(e, Planned) for gang in e.start]


def nodes_of(study: shoal.Study) -> set[str]:
    """The nodes that had slots."""
    entries = [line.entry for line in study.lines()]
    return {slot.node for e in entries if isinstance(e, Joined) for slot in e.slots}


def test_holders_fetch_urls_and_policies_go_where_the_data_is(
    tmp_path: Path, head: Cluster, served: tuple[str, Counter[str]]
) -> None:
    pytest.importorskip("aiohttp", reason="fsspec's http needs aiohttp")
    n0, n1 = NODES[:2]
    for name in (n0, n1):
        head.add_node(num_cpus=2, node_name=name)
    placed(tmp_path, shards=3, replicas=1, nodes=("files",))
    address, gets = served
    run: dict[str, Any] = {"backend": "ray", "address": head.address, "feeders": 0}
    run |= {"progress": False, "data_memory_gb": 0.0}

    # No node holds all. Two slots of one node share what it fetched.
    spread = {"s0": (n0,), "s1": (n0, n1), "s2": (n1,)}
    catalogue = written(tmp_path / "urls.toml", table_of(f"{address}/files", spread))
    recipe = Fetched(catalogue, tmp_path / "record")
    study = study_of(recipe, tmp_path / "urls")
    study.optimize(policy="auto", max_epochs=2, **run)
    assert gets == {"s0": 1, "s1": 2, "s2": 1, "held": 2}
    assert all(gang.shards for gang in gangs_of(study))

    # With room for two of three files, others are fetched again.
    gets.clear()
    size = (tmp_path / "files" / "s0.npz").stat().st_size
    recipe.cache_gb = 2.5 * size / 2**30
    study.optimize(policy="auto", max_epochs=4, **run)
    check_visits(study, shards=3, epochs=4)
    assert gets.total() > 6
    for node in (n0, n1):
        kept = (tmp_path / f"cache-{recipe.cache_gb}" / node).glob("*.npz")
        assert 1 <= len(list(kept)) <= 2

    # Policies over the whole data have slots where all of it lies.
    folder = str(tmp_path / "files")
    partly = {"s0": (n0,), "s1": (n0, n1), "s2": (n0,)}
    plain = Placed(written(tmp_path / "partly.toml", table_of(folder, partly)), tmp_path / "r2")
    study = study_of(plain, tmp_path / "partly")
    study.optimize(policy="fifo", max_epochs=1, **run)
    check_visits(study, shards=3, epochs=1)
    assert nodes_of(study) == {n0} == {each["node"] for each in plain.openings}

    # Where every node holds all, auto does not hop.
    both = dict.fromkeys(spread, (n0, n1))
    written(plain.catalogue, table_of(folder, both))
    study = study_of(plain, tmp_path / "both")
    study.optimize(policy="auto", max_epochs=2, **run)
    check_visits(study, shards=3, epochs=2)
    assert nodes_of(study) == {n0, n1}
    assert not any(gang.shards for gang in gangs_of(study))
