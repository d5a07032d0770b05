"""Real faults, met as a user meets them: processes killed at any moment, full disks, lost
shards, two drivers at once.
"""

import os
import random
import signal
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_kit import (
    EVERY,
    Driver,
    Steady,
    check_repeated,
    check_whole,
    content,
    endure,
    kill,
    lines_of,
    runs,
)

import shoal
from shoal.core.event import Commanded, Failed, Fell, Kept, Left, Opened
from shoal.engine.journal import Journal, JournalError, read, replay
from shoal.study import run as wired
from shoal.study.backends import WiredBackend
from shoal.train.lane.checkpoints import Checkpoints, StaleRun

RAY = {"backend": "ray", "slots": 2}
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra")
FIXED = ("fifo", "hop")  # policies that give each trial its order of visits beforehand


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, shoal.Study]:
    """The same study left alone, for each policy with a fixed order. On the local backend: the
    weights must not depend on it.
    """
    studies = {}
    for policy in FIXED:
        study = shoal.create_study(Steady(slow=0), storage=tmp_path_factory.mktemp(policy) / "s")
        study.optimize(policy=policy, progress=False)
        studies[policy] = study
    return studies


# -- kill -9
# ----------------------------------------------------------------------------------------------


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "kills"),
    [
        ("hop", ["slot", "both"]),
        # What they have of their own happens in the driver, and is met on local below.
        pytest.param("fifo", ["slot", "driver"], marks=pytest.mark.nightly),
        pytest.param("hop-lrw", ["driver"], marks=pytest.mark.nightly),
    ],
)
def test_kill_9_on_ray(
    tmp_path: Path, undisturbed: dict[str, shoal.Study], policy: str, kills: list[str]
) -> None:
    endure(tmp_path / "s", policy, kills, seed=len(policy), **RAY)
    study = check_whole(tmp_path / "s", undisturbed.get(policy))
    died = sum(isinstance(line.entry, Left) and line.entry.died for line in study.lines())
    slots = kills.count("slot")
    # Where both are killed, the driver may still have noted that the slot was.
    assert slots <= died <= slots + kills.count("both")
    assert runs(study) == 1 + len(kills) - slots


@needs_ray
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", ["fifo", "hop", "hop-lrw"])
def test_20_kills_on_ray(
    tmp_path: Path, undisturbed: dict[str, shoal.Study], policy: str, seed: int
) -> None:
    """9 studies with 21 kills in all."""
    kills = random.Random(f"{policy} {seed}").choices(
        ["slot", "driver", "both"], k=3 if policy == "hop" else seed + 1
    )
    endure(tmp_path / "s", policy, kills, seed, **RAY)
    check_whole(tmp_path / "s", undisturbed.get(policy))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "hop", "hop-lrw"])
def test_kill_9_on_local(tmp_path: Path, undisturbed: dict[str, shoal.Study], policy: str) -> None:
    endure(tmp_path / "s", policy, ["driver", "driver"], seed=len(policy))
    assert runs(check_whole(tmp_path / "s", undisturbed.get(policy))) == 3


@needs_ray
@pytest.mark.slow
def test_a_slot_of_a_former_run_writes_nothing_on_ray(tmp_path: Path) -> None:
    """A slot is held while its driver dies and the study is resumed; then it may go on. And a
    Checkpoints of that run is refused.
    """
    folder = tmp_path / "s"
    options = {"policy": "hop", "checkpoint_every": 0, **RAY}
    with Driver(folder, {}, **options) as first:
        first.until(lambda: first.visits() >= 4 and len(first.slots()) == 2, "some visits")
        stale = first.slots()[0]
        os.kill(stale, signal.SIGSTOP)
        try:
            for pid in first.pids():
                if b"ray_reaper" in content(Path(f"/proc/{pid}/cmdline")):
                    kill(pid)  # as if the slot were on another machine: nobody ends it
            first.process.kill()
            first.process.wait()
            with Driver(folder) as second:
                second.until(
                    lambda: (folder / "checkpoints" / "RUN").read_text() == "2", "the second run"
                )
                mine = set(folder.rglob("*-1.pt*"))
                with suppress(ProcessLookupError):  # the system may have hung up on it
                    os.kill(stale, signal.SIGCONT)
                assert second.end()[0] == 0
        finally:
            kill(stale)
    assert set(folder.rglob("*-1.pt*")) <= mine
    assert not list(folder.rglob("*.part"))
    with pytest.raises(StaleRun):
        Checkpoints(str(folder / "checkpoints"), 1).save("t000/000099-1.pt", {})
    check_whole(folder)


