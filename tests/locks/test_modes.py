"""Who may read what Shoal writes: nobody but its user, whatever the umask says."""

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch

import shoal
from shoal.engine.ownership import check_own_file, make_folder, own_folder, token_file
from shoal.pool.folder import OpenPool, PoolFolder
from shoal.study.inbox import Inbox, StopNote

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")


class Line(shoal.Recipe):
    batch_size = 8

    def data(self):
        x = np.arange(32, dtype=np.float32)[:, None]
        return shoal.Data.arrays(x, x, validation=0.25)

    def configure_model(self, config):
        return torch.nn.Linear(1, 1)

    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        return (model(batch[0]) - batch[1]).abs().mean()

    def validation_step(self, model, batch):
        return {"error": (model(batch[0]) - batch[1]).abs().mean(1)}


@pytest.fixture(params=[0o000, 0o077], ids=["umask 000", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def trained(folder: Path) -> shoal.Study:
    space = {"lr": shoal.grid([0.001, 0.002])}
    study = shoal.create_study(Line(), storage=folder, metric="error", search_space=space)
    study.optimize(max_epochs=1, progress=False, loggers="csv")
    study.report()
    return study


def test_a_study_is_its_users_alone(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "runs" / "study"
    trained(folder)
    found = {path.relative_to(folder): mode(path) for path in folder.rglob("*")}
    names = {str(path) for path in found}
    assert {"journal.jsonl", "log.txt", "report.html", "holder.json"} <= names
    assert any(name.startswith("checkpoints/") for name in names)
    assert mode(folder) == mode(folder.parent) == 0o700
    for path, its in found.items():
        wanted = 0o700 if (folder / path).is_dir() else 0o600
        assert its == wanted, f"{path} has mode {its:o}"


def test_notes_are_too(tmp_path: Path, umask: int) -> None:
    inbox = Inbox(tmp_path / "study")
    with inbox.writing():
        inbox.leave(StopNote(None))
    assert mode(inbox.folder) == mode(tmp_path / "study") == 0o700
    assert {path.name: mode(path) for path in inbox.folder.iterdir()} == {
        "000001.json": 0o600,
        "lock": 0o600,
    }


def test_a_folder_that_its_user_made_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    folder.chmod(0o755)
    trained(folder)
    assert mode(folder) == 0o755
    assert mode(folder / "journal.jsonl") == 0o600


def test_a_folder_with_the_set_group_id_bit_is_shared_with_its_group(tmp_path: Path) -> None:
    before = os.umask(0o007)
    try:
        folder = tmp_path / "study"
        folder.mkdir()
        folder.chmod(0o2770)
        trained(folder)
        assert mode(folder / "journal.jsonl") == 0o660
        assert mode(folder / "study.lock") == 0o660
        assert mode(folder / "checkpoints") & 0o777 == 0o770
    finally:
        os.umask(before)


def test_a_pools_folder_is_its_users_alone(tmp_path: Path, umask: int) -> None:
    pool = PoolFolder(tmp_path / "pool")
    pool.make()
    pool.open(OpenPool("127.0.0.2:1", 1, "here", os.getpid()))
    found = {path.name: mode(path) for path in pool.path.rglob("*")}
    assert found == {"pool.json": 0o600, "studies": 0o700}
    assert mode(pool.path) == 0o700


def test_a_token_is_made_once_and_read_by_nobody_else(tmp_path: Path, umask: int) -> None:
    file = token_file(tmp_path / "own" / "token")
    token = file.read_text()
    assert len(token) == 64
    assert (mode(file.parent), mode(file)) == (0o700, 0o600)
    assert token_file(file).read_text() == token


def test_processes_that_start_at_once_get_one_token(tmp_path: Path) -> None:
    """Else the cluster of the first would refuse its own processes, which read it later."""
    with ThreadPoolExecutor(8) as several:
        for number in range(50):
            file = tmp_path / str(number) / "token"
            begin = Barrier(8)

            def ask(file: Path = file, begin: Barrier = begin) -> str:
                begin.wait()
                return token_file(file).read_text()

            tokens = {each.result() for each in [several.submit(ask) for _ in range(8)]}
            assert tokens == {file.read_text()} and len(file.read_text()) == 64
            assert [each.name for each in file.parent.iterdir()] == ["token"]


def test_a_token_that_others_could_read_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("known to all")
    file.chmod(0o644)
    assert token_file(file).read_text() != "known to all"
    assert mode(file) == 0o600


@pytest.mark.parametrize("trap", ["a link", "another user's"])
def test_a_token_of_somebody_else_is_refused(
    tmp_path: Path, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    if trap == "a link":
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.write_text("theirs")
        file.chmod(0o600)
        monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="remove it"):
        token_file(file)
    assert not (tmp_path / "elsewhere").exists()


def test_a_new_file_does_not_follow_a_link_that_lies_in_its_place(tmp_path: Path) -> None:
    from shoal.engine.files import write_durably

    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "file.part").symlink_to(victim)
    write_durably(tmp_path / "file", b"new")
    assert victim.read_text() == "mine"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_file_stands_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "study").write_text("")
    with pytest.raises(NotADirectoryError, match="must be a folder"):
        make_folder(tmp_path / "study")


def test_own_files_are_told_from_others(tmp_path: Path) -> None:
    own_folder(tmp_path / "own")
    file = tmp_path / "own" / "data.pkl"
    file.write_bytes(b"")
    file.chmod(0o620)
    with pytest.raises(PermissionError, match="others may write to it"):
        check_own_file(file)
    file.chmod(0o600)
    check_own_file(file)
