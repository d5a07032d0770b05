"""Disks that are full, slow or read-only, folders that go away, clocks that jump."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from errno import EDQUOT, EROFS
from importlib.util import find_spec
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
from damage_kit import DISTURBANCE, Disturbed, SlowDisk, check_equal, falls, pause_after
from fault_kit import Steady

import shoal
from shoal.backend import local
from shoal.core.event import Left
from shoal.engine.journal import read
from shoal.study.holder import process_of

pytestmark = pytest.mark.faults
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra")
YEAR = 365 * 86400.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> shoal.Study:
    study = shoal.create_study(Steady(slow=0), storage=tmp_path_factory.mktemp("u") / "s")
    study.optimize(policy="hop", progress=False)
    return study


@pytest.fixture
def disturb() -> Iterator[Callable[[int, Callable[[], object]], None]]:
    """Has something happen once, at a step of the training that is under way here."""

    def at(step: int, act: Callable[[], object]) -> None:
        DISTURBANCE[:] = [step, act]

    yield at
    DISTURBANCE.clear()


def train(study: shoal.Study, **options: Any) -> None:
    study.optimize(policy="hop", progress=False, **{"checkpoint_every": 0, **options})


# -- disks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "why"), [(EDQUOT, "quota exceeded"), (EROFS, "Read-only")])
@pytest.mark.parametrize("together", [False, True])
def test_a_disk_that_takes_nothing_more_pauses_the_study(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: shoal.Study,
    disturb: Any,
    number: int,
    why: str,
    together: bool,
) -> None:
    every = 1e-9 if together else 0
    study = shoal.create_study(Disturbed(slow=0), storage=tmp_path / "s")

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        disturb(100, lambda: patch.setattr(os, "fsync", refused))
        with pytest.raises(shoal.StudyPaused, match=f"{why}.*run the same command"):
            train(study, checkpoint_every=every)
    assert not any(trial.status.startswith("failed") for trial in study.trials)
    train(study, checkpoint_every=every)
    check_equal(study, undisturbed)


def test_a_folder_that_becomes_read_only_while_the_study_runs(
    tmp_path: Path, undisturbed: shoal.Study, disturb: Any
) -> None:
    folder = tmp_path / "s"
    study = shoal.create_study(Disturbed(slow=0), storage=folder)
    bound: list[int] = []

    def read_only() -> None:
        bind = ["mount", "--bind", str(folder), str(folder)]
        remount = ["mount", "-o", "remount,bind,ro", str(folder)]
        for command in (bind, remount):
            bound.append(subprocess.run(command, capture_output=True, check=False).returncode)

    disturb(100, read_only)
    try:
        with pytest.raises(shoal.StudyPaused, match="Read-only file system"):
            _train_or_skip(study, bound)
    finally:
        if bound and bound[0] == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)
    train(study)
    check_equal(study, undisturbed)


def _train_or_skip(study: shoal.Study, bound: list[int]) -> None:
    train(study)
    if any(bound):
        pytest.skip("folders can be mounted by root only")


def slow_down(patch: pytest.MonkeyPatch, seconds: float) -> list[float]:
    """Each fsync takes so long; returns when they were made."""
    sync, made = os.fsync, []

    def slow(file: int) -> None:
        made.append(time.monotonic())
        time.sleep(seconds)
        sync(file)

    patch.setattr(os, "fsync", slow)
    return made


@pytest.mark.slow
def test_a_slow_disk_only_takes_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: shoal.Study
) -> None:
    study = shoal.create_study(Steady(slow=0), storage=tmp_path / "s")
    made = slow_down(monkeypatch, 1.0)
    train(study, checkpoint_every=30)
    assert made
    check_equal(study, undisturbed)


@needs_ray
@pytest.mark.nightly  # on local above; slots that are silent are in test_ray_hangs
def test_a_slow_disk_only_takes_time_on_ray(
    tmp_path: Path, undisturbed: shoal.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the slots' processes: they answer meanwhile, and nobody takes them for hung."""
    monkeypatch.setattr(os, "slow", None, raising=False)  # not in this one's replay
    study = shoal.create_study(SlowDisk(slow=0.02), storage=tmp_path / "s")
    train(study, checkpoint_every=2, backend="ray", slots=2, hang_after=8.0)
    assert not any(isinstance(line.entry, Left) and line.entry.died for line in study.lines())
    check_equal(study, undisturbed)


