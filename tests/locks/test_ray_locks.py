"""A Ray cluster that Shoal starts: who reaches it, and who may read its files."""

import json
import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="these are Ray's doors")
psutil = pytest.importorskip("psutil", reason="it tells which ports are open")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.x")

DRIVER = """
import json, os, sys
before = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
from shoal.backend.ray import cluster
cluster.join(None, 1, 1, 0.1, cpus=1)
import ray
from ray._private import worker

@ray.remote(num_cpus=0)
class Slot:
    def shown(self):
        return os.environ.get("RAY_AUTH_MODE")

slot = Slot.remote()
about = {
    "slot": ray.get(slot.shown.remote()),
    "address": cluster.gcs(),
    "session": worker._global_node.get_session_dir_path(),
    "token": cluster.token_shown(),
    "asks": cluster.asks_for_token(),
}
print(json.dumps(about), flush=True)
sys.stdin.readline()
cluster.leave(True, True)
left = [name for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH") if name in os.environ]
print(json.dumps(left), flush=True)
"""
STRANGER = """
import sys, ray
ray.init(address=sys.argv[1], logging_level=50, log_to_driver=False)
print(ray.get(ray.remote(lambda: "code ran").remote()))
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Without what says anything about Ray, and with a folder for what is temporary."""
    own = {key: text for key, text in os.environ.items() if not key.startswith("RAY_")}
    return {**own, "RAY_worker_niceness": "0", "TMPDIR": str(folder), **more}


def run(code: str, *arguments: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.stdout + done.stderr


def listening(pid: int) -> list[tuple[str, str, int]]:
    """The process, the address and the port of each door of this process and its children."""
    found = []
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            for door in each.net_connections(kind="tcp"):
                if door.status == psutil.CONN_LISTEN:
                    found.append((each.name(), door.laddr.ip, door.laddr.port))
    return found


@pytest.mark.slow  # half a minute: three processes import Ray, one after the other
def test_a_cluster_of_ours_is_for_who_knows_its_token() -> None:
    import tempfile

    # Sockets have short paths, which pytest's folders are not.
    with tempfile.TemporaryDirectory(prefix="sh-", dir="/tmp") as place:
        folder = Path(place)
        env = environment(folder)
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert driver.stdin is not None and driver.stdout is not None
        try:
            about = json.loads(driver.stdout.readline())
            doors = listening(driver.pid)
            modes_are_private(folder, about)
            host = about["address"].partition(":")[0]
            assert host.startswith("127.")
            # Ray's gRPC servers listen at all addresses, and ask for the token; nothing else may.
            strange = {name for name, ip, _ in doors if ip not in ("::", "0.0.0.0")}
            assert all(
                ip.startswith("127.") for _, ip, _ in doors if ip not in ("::", "0.0.0.0")
            ), (strange, doors)
            assert about["slot"] == "token"
            assert about["asks"]

            without = {**env, "RAY_AUTH_MODE": "disabled"}
            said = run(STRANGER, about["address"], env=without)
            assert "code ran" not in said
            guess = {**env, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
            said = run(STRANGER, about["address"], env=guess)
            assert "code ran" not in said
            right = {**env, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": about["token"]}
            assert "code ran" in run(STRANGER, about["address"], env=right)

            driver.stdin.write("\n")
            driver.stdin.flush()
            assert json.loads(driver.stdout.readline()) == []
            assert driver.wait(60) == 0
        finally:
            driver.kill()
            driver.wait()


def modes_are_private(folder: Path, about: dict[str, str]) -> None:
    """The cluster's files lie in a folder that only this user enters, and so does the token."""
    token = Path(about["token"])
    own = token.parent
    assert own.parent == folder
    assert Path(about["session"]).is_relative_to(own)
    assert stat.S_IMODE(own.lstat().st_mode) == 0o700
    assert stat.S_IMODE(token.lstat().st_mode) == 0o600


def test_what_the_user_says_of_tokens_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.backend.ray import cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(cluster, "_own_folder", lambda: tmp_path)
    monkeypatch.setattr(cluster, "_former", type(cluster._former)())
    cluster._own_token()
    assert cluster.token_shown() is None
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    assert list(tmp_path.iterdir()) == []


def test_the_users_token_is_shown_until_the_cluster_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster that asks for none does not work with processes that show one."""
    from shoal.backend.ray import cluster

    def shown(warn_if_disabled: bool) -> None:
        os.environ["RAY_AUTH_MODE"] = "token"

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(cluster, "maybe_enable_token_auth_if_token_available", shown)
    shown.__module__ = "ray"
    cluster.use_token()
    assert cluster.asks_for_token()
    cluster._forget_token()
    assert not cluster.asks_for_token()


def test_no_token_is_shown_where_no_cluster_could_be_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next cluster of this process may ask for another, or for none."""
    from shoal.backend.ray import cluster

    def none(*_: Any, **options: Any) -> None:
        assert cluster.asks_for_token()
        raise OSError("no room")

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cluster, "_own_folder", lambda: tmp_path)
    monkeypatch.setattr(cluster.ray, "init", none)
    with pytest.raises(OSError, match="no room"):
        cluster.join(None, 1, 1, 0.1)
    assert not cluster.asks_for_token()


def test_no_token_is_shown_after_somebody_else_shut_ray_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a cluster that this process starts asks for it, and what joins without it is refused."""
    from shoal.backend.ray import cluster, fleet

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cluster, "_own_folder", lambda: tmp_path)
    monkeypatch.setattr(cluster.reaper, "close", lambda shutdown, patience: None)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    run = fleet.RayFleet.__new__(fleet.RayFleet)
    run._pulse = SimpleNamespace(close=lambda: None)  # type: ignore[assignment]
    run.started_here = run.joined = True
    run._shelf = tmp_path / "shelf"
    cluster._own_token()
    run.close([], [])
    assert not cluster.asks_for_token()
    cluster._own_token()  # of a cluster that is joined later
    run.close([], [])
    assert cluster.asks_for_token()
    cluster._forget_token()


@pytest.mark.parametrize("asked", [False, True])
def test_a_token_is_shown_until_the_cluster_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """Also after a cluster of Ray alone, from which on the process asks for some token."""
    from shoal.backend.ray import cluster

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    if asked:
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setattr(cluster, "_own_folder", lambda: tmp_path)
    cluster._own_token()
    try:
        assert cluster.asks_for_token()
        assert cluster.token_shown() == str(tmp_path / "token")
    finally:
        cluster._forget_token()
    assert cluster.asks_for_token() == asked
    assert cluster.token_shown() is None
