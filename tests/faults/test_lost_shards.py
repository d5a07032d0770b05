"""Shards that are gone, cut short or damaged while a study trains: others go on, one error names
what is missing, and once it is back the study goes on as if nothing had happened."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_kit import Steady

import shoal
from shoal.core.event import Failed, Unread

DAMAGES: dict[str, Callable[[Path], Any]] = {
    "gone": Path.unlink,
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "damaged": lambda file: file.write_bytes(b"x" * file.stat().st_size),
}


class Spoiler:
    """Damages a file once so many epochs' ends were seen."""

    def __init__(self, file: Path, how: str, visits: int) -> None:
        self.file, self.how, self.left = file, how, visits

    def spoil(self) -> None:
        self.left -= 1
        if self.left == 0:
            DAMAGES[self.how](self.file)


class Spoiled(Steady):
    """Steps that call the spoiler first. It is not part of what is stored."""

    spoiler: Any = None
    max_epochs = 3

    def training_step(self, model: Any, batch: Any) -> Any:
        if Spoiled.spoiler is not None:
            Spoiled.spoiler.spoil()
        return super().training_step(model, batch)


def shards_in(folder: Path, compressed: bool) -> list[Path]:
    """Four files of 48 samples; files that are not compressed are mapped."""
    folder.mkdir()
    save = np.savez_compressed if compressed else np.savez
    files = []
    for number in range(4):
        x = np.random.default_rng(number).normal(size=(48, 12)).astype("float32")
        file = folder / f"{number}.npz"
        save(file, x=x, y=x[:, :3].argmax(1))
        files.append(file)
    return files


@pytest.mark.parametrize(
    ("policy", "how"), [("hop", "gone"), ("hop-lrw", "cut"), ("fifo", "damaged")]
)
def test_others_go_on_and_the_shard_put_back_lets_resume_finish(
    tmp_path: Path, how: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = shards_in(tmp_path / "data", compressed=True)
    whole = files[2].read_bytes()
    recipe = Spoiled(slow=0, files=str(tmp_path / "data"))
    study = shoal.create_study(recipe, storage=tmp_path / "s")
    options: dict[str, Any] = {"policy": policy, "progress": False}
    options |= {"checkpoint_every": 0, "data_memory_gb": 0.0}
    monkeypatch.setattr(Spoiled, "spoiler", Spoiler(files[2], how, 25))
    with pytest.raises(shoal.StudyPaused, match="at local on .* s002 cannot be read") as told:
        study.optimize(**options)
    assert "trials have work left" in str(told.value)

    unread = [line.entry for line in study.lines() if isinstance(line.entry, Unread)]
    assert {each.shard for each in unread} == {"s002"}
    state = study.state
    if policy == "fifo":  # each trial went on until it came to the shard
        assert [each.trials for each in unread] == [(t,) for t in state.trials]
    else:
        assert len(unread) == 1 and not unread[0].trials
    if policy == "hop-lrw":  # all that can be done in the epoch without it is done
        assert {state.pending[trial] for trial in state.known} == {frozenset({"s002"})}
    assert any(state.visits.values())
    assert not any(isinstance(line.entry, Failed) for line in study.lines())

    files[2].write_bytes(whole)
    study.resume(progress=False)
    assert [trial.status for trial in study.trials] == ["finished"] * 4
    for visits in study.state.visits.values():
        assert set(Counter((v.epoch, v.shard) for v in visits).values()) == {1}
        assert len(visits) == 4 * 3
    assert [row["equal"] for row in study.replay()] == [True] * 4


def test_a_mapped_file_that_is_cut_is_an_error_and_not_the_end_of_the_process(
    tmp_path: Path,
) -> None:
    files = shards_in(tmp_path / "data", compressed=False)
    data = shoal.Data.folder(tmp_path / "data")
    assert data.rows("s001", np.arange(3))["x"].shape == (3, 12)
    os.truncate(files[1], 100)
    with pytest.raises(shoal.DataError, match="1.npz has 100 bytes, and had") as told:
        data.rows("s001", np.arange(40, 48))
    assert told.value.part == "s001"
