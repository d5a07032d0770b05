"""Files of a study that are damaged, and what must hold of a study that went on all the same."""

import os
import time
from collections.abc import Callable, Mapping
from errno import ENOSPC
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_kit import Steady

import shoal
from shoal.core.event import Fell
from shoal.train.lane.checkpoints import Checkpoints

# -- damage --------------------------------------------------------------------------------------


def flip(file: Path) -> None:
    """Another bit in the middle of the largest part of the file: a tensor's."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def flip_often(file: Path) -> None:
    """So that each of the states in a pack is hit."""
    data = bytearray(file.read_bytes())
    for at in range(700, len(data), 100):
        data[at] ^= 1
    file.write_bytes(data)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def replace_with_text(file: Path) -> None:
    """A file that unpickles to a call, if anybody unpickled it."""
    file.write_bytes(b"cos\nsystem\n(S'touch /tmp/shoal-was-here'\ntR.")


DAMAGE: Mapping[str, Callable[[Path], None]] = {
    "flipped": flip,
    "truncated": truncate,
    "empty": empty,
    "text": replace_with_text,
    "missing": Path.unlink,
}

# -- studies -------------------------------------------------------------------------------------


def pause_after(study: shoal.Study, saves: int, patch: pytest.MonkeyPatch, **options: Any) -> None:
    """Let the study run until so many states were written; then its disk is full."""
    written = []
    save = Checkpoints.save

    def saved(self: Checkpoints, name: str, state: Any) -> None:
        if len(written) >= saves:
            raise OSError(ENOSPC, "No space left on device")
        save(self, name, state)
        written.append(name)

    with patch.context() as within:
        within.setattr(Checkpoints, "save", saved)
        with pytest.raises(shoal.StudyPaused, match="No space left"):
            study.optimize(progress=False, **options)


class Harmful(Steady):
    """While it trains, once, it damages the newest checkpoint of each trial."""

    def __init__(self, folder: str, **given: Any) -> None:
        super().__init__(slow=0.0, **given)
        self.folder = folder

    def training_step(self, model: Any, batch: Any) -> Any:
        done = Path(self.folder) / "damaged"
        newest = {}
        for file in sorted(Path(self.folder).glob("checkpoints/*/*.pt")):
            newest[file.parent.name] = file
        advanced = [file for file in newest.values() if file.name > "000002"]
        if len(advanced) == 4 and not done.exists():
            done.write_text("")
            for file in advanced:
                flip(file)
        return super().training_step(model, batch)


# At which step of the training something happens, once, and what.
DISTURBANCE: list[Any] = []


class Disturbed(Steady):
    """While it trains in this process, something happens: see `DISTURBANCE`."""

    def training_step(self, model: Any, batch: Any) -> Any:
        if DISTURBANCE:
            DISTURBANCE[0] -= 1
            if DISTURBANCE[0] == 0:
                _, act = DISTURBANCE
                DISTURBANCE.clear()
                act()
        return super().training_step(model, batch)


class SlowDisk(Steady):
    """Where it trains, each fsync takes three seconds, unless `os.slow` is set before."""

    def training_step(self, model: Any, batch: Any) -> Any:
        if not hasattr(os, "slow"):
            sync = os.fsync

            def slow(file: int) -> None:
                time.sleep(3.0)
                sync(file)

            os.slow = os.fsync = slow
        return super().training_step(model, batch)


def check_equal(study: shoal.Study, undisturbed: shoal.Study | None = None) -> None:
    """No trial is lost; each has the weights of its record, and those of the undisturbed study."""
    study.recipe.slow = 0.0
    assert [trial.status for trial in study.trials] == ["finished"] * 4
    for visits in study.state.visits.values():
        assert len({(visit.epoch, visit.shard) for visit in visits}) == len(visits)
        assert len(visits) == 20
    assert all(row["verdict"] in ("equal", "agrees") for row in study.replay())
    for trial in study.state.known if undisturbed else ():
        ours = study.load_model(trial).state_dict()
        theirs = undisturbed.load_model(trial).state_dict()
        for name, tensor in ours.items():
            assert np.array_equal(tensor.numpy(), theirs[name].numpy()), (trial, name)


def falls(study: shoal.Study) -> list[Fell]:
    """The falls because of checkpoints that could not be read."""
    return [line.entry for line in study.lines() if isinstance(line.entry, Fell) and line.entry.why]
