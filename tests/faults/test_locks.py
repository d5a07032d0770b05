"""A thing is held once: with locks, without them, and with locks that mean nothing."""

import errno
import fcntl
import json
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fault_kit import Steady

import shoal
from shoal.engine import lock
from shoal.engine.lock import Taken, alone, held
from shoal.study.holder import is_held
from shoal.study.inbox import Inbox

pytestmark = pytest.mark.faults

# Holds the lock in this folder until its standard input ends. argv: folder, what flock does.
HOLD = """
import fcntl, sys
from pathlib import Path
from shoal.engine import lock
how = sys.argv[2]
def no_lock(*_):
    if how != "nothing":
        raise OSError(int(how), "no locks here")
if how != "works":
    fcntl.flock = no_lock
lock.BEAT = 0.2
with lock.held(Path(sys.argv[1]) / "lock", Path(sys.argv[1]) / "holder.json"):
    print("held", flush=True)
    sys.stdin.read()
"""


def holding(folder: Path, how: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(folder), how]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def flock_fails(patch: pytest.MonkeyPatch, how: str) -> None:
    def no_lock(*_: Any) -> None:
        if how != "nothing":
            raise OSError(int(how), "no locks here")

    if how != "works":
        patch.setattr(fcntl, "flock", no_lock)


KINDS = ["works", "nothing", *(str(e) for e in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP))]


@pytest.mark.parametrize("how", KINDS)
def test_the_second_is_refused_and_told_who_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first = holding(tmp_path, how)
    flock_fails(monkeypatch, how)
    try:
        with pytest.raises(Taken) as taken, held(tmp_path / "lock", tmp_path / "holder.json"):
            pass
        who = f"process {first.pid} on {platform.node()} since 2"
        assert taken.value.who.startswith(who)
    finally:
        first.communicate("")
    with held(tmp_path / "lock", tmp_path / "holder.json"):  # it has let go
        assert json.loads((tmp_path / "holder.json").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("how", KINDS)
def test_who_was_killed_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first = holding(tmp_path, how)
    first.kill()
    first.wait()
    flock_fails(monkeypatch, how)
    with held(tmp_path / "lock", tmp_path / "holder.json"):
        pass


def test_a_fork_holds_nothing(tmp_path: Path) -> None:
    """Else a study would stay open after its run was killed, until the run's helpers end."""
    with alone(tmp_path / "lock", timeout=0):
        ready, done = os.pipe()
        begun, begins = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(done)
            os.write(begins, b"x")  # what a fork does first is done
            os.read(ready, 1)  # until the other end is closed
            os._exit(0)
        os.read(begun, 1)
        with pytest.raises(Taken), alone(tmp_path / "lock", timeout=0.1):
            pass
        opened = [
            name
            for name in Path(f"/proc/{child}/fd").iterdir()
            if os.readlink(name) == str(tmp_path / "lock")
        ]
    with alone(tmp_path / "lock", timeout=0):
        pass
    for end in (ready, done, begun, begins):
        os.close(end)
    os.waitpid(child, 0)
    assert opened == []


def test_who_removes_the_file_of_a_lock_gets_no_second_one_beside_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a file that has no name any more is none: the next opens another file."""
    take, calls = fcntl.flock, []

    def removed(opened: int, how: int) -> None:
        take(opened, how)
        calls.append(how)
        if len(calls) == 1:
            (tmp_path / "lock").unlink()

    monkeypatch.setattr(fcntl, "flock", removed)
    with alone(tmp_path / "lock", timeout=1):
        monkeypatch.undo()
        with pytest.raises(Taken), alone(tmp_path / "lock", timeout=0):
            pass


def on_another_machine(holder: Path, beats: int) -> None:
    about = {"pid": 1, "host": "elsewhere", "since": "2026-01-01T00:00:00+00:00", "beat": beats}
    holder.write_text(json.dumps(about))


def test_a_holder_on_another_machine_that_gives_signs_of_life_is_not_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks do not reach it. No clock is read: that of another machine may be wrong."""
    holder = tmp_path / "holder.json"
    on_another_machine(holder, 1)
    sleep, slept = time.sleep, []

    def beating(seconds: float) -> None:
        slept.append(seconds)
        on_another_machine(holder, len(slept))
        sleep(0)

    monkeypatch.setattr(lock, "sleep", beating)
    with pytest.raises(Taken, match="elsewhere.*do not reach it"), held(tmp_path / "lock", holder):
        pass


def test_a_holder_on_another_machine_that_is_silent_is_gone_if_there_are_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WATCHED", 0.3)
    on_another_machine(tmp_path / "holder.json", 1)
    with held(tmp_path / "lock", tmp_path / "holder.json"):
        pass


def test_without_locks_a_holder_on_another_machine_is_not_guessed_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock_fails(monkeypatch, str(errno.ENOLCK))
    on_another_machine(tmp_path / "holder.json", 1)
    (tmp_path / "lock.made").write_text("1\nelsewhere\n")
    with (
        pytest.raises(Taken, match=r"elsewhere.*has no locks.*delete .*lock\.made"),
        held(tmp_path / "lock", tmp_path / "holder.json"),
    ):
        pass
    (tmp_path / "lock.made").unlink()
    monkeypatch.setattr(lock, "WATCHED", 0.3)
    with held(tmp_path / "lock", tmp_path / "holder.json"):
        pass


def test_other_errors_of_a_lock_come_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock_fails(monkeypatch, str(errno.EIO))
    with pytest.raises(OSError, match="no locks here"), alone(tmp_path / "lock", 0):
        pass


def test_a_holder_says_again_and_again_that_it_is_there_and_then_that_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.02)
    holder = tmp_path / "holder.json"
    with held(tmp_path / "lock", holder):
        while json.loads(holder.read_text())["beat"] < 3:
            time.sleep(0.01)
        for _ in range(600):  # one that was just saying so may say it once more
            holder.write_text('{"pid": 1, "key": "another"}')  # somebody took it over
            time.sleep(0.1)
            if not any(thread.name == "shoal-holder" for thread in threading.enumerate()):
                break  # it has seen that
    assert json.loads(holder.read_text()) == {"pid": 1, "key": "another"}
    with held(tmp_path / "lock", holder):
        pass
    assert "until" in json.loads(holder.read_text())


@pytest.mark.parametrize("how", ["nothing", str(errno.ENOLCK)])
def test_a_study_trains_and_takes_notes_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    flock_fails(monkeypatch, how)
    study = shoal.create_study(Steady(slow=0), storage=tmp_path / "s")
    study.optimize(max_epochs=1, policy="fifo", progress=False)
    study.enqueue({"width": 6}, max_epochs=1)
    study.resume(progress=False)
    assert {trial.status for trial in study.trials} == {"finished"}
    assert len(study.trials) == 5
    assert is_held(study.folder) is False
    with study.folder.lock():
        assert is_held(study.folder)
        with pytest.raises(shoal.StudyError, match=f"held by process {os.getpid()} on"):
            study.optimize(max_epochs=2, progress=False)
    with Inbox(tmp_path / "s").writing():
        pass
