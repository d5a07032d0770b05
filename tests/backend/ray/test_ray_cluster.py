"""Where shards go, and how recipes travel."""

import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.backend.cluster_start import check_reached
from shoal.backend.ray import cluster as ray_cluster
from shoal.backend.ray import reaper
from shoal.backend.ray.shard_register import mend, spread
from shoal.core.cluster import ShardId, SlotId
from shoal.core.errors import StudyError
from shoal.train.recipe.pickling import dumps

SHARDS = tuple(ShardId(f"s{i}") for i in range(5))
A, B, C = (SlotId(x) for x in "abc")


def test_shards_are_dealt_round_robin() -> None:
    assert spread(SHARDS, [A, B], 1) == {A: {"s0", "s2", "s4"}, B: {"s1", "s3"}}
    assert spread(SHARDS[:3], [A, B, C], 2) == {A: {"s0", "s2"}, B: {"s0", "s1"}, C: {"s1", "s2"}}
    assert spread(SHARDS[:2], [A], 3) == {A: {"s0", "s1"}}


def test_a_shard_that_is_read_stays() -> None:
    held = {A: frozenset(SHARDS[:4]), B: frozenset[ShardId]()}
    assert mend(SHARDS[:4], held, 1, set()) == {A: {"s0", "s1"}, B: {"s2", "s3"}}
    assert mend(SHARDS[:4], held, 1, {(A, ShardId("s3")), (A, ShardId("s1"))}) == {
        A: {"s1", "s3"},
        B: {"s0", "s2"},
    }
    assert mend(SHARDS[:4], held, 1, {(A, shard) for shard in SHARDS}) == held


@given(
    st.integers(1, 12),
    st.integers(1, 4),
    st.lists(st.booleans(), min_size=1, max_size=12),
    st.data(),
)
def test_whoever_comes_or_goes(
    count: int, copies: int, comings: list[bool], data: st.DataObject
) -> None:
    """Every shard lies at enough slots, no slot holds far more than another, and shards move
    only to even that out.
    """
    shards = tuple(ShardId(f"s{i}") for i in range(count))
    held = spread(shards, [A, B], copies)
    for number, comes in enumerate(comings):
        before = dict(held)
        if comes:
            before[SlotId(f"new{number}")] = frozenset()
        elif len(before) > 1:
            del before[data.draw(st.sampled_from(sorted(before)))]
        held = mend(shards, before, copies, set())
        holders = Counter(shard for at in held.values() for shard in at)
        assert all(holders[shard] >= min(copies, len(held)) for shard in shards)
        loads = [len(at) for at in held.values()]
        assert max(loads) - min(loads) <= 1
        assert mend(shards, held, copies, set()) == held


def test_recipes_travel_with_their_code(tmp_path: Path) -> None:
    """Another process that cannot import their module can run them, and none stays registered."""
    (tmp_path / "mine.py").write_text(
        "from shoal.train.recipe.recipe import Recipe\nK = 41\nclass "
        "Own(Recipe):\n    def answer(self): return K + 1\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        from mine import Own  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    code = dumps((Own(), None))
    run = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())[0].answer())"
    assert (
        subprocess.run(
            [sys.executable, "-c", run], input=code, capture_output=True, check=True, cwd="/"
        ).stdout
        == b"42\n"
    )
    assert b"mine" in pickle.dumps(Own)
    assert len(pickle.dumps(Own())) < 100  # by reference again


@pytest.mark.parametrize("host", ["127.0.0.1", "ray://127.0.0.1"])
def test_an_address_without_a_cluster_is_one_error(host: str) -> None:
    """Ray itself would wait for minutes, and print lines of its own."""
    with socket.socket() as taken:  # nobody listens there, and nobody else can
        taken.bind(("127.0.0.1", 0))
        address = f"{host}:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"no Ray cluster answers at {address} .*refused"):
            check_reached(address, patience=0.1)
    with pytest.raises(ConnectionError, match="no Ray cluster answers at 127.0.0.1:99999 "):
        check_reached("127.0.0.1:99999", patience=0.1)


def test_a_cluster_that_starts_is_waited_for() -> None:
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(ConnectionError):
            check_reached(address, patience=0.0)

        def serve() -> None:
            head.listen()
            head.accept()[0].close()

        start = Timer(0.3, serve)
        start.start()
        check_reached(address, patience=30.0)
        start.join()


def test_a_head_that_takes_connections_and_says_nothing_is_one_error() -> None:
    """As one that was stopped. Ray itself would wait for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(
            ConnectionError, match=f"no Ray cluster answers at {address} .*timed out"
        ):
            check_reached(address, patience=0.2)


class Web(BaseHTTPRequestHandler):
    """Somebody else's server."""

    def log_message(self, *_: Any) -> None:
        """No log."""


