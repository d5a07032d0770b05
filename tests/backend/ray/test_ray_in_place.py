"""Models are validated, and samples dealt, where data lies at several nodes of a Ray cluster."""

import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from ray_kit import SEED, Bench, Given, Tiny, trials_of
from test_ray_placed import Placed, at_local, written
from typer.testing import CliRunner

import shoal
from shoal.backend.ray import cluster as ray_cluster
from shoal.backend.ray.cluster import Node, Share
from shoal.backend.ray.node_survey import survey_of
from shoal.backend.ray.node_tools import best_holder
from shoal.cli import app
from shoal.core.cluster import ShardId
from shoal.core.errors import StudyError
from shoal.core.event import Advanced, Evaluated
from shoal.core.trial import TrialId
from shoal.engine import journal
from shoal.engine.process import lives, python_module
from shoal.policy import Hop
from shoal.study import replay
from shoal.study.backends import at_holders
from shoal.study.setup import data_of
from shoal.train.data.arrangement import Deal
from shoal.train.data.catalogue import catalogue_of
from shoal.train.data.columns import DataError
from shoal.train.recipe.recipe_data import bring
from shoal.train.recipe.unit import Unit
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer

pytestmark = pytest.mark.slow
NODES = ("n0", "n1")


class Visiting(Placed):
    """A score that needs all outputs, in their order."""

    def validation_step(self, model, batch):
        return {"logits": model(batch[0]), "target": batch[1]}

    def validation_epoch(self, outputs):
        right = outputs["logits"].argmax(1) == outputs["target"]
        order = torch.arange(1, len(right) + 1)
        return {"accuracy": (right * order).sum() / order.sum()}


