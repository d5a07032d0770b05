"""What a stranger lays into the folders of a study's loggers, before a run or during it."""

import os
import sqlite3
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.callbacks.csv_file import CsvFile
from shoal.callbacks.logger import Logger
from shoal.engine.plain_files import NotPlainFile

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs links")


def study_in(folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    return SimpleNamespace(folder=SimpleNamespace(path=folder), trials=())


def test_a_logger_folder_that_becomes_a_link_while_it_is_open(tmp_path: Path) -> None:
    study = study_in(tmp_path / "study")
    logger = Logger("csv", CsvFile())
    logger.on_start(study)
    trial = SimpleNamespace(id="t000", config={"lr": 0.1})
    logger.sink.write(trial, 1.0, {"loss": 1.0})
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "scores.csv").write_text("mine\n")
    (study.folder.path / "csv").rename(tmp_path / "former")
    (study.folder.path / "csv").symlink_to(mine)
    for values in ({"loss": 1.0}, {"loss": 1.0, "accuracy": 1.0}):
        with pytest.raises(NotPlainFile, match="symbolic link"):
            logger.sink.write(trial, 2.0, values)
    assert os.listdir(mine) == ["scores.csv"]
    assert (mine / "scores.csv").read_text() == "mine\n"


def test_a_link_deep_in_a_logger_folder(tmp_path: Path) -> None:
    """wandb names its folders after the second in which it writes, which can be foreseen."""
    study = study_in(tmp_path / "study")
    deep = study.folder.path / "wandb" / "wandb" / "offline-run-1-t000" / "files"
    deep.mkdir(parents=True)
    (deep / "config.yaml").symlink_to(tmp_path / "mine")
    with pytest.raises(NotPlainFile, match="symbolic link"):
        Logger("wandb", CsvFile()).on_start(study)


def database(folder: Path, victim: Path) -> None:
    """A database with what a killed change has left, which says that the victim was part of it."""
    folder.mkdir(parents=True)
    file = folder / "mlflow.db"
    with sqlite3.connect(file) as opened:
        opened.execute("create table t(x)")
    opened.close()
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    pages = file.stat().st_size // 4096
    head = magic + struct.pack(">IIIII", 0, 1, pages, 512, 4096)
    end = struct.pack(">I", 2**30 // 4096 + 1) + name
    end += struct.pack(">II", len(name), sum(name)) + magic
    (folder / "mlflow.db-journal").write_bytes(head.ljust(512, b"\0") + end)


def test_a_database_that_has_sqlite_delete_a_file(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("shoal.callbacks.mlflow", reason="needs mlflow")
    study = study_in(tmp_path / "study")
    victim = tmp_path / "mine"
    victim.write_text("mine")
    database(study.folder.path / "mlflow", victim)
    with pytest.raises(ValueError, match="names another file"):
        Logger("mlflow", mlflow.MLflow()).on_start(study)
    assert victim.read_text() == "mine"
    with sqlite3.connect(study.folder.path / "mlflow" / "mlflow.db") as opened:
        opened.execute("select * from t")
    opened.close()
    assert not victim.exists(), "the trap works, where it is not looked for"
