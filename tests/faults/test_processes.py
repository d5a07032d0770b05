"""Processes that are killed or stopped while a study trains: Ray's own, feeders, the driver."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fault_kit import EVERY, PATIENCE, Driver, Steady, check_whole, content, kill, processes

import shoal
from shoal.core.event import Left

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra"),
]
RAY: dict[str, Any] = {"backend": "ray", "slots": 2, "checkpoint_every": EVERY}
# Seconds within which a run notices that its cluster is lost (30), and ends; and a busy machine.
LONGEST = 60.0 + 30.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> shoal.Study:
    study = shoal.create_study(Steady(slow=0), storage=tmp_path_factory.mktemp("hop") / "s")
    study.optimize(policy="hop", progress=False)
    return study


def finish(folder: Path, undisturbed: shoal.Study, **options: Any) -> None:
    """Resume the study until its end; it must be as if nothing had happened."""
    given = {"slow": 0.0} if options else None
    with Driver(folder, given, **options) as driver:
        code, said = driver.end()
        assert code == 0, said
        driver.vanish()
    check_whole(folder, undisturbed)


@pytest.mark.parametrize(
    ("sign", "slow"),
    [
        pytest.param(signal.SIGKILL, 0.15, id="kill"),
        # What is left to train takes longer than silence is allowed to last.
        pytest.param(signal.SIGSTOP, 0.4, id="stop", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_without_its_own_cluster_a_run_pauses(
    tmp_path: Path, undisturbed: shoal.Study, name: str, sign: signal.Signals, slow: float
) -> None:
    folder = tmp_path / "s"
    with Driver(folder, {"slow": slow}, policy="hop", **RAY) as driver:
        driver.until(lambda: driver.visits() >= 3 and len(driver.slots()) == 2, "visits")
        (victim,) = driver.rays(name)
        os.kill(victim, sign)
        begin = time.monotonic()
        code, said = driver.end()
        assert time.monotonic() - begin < LONGEST
        assert code == 1
        (last,) = said.strip().splitlines()[-1:]
        assert "StudyPaused" in last and name in last and "starts Ray anew" in last
        driver.vanish()
    finish(folder, undisturbed)


def test_a_driver_that_stood_still_gives_no_slot_up(
    tmp_path: Path, undisturbed: shoal.Study
) -> None:
    """Longer than a slot may be silent, and than a call may take."""
    folder = tmp_path / "s"
    options = {**RAY, "hang_after": 3.0, "stuck_after": 3.0}
    with Driver(folder, {"slow": 0.02}, policy="hop", **options) as driver:
        driver.until(lambda: driver.visits() >= 6, "some visits")
        driver.pause()
        time.sleep(8.0)
        driver.go_on()
        code, said = driver.end()
        assert code == 0, said
        driver.vanish()
    study = check_whole(folder, undisturbed)
    assert not any(isinstance(line.entry, Left) for line in study.lines())


def test_a_local_run_that_stood_still_fails_no_trial(
    tmp_path: Path, undisturbed: shoal.Study
) -> None:
    folder = tmp_path / "s"
    with Driver(folder, {"slow": 0.02}, policy="hop", stuck_after=2.0) as driver:
        driver.until(lambda: driver.visits() >= 6, "some visits")
        driver.pause()
        time.sleep(6.0)
        driver.go_on()
        assert driver.end()[0] == 0
    check_whole(folder, undisturbed)


# -- feeders and their windows


def feeders(driver: Driver, what: str) -> list[int]:
    """The processes that prepare chunks, or those that hold them."""
    name = f"ray::{what}".encode()
    return [pid for pid in driver.pids() if content(Path(f"/proc/{pid}/cmdline")).startswith(name)]


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["Feeder", "Window"])
def test_a_feeder_that_stands_still_holds_up_no_slot(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "s"
    options = {**RAY, "feeders": 1, "stream_samples": 0, "stream_memory_gb": 0.001}
    with Driver(folder, {"slow": 0.01, "augments": True}, policy="hop", **options) as d:
        d.until(lambda: d.visits() >= 6 and feeders(d, what), "some visits")
        (victim,) = feeders(d, what)
        os.kill(victim, signal.SIGSTOP)
        begin = time.monotonic()
        code, said = d.end()
        assert code == 0, said
        assert time.monotonic() - begin < LONGEST
        kill(victim)
        d.vanish()
    study = shoal.load_study(folder)
    study.recipe.slow = 0.0
    assert {t.status for t in study.trials} == {"finished"}
    assert not any(isinstance(line.entry, Left) for line in study.lines())
    assert all(row["equal"] for row in study.replay())


# -- a cluster that others keep


NODE = """
import os, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={
    "num_cpus": 2, "include_dashboard": False, "object_store_memory": 300 * 2**20,
    "_system_config": {"health_check_period_ms": 1000, "health_check_failure_threshold": 5,
                       "health_check_timeout_ms": 3000},
})
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def kept_cluster() -> Iterator[tuple[str, dict[str, int]]]:
    """The address of a cluster in other processes, and its raylet and head."""
    process = subprocess.Popen(
        [sys.executable, "-c", NODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
    )
    assert process.stdout is not None and process.stdin is not None
    address = process.stdout.readline().strip()
    found: dict[str, int] = {}
    for folder in Path("/proc").iterdir():
        stat = content(folder / "stat").rpartition(b")")[2].split()
        if stat and stat[1] == str(process.pid).encode():
            name = content(folder / "comm").decode().strip()
            found[name] = int(folder.name)
    try:
        yield address, found
    finally:
        for pid in found.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        process.stdin.close()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


def slots_of(raylet: int) -> list[int]:
    """The processes of slots that this raylet started."""
    return [
        pid
        for pid, stat in processes()
        if int(stat[1]) == raylet
        and content(Path(f"/proc/{pid}/cmdline")).startswith(b"ray::SlotActor")
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
@pytest.mark.parametrize(
    "lost",
    [["raylet"], ["gcs_server"], ["raylet", "gcs_server"], ["gcs_server", "a slot"]],
    ids=["raylet", "gcs", "head", "gcs-and-slot"],
)
def test_without_its_head_or_node_in_a_cluster_of_others_a_run_pauses(
    tmp_path: Path,
    undisturbed: shoal.Study,
    kept_cluster: tuple[str, dict[str, int]],
    lost: list[str],
    sign: signal.Signals,
) -> None:
    """A slot that is lost with the head makes the run ask the head, which does not answer."""
    address, rays = kept_cluster
    folder = tmp_path / "s"
    options = {**RAY, "address": address}
    with Driver(folder, {"slow": 0.4}, policy="hop", **options) as driver:
        driver.until(lambda: driver.visits() >= 3, "visits")
        (*_, rays["a slot"]) = slots_of(rays["raylet"])
        for name in lost:
            os.kill(rays[name], signal.SIGKILL if name == "a slot" else sign)
        begin = time.monotonic()
        code, said = driver.end()
        assert time.monotonic() - begin < LONGEST
        assert code == 1
        (last,) = said.strip().splitlines()[-1:]
        assert "StudyPaused" in last and "reach one another" in last
    finish(folder, undisturbed, policy="hop", **RAY)