def divided(folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Each node holds one training shard and one validation part."""
    drawn = np.random.default_rng(0)
    tables: dict[str, dict[str, dict[str, str]]] = {"train": {}, "valid": {}}
    for number, node in enumerate(NODES):
        (folder / node).mkdir()
        for table, letter in (("train", "s"), ("valid", "v")):
            x = drawn.normal(size=(40, 6)).astype("float32")
            path = folder / node / f"{letter}{number}.npz"
            np.savez(path, x, x[:, :3].argmax(1))
            tables[table][f"{letter}{number}"] = {node: str(path)}
    return tables


def scored(bench, trial, visits):
    """The trial's score after these visits, where one process reads all of the data."""
    trainer = SlotTrainer(bench.recipe, bench.data, None, TrainerSetup(seed=SEED))
    for number, visit in enumerate(visits):
        unit = Unit(
            bench.state.known[trial], visits[:number], visit._replace(samples=0), evaluate=True
        )
        steps = trainer.train(unit)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                done = end.value
                break
    return done.scores["accuracy"]


@pytest.mark.nightly
def test_scores_are_those_of_the_undivided_set(tmp_path: Path, head: Cluster) -> None:
    for name in NODES:
        head.add_node(num_cpus=1, node_name=name)
    tables = divided(tmp_path)
    recipe = Visiting(written(tmp_path / "c.toml", tables), tmp_path / "record")
    data = bring(recipe, survey_of(head.address, begun=False))
    bench = Bench(tmp_path, recipe, data)
    bench.run(Given(trials_of(data, [4, 5], 2)), Hop(), address=head.address)
    scores = {(e.trial, e.epoch): e.values["accuracy"] for e in bench.events(Evaluated)}
    assert len(scores) == 4
    for opening in recipe.openings:
        assert Path(opening["path"]).parent.name == opening["node"]

    written(tmp_path / "c.toml", at_local(tables))
    alone = Bench(tmp_path / "alone", recipe, bring(recipe))
    bench.data = alone.data
    bench.check_weights()
    for trial, visits in bench.state.visits.items():
        for epoch in (1, 2):
            assert scores[trial, epoch] == scored(bench, trial, visits[: 2 * epoch])


class Dealing(Tiny):
    """Samples are dealt anew between the nodes' shards in each epoch."""

    metric, mode, max_epochs = "accuracy", "max", 3
    search_space = {"width": shoal.grid([4, 5])}

    def __init__(self, catalogue: Path) -> None:
        super().__init__(columns=6)
        self.catalogue = catalogue

    def data(self) -> shoal.Data:
        return shoal.Data.shards(self.catalogue).reshuffle("across")


@pytest.mark.nightly
def test_samples_are_dealt_between_nodes_at_a_barrier(tmp_path: Path, head: Cluster) -> None:
    for name in NODES:
        head.add_node(num_cpus=1, node_name=name)
    tables = divided(tmp_path)
    file = written(tmp_path / "c.toml", tables)
    study = shoal.create_study(Dealing(file), storage=tmp_path / "study", seed=SEED)
    study.optimize(policy="hop", backend="ray", address=head.address)
    assert {trial.status for trial in study.trials} == {"finished"}

    made: Counter[TrialId] = Counter()
    bytes_dealt = 0
    for _, entry in journal.read(tmp_path / "study" / "journal.jsonl"):
        if isinstance(entry, Advanced):
            made.update({trial: len(some) for trial, some in entry.visits.items()})
            bytes_dealt += sum(entry.dealt.values())
            begun = [visit for some in entry.visits.values() for visit in some]
            assert all(min(made.values()) >= 2 * visit.epoch for visit in begun)
    sizes = {ShardId(shard): 40 for shard in tables["train"]}
    away = 0
    for epoch in (1, 2):
        counts = Deal(SEED, epoch, sizes).counts()
        away += int(counts.sum() - counts.trace())
    row = 6 * 4 + 8
    assert bytes_dealt == away * row, "each shard of a deal is brought together once"

    replayed = shoal.load_study(tmp_path / "study").replay(address=head.address)
    assert all(row["verdict"] in ("equal", "agrees") for row in replayed)

    ray.shutdown()
    written(file, at_local(tables))
    assert all(
        row["verdict"] in ("equal", "agrees")
        for row in shoal.load_study(tmp_path / "study").replay()
    )


class Stepping(Visiting):
    """Each step is a line of a file beside the record: its process, the one above it, its node."""

    metric, mode, max_epochs = "accuracy", "max", 2
    search_space = {"width": shoal.grid([4, 5])}

    def training_step(self, model, batch):
        node = ray_cluster.node_here().host if ray.is_initialized() else "none"
        with self.record.with_name("steps").open("a") as steps:
            steps.write(f"{os.getpid()} {os.getppid()} {node}\n")
        return super().training_step(model, batch)


class Ending(Stepping):
    """The first step ends the process."""

    def training_step(self, model, batch):
        os._exit(1)


class Waiting(Stepping):
    """The first step does not end."""

    def training_step(self, model, batch):
        super().training_step(model, batch)
        time.sleep(600)


def script_of(folder: Path, kind: type[Visiting]) -> str:
    """A file with that recipe, to be named on the command line. n1 holds most of its data."""
    tables = divided(folder)
    shutil.copy(tables["train"]["s1"]["n1"], folder / "n1" / "s2.npz")
    tables["train"]["s2"] = {"n1": str(folder / "n1" / "s2.npz")}
    file = written(folder / "c.toml", tables)
    given = f"Path({str(file)!r}), Path({str(folder / 'record')!r})"
    (folder / "visiting.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from pathlib import Path\nfrom test_ray_in_place import {kind.__name__}\n\n\n"
        f"class Here({kind.__name__}):\n"
        "    def __init__(self):\n"
        f"        super().__init__({given})\n"
    )
    return f"{folder / 'visiting.py'}:Here"


def wait_until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not met():
        assert time.monotonic() < end
        time.sleep(0.2)


def steps_in(folder: Path) -> list[tuple[int, int, str]]:
    """The steps on record since the last call."""
    file = folder / "steps"
    lines = [line.split() for line in file.read_text().splitlines()]
    file.unlink()
    return [(int(own), int(above), node) for own, above, node in lines]


@pytest.mark.nightly
def test_tools_work_where_no_node_holds_all(
    tmp_path: Path, head: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--address`, `check`, `plan`, `profile` and `replay` train at the node that holds most,
    read there what it holds, and have the other holder read the rest.
    """
    for name in NODES:
        head.add_node(num_cpus=1, node_name=name)
    here = script_of(tmp_path, Stepping)
    monkeypatch.chdir(tmp_path)
    at = ["--address", head.address]
    for command in (
        ["check", here],
        ["plan", here, "--policy", "hop"],
        ["profile", here, "--slots", "1", "--feeders", "1"],
    ):
        refused = CliRunner().invoke(app, command)
        assert refused.exit_code == 2, refused.output
        assert "--address" in refused.output
        done = CliRunner().invoke(app, [*command, *at])
        assert done.exit_code == 0, (command, done.output)
        assert not ray.is_initialized(), "the cluster is left again"
        assert "Working at n1" in done.stderr
        steps = steps_in(tmp_path)
        assert steps
        for own, above, node in steps:
            assert os.getpid() not in (own, above)
            assert node == "n1" or command[0] == "profile", "whose slots are children"
        if command[0] == "check":
            assert "a step at width" in done.stdout, "what the recipe prints is seen here"
    assert (tmp_path / "profile.toml").is_file()

    recipe = Stepping(tmp_path / "c.toml", tmp_path / "record")
    study = shoal.create_study(recipe, storage=tmp_path / "study", seed=SEED)
    study.optimize(policy="hop", backend="ray", address=head.address)
    stored = shoal.load_study(tmp_path / "study")
    with pytest.raises(StudyError, match="address="):
        stored.replay()
    steps_in(tmp_path)
    replayed = stored.replay(address=head.address)
    assert [row["verdict"] for row in replayed] == ["equal", "equal"]
    assert {node for _, _, node in steps_in(tmp_path)} == {"n1"}

    # Where the nodes do not see the checkpoints, the process where this is typed trains.
    monkeypatch.setattr(replay, "_visible_names", lambda *_: frozenset({"a name"}))
    with pytest.warns(UserWarning, match="does not see the checkpoints"):
        replayed = stored.replay(address=head.address)
    assert [row["verdict"] for row in replayed] == ["equal", "equal"]
    assert {own for own, _, _ in steps_in(tmp_path)} == {os.getpid()}

    assert recipe.openings
    for opening in recipe.openings:
        # what lies at n1 is also read by slots of `profile`, which know no node
        assert Path(opening["path"]).parent.name in (opening["node"], "n1")
        assert opening["pid"] != os.getpid()


def test_which_node_does_a_tools_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder of most parts; where a GPU is wanted, of those with one. It takes what it needs,
    and no more than the node has.
    """
    cpus, gpus = {"a": 8, "b": 4, "c": 2, "d": 64}, {"a": 0, "b": 2, "c": 1, "d": 8}

    def nodes(share: Share) -> dict[str, Node]:
        rooms = gpus if share.gpus else cpus
        return {name: Node(name, name, room, (name,)) for name, room in rooms.items()}

    monkeypatch.setattr(ray_cluster, "nodes", nodes)
    held = {"s0": "abc", "s1": "ab", "s2": "a", "s3": "bc"}
    catalogue = catalogue_of({s: dict.fromkeys(at, "/x.npz") for s, at in held.items()}, None)
    for wanted, place in (
        (("cpu", 1, 0), ("a", 0, 0)),
        (("auto", 1, 0), ("b", 0, 1)),
        (("cuda", 1, 4), ("b", 4, 1)),
        (("auto", None, 2), ("b", 4, 2)),
        (("cpu", 3, 2), ("a", 6, 0)),
        (("cpu", None, 1), ("a", 8, 0)),
        (("cpu", 99, 1), ("a", 8, 0)),
    ):
        node, room = best_holder(catalogue, *wanted)
        assert (node.id, room.cpus, room.gpus) == place, wanted
    monkeypatch.setattr(ray_cluster, "nodes", lambda share: {})
    with pytest.raises(DataError, match="none of the nodes that hold shards"):
        best_holder(catalogue, "cpu", 1, 0)


@pytest.mark.nightly
def test_the_end_of_a_tools_process_is_one_error(tmp_path: Path, head: Cluster) -> None:
    for name in NODES:
        head.add_node(num_cpus=1, node_name=name)
    done = CliRunner().invoke(
        app, ["check", script_of(tmp_path, Ending), "--address", head.address]
    )
    assert done.exit_code == 2, done.output
    assert "error: the process at n1 that did this ended" in done.stderr
    assert not ray.is_initialized()


@pytest.mark.nightly
def test_an_interrupt_ends_what_a_tool_does_at_a_node(tmp_path: Path, head: Cluster) -> None:
    for name in NODES:
        head.add_node(num_cpus=1, node_name=name)
    here = script_of(tmp_path, Waiting)
    command = [*python_module("shoal.cli"), "check", here, "--address", head.address]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = Popen(command, stderr=PIPE, text=True, env=found)
    try:
        wait_until((tmp_path / "steps").exists)
        ((worker, _, _),) = steps_in(tmp_path)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "interrupted" in said and "Traceback" not in said
    wait_until(lambda: lives(worker) is False)


class EndsLater(Placed):
    """Reading a shard ends the process, after the survey has read it once."""

    def read(self, path: Path) -> Any:
        text = self.record.read_text() if self.record.exists() else ""
        if str(path) in text:
            os._exit(1)
        return super().read(path)


def test_a_holder_that_ends_while_it_reads_is_not_said_to_be_away(
    tmp_path: Path, head: Cluster
) -> None:
    for name in NODES:
        head.add_node(num_cpus=1, node_name=name)
    file = written(tmp_path / "c.toml", divided(tmp_path))
    with at_holders(head.address):
        data = data_of(EndsLater(file, tmp_path / "record"))
        with pytest.raises(DataError) as raised:
            data.read(ShardId("s0"))
    text = str(raised.value)
    assert "none of these nodes is in the cluster" not in text
    assert "n0" in text and "ended while it read s0" in text and "memory" in text


def test_an_address_for_data_that_is_here_is_refused(tmp_path: Path, head: Cluster) -> None:
    study = shoal.create_study(
        Tiny(columns=6), storage=tmp_path, search_space={"width": shoal.grid([4])}
    )
    with at_holders(head.address), pytest.raises(StudyError, match="leave it out"):
        data_of(study.recipe)