def test_a_server_that_is_no_head_of_ray_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and answers. Ray itself would ask it for eight minutes."""
    monkeypatch.setattr(ray_cluster, "HEAD", 1.0)
    with ThreadingHTTPServer((ray_cluster.LOOPBACK, 0), Web) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"{ray_cluster.LOOPBACK}:{server.server_address[1]}"
        with pytest.raises(
            ConnectionError, match=f"no Ray cluster answers at {address} .*not speak"
        ):
            ray_cluster.join(address, None, 1, 0.1)
        server.shutdown()
    assert not ray_cluster.ray.is_initialized()


LAST, OTHER, PRIVATE = "10.0.0.1:1", "10.0.0.1:2", f"{ray_cluster.LOOPBACK}:3"


def running(*addresses: str) -> Any:
    """In the place of what looks for Ray's processes on this machine."""

    def found() -> frozenset[str]:
        return frozenset(addresses)

    found.cache_clear = list  # type: ignore[attr-defined]
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="a private cluster looks alike")
def test_auto_where_no_cluster_is_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_cluster, "use_token", list)
    monkeypatch.setattr(ray_cluster, "read_ray_address", lambda: None)
    monkeypatch.setattr(ray_cluster, "find_gcs_addresses", running(PRIVATE))
    with pytest.raises(ConnectionError, match=r"answers at auto \(none .*\): give"):
        ray_cluster.join("auto", None, 1, 0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="a private cluster looks alike")
@pytest.mark.parametrize(
    ("there", "last", "meant"),
    [
        ([PRIVATE], None, "none runs here that others may join"),
        ([PRIVATE, OTHER], None, OTHER),
        ([PRIVATE, LAST, OTHER], LAST, LAST),
        ([PRIVATE, OTHER], "10.0.0.1:9", OTHER),  # it has ended, and left its address
        ([LAST, OTHER], None, f"several run here: {LAST}, {OTHER} that others may join"),
        ([], LAST, LAST),  # in a container of its own, say
    ],
)
def test_auto_never_means_a_cluster_that_another_run_started_for_itself(
    monkeypatch: pytest.MonkeyPatch, there: list[str], last: str | None, meant: str
) -> None:
    """Ray takes any that runs on the machine: two studies would meet."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_cluster, "use_token", list)
    monkeypatch.setattr(ray_cluster, "find_gcs_addresses", running(*there))
    monkeypatch.setattr(ray_cluster, "read_ray_address", lambda: last)
    if "here" in meant:
        with pytest.raises(ConnectionError, match=meant):
            ray_cluster._meant_by("auto")
    else:
        assert ray_cluster._meant_by("auto") == meant


def test_a_server_of_grpc_that_is_no_head_of_ray_is_one_error() -> None:
    grpc = pytest.importorskip("grpc")
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port(f"{ray_cluster.LOOPBACK}:0")
    address = f"{ray_cluster.LOOPBACK}:{port}"
    server.start()
    try:
        with pytest.raises(ConnectionError, match=f"no Ray cluster answers at {address} .*Method"):
            ray_cluster.join(address, None, 1, 0.1)
    finally:
        server.stop(None)


def test_who_cannot_leave_a_cluster_joins_no_other() -> None:
    """Its head was stopped, for which Ray would wait."""
    wakes = Event()
    reaper.part(wakes.wait, patience=0.05)
    with pytest.raises(ConnectionError, match="run this again in a new process"):
        ray_cluster.join(None, 1, 1, 0.1)
    wakes.set()
    until = time.monotonic() + 60
    while reaper.is_parting():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_start_that_takes_too_long_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "The current node timed out during startup. This could happen because some of the raylet"

    def init(**_: Any) -> None:
        raise Exception(said)  # as Ray does

    monkeypatch.setattr(ray_cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_cluster.ray, "init", init)
    monkeypatch.setattr(ray_cluster, "_own_token", list)
    with pytest.raises(StudyError, match="Ray did not start .*: run this again, with fewer"):
        ray_cluster.join(None, 1, 1, 0.1)
    said = "another one"
    with pytest.raises(Exception, match="^another one$"):
        ray_cluster.join(None, 1, 1, 0.1)


def test_other_forms_of_an_address_are_left_to_ray() -> None:
    for address in ("auto", "local"):
        check_reached(address, patience=0.0)


def test_sigterm_does_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's handler would end the process with exit code 15, whatever a command says."""

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(signal.SIGTERM))

    monkeypatch.setattr(ray_cluster, "check_reached", lambda _: None)
    monkeypatch.setattr(ray_cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_cluster.ray, "init", init)
    before = signal.getsignal(signal.SIGTERM)
    ray_cluster.join("ray://127.0.0.1:1", None, 1, 0.1)
    assert signal.getsignal(signal.SIGTERM) == before
