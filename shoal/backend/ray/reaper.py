"""A process that waits for this one to end, and then ends what its Ray left running.

It runs this file, with the standard library alone. When the driver is killed the system kills the
processes that the driver started itself, but not those that the raylet did: slots went on for 2 s,
and Ray's agents for 62 s (Ray 2.60 waits a minute for the dead GCS to take their report).
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
CLIENTS = b"ray.util.client.server"
_reapers: list["subprocess.Popen[bytes]"] = []


def guard() -> None:
    """Have what this process's Ray started end soon after this process does.

    Without /proc nothing happens.
    """
    session = _session()
    if session is None:
        return

    reaper = subprocess.Popen(
        [sys.executable, "-I", __file__, session],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _reapers.append(reaper)


def dismiss() -> None:
    """Ray was shut down: there is nothing left to guard."""
    while _reapers:
        _reapers.pop().communicate()


def _session() -> str | None:
    """The folder of the raylet that this process started."""
    for folder in _processes():
        with suppress(OSError, ValueError):
            if _is_raylet(folder):
                return _session_of((folder / "cmdline").read_text())
    return None


def _is_raylet(folder: Path) -> bool:
    """Whether the process is a raylet that this process started."""
    _, _, rest = (folder / "stat").read_text().partition("(")
    name, numbers = rest.rsplit(")", 1)
    parent = int(numbers.split()[1])
    return name == "raylet" and parent == os.getpid()


def _session_of(command: str) -> str | None:
    """The folder that a raylet's command line names."""
    for word in command.split("\0"):
        if word.startswith("--session_dir="):
            _, _, folder = word.partition("=")
            return folder
    return None


def _processes() -> list[Path]:
    """The folders of all processes."""
    if not PROC.is_dir():
        return []
    return [folder for folder in PROC.iterdir() if folder.name.isdigit()]


def _reap(session: str) -> None:
    """Wait for the end of standard input, then kill what belongs to the session."""
    sys.stdin.buffer.read()
    until = time.monotonic() + 10.0
    while time.monotonic() < until:
        left = [folder for folder in _processes() if _belongs(folder, session)]
        if not left:
            return
        for folder in left:
            with suppress(OSError):
                os.kill(int(folder.name), signal.SIGKILL)
        time.sleep(0.05)


def _belongs(folder: Path, session: str) -> bool:
    """Whether the process is of the session.

    The arguments of Ray's own processes, and of a slot just starting, name the session. A slot or
    an agent at work calls itself "ray::…" instead, and has files of the session open (its logs).
    So has a head's server for Ray's clients.
    """
    with suppress(OSError):
        words = (folder / "cmdline").read_bytes()
        if session.encode() + b"/" in words:
            return int(folder.name) != os.getpid()
        if words.startswith(b"ray::") or CLIENTS in words:
            files = (folder / "fd").iterdir()
            return any(os.readlink(file).startswith(session + "/") for file in files)
    return False


if __name__ == "__main__":
    _reap(sys.argv[1])
