"""Files of a folder that may be a stranger's: no link is followed, nothing waits."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.engine import plain_files
from shoal.engine.files import write_durably
from shoal.engine.journal import Journal, JournalError, read
from shoal.engine.lock import alone
from shoal.engine.ownership import make_folder
from shoal.engine.plain_files import (
    NotPlainFile,
    TooLarge,
    is_there,
    names_in,
    open_file,
    read_file,
    remove_file,
    rename_file,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs links and FIFOs")
TRAPS = ("link", "dangling", "hard link", "FIFO", "socket", "folder")


def lay(trap: str, place: Path, victim: Path) -> None:
    """Put that in the place of a file; links lead to the victim, which is there or not."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if trap != "dangling":
        victim.write_text("mine")
    if trap in ("link", "dangling"):
        place.symlink_to(victim)
    elif trap == "hard link":
        os.link(victim, place)
    elif trap == "FIFO":
        os.mkfifo(place)
    elif trap == "socket":
        with socket.socket(socket.AF_UNIX) as opened:
            here = Path.cwd()
            os.chdir(place.parent)  # its name may have 100 bytes
            try:
                opened.bind(place.name)
            finally:
                os.chdir(here)
    else:
        place.mkdir()


def within(seconds: float, act: Callable[[], object]) -> None:
    """Do it in so many seconds; a FIFO might hold it up for ever."""
    came: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 raised below
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits"
    if came:
        raise came[0]


@pytest.fixture(params=["by descriptor", "by looking"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to reach a file; systems without descriptors of folders have the second."""
    monkeypatch.setattr(plain_files, "_BY_DESCRIPTOR", request.param == "by descriptor")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("deep", [False, True], ids=["file", "in a folder"])
@pytest.mark.parametrize("mode", ["rb", "ab", "wb", "r+b"])
@pytest.mark.parametrize("trap", TRAPS)
def test_only_plain_files_are_opened(tmp_path: Path, trap: str, mode: str, deep: bool) -> None:
    root, victim = tmp_path / "study", tmp_path / "victim"
    place = root / "in" / "file" if deep else root / "file"
    lay(trap, place, victim)
    if (trap, mode) == ("hard link", "rb"):
        assert read_file(place, root=root) == b"mine"
        return
    with pytest.raises(NotPlainFile, match="file"):
        within(60, lambda: open_file(place, mode, root).close())
    if trap == "dangling":
        assert not victim.exists()
    else:
        assert victim.read_text() == "mine"


@pytest.mark.usefixtures("way")
def test_no_folder_below_the_root_may_be_a_link(tmp_path: Path) -> None:
    root, outside = tmp_path / "study", tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "file").write_text("mine")
    root.mkdir()
    (root / "in").symlink_to(outside)
    for act in (
        lambda: open_file(root / "in" / "file", root=root),
        lambda: open_file(root / "in" / "new", "wb", root),
        lambda: remove_file(root / "in" / "file", root),
        lambda: rename_file(root / "in" / "file", root / "file", root),
        lambda: write_durably(root / "in" / "file", b"x", root),
        lambda: make_folder(root / "in" / "new", root),
        lambda: make_folder(root / "in", root),
        lambda: names_in(root / "in", root),
        lambda: is_there(root / "in" / "file", root),
        lambda: open_file(root / ".." / "outside" / "file", root=root),
        lambda: open_file(outside / "file", root=root),
    ):
        with pytest.raises(NotPlainFile):
            act()
    assert sorted(path.name for path in outside.rglob("*")) == ["deep", "file"]
    assert (outside / "file").read_text() == "mine"


@pytest.mark.usefixtures("way")
def test_the_folder_that_the_user_named_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "named").symlink_to(tmp_path / "real")
    write_durably(tmp_path / "named" / "file", b"x")
    assert read_file(tmp_path / "real" / "file") == b"x"
    assert names_in(tmp_path / "named") == ["file"]


@pytest.mark.parametrize("trap", ["link", "dangling", "hard link", "FIFO"])
def test_what_is_replaced_is_no_link_afterwards(tmp_path: Path, trap: str) -> None:
    victim = tmp_path / "victim"
    for name in ("file", "file.part"):
        lay(trap, tmp_path / "study" / name, victim)
    within(60, lambda: write_durably(tmp_path / "study" / "file", b"new"))
    assert (tmp_path / "study" / "file").read_bytes() == b"new"
    if trap == "dangling":
        assert not victim.exists()
    else:
        assert victim.read_text() == "mine"


@pytest.mark.parametrize("trap", TRAPS)
def test_no_lock_is_taken_on_something_else(tmp_path: Path, trap: str) -> None:
    lay(trap, tmp_path / "study" / "lock", tmp_path / "victim")

    def lock() -> None:
        with alone(tmp_path / "study" / "lock", timeout=0):
            pass

    with pytest.raises(NotPlainFile):
        within(60, lock)
    assert (tmp_path / "victim").exists() is (trap != "dangling")


def test_a_lock_stays_in_its_folder_if_a_link_takes_the_folders_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that happens after the look at what lies there."""
    study, outside = tmp_path / "study", tmp_path / "outside"
    (study / "inbox").mkdir(parents=True)
    outside.mkdir()
    look = os.stat

    def swap(path: object, *args: object, **how: object) -> os.stat_result:
        try:
            return look(path, *args, **how)  # type: ignore[call-overload, no-any-return]
        finally:
            if Path(str(path)).name == "lock" and not (study / "inbox").is_symlink():
                (study / "inbox").rename(study / "former")
                (study / "inbox").symlink_to(outside)

    monkeypatch.setattr(os, "stat", swap)
    with alone(study / "inbox" / "lock", timeout=0, root=study):
        assert (study / "inbox").is_symlink()
    assert list(outside.iterdir()) == []
    assert (study / "former" / "lock").is_file()


def test_a_file_larger_than_what_shoal_writes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "notes").open("wb") as file:
        file.truncate(2**40)  # takes no room
    with pytest.raises(TooLarge, match=r"has 1099511627776 bytes, and 100 are the most"):
        read_file(tmp_path / "notes", 100)


def test_a_journal_of_a_terabyte_of_zeros_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "journal.jsonl"
    Journal(place).close()
    with place.open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(JournalError, match=r"journal.jsonl, line 2: .* over \d+ bytes"):
        list(read(place))
