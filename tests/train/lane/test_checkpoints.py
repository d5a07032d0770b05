"""The vault: whole or not at all, on any file system, and never from a run that was overtaken."""

import errno
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from train_kit import Small, blobs, go, planned, trainer, trial

from shoal.engine.plain_files import open_file
from shoal.train.lane import checkpoint_folder
from shoal.train.lane.checkpoints import SMALL, Checkpoints, Damaged, StaleRun, read_state
from shoal.train.tools.verify import compare

STATE = {
    "model": {"w": np.arange(6, dtype="f4").reshape(2, 3)},
    "visits": [[0, "s000", 0, 5]],
    "n": 3,
    "none": None,
    "t": (1, "x"),
}


@pytest.fixture(params=["folder", "url", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    where = {
        "folder": str(tmp_path / "v"),
        "url": f"file://{tmp_path}/v",
        "memory": f"memory://{tmp_path.name}/v",
    }
    return where[request.param]


def test_processes_that_write_side_by_side_use_names_of_their_own(tmp_path: Path) -> None:
    one, other, only = (Checkpoints(tmp_path, 2, token) for token in ("a1", "b2", ""))
    names = [vault.name(trial().id, 3) for vault in (one, other, only)]
    assert names == ["a/000003-2-a1.pt", "a/000003-2-b2.pt", "a/000003-2.pt"]
    one.save(names[0], STATE)
    other.save(names[1], {"other": 1})
    assert compare(only.load(names[0]), STATE).equal and only.names() == tuple(names[:2])


def test_a_state_comes_back_as_it_was(place: str) -> None:
    vault = Checkpoints(place, 1)
    vault.save("a/000001-1.pt", STATE)
    assert compare(vault.load("a/000001-1.pt"), STATE).equal
    kinds = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
    for dtype in kinds:
        state = {"x": np.array([1, 0, 1], dtype=dtype), "scalar": np.array(1, dtype=dtype)}
        vault.save("b/000002-1.pt", state)
        assert compare(vault.load("b/000002-1.pt"), state).equal, dtype
    assert Checkpoints(place, 1).names() == ("a/000001-1.pt", "b/000002-1.pt")
    assert vault.size("a/000001-1.pt") > 24
    vault.delete("b/000002-1.pt")
    vault.delete("b/000002-1.pt")
    assert vault.names() == ("a/000001-1.pt",)
    with pytest.raises(FileNotFoundError):
        vault.load("b/000002-1.pt")


def test_an_empty_place_has_no_names(place: str) -> None:
    assert Checkpoints(place, 1).names() == ()


def test_a_trials_state_comes_back_from_anywhere(place: str) -> None:
    data = blobs()
    held = trainer(Small(), data, Checkpoints(place, 1))
    go(held, trial(), planned(data, 1))
    name = held.keep(trial().id)
    assert (
        name == "a/000003-1.pt"
        and compare(Checkpoints(place, 2).load(name), held.state(trial().id)).equal
    )


def test_only_tensors_and_plain_values_are_stored_and_loaded(tmp_path: Path) -> None:
    data, vault = blobs(), Checkpoints(tmp_path, 1)
    held = trainer(Small(), data, vault)
    go(held, trial(optimizer="adamw", schedule="steps"), planned(data, 1))
    torch.load(tmp_path / held.keep(trial().id), weights_only=True)
    (tmp_path / "a" / "evil.pt").write_bytes(pickle.dumps(_Evil(), protocol=2))
    with pytest.raises(Damaged, match=r"checkpoint a/evil.pt at .* cannot be read"):
        vault.load("a/evil.pt")
    assert not (tmp_path / "taken").exists()


class _Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("taken",)


def test_a_small_file_may_unpack_to_many_bytes(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save({"one": torch.ones(1).expand(2**18)}, path)  # 1 MiB, of 4 bytes
    with path.open("rb") as file:
        assert read_state(file)["one"].sum() == 2**18


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    vault = Checkpoints(tmp_path, 1)
    vault.save("a/000001-1.pt", STATE)
    file = tmp_path / "a/000001-1.pt"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(Damaged, match="cannot be read"):
        vault.load("a/000001-1.pt")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_crash_before_the_rename_leaves_the_former_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Checkpoints(tmp_path, 1)
    vault.save("a/000001-1.pt", STATE)

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, step, crash)
        with pytest.raises(KeyboardInterrupt):
            vault.save("a/000001-1.pt", {"other": 1})
    assert compare(vault.load("a/000001-1.pt"), STATE).equal
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["000001-1.pt"]


def test_a_kill_before_the_rename_leaves_the_former_file(tmp_path: Path) -> None:
    vault = Checkpoints(tmp_path, 1)
    vault.save("a/000001-1.pt", STATE)
    code = f"""
import os
from shoal.train.lane.checkpoints import Checkpoints
os.replace = lambda *_, **__: os._exit(9)
Checkpoints({str(tmp_path)!r}, 1).save("a/000001-1.pt", {{"other": 1}})
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert len(list((tmp_path / "a").iterdir())) == 2
    assert compare(vault.load("a/000001-1.pt"), STATE).equal
    assert vault.names() == ("a/000001-1.pt",)
    Checkpoints(tmp_path, 2).mark()  # the next run clears the rest away
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["000001-1.pt"]


def test_the_file_is_synced_before_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def noting(fd: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        sync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(
        os, "replace", lambda a, b, **how: (done.append("replace"), replace(a, b, **how))
    )
    Checkpoints(tmp_path, 1).save("a/000001-1.pt", STATE)
    assert done == ["file", "replace", "folder"]


def test_a_run_that_was_overtaken_writes_nothing(place: str) -> None:
    old, new = Checkpoints(place, 1), Checkpoints(place, 2)
    old.mark()
    old.save("a/000001-1.pt", STATE)
    new.mark()
    for act in (
        lambda: old.save("a/000002-1.pt", STATE),
        lambda: old.delete("a/000001-1.pt"),
        old.mark,
    ):
        with pytest.raises(StaleRun, match="run 2 of the study has begun; run 1 may write nothing"):
            act()
    assert new.names() == ("a/000001-1.pt",) and compare(old.load("a/000001-1.pt"), STATE).equal
    new.save("a/000002-1.pt", STATE)


def test_a_run_overtaken_while_it_writes_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, save = Checkpoints(tmp_path, 1), torch.save

    def slow(*arguments: Any) -> None:
        save(*arguments)
        Checkpoints(tmp_path, 2).mark()

    monkeypatch.setattr(torch, "save", slow)
    with pytest.raises(StaleRun):
        old.save("a/000001-1.pt", STATE)
    assert old.names() == ()


@pytest.mark.parametrize("name", ["../a.pt", "/a.pt", "a/../../b.pt"])
def test_names_stay_within(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must stay within its study"):
        Checkpoints(tmp_path / "v", 1).save(name, STATE)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_comes_through_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Checkpoints(tmp_path, 1)
    vault.save("a/000001-1.pt", STATE)

    def full(path: Path, mode: str = "rb", root: Path | None = None) -> Any:
        return open("/dev/full", "wb") if mode == "xb" else open_file(path, mode, root)

    monkeypatch.setattr(checkpoint_folder, "open_file", full)
    for size in (10, 10**6):
        with pytest.raises(OSError) as raised:
            vault.save("a/000001-1.pt", {"x": np.zeros(size)})
        assert raised.value.errno == errno.ENOSPC
    assert compare(vault.load("a/000001-1.pt"), STATE).equal


@pytest.mark.skipif(os.name != "posix", reason="needs file permissions")
def test_a_folder_that_cannot_be_written_comes_through_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "v").write_text("a file, where a folder is needed")
    with pytest.raises(OSError):
        Checkpoints(tmp_path / "v", 1).save("a/000001-1.pt", STATE)


# -- states that share a file ------------------------------------------------------------------


def of(number: int, size: int = 4) -> dict[str, Any]:
    return {"w": np.full(size, float(number), dtype="f4"), "n": number}


def grouped(place: str | Path, count: int, run: int = 1) -> tuple[Checkpoints, list[str]]:
    """States of so many trials that wait for a commit."""
    vault = Checkpoints(place, run, together=True)
    names = [vault.name(trial(f"t{number}").id, 1) for number in range(count)]
    for number, name in enumerate(names):
        vault.save(name, of(number))
    return vault, names


def test_small_states_share_a_file(place: str) -> None:
    vault, names = grouped(place, 5)
    reader = Checkpoints(place, 1)
    assert reader.names() == ()
    assert all(vault.load(name)["n"] == number for number, name in enumerate(names))
    vault.commit()
    vault.commit()
    for each in (vault, reader, Checkpoints(place, 2)):
        for number, name in enumerate(names):
            assert compare(each.load(name), of(number)).equal
            assert each.size(name) > 16
        assert each.names() == tuple(sorted(names))
    vault.save("t9/000001-1.pt", of(9))
    vault.commit()
    assert reader.load("t9/000001-1.pt")["n"] == 9
    assert len(reader.names()) == 6


def test_anybody_can_unpack_a_file_of_several_states(tmp_path: Path) -> None:
    vault, names = grouped(tmp_path, 3)
    vault.commit()
    [file] = tmp_path.rglob("*.*")
    with ZipFile(file) as pack:
        assert pack.namelist() == names
        pack.extractall(tmp_path / "out")
    state = torch.load(tmp_path / "out" / names[2], weights_only=True)
    assert state["w"].tolist() == [2.0] * 4


def test_a_state_alone_or_large_has_a_file_of_its_own(tmp_path: Path) -> None:
    vault = Checkpoints(tmp_path, 1, together=True)
    vault.save("a/000001-1.pt", of(1))
    vault.save("b/000001-1.pt", of(2, SMALL))
    assert [path.name for path in tmp_path.rglob("*.*")] == ["000001-1.pt"]
    vault.commit()
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")} == {
        "a/000001-1.pt",
        "b/000001-1.pt",
    }
    assert vault.load("a/000001-1.pt")["n"] == 1


def test_what_is_deleted_goes_with_the_next_sweep(place: str) -> None:
    vault, names = grouped(place, 4)
    vault.commit()
    vault.delete(names[0])
    assert Checkpoints(place, 1).names() == tuple(names)
    for name in names[1:3]:
        vault.delete(name)
    vault.sweep()
    after = Checkpoints(place, 1)
    assert after.names() == (names[3],) == vault.names()
    assert vault.load(names[3])["n"] == after.load(names[3])["n"] == 3
    with pytest.raises(FileNotFoundError):
        after.load(names[0])
    vault.delete(names[3])
    vault.delete("gone/000001-1.pt")
    vault.sweep()
    assert after.names() == ()
    assert Checkpoints(place, 1)._folder.names() == []


def test_a_file_is_written_again_when_half_of_it_is_unwanted(tmp_path: Path) -> None:
    vault, names = grouped(tmp_path, 10)
    vault.commit()
    [pack] = tmp_path.glob("*.zip")
    whole = pack.stat().st_size
    reader = Checkpoints(tmp_path, 1)
    assert reader.load(names[9])["n"] == 9
    for name in names[:8]:
        vault.delete(name)
    vault.sweep()
    assert pack.stat().st_size < whole / 4
    assert reader.load(names[9])["n"] == vault.load(names[9])["n"] == 9
    assert reader.names() == vault.names() == tuple(names[8:])


def test_a_failed_commit_keeps_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault, names = grouped(tmp_path, 3)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: exec("raise OSError(28, 'full')"))
        with pytest.raises(OSError):
            vault.commit()
    assert Checkpoints(tmp_path, 1).names() == ()
    vault.commit()
    assert Checkpoints(tmp_path, 1).names() == tuple(names)


def test_an_overtaken_run_commits_and_sweeps_nothing(place: str) -> None:
    vault, names = grouped(place, 3)
    vault.commit()
    vault.delete(names[0])
    vault.save("x/000001-1.pt", of(1))
    Checkpoints(place, 2).mark()
    with pytest.raises(StaleRun):
        vault.commit()
    with pytest.raises(StaleRun):
        vault.sweep()
    assert Checkpoints(place, 2).names() == tuple(names)


def test_a_damaged_pack_is_named(tmp_path: Path) -> None:
    vault, names = grouped(tmp_path, 3)
    vault.commit()
    [pack] = tmp_path.glob("*.zip")
    pack.write_bytes(pack.read_bytes()[:-40])
    with pytest.raises(Damaged, match=pack.name):
        Checkpoints(tmp_path, 1).load(names[0])
