"""Each logger's files, read back by that tool's own reader where it has one."""

import csv
import glob
import os
import re
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.callbacks.logger import Logger, loggers_of
from shoal.engine.csv_cells import cell, text_of

SPACE = {"width": 4, "lr": shoal.grid([1e-2, 1e-3])}
Logged = dict[str, list[tuple[float, float]]]


def opened(folder: Path, blobs: Any) -> shoal.Study:
    return shoal.create_study(blobs(), storage=folder, search_space=SPACE, load_if_exists=True)


def in_journal(study: shoal.Study) -> Logged:
    return {
        trial.id: [(epoch, values["accuracy"]) for epoch, values in trial.scores]
        for trial in study.trials
    }


def in_csv(folder: Path) -> Logged:
    found: Logged = {}
    with (folder / "csv" / "scores.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            score = float(row["epoch"]), float(row["accuracy"])
            found.setdefault(row["trial"], []).append(score)
            assert float(row["config.lr"]) in (1e-2, 1e-3)
    return found


def in_tensorboard(folder: Path) -> Logged:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed",
    )
    from tensorboard.plugins.hparams import metadata

    found: Logged = {}
    for place in sorted((folder / "tensorboard").iterdir()):
        events = accumulator.EventAccumulator(str(place)).Reload()
        scalars = events.Scalars("accuracy")
        found[place.name] = [(each.step, each.value) for each in scalars]
        given = events.PluginTagToContent(metadata.PLUGIN_NAME)
        began = metadata.parse_session_start_info_plugin_data(
            given[metadata.SESSION_START_INFO_TAG]
        )
        assert began.group_name == place.name
        assert began.hparams["lr"].number_value in (1e-2, 1e-3)
        over = metadata.parse_session_end_info_plugin_data(given[metadata.SESSION_END_INFO_TAG])
        assert over.status == 1  # success
    return found


def in_mlflow(folder: Path) -> Logged:
    tracking = pytest.importorskip("mlflow.tracking", reason="mlflow is not installed")
    client = tracking.MlflowClient(f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(folder.name)
    found: Logged = {}
    for run in client.search_runs([experiment.experiment_id]):
        assert run.info.status == "FINISHED"
        assert float(run.data.params["lr"]) in (1e-2, 1e-3)
        history = client.get_metric_history(run.info.run_id, "accuracy")
        scores = sorted((each.step, each.value) for each in history)
        found[run.info.run_name] = scores
    return dict(sorted(found.items()))


def wandb_records(path: str) -> Iterator[bytes]:
    """The records of a .wandb file, which is a LevelDB log behind seven bytes.

    A process of W&B's own writes it, and is not through when the run has ended here.
    """
    log = Path(path).parent / "logs" / "debug-internal.log"
    deadline = time.monotonic() + 120
    while not log.exists() or b"all finished" not in log.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    data = Path(path).read_bytes()
    assert data[:4] == b":W&B"
    at = 7
    parts = b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def in_wandb(folder: Path) -> Logged:
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="wandb is not installed")
    found: Logged = {}
    paths = glob.glob(f"{folder}/wandb/wandb/offline-run-*/*.wandb")
    for path in sorted(paths):
        name = ""
        for data in wandb_records(path):
            record = pb.Record.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run" and not name:
                name = record.run.display_name
                assert record.run.project == folder.name
                config = {each.key: each.value_json for each in record.run.config.update}
                assert float(config["lr"]) in (1e-2, 1e-3)
            if kind == "history":
                items = {
                    (each.key or each.nested_key[0]): float(each.value_json)
                    for each in record.history.item
                }
                score = items["epoch"], items["accuracy"]
                found.setdefault(name, []).append(score)
    return {trial: sorted(scores) for trial, scores in sorted(found.items())}


READERS = {"csv": in_csv, "tensorboard": in_tensorboard, "mlflow": in_mlflow, "wandb": in_wandb}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_its_files_say_what_the_journal_says_once_however_the_study_goes_on(
    tmp_path: Path, blobs: Any, name: str
) -> None:
    read_back = READERS[name]
    if name != "csv":
        pytest.importorskip(name, reason=f"{name} is not installed")
    study = opened(tmp_path / "s", blobs)
    study.optimize(policy="fifo", loggers=[name], timeout=0.0, progress=False)
    study.resume(progress=False)
    study.optimize(policy="fifo", max_epochs=3, loggers=name, progress=False)
    study.resume(progress=False)
    found = {
        trial: [(epoch, pytest.approx(value)) for epoch, value in scores]
        for trial, scores in in_journal(study).items()
    }
    assert [len(scores) for scores in found.values()] == [3, 3]
    assert read_back(tmp_path / "s") == found