# -- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [0, 1e-9])
def test_a_folder_that_is_moved_away_while_the_study_runs(
    tmp_path: Path, undisturbed: shoal.Study, disturb: Any, every: float
) -> None:
    folder = tmp_path / "s"
    study = shoal.create_study(Disturbed(slow=0), storage=folder)
    disturb(100, lambda: folder.rename(tmp_path / "away"))
    with pytest.raises(shoal.StudyPaused, match="No such file|deleted or moved"):
        train(study, checkpoint_every=every)
    assert not (folder / "checkpoints").exists(), "nothing is written beside what was moved"
    shutil.rmtree(folder, ignore_errors=True)
    (tmp_path / "away").rename(folder)
    train(study, checkpoint_every=every)
    check_equal(study, undisturbed)


def test_a_folder_that_is_deleted_while_the_study_runs(tmp_path: Path, disturb: Any) -> None:
    folder = tmp_path / "s"
    study = shoal.create_study(Disturbed(slow=0), storage=folder)
    disturb(100, lambda: shutil.rmtree(folder))
    with pytest.raises(shoal.StudyPaused, match="No such file|deleted or moved"):
        train(study)


def test_copies_of_a_folder_go_on_each_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: shoal.Study
) -> None:
    study = shoal.create_study(Steady(slow=0), storage=tmp_path / "s")
    pause_after(study, 30, monkeypatch, policy="hop", checkpoint_every=0)
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    (tmp_path / "s").rename(tmp_path / "deep")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "deep").rename(tmp_path / "elsewhere" / "s")
    for place in (tmp_path / "copy", tmp_path / "elsewhere" / "s"):
        again = shoal.load_study(place)
        again.recipe.slow = 0
        train(again)
        assert not falls(again), "checkpoints moved along"
        check_equal(again, undisturbed)
    assert not (tmp_path / "s").exists()


def test_what_killed_processes_left_half_written_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: shoal.Study
) -> None:
    folder = tmp_path / "s"
    study = shoal.create_study(Steady(slow=0), storage=folder)
    pause_after(study, 30, monkeypatch, policy="hop", checkpoint_every=0)
    (folder / "inbox").mkdir(exist_ok=True)
    left = ["journal.jsonl", "holder.json", "slots.json", "report.html", "recipe.pkl"]
    left += ["inbox/000001.json", "checkpoints/RUN.7", "checkpoints/t000/000009-1.pt.7"]
    for name in left:
        (folder / f"{name}.part").write_bytes(b"half")
    train(study)
    study.report()
    check_equal(study, undisturbed)
    assert not list((folder / "checkpoints").rglob("*.part"))


# -- clocks --------------------------------------------------------------------------------------


def jumping(patch: pytest.MonkeyPatch) -> None:
    """The time of day is another one whenever it is asked for."""
    clock = time.time
    jumps = cycle([0.0, -3600.0, 20 * YEAR, -40 * YEAR, 86400.0, -clock()])
    patch.setattr(time, "time", lambda: clock() + next(jumps))


@pytest.mark.parametrize("every", [0, 1e-9])
def test_a_time_of_day_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: shoal.Study, every: float
) -> None:
    """Also to before 1980, which zip files do not know."""
    study = shoal.create_study(Steady(slow=0), storage=tmp_path / "s")
    with monkeypatch.context() as patch:
        jumping(patch)
        pause_after(study, 30, monkeypatch, policy="hop", checkpoint_every=every)
        train(study, checkpoint_every=every)
    lines = list(read(tmp_path / "s" / "journal.jsonl"))
    assert all(one.time <= other.time for one, other in pairwise(lines))
    assert lines[0].time >= 0 and lines[-1].time < 3600
    about = process_of(study.folder, 0.0)
    assert about["silent"] == 0 and about["running"] is False
    check_equal(study, undisturbed)


def test_a_machine_that_slept_for_days_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: shoal.Study, disturb: Any
) -> None:
    """Where the steady clock counts them."""
    slept = [0.0]
    monkeypatch.setattr(local, "monotonic", lambda: time.monotonic() + slept[0])
    study = shoal.create_study(Disturbed(slow=0), storage=tmp_path / "s")

    def sleep() -> None:
        slept[0] = 3 * 86400.0

    disturb(100, sleep)
    train(study, checkpoint_every=1e-9)
    times = [line.time for line in study.lines()]
    assert times == sorted(times) and times[-1] > slept[0]
    assert not falls(study)
    assert "until" in json.loads((tmp_path / "s" / "holder.json").read_text())
    check_equal(study, undisturbed)
