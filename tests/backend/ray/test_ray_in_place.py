"""Models are validated, and samples dealt, where data lies at several nodes of a Ray cluster."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from ray_kit import SEED, Bench, Given, Tiny, trials_of
from test_ray_placed import Placed, at_local, head, written  # noqa: F401 - head is a fixture
from typer.testing import CliRunner

import shoal
from shoal.backend.ray.placed.survey import survey_of
from shoal.cli import app
from shoal.core.cluster import ShardId
from shoal.core.event import Advanced, Evaluated
from shoal.core.trial import TrialId
from shoal.engine import journal
from shoal.policy import Hop
from shoal.study.folder import StudyError
from shoal.study.parts.backends import data_read_at
from shoal.study.setup import data_of
from shoal.train.data.columns import DataError
from shoal.train.data.make.deals import Deal
from shoal.train.recipe.bring import bring
from shoal.train.recipe.unit import Unit
from shoal.train.slot.setup import StationSetup
from shoal.train.slot.station import Station

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
    station = Station(bench.recipe, bench.data, None, StationSetup(seed=SEED))
    for number, visit in enumerate(visits):
        unit = Unit(
            bench.state.known[trial],
            visits[:number],
            visit._replace(samples=0),
            evaluate=True,
        )
        steps = station.train(unit)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                done = end.value
                break
    return done.scores["accuracy"]


def test_scores_are_those_of_the_undivided_set(tmp_path: Path, head: Cluster) -> None:  # noqa: F811
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


def test_samples_are_dealt_between_nodes_at_a_barrier(
    tmp_path: Path,
    head: Cluster,  # noqa: F811
) -> None:
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


def test_tools_work_where_no_node_holds_all(
    tmp_path: Path,
    head: Cluster,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`check`, `plan`, `profile` and `replay` read shards at their holders (`--address`)."""
    for name in NODES:
        head.add_node(num_cpus=1, node_name=name)
    file = written(tmp_path / "c.toml", divided(tmp_path))
    record = tmp_path / "record"
    kit = Path(__file__).parent
    script = tmp_path / "visiting.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(kit)!r})\n"
        "import shoal\nfrom pathlib import Path\n"
        "from test_ray_in_place import Visiting\n\n\n"
        "class Here(Visiting):\n"
        "    metric, mode, max_epochs = 'accuracy', 'max', 2\n"
        "    search_space = {'width': shoal.grid([4, 5])}\n\n"
        "    def __init__(self):\n"
        f"        super().__init__(Path({str(file)!r}), Path({str(record)!r}))\n"
    )
    monkeypatch.chdir(tmp_path)
    at = ["--address", head.address]
    for command in (
        ["check", "visiting.py:Here"],
        ["plan", "visiting.py:Here", "--policy", "hop"],
        ["profile", "visiting.py:Here", "--slots", "1", "--feeders", "1"],
    ):
        refused = CliRunner().invoke(app, command)
        assert refused.exit_code == 2, refused.output
        assert "--address" in refused.output
        done = CliRunner().invoke(app, [*command, *at])
        assert done.exit_code == 0, (command, done.output)
        assert not ray.is_initialized(), "the cluster is left again"

    study = shoal.create_study(
        Visiting(file, record),
        storage=tmp_path / "study",
        seed=SEED,
        search_space={"width": shoal.grid([4, 5])},
        metric="accuracy",
        mode="max",
    )
    study.optimize(policy="hop", max_epochs=2, backend="ray", address=head.address)
    with pytest.raises(StudyError, match="address="):
        shoal.load_study(tmp_path / "study").replay()
    replayed = shoal.load_study(tmp_path / "study").replay(address=head.address)
    assert [row["verdict"] for row in replayed] == ["equal", "equal"]

    visiting = Visiting(file, record)
    assert visiting.openings
    for opening in visiting.openings:
        assert Path(opening["path"]).parent.name == opening["node"]


class EndsLater(Placed):
    """Reading a shard ends the process, after the survey has read it once."""

    def read(self, path: Path) -> Any:
        text = self.record.read_text() if self.record.exists() else ""
        if str(path) in text:
            os._exit(1)
        return super().read(path)


def test_a_holder_that_ends_while_it_reads_is_not_said_to_be_away(
    tmp_path: Path,
    head: Cluster,  # noqa: F811
) -> None:
    for name in NODES:
        head.add_node(num_cpus=1, node_name=name)
    file = written(tmp_path / "c.toml", divided(tmp_path))
    with data_read_at(head.address):
        data = data_of(EndsLater(file, tmp_path / "record"))
        with pytest.raises(DataError) as raised:
            data.read(ShardId("s0"))
    text = str(raised.value)
    assert "none of these nodes is in the cluster" not in text
    assert "n0" in text and "ended while it read s0" in text and "memory" in text


def test_an_address_for_data_that_is_here_is_refused(
    tmp_path: Path,
    head: Cluster,  # noqa: F811
) -> None:
    study = shoal.create_study(
        Tiny(columns=6), storage=tmp_path, search_space={"width": shoal.grid([4])}
    )
    with data_read_at(head.address), pytest.raises(StudyError, match="leave it out"):
        data_of(study.recipe)