def test_what_a_killed_run_did_not_log_is_added(tmp_path: Path, blobs: Any) -> None:
    study = opened(tmp_path / "s", blobs)
    study.optimize(policy="fifo", progress=False)
    assert not (tmp_path / "s" / "csv").exists()
    study.optimize(policy="fifo", loggers=["csv"], progress=False)
    file = tmp_path / "s" / "csv" / "scores.csv"
    whole = file.read_bytes()
    assert in_csv(tmp_path / "s") == in_journal(study)
    file.write_bytes(whole[:-9])  # cut short within the last line
    study.resume(progress=False)
    assert file.read_bytes() == whole


def test_a_place_of_ones_own_and_an_object(tmp_path: Path, blobs: Any) -> None:
    from shoal.callbacks.csv_file import CsvFile

    study = opened(tmp_path / "s", blobs)
    mine = Logger("mine", CsvFile(), tmp_path / "mine")
    place = f"csv:{tmp_path / 'there'}"
    study.optimize(policy="fifo", loggers=[place, mine], progress=False)
    texts = [(tmp_path / name / "scores.csv").read_text() for name in ("there", "mine")]
    assert texts[0] == texts[1]
    assert texts[0].startswith("trial,epoch,config.width,config.lr,accuracy")
    assert not (tmp_path / "s" / "csv").exists()


def test_columns_that_come_later_and_texts_with_commas(tmp_path: Path) -> None:
    from shoal.callbacks.csv_file import CsvFile

    sink = CsvFile()
    sink.open(SimpleNamespace(folder=SimpleNamespace(path=tmp_path)), tmp_path)
    trial = SimpleNamespace(id="t000", config={"text": 'a, "b"\nc'})
    sink.write(trial, 1.0, {"loss": 0.5})
    sink.write(trial, 2.0, {"loss": 0.25, "accuracy": 1.0})
    sink = CsvFile()
    sink.open(SimpleNamespace(folder=SimpleNamespace(path=tmp_path)), tmp_path)
    assert sink.logged(trial) == 2
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["accuracy"] for row in rows] == ["", "1.0"]
    assert {row["config.text"] for row in rows} == {'a, "b"\nc'}


FORMULAS = ("=1+1", "+x", "-x", "@x", "\t=1", "\r=1", "\n", " =1", "\uff1dx", "'=1", "''@")
PLAIN = ("-0.5", "+1e-3", "-inf", "", "a=b", "'", "'a", "1-2", "x\n=1")


def test_formulas_are_disarmed_in_csv_and_read_as_they_were(tmp_path: Path) -> None:
    from shoal.callbacks.csv_file import CsvFile

    texts = dict(enumerate(FORMULAS + PLAIN))
    config = {f"n{number}": text for number, text in texts.items()}
    config |= {"rate": -0.5, "steps": -3, "none": None}
    sink = CsvFile()
    sink.open(SimpleNamespace(folder=SimpleNamespace(path=tmp_path)), tmp_path)
    for name in ("=cmd|x", "-t1", "t2"):
        trial = SimpleNamespace(id=name, config=config)
        sink.write(trial, 1.0, {"=loss": -0.25})
        sink.write(trial, 2.0, {"=loss": -1e-9, "@late": -2.0})
        sink = CsvFile()  # the file is read, and written anew
        sink.open(SimpleNamespace(folder=SimpleNamespace(path=tmp_path)), tmp_path)
        assert sink.logged(trial) == 2
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["trial"] for row in rows[::2]] == ["'=cmd|x", "'-t1", "t2"]
    for row in rows:
        assert {"'=loss", "'@late"} < row.keys()
        assert float(row["'=loss"]) < 0
        found = {name: row[f"config.{name}"] for name in config}
        assert (found["rate"], found["steps"], found["none"]) == ("-0.5", "-3", "")
        for number, text in texts.items():
            quote = "'" * (text in FORMULAS)
            assert found[f"n{number}"] == quote + text, repr(text)


@given(st.text(alphabet="'=+-@\t\n 1e.x\uff0b", max_size=6))
def test_each_cell_is_read_as_it_was_written(text: str) -> None:
    written = cell(text)
    assert text_of(written) == text
    number = written.strip().lower().lstrip("+-")[:1] in (*"1.", "i", "n")
    assert not written.lstrip().startswith(tuple("=+-@\uff0b")) or number


