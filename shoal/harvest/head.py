"""A Ray head without slots, which nodes of a batch system join as they come.

Whoever can connect to a Ray cluster can run code in it. So the head asks for a token, which lies
in a folder that only this user can read. Nodes that join read it there.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from shoal.core.install import install
from shoal.engine.files import write_durably
from shoal.engine.ownership import new_token
from shoal.engine.plain_files import read_file, remove_file
from shoal.engine.process import lives, python_module

FILE = "head.json"
TOKEN = "token"
RAY = tuple(python_module("ray.scripts.scripts"))
START = 120.0  # seconds that Ray may take to start, on a busy machine
OURS = "shoal-node-"  # begins the names of Ray's temporary folders, before the owner's id
LONGEST_FOLDER = 6  # characters: a socket's path may have 107, of which Ray adds up to 70
# Ray then notes within 2 s that a node was killed, and within 6 s that it hangs. By default it
# takes 15 s and 65 s.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
}


class HeadError(RuntimeError):
    """The head cannot be started, or nobody has started one in the folder."""


@dataclass(frozen=True, slots=True)
class OpenHead:
    """A head that runs: its address, and its folder."""

    address: str  # IP:PORT
    folder: Path

    @property
    def ip(self) -> str:
        """The address of its machine."""
        return self.address.rpartition(":")[0]

    @property
    def environment(self) -> Mapping[str, str]:
        """What processes need in their environment to join, or to start a node."""
        return environment(self.folder)


class RayHead:
    """A Ray head in a folder that all nodes see; it ends with the `with` block, or this process.

    `ip`: the address at which nodes reach it; None: that of this machine in its network. An address
    of 127.0.0.0/8 (not 127.0.0.1, which Ray replaces) is reached from this machine only.

    Raises:
        HeadError: Ray is not installed, or does not start.
    """

    def __init__(self, folder: Path, ip: str | None = None) -> None:
        self.folder = folder.resolve()
        self._ip = ip
        self._temporary = ray_folder()
        self._reaper: subprocess.Popen[bytes] | None = None
        self.opened: OpenHead | None = None

    @property
    def address(self) -> str:
        """Where nodes and drivers join: IP:PORT."""
        assert self.opened is not None, "it is open within its with block"
        return self.opened.address

    @property
    def environment(self) -> Mapping[str, str]:
        """What a driver needs in its environment to join."""
        return environment(self.folder)

    def __enter__(self) -> "RayHead":
        if find_spec("ray") is None:
            raise HeadError(f"a harvest needs Ray: {install('ray')}")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.chmod(0o700)
        new_token(self.folder / TOKEN)
        self._reaper = reaper(self._temporary)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        """Start Ray, and say in the folder where it is."""
        ip = self._ip or _own_ip()
        port = free_port(ip)
        options = [
            "--head",
            f"--node-ip-address={ip}",
            f"--port={port}",
            "--num-cpus=0",
            "--num-gpus=0",
            "--include-dashboard=false",
            # Not needed, but Ray starts it; two heads on one machine would want the same port.
            f"--ray-client-server-port={free_port(ip)}",
            "--object-store-memory=100000000",
            *common(self._temporary, ip),
        ]
        environ = {**os.environ, **self.environment, **HEALTH}
        ray = subprocess.run(
            [*RAY, "start", *options],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START,
            check=False,
            text=True,
            errors="replace",
        )
        if ray.returncode != 0:
            raise HeadError(f"Ray's head does not start: {ray.stdout[-1000:]}")
        self.opened = OpenHead(f"{ip}:{port}", self.folder)
        head = {"address": self.opened.address, "pid": os.getpid()}
        write_durably(self.folder / FILE, json.dumps(head).encode())

    def close(self) -> None:
        """End the head and all that it started, and remove its files."""
        self.opened = None
        with suppress(OSError):
            remove_file(self.folder / FILE)
        with suppress(OSError):
            remove_file(self.folder / TOKEN)
        if self._reaper is not None:
            self._reaper.communicate()
            self._reaper = None
        shutil.rmtree(self._temporary.parent, ignore_errors=True)


def opened_in(folder: Path) -> OpenHead:
    """The head that was started in the folder.

    Raises:
        HeadError: none is open there.
    """
    try:
        head = json.loads(read_file(folder / FILE))
        return OpenHead(str(head["address"]), folder.resolve())
    except FileNotFoundError:
        why = "no head is open there"
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{FILE} cannot be read ({error})"
    raise HeadError(f"{folder}: {why}: it must be the folder of a running harvest")


# -- what heads and nodes have in common ---------------------------------------------------------


def environment(folder: Path) -> Mapping[str, str]:
    """What each process of the cluster needs in its environment."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / TOKEN),
        "RAY_USAGE_STATS_ENABLED": "0",
        # A node that has to go does not wait until its work is done.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }


def common(temporary: Path, ip: str) -> list[str]:
    """Options of `ray start` for heads and nodes, several of which may be on one machine."""
    return [
        f"--temp-dir={temporary}",
        # All agents want one port; without it each tries for 4 s.
        f"--dashboard-agent-listen-port={free_port(ip)}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        # Nobody reads what it sends, and its start takes half a second of a CPU.
        "--include-log-monitor=false",
        "--disable-usage-stats",
    ]


def ray_folder() -> Path:
    """A new folder for Ray's files, within one that only this user can enter.

    Ray lets everybody write to the folder that it is given. Two nodes on one machine need one each:
    they choose equal names for their sockets.
    """
    parent = tempfile.gettempdir()
    if len(parent) > LONGEST_FOLDER:
        parent = "/tmp"
    for folder in Path(parent).glob(f"{OURS}*"):
        owner = folder.name.removeprefix(OURS).partition("-")[0]
        if owner.isdecimal() and lives(int(owner)) is False:  # it was killed, and left this
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{OURS}{os.getpid()}-", dir=parent)) / "r"


def reaper(folder: Path) -> "subprocess.Popen[bytes]":
    """A process that ends all Ray processes of this folder when its standard input closes.

    So they end with this process, whatever ends it.
    """
    spec = find_spec("shoal.backend.ray.reaper")
    assert spec is not None and spec.origin is not None
    return subprocess.Popen(
        [sys.executable, "-I", spec.origin, str(folder), folder.parent.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def free_port(ip: str) -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind((ip, 0))
        port: int = probe.getsockname()[1]
        return port


def _own_ip() -> str:
    """This machine's address in its network. No packet is sent to find it out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of no machine: reserved for examples
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())
