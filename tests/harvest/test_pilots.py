"""A Ray head and pilots as plain processes: what a batch system would start, without one."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fault_kit import MARK, Driver, Steady, content, kill, processes
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.core.event import Joined, Left
from shoal.engine.journal import Line
from shoal.harvest.head import FILE, OURS, TOKEN, HeadError, OpenHead, RayHead, opened_in
from shoal.harvest.pilot import Offer, PilotNode, _ip_beside, main

IP = "127.0.0.10"
PATIENCE = 120.0
HEAD = """
import sys, time
from pathlib import Path
from shoal.harvest.head import RayHead
with RayHead(Path(sys.argv[1]), sys.argv[2]) as head:
    print("open", flush=True)
    time.sleep(600)
"""


def pilot(folder: Path, node: str, **more: object) -> "subprocess.Popen[bytes]":
    """A pilot's process, found again by the folder's name in its environment."""
    said = {"node": node, "cpus": 1, "gpus": 0, "store-gb": 0.1, **more}
    words = [f"--{name}={value}" for name, value in said.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "shoal.harvest.pilot", "--folder", str(folder), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, MARK: str(folder)},
    )


@contextmanager
def ended(*started: "subprocess.Popen[bytes]") -> Iterator[None]:
    """These processes are gone afterwards, whatever happened."""
    try:
        yield
    finally:
        for each in started:
            each.terminate()
            each.wait(PATIENCE)


def until(met: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.05)


def left_of(folder: Path) -> dict[int, bytes]:
    """The processes that were started for this folder, and that live: their command lines."""
    told = f"{MARK}={folder}".encode()
    return {
        pid: content(Path(f"/proc/{pid}/cmdline"))
        for pid, status in processes()
        if status[0] != b"Z" and told in content(Path(f"/proc/{pid}/environ"))
    }


def nodes_of(lines: list[Line]) -> set[str]:
    entries = [line.entry for line in lines]
    return {slot.node for e in entries if isinstance(e, Joined) for slot in e.slots}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a head; all processes of the test's are found by it."""
    monkeypatch.setenv(MARK, str(tmp_path / "shared"))
    return tmp_path / "shared"


