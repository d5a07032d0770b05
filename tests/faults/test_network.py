"""The network between two nodes of a cluster is cut, and healed. Each is a namespace of its own."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fault_kit import EVERY, Driver, Steady, check_whole, kill

import shoal
from shoal.core.event import Joined, Left

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra"),
]
HEAD, NODE = "10.213.7.1", "10.213.7.2"
PORT = 6399
RAY = str(Path(sys.executable).with_name("ray"))

# The head notes within seconds that a node does not answer.
TUNED = {
    "health_check_period_ms": "1000",
    "health_check_failure_threshold": "3",
    "health_check_timeout_ms": "2000",
    "health_check_initial_delay_ms": "2000",
}


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class TwoHosts:
    """Two network namespaces, with a cable between them."""

    def __init__(self) -> None:
        self.names = [f"shoal{os.getpid()}{end}" for end in "ab"]
        self.cables = [f"sh{os.getpid() % 100000}{end}" for end in "ab"]

    def __enter__(self) -> "TwoHosts":
        one, two = self.cables
        for name in self.names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", one, "type", "veth", "peer", "name", two)
        for name, cable, ip in zip(self.names, self.cables, (HEAD, NODE), strict=True):
            run("ip", "link", "set", cable, "netns", name)
            self.at(name, "ip", "addr", "add", f"{ip}/24", "dev", cable)
            self.at(name, "ip", "link", "set", cable, "up")
            self.at(name, "ip", "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: Any) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def at(self, name: str, *words: str) -> None:
        run("ip", "netns", "exec", name, *words)

    def ray(self, name: str, *options: str) -> "subprocess.Popen[bytes]":
        """A node of a Ray cluster, in that namespace, as long as the process lives."""
        words = ["ip", "netns", "exec", name, RAY, "start", "--block", "--num-cpus=1"]
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
        environment |= {f"RAY_{name}": value for name, value in TUNED.items()}
        return subprocess.Popen(
            [*words, "--object-store-memory=200000000", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def cut(self) -> None:
        """No packet passes, and nobody is told."""
        self.at(self.names[1], "ip", "link", "set", self.cables[1], "down")

    def heal(self) -> None:
        self.at(self.names[1], "ip", "link", "set", self.cables[1], "up")


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need iproute2")
    if os.geteuid() != 0:
        pytest.skip("network namespaces can be made by root only")
    made = TwoHosts()
    try:
        made.__enter__()
    except subprocess.CalledProcessError as error:
        made.__exit__()
        pytest.skip(f"no network namespaces here: {error.stderr.decode()[:80]}")
    try:
        yield made
    finally:
        made.__exit__()


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a node: the process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def in_namespace(name: str) -> list[int]:
    """The processes of the namespace."""
    said = subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True)
    return [int(pid) for pid in said.stdout.split()]


def test_a_cut_network_costs_a_node_until_it_is_back(tmp_path: Path, hosts: TwoHosts) -> None:
    """The study goes on at the side of its driver. The other node is started again, and joins."""
    undisturbed = shoal.create_study(Steady(slow=0), storage=tmp_path / "alone")
    undisturbed.optimize(policy="hop", progress=False)
    near, far = hosts.names
    folder = tmp_path / "s"
    place = Path(tempfile.mkdtemp(prefix="sn-", dir="/tmp"))
    address = f"{HEAD}:{PORT}"
    # A folder for each: what one node clears away of its logs, another one's monitor reads.
    head = f"--head --port={PORT} --node-ip-address={HEAD} --temp-dir={place}/a"
    more = [*head.split(), "--include-dashboard=false"]
    node = [f"--address={address}", f"--node-ip-address={NODE}", f"--temp-dir={place}/b"]
    nodes = [hosts.ray(near, *more)]
    try:
        time.sleep(5.0)
        nodes.append(hosts.ray(far, *node))
        options = {"backend": "ray", "address": address, "checkpoint_every": EVERY}
        within = ["ip", "netns", "exec", near]
        back = tmp_path / "back"
        recipe = {"slow": 1.0, "until": str(back)}
        with Driver(folder, recipe, within=within, policy="hop", **options) as driver:
            driver.until(lambda: driver.visits() >= 4 and joined(driver) >= 2, "both")
            hosts.cut()
            driver.until(lambda: driver.deaths() >= 1, "the lost node was noticed")
            seen = driver.visits()
            driver.until(lambda: driver.visits() >= seen + 4, "the rest goes on")
            hosts.heal()
            end(nodes.pop())
            for pid in in_namespace(far):
                kill(pid)
            before = joined(driver)
            nodes.append(hosts.ray(far, *node))
            driver.until(lambda: joined(driver) > before, "the node is back")
            back.touch()
            code, said = driver.end()
            assert code == 0, said
    except AssertionError as error:  # with what Ray said last, for its folders go
        logs = [
            *place.glob("a/session_2*/logs/ray*.out"),
            *place.glob("a/session_2*/logs/ray*.log"),
        ]
        error.add_note("\n".join(f"{log}: {log.read_text()[-1500:]}" for log in logs))
        raise
    finally:
        for each in nodes:
            end(each)
        for name in hosts.names:
            for pid in in_namespace(name):
                kill(pid)
        shutil.rmtree(place, ignore_errors=True)
    study = check_whole(folder, undisturbed)
    left = [line.entry for line in study.lines() if isinstance(line.entry, Left)]
    assert [each.died for each in left] == [True]


def joined(driver: Driver) -> int:
    """Slots that joined in this run."""
    slots = set()
    for _, entry in driver.news():
        if isinstance(entry, Joined):
            slots |= {slot.id for slot in entry.slots}
    return len(slots)
