"""The vault: whole or not at all, on any file system, and never from a run that was overtaken."""

import errno
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_kit import Small, blobs, go, planned, station, trial

from shoal.train.checkpoint import Damaged, StaleRun, Vault
from shoal.train.verify import compare

STATE = {
    "model": {"w": np.arange(6, dtype="f4").reshape(2, 3)},
    "visits": [[0, "s000", 0, 5]],
    "n": 3,
    "none": None,
    "t": (1, "x"),
}


@pytest.fixture(params=["folder", "url", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    where = {"folder": str(tmp_path / "v"), "url": f"file://{tmp_path}/v", "memory": f"memory://{tmp_path.name}/v"}
    return where[request.param]


def test_processes_that_write_side_by_side_use_names_of_their_own(tmp_path: Path) -> None:
    one, other, only = (Vault(tmp_path, 2, token) for token in ("a1", "b2", ""))
    names = [vault.name(trial().id, 3) for vault in (one, other, only)]
    assert names == ["a/000003-2-a1.pt", "a/000003-2-b2.pt", "a/000003-2.pt"]
    one.save(names[0], STATE)
    other.save(names[1], {"other": 1})
    assert compare(only.load(names[0]), STATE).equal and only.names() == tuple(names[:2])


def test_a_state_comes_back_as_it_was(place: str) -> None:
    vault = Vault(place, 1)
    vault.save("a/000001-1.pt", STATE)
    assert compare(vault.load("a/000001-1.pt"), STATE).equal
    for dtype in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"):
        state = {"x": np.array([1, 0, 1], dtype=dtype), "scalar": np.array(1, dtype=dtype)}
        vault.save("b/x.pt", state)
        assert compare(vault.load("b/x.pt"), state).equal, dtype
    assert Vault(place, 1).names() == ("a/000001-1.pt", "b/x.pt")
    assert vault.size("a/000001-1.pt") > 24
    vault.delete("b/x.pt")
    vault.delete("b/x.pt")
    assert vault.names() == ("a/000001-1.pt",)
    with pytest.raises(FileNotFoundError):
        vault.load("b/x.pt")


def test_an_empty_place_has_no_names(place: str) -> None:
    assert Vault(place, 1).names() == ()


def test_a_trials_state_comes_back_from_anywhere(place: str) -> None:
    data = blobs()
    held = station(Small(), data, Vault(place, 1))
    go(held, trial(), planned(data, 1))
    name = held.keep(trial().id)
    assert name == "a/000003-1.pt" and compare(Vault(place, 2).load(name), held.state(trial().id)).equal


def test_only_tensors_and_plain_values_are_stored_and_loaded(tmp_path: Path) -> None:
    data, vault = blobs(), Vault(tmp_path, 1)
    held = station(Small(), data, vault)
    go(held, trial(optimizer="adamw", schedule="steps"), planned(data, 1))
    torch.load(tmp_path / held.keep(trial().id), weights_only=True)
    (tmp_path / "a" / "evil.pt").write_bytes(pickle.dumps(_Evil(), protocol=2))
    with pytest.raises(Damaged, match=r"checkpoint a/evil.pt at .* cannot be read"):
        vault.load("a/evil.pt")
    assert not (tmp_path / "taken").exists()


class _Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("taken",)


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    vault = Vault(tmp_path, 1)
    vault.save("a/1.pt", STATE)
    file = tmp_path / "a/1.pt"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(Damaged, match="bring it back from a copy"):
        vault.load("a/1.pt")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_crash_before_the_rename_leaves_the_former_file(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = Vault(tmp_path, 1)
    vault.save("a/1.pt", STATE)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, step, crash)
        with pytest.raises(KeyboardInterrupt):
            vault.save("a/1.pt", {"other": 1})
    assert compare(vault.load("a/1.pt"), STATE).equal
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["1.pt"]


def test_a_kill_before_the_rename_leaves_the_former_file(tmp_path: Path) -> None:
    vault = Vault(tmp_path, 1)
    vault.save("a/1.pt", STATE)
    code = f"""
import os
from shoal.train.checkpoint import Vault
os.replace = lambda *_: os._exit(9)
Vault({str(tmp_path)!r}, 1).save("a/1.pt", {{"other": 1}})
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert len(list((tmp_path / "a").iterdir())) == 2
    assert compare(vault.load("a/1.pt"), STATE).equal
    assert vault.names() == ("a/1.pt",)
    Vault(tmp_path, 2).mark()  # the next run clears the rest away
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["1.pt"]


def test_the_file_is_synced_before_its_name_and_its_folder_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def told(fd: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        sync(fd)

    monkeypatch.setattr(
        os, "fsync", lambda fd: (done.append("folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "file"), sync(fd))
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), replace(a, b)))
    Vault(tmp_path, 1).save("a/1.pt", STATE)
    assert done == ["file", "replace", "folder"]


def test_a_run_that_was_overtaken_writes_nothing(place: str) -> None:
    old, new = Vault(place, 1), Vault(place, 2)
    old.mark()
    old.save("a/1.pt", STATE)
    new.mark()
    for act in (lambda: old.save("a/2.pt", STATE), lambda: old.delete("a/1.pt"), old.mark):
        with pytest.raises(StaleRun, match="run 2 of the study has begun; run 1 may write nothing"):
            act()
    assert new.names() == ("a/1.pt",) and compare(old.load("a/1.pt"), STATE).equal
    new.save("a/2.pt", STATE)


def test_a_run_overtaken_while_it_writes_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, save = Vault(tmp_path, 1), torch.save

    def slow(*arguments: Any) -> None:
        save(*arguments)
        Vault(tmp_path, 2).mark()

    monkeypatch.setattr(torch, "save", slow)
    with pytest.raises(StaleRun):
        old.save("a/1.pt", STATE)
    assert old.names() == ()


@pytest.mark.parametrize("name", ["../a.pt", "/a.pt", "a/../../b.pt"])
def test_names_stay_within(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must stay within its study"):
        Vault(tmp_path / "v", 1).save(name, STATE)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_comes_through_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = Vault(tmp_path, 1)
    vault.save("a/1.pt", STATE)
    opened = vault._files.open
    monkeypatch.setattr(vault._files, "open", lambda path, mode: opened("/dev/full" if mode == "wb" else path, mode))
    for size in (10, 10**6):
        with pytest.raises(OSError) as raised:
            vault.save("a/1.pt", {"x": np.zeros(size)})
        assert raised.value.errno == errno.ENOSPC
    assert compare(vault.load("a/1.pt"), STATE).equal


@pytest.mark.skipif(os.name != "posix", reason="needs file permissions")
def test_a_folder_that_cannot_be_written_comes_through_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "v").write_text("a file, where a folder is needed")
    with pytest.raises(OSError):
        Vault(tmp_path / "v", 1).save("a/1.pt", STATE)