@pytest.mark.slow
def test_a_study_goes_on_when_a_pilot_is_told_to_go(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = shoal.create_study(Steady(slow=0), storage=tmp_path / "alone")
    alone.optimize(policy="fifo", progress=False)
    with RayHead(shared, IP) as head:
        assert stat.S_IMODE(shared.stat().st_mode) == 0o700
        assert stat.S_IMODE((shared / TOKEN).stat().st_mode) == 0o600
        for name, value in head.environment.items():
            monkeypatch.setenv(name, value)
        n1, n2 = pilot(shared, "n1"), pilot(shared, "n2")
        options = {"backend": "ray", "address": head.address, "policy": "fifo"}
        third = tmp_path / "third"
        recipe = {"slow": 0.5, "until": str(third)}
        with ended(n1, n2), Driver(tmp_path / "s", recipe, **options) as driver:
            driver.until(
                lambda: nodes_of(driver.news()) == {"n1", "n2"} and driver.visits() > 2,
                "both nodes train",
            )
            n1.terminate()
            assert n1.wait(PATIENCE) == 0
            driver.until(
                lambda: any(isinstance(e, Left) for _, e in driver.news()), "the node left"
            )
            n3 = pilot(shared, "n3")
            with ended(n3):
                driver.until(lambda: "n3" in nodes_of(driver.news()), "a third joins")
                third.touch()
                status, said = driver.end()
                assert status == 0, said
    until(lambda: not left_of(shared), "all processes end")
    study = shoal.load_study(tmp_path / "s")
    assert any(isinstance(line.entry, Left) for line in study.lines())
    for trial in study.state.known:
        one, two = (s.load_model(trial).state_dict() for s in (study, alone))
        assert all(np.array_equal(one[n].numpy(), two[n].numpy()) for n in one)


@pytest.mark.slow
def test_whoever_does_not_know_the_token_is_refused(shared: Path, tmp_path: Path) -> None:
    script = "import ray; ray.init('{}', log_to_driver=False); print(ray.nodes())"
    with RayHead(shared, IP) as head:
        environ = {**os.environ, "RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}
        environ["RAY_AUTH_TOKEN"] = "0" * 64
        asked = subprocess.run(
            [sys.executable, "-c", script.format(head.address)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert asked.returncode != 0
    assert "uthenticat" in asked.stderr or "oken" in asked.stderr


@pytest.mark.slow
def test_nothing_is_left_of_a_head_whose_process_is_killed(shared: Path) -> None:
    """Nor of its pilots: a node nobody needs is a node that others wait for."""
    owner = subprocess.Popen([sys.executable, "-c", HEAD, str(shared), IP], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"open\n"
    n1 = pilot(shared, "n1")
    with ended(n1):
        until(lambda: b"raylet" in b"".join(left_of(shared).values()), "the node is there")
        kill(owner.pid)
        owner.communicate()
        assert n1.wait(PATIENCE) == 1
        until(lambda: not left_of(shared), "all processes end")
    # What the killed process could not remove, the next one does.
    with RayHead(shared, IP):
        mine = Path(f"/tmp/{OURS}").parent.glob(f"{OURS}{owner.pid}-*")
        assert not list(mine)


@pytest.mark.slow
def test_a_pilot_leaves_a_head_that_stands_still(shared: Path) -> None:
    with RayHead(shared, IP):
        own = [pid for pid, _ in processes() if b"gcs_server" in _command(pid, shared)]
        n1 = pilot(shared, "n1")
        with ended(n1):
            until(
                lambda: sum(b"/raylet/raylet" in line for line in left_of(shared).values()) == 2,
                "the node is there",
            )
            for pid in own:
                os.kill(pid, signal.SIGSTOP)
            assert n1.wait(PATIENCE) == 1
    until(lambda: not left_of(shared), "all processes end")


def _command(pid: int, folder: Path) -> bytes:
    """The process's command, if it was started for this folder."""
    if f"{MARK}={folder}".encode() not in content(Path(f"/proc/{pid}/environ")):
        return b""
    return content(Path(f"/proc/{pid}/cmdline"))


@pytest.mark.slow
def test_nothing_is_left_of_a_pilot_that_is_killed(shared: Path) -> None:
    with RayHead(shared, IP):
        before = left_of(shared).keys()
        n1 = pilot(shared, "n1")
        with ended(n1):
            until(
                lambda: sum(b"/raylet/raylet" in line for line in left_of(shared).values()) == 2,
                "the node is there",
            )
            n1.send_signal(signal.SIGKILL)
            n1.wait(PATIENCE)
            until(lambda: not left_of(shared).keys() - before, "its processes end")
            # As the next pilot would.
            for folder in Path(tempfile.gettempdir()).glob(f"{OURS}{n1.pid}-*"):
                shutil.rmtree(folder, ignore_errors=True)


def test_a_signal_is_obeyed_while_rays_process_is_waited_for() -> None:
    """By the process that waits: who holds the lock of a wait cannot wait for it."""
    node = PilotNode(OpenHead("127.0.0.1:1", Path()), Offer("n1", 1))
    node._ray = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with node._ray._waitpid_lock:  # type: ignore[attr-defined]
        told = threading.Thread(target=node._go, daemon=True)
        told.start()
        told.join(PATIENCE)
        assert not told.is_alive()
    assert node._ray.wait(PATIENCE) == -signal.SIGKILL
    shutil.rmtree(node._temporary.parent)


def test_a_pilot_without_a_head_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--folder", str(tmp_path), "--node", "n1"]) == 2
    assert "no head is open there" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"[]", b'{"address": ', b"\xff\xfe"])
def test_a_damaged_file_of_a_head_is_one_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(HeadError, match="cannot be read"):
        opened_in(tmp_path)


@given(st.text(), st.text())
def test_nodes_of_one_machine_get_addresses_of_their_own(one: str, two: str) -> None:
    first, second = _ip_beside(IP, one), _ip_beside(IP, two)
    assert first is not None and first.startswith("127.") and first != IP
    assert first == _ip_beside(IP, one)
    assert _ip_beside("10.0.0.7", one) is None
    if one == two:
        assert first == second