@needs_ray
@pytest.mark.slow
def test_a_trial_that_kills_its_slot_each_time_fails_and_the_others_finish_on_ray(
    tmp_path: Path,
) -> None:
    with Driver(
        tmp_path / "s", {"deadly": 5, "slow": 0.01}, policy="hop", checkpoint_every=EVERY, **RAY
    ) as driver:
        code, said = driver.end()
        assert code == 0, said
        driver.vanish()
    study = shoal.load_study(tmp_path / "s")
    ends = {t.config["width"]: t.status.partition(", ")[0] for t in study.trials}
    assert ends == {
        4: "finished",
        5: "failed: its slot died under it 3 times",
        6: "finished",
        7: "finished",
    }
    assert sum(isinstance(line.entry, Left) for line in study.lines()) == 3
    assert sum(isinstance(line.entry, Failed) for line in study.lines()) == 1
    study.recipe.slow = 0
    assert [row["equal"] for row in study.replay()] == [True] * 3


# -- a clean end
# ----------------------------------------------------------------------------------------------


@needs_ray
@pytest.mark.slow
def test_sigterm_on_ray_leaves_everything_durable(
    tmp_path: Path, undisturbed: dict[str, shoal.Study]
) -> None:
    folder = tmp_path / "s"
    with Driver(folder, {}, policy="hop", checkpoint_every=1000, **RAY) as driver:
        driver.until(lambda: driver.visits() >= 6, "some visits")
        driver.process.terminate()
        code, said = driver.end()
        assert (code, said) == (0, "")
        driver.vanish()
    state = replay(lines_of(folder))
    assert state.stopped == "SIGTERM" and state.trials
    assert any(isinstance(line.entry, Commanded) for line in lines_of(folder))
    assert {t: len(v) for t, v in state.visits.items()} == {
        t: kept.visits for t, kept in state.kept.items()
    }
    study = shoal.load_study(folder)
    study.recipe.slow = 0
    study.optimize(policy="hop", progress=False)  # in this process: Drivers resume on Ray
    assert not any(isinstance(line.entry, Fell) for line in study.lines())
    check_whole(folder, undisturbed["hop"])


# -- two at once
# ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_that_is_open_in_another_process_says_where(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with Driver(folder, {}, policy="fifo") as first:
        first.until(lambda: first.visits() >= 1, "a visit")
        first.pause()  # it is not over before the second has looked
        with Driver(folder) as second:
            code, said = second.end()
        assert code == 2
        assert (
            f"held by process {first.process.pid} on" in said
            and "open already" in said
            and "Traceback" not in said
        )
        first.process.kill()
        first.process.wait()
    assert runs(shoal.load_study(folder)) == 1


# -- disks and files
# ----------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 160 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=160k", "none", str(folder)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("file systems can be mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


@pytest.mark.parametrize("filled", [0, 60, 100, 130, 150])
def test_a_full_disk_pauses_the_study_and_with_room_it_goes_on(
    disk: Path, undisturbed: dict[str, shoal.Study], filled: int
) -> None:
    """Whether it is a checkpoint, the journal, a log or the recipe that finds no room: as
    `filled` kB leave it.
    """
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(filled * 1024))
    study = shoal.create_study(Steady(slow=0), storage=disk / "s")
    with pytest.raises((shoal.StudyPaused, shoal.StudyError), match="No space left"):
        study.optimize(policy="hop", checkpoint_every=0, progress=False)
    known = study.state.kept
    assert not any(t.status.startswith("failed") for t in study.trials)
    remount(disk, "size=4m")
    study.optimize(policy="hop", checkpoint_every=0, progress=False)
    state = replay(study.lines())
    assert all(len(state.visits[t]) >= kept.visits for t, kept in known.items())
    assert [t.status for t in study.trials] == ["finished"] * 4
    check_whole(disk / "s", undisturbed["hop"])


def test_what_a_full_disk_left_unwritten_is_not_written_later(tmp_path: Path) -> None:
    """Not even when the journal is closed, or forgotten: another run may have gone on with the
    file since.
    """
    import resource

    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(0.0, Opened(1, {}, {}))
    journal.sync()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        journal.append(1.0, Opened(2, {}, {}))
        with pytest.raises(OSError, match="too large"):
            journal.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    after = Journal(path)
    after.append(2.0, Opened(3, {}, {}))
    after.close()
    journal.close()
    del journal
    assert [line.entry.run for line in read(path)] == [1, 3]