CLASHES = {"epoch": 7.0, "trial": 8.0, "config.lr": 9.0, "status": 3.0, "a:b": 5.0}
CLASHES |= {"a_b": 6.0, "metric.epoch": 4.0, "accuracy": 0.5, "_step": 2.0}


class Clashing:
    """A study and a trial whose scores have the names of a logger's own columns."""

    def __init__(self, folder: Path) -> None:
        self.folder = SimpleNamespace(path=folder)
        self.id = "t000"
        self.status = "finished"
        self.config = {"lr": 0.1, "epoch": 40, "a:b": 1, "a_b": 2}
        self.scores = [(1.0, CLASHES), (2.0, CLASHES)]


def logged(name: str, folder: Path) -> None:
    """Log both scores."""
    (logger,) = loggers_of(name)
    sink: Any = vars(logger)["sink"]
    clashing = Clashing(folder)
    sink.open(clashing, folder / name)
    for epoch, values in clashing.scores:
        sink.write(clashing, epoch, values)
    sink.end(clashing)
    sink.close()


def test_scores_never_take_the_place_of_csv_columns(tmp_path: Path) -> None:
    logged("csv", tmp_path)
    with (tmp_path / "csv" / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1.0", "2.0"]
    for row in rows:
        assert (row["trial"], row["config.lr"], row["config.epoch"]) == ("t000", "0.1", "40")
        found = {name: float(row[name]) for name in ("status", "a:b", "a_b", "_step")}
        assert found == {name: CLASHES[name] for name in found}
        for name in ("epoch", "trial", "config.lr", "metric.epoch"):
            assert float(row[f"metric.{name}"]) == CLASHES[name]


def test_scores_never_take_each_others_place_in_mlflow(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="mlflow is not installed")
    logged("mlflow", tmp_path)
    client = tracking.MlflowClient(f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(tmp_path.name)
    (run,) = client.search_runs([experiment.experiment_id])
    assert sorted(run.data.metrics.values()) == sorted(CLASHES.values())
    assert run.data.metrics["a_b"] == CLASHES["a_b"]
    assert sorted(run.data.params.values()) == ["0.1", "1", "2", "40"]


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs a chown")
@pytest.mark.parametrize("place", ["", ":online"])
def test_wandb_reads_no_settings_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Its settings name the server that gets the key; it reads them from the current folder."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    (tmp_path / "wandb").mkdir()
    settings = tmp_path / "wandb" / "settings"
    settings.write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    monkeypatch.chdir(tmp_path)
    assert loggers_of(f"wandb{place}")
    os.chown(settings, 12345, 12345)
    with pytest.raises(ValueError, match="must be your own, but it belongs to user 12345"):
        loggers_of(f"wandb{place}")
    os.chown(settings, os.getuid(), os.getgid())
    settings.chmod(0o666)
    with pytest.raises(ValueError, match="must be your own, but others may write to it"):
        loggers_of(f"wandb{place}")


def test_scores_never_take_the_place_of_the_epoch_in_wandb(tmp_path: Path) -> None:
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="wandb is not installed")
    logged("wandb", tmp_path)
    (path,) = glob.glob(f"{tmp_path}/wandb/wandb/offline-run-*/*.wandb")
    rows = []
    for data in wandb_records(path):
        record = pb.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            names = [each.key or each.nested_key[0] for each in items]
            values = [each.value_json for each in items]
            rows.append(dict(zip(names, values, strict=True)))
    assert [float(row["epoch"]) for row in rows] == [1.0, 2.0]
    for name in ("epoch", "status", "_step", "metric.epoch"):
        assert float(rows[0][f"metric.{name}"]) == CLASHES[name]


def test_scores_of_any_name_are_in_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed",
    )
    logged("tensorboard", tmp_path)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / "t000"))
    events.Reload()
    found = {name: events.Scalars(name)[-1].value for name in CLASHES}
    assert found == CLASHES


@pytest.mark.parametrize(
    ("logger", "says"),
    [
        ("tensorbord", "no logger is named 'tensorbord': there are csv, tensorboard"),
        ("csv:s3://bucket/a", "a logger writes to a folder on this machine; got 's3://"),
        ("mlflow", "the logger 'mlflow' needs mlflow: pip install 'shoal[mlflow]'"),
    ],
)
def test_a_missing_logger_is_one_error_before_any_work(
    tmp_path: Path, blobs: Any, monkeypatch: pytest.MonkeyPatch, logger: str, says: str
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    study = opened(tmp_path / "s", blobs)
    with pytest.raises(ValueError, match=re.escape(says)):
        study.optimize(loggers=[logger], progress=False)
    assert not study.folder.journal.exists()
