"""A study whose journal has snapshots goes on as it would without them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from test_study import same_weights

import shoal
from shoal.engine import snapshot
from shoal.study import watchers
from shoal.study.folder import Folder


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """These journals are small."""
    monkeypatch.setattr(watchers, "EVERY", 20)
    monkeypatch.setattr(snapshot, "ENDING", 400)


def opened(folder: Path, recipe: Any) -> shoal.Study:
    return shoal.create_study(recipe, storage=folder, load_if_exists=True)


def test_a_resumed_study_is_as_one_without_snapshots(tmp_path: Path, blobs: Any) -> None:
    """Also if its journal was damaged before the snapshot, which costs nothing."""
    options = {"policy": "fifo", "fuse": False, "progress": False}
    with_one = opened(tmp_path / "a" / "s", blobs())
    with_one.optimize(max_epochs=3, **options)
    folder = tmp_path / "a" / "s"
    since = Folder(folder).past().since
    assert since is not None and since.learnt["last"]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for file in (tmp_path / "b" / "s").glob("*.snapshot"):
        file.unlink()
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    damaged = tmp_path / "c" / "s" / "journal.jsonl"
    content = bytearray(damaged.read_bytes())
    content[content.index(b'"e":"Submitted"')] ^= 1
    damaged.write_bytes(content)

    studies = []
    for name in "abc":
        study = opened(tmp_path / name / "s", blobs())
        study.optimize(max_epochs=5, **options)
        study.enqueue({"width": 5, "lr": 0.01}, max_epochs=2)
        study.optimize(max_epochs=5, **options)
        studies.append(study)
    one, other, third = studies
    assert same_weights(one, other) and same_weights(one, third)
    for which in ("last", "best"):
        for trial in one.trials:
            weights = [s.load_model(trial.id, which).state_dict() for s in studies]
            for key, value in weights[0].items():
                assert all((each[key] == value).all() for each in weights)
    assert one.state.known == other.state.known == third.state.known
    assert one.state.scores == other.state.scores == third.state.scores
    names = [
        sorted(p.name for p in (tmp_path / name / "s" / "checkpoints").rglob("*.pt"))
        for name in "abc"
    ]
    assert names[0] == names[1] == names[2]