def test_a_journal_torn_within_a_line_goes_on_before_it(
    tmp_path: Path, undisturbed: dict[str, shoal.Study]
) -> None:
    folder = tmp_path / "s"
    with Driver(folder, {"slow": 0.01}, policy="hop", checkpoint_every=0) as driver:
        driver.until(lambda: driver.visits() >= 8, "some visits")
        driver.process.kill()
        driver.process.wait()
    journal = folder / "journal.jsonl"
    whole = journal.read_bytes()
    last = (
        max(i for i, line in enumerate(lines_of(folder)) if isinstance(line.entry, Kept)) + 1
    )  # the head is not among them
    rows = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join(rows[: last + 1]) + b'{"t":3.2,"e":"Adva')
    study = shoal.load_study(folder)
    study.recipe.slow = 0
    study.resume(progress=False)
    check_whole(folder, undisturbed["hop"])
    journal.write_bytes(journal.read_bytes().replace(b'"Submitted"', b'"Subm', 1))
    with pytest.raises(JournalError, match="line 4"):
        _ = shoal.load_study(folder).trials


def test_a_folder_that_cannot_be_written_to_is_one_error(disk: Path) -> None:
    study = shoal.create_study(Steady(slow=0), storage=disk / "s")
    remount(disk, "ro")
    with pytest.raises(shoal.StudyError, match="cannot be written to"):
        study.optimize(progress=False)
    assert not (disk / "s").exists()


def test_a_resumed_study_knows_its_code_and_says_nothing_of_changes(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    shoal.create_study(Steady(slow=0), storage=folder).optimize(
        max_epochs=1, timeout=0, progress=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shoal.load_study(folder).resume(progress=False)
    first, second = (
        line.entry.head["recipe"] for line in lines_of(folder) if isinstance(line.entry, Opened)
    )
    assert first == second and first["file"].endswith("fault_kit.py")


def test_a_failure_before_the_first_moment_closes_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []

    def broken(*_: object) -> None:
        raise PermissionError("checkpoints")

    made = wired.backend

    def backend(*given: Any) -> WiredBackend:
        found = made(*given)
        monkeypatch.setattr(Checkpoints, "names", broken)

        def close() -> None:
            found.close()
            closed.append(True)

        return WiredBackend(found.backend, found.vault, close)

    monkeypatch.setattr(wired, "backend", backend)
    with pytest.raises(shoal.StudyPaused, match="PermissionError: checkpoints"):
        shoal.create_study(Steady(slow=0), storage=tmp_path / "s").optimize(progress=False)
    assert closed == [True]


@needs_ray
def test_prints_that_find_no_room_are_not_the_fault_of_the_trial(disk: Path) -> None:
    from shoal.backend.node.process import Prints

    prints = Prints()
    prints.go_to(disk / "t000" / "log.txt")
    print("." * 300_000, file=prints, flush=True)
    print("more", file=prints, flush=True)
    prints.close_all()
    assert (disk / "t000" / "log.txt").stat().st_size <= 160 * 1024


@needs_ray
@pytest.mark.slow
def test_a_lost_shard_and_a_full_disk_pause_a_study_on_ray(tmp_path: Path) -> None:
    """A disk is full for the slots: their files may not grow beyond some bytes."""
    rng, folder, shards, narrow = (
        np.random.default_rng(0),
        tmp_path / "s",
        tmp_path / "shards",
        tmp_path / "narrow",
    )
    shards.mkdir()
    for i in range(4):
        x = rng.normal(size=(40, 12)).astype("float32")
        # Compressed: files that are mapped stay readable when their names are gone.
        np.savez_compressed(shards / f"{i}.npz", x=x, y=x[:, :3].argmax(1))
    recipe = {"files": str(shards), "narrow": str(narrow)}
    with Driver(
        folder, recipe, policy="hop", checkpoint_every=EVERY, data_memory_gb=0, **RAY
    ) as first:
        first.until(lambda: first.visits() >= 4, "some visits")
        (shards / "2.npz").rename(tmp_path / "away")
        code, said = first.end()
        assert (
            code == 1
            and "StudyPaused" in said.splitlines()[-1]
            and "2.npz" in said.splitlines()[-1]
        ), said
        first.vanish()
    (tmp_path / "away").rename(shards / "2.npz")
    with Driver(folder) as second:
        second.until(lambda: second.visits() >= 4, "some visits")
        (tmp_path / "said").write_text("1000")
        (tmp_path / "said").rename(narrow)
        code, said = second.end()
        assert code == 2 and "File too large" in said and "Traceback" not in said, said
        second.vanish()
    narrow.unlink()
    study = shoal.load_study(folder)
    study.recipe.slow = 0
    study.optimize(policy="hop", progress=False)
    assert [t.status for t in study.trials] == ["finished"] * 4 and runs(study) == 3
    assert [row["equal"] for row in study.replay()] == [True] * 4
    check_repeated(study.lines())
