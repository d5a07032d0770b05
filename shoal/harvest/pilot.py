"""A pilot: the program that makes a node of a batch system a node of a Ray cluster.

`python -m shoal.harvest.pilot --folder FOLDER` joins the head that was started in the folder. On
SIGTERM the node leaves at once: Ray's own process of the node gets SIGTERM, so that the cluster
knows it is gone, and 0.1 s later everything is killed. Ray alone would take over a second longer,
in which whoever wants the node has to wait.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path

from shoal.backend.cluster_start import UNTIL, check_reached
from shoal.backend.ray.reaper import MARK
from shoal.engine.process import cpus_here
from shoal.harvest.head import RAY, HeadError, OpenHead, common, opened_in, ray_folder, reaper

NAME = "SLURMD_NODENAME"
PAUSE = 0.1  # seconds from telling the cluster to killing
LOOK = 1.0  # seconds between two looks at the head
PATIENCE = 10.0  # seconds without an answer of the head: it is gone
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Offer:
    """What the node brings into the cluster. `until`: when it has to go, in seconds since 1970."""

    node: str
    cpus: int
    gpus: int | None = None  # None: those that Ray finds
    until: float | None = None
    ip: str | None = None  # None: the one that fits the head's
    store_gb: float | None = None  # the object store; None: Ray's choice


class PilotNode:
    """The node's Ray processes, and their end."""

    def __init__(self, head: OpenHead, offer: Offer) -> None:
        self._head = head
        self._offer = offer
        self._temporary = ray_folder()
        self._leaving = self._ended = False
        self._ray: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Be a node until told to go, or until the head or Ray's processes are gone.

        Returns 0 if the node was told to go; 1: the head is gone; else what Ray's process returned.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._go)
        # Ends what is left of the node if this process is killed.
        guard = reaper(self._temporary)
        try:
            return self._work()
        finally:
            self._end()
            if self._ray is not None:
                self._ray.wait()
            guard.communicate()
            shutil.rmtree(self._temporary.parent, ignore_errors=True)

    def _go(self, *_: object) -> None:
        """Leave: the signal's handler does it itself, lest anything be waited for."""
        if not self._leaving:
            self._leaving = True
            self._end()

    def _work(self) -> int:
        mark = {MARK: self._temporary.parent.name}  # the reaper looks for it
        environ = {**os.environ, **self._head.environment, **mark}
        self._ray = subprocess.Popen(
            [*RAY, "start", "--block", *self._options()],
            env=environ,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        last = time.monotonic()
        while not self._leaving:
            with suppress(subprocess.TimeoutExpired):
                status = self._ray.wait(LOOK)
                return 0 if self._leaving else status or 1
            if _answers(self._head.address):
                last = time.monotonic()
            elif time.monotonic() - last > PATIENCE:
                sys.stderr.write(f"the head at {self._head.address} is gone\n")
                return 1
        return 0

    def _options(self) -> Iterator[str]:
        """The options of `ray start`."""
        offer = self._offer
        ip = offer.ip or _ip_beside(self._head.ip, offer.node)
        yield f"--address={self._head.address}"
        yield f"--node-name={offer.node}"
        yield f"--num-cpus={offer.cpus}"
        if ip is not None:
            yield f"--node-ip-address={ip}"
        if offer.gpus is not None:
            yield f"--num-gpus={offer.gpus}"
        if offer.until is not None:
            yield f"--labels={UNTIL}={int(offer.until)}"
        if offer.store_gb is not None:
            yield f"--object-store-memory={int(offer.store_gb * 2**30)}"
        yield from common(self._temporary, ip or "")

    def _end(self) -> None:
        """Tell the cluster, then kill all processes of the node, once.

        They are not waited for: a signal may have come while somebody does that.
        """
        if self._ray is None or self._ended:
            return
        self._ended = True
        for pid in _tree(self._ray.pid):
            if _name(pid) == "raylet":
                _signal(pid, signal.SIGTERM)
        time.sleep(PAUSE)
        for pid in (*_tree(self._ray.pid), self._ray.pid):
            _signal(pid, signal.SIGKILL)


def _ip_beside(head: str, node: str) -> str | None:
    """The address of a node whose head is on this machine's loopback; None: Ray finds its own.

    Several nodes are then on one machine, and each needs an address, the same at all times.
    """
    if not ip_address(head).is_loopback:
        return None
    first, second, third = blake2b(node.encode(), digest_size=3).digest()
    return f"127.{1 + first % 254}.{second}.{1 + third % 254}"


def _answers(address: str) -> bool:
    """Whether somebody answers at the address. A head that was stopped takes connections only."""
    try:
        check_reached(address, LOOK)
    except ConnectionError:
        return False
    return True


def _tree(pid: int) -> list[int]:
    """The processes that this one started, and those that they started, deepest first."""
    pids: list[int] = []
    with suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            for child in (thread / "children").read_text().split():
                pids += [*_tree(int(child)), int(child)]
    return pids


def _name(pid: int) -> str:
    with suppress(OSError):
        return (PROC / str(pid) / "comm").read_text().strip()
    return ""


def _signal(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def _cpus() -> int:
    """The CPUs that this process may use, as far as the system and Slurm say."""
    cpus = cpus_here()
    allotted = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if allotted.isdecimal():
        cpus = min(cpus, int(allotted))
    return max(1, cpus)


def _parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shoal.harvest.pilot")
    parser.add_argument("--folder", type=Path, required=True, help="the head's folder")
    parser.add_argument("--address", help="of the head; by default as the folder says")
    parser.add_argument("--node", default=os.environ.get(NAME) or socket.gethostname())
    parser.add_argument("--until", type=float, help="its end, in seconds since 1970")
    parser.add_argument("--cpus", type=int, help="by default those of the machine")
    parser.add_argument("--gpus", type=int, help="by default those that Ray finds")
    parser.add_argument("--own-ip", help="by default as fits the head's")
    parser.add_argument("--store-gb", type=float, help="object store; Ray's choice")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run `python -m shoal.harvest.pilot`; returns its exit status."""
    options = _parsed(words)
    try:
        head = opened_in(options.folder)
    except HeadError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.address is not None:
        head = OpenHead(options.address, options.folder.resolve())
    offer = Offer(
        node=options.node,
        cpus=options.cpus or _cpus(),
        gpus=options.gpus,
        until=options.until,
        ip=options.own_ip,
        store_gb=options.store_gb,
    )
    return PilotNode(head, offer).run()


if __name__ == "__main__":
    sys.exit(main())
