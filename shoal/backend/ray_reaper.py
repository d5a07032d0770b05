"""A process that waits for this one to end, and then ends what its Ray left running. Run as a file, with the standard library.

When the driver is killed the system kills the processes it started itself, but not those that the raylet did: slots went on for
2 s, and Ray's agents for 62 s (Ray 2.60 waits a minute for the dead GCS to take their report).
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
_reapers: list["subprocess.Popen[bytes]"] = []


def guard() -> None:
    """Have the children of this process's raylet end soon after this process does. Where there is no /proc, nothing happens."""
    raylet = _raylet()
    if raylet is not None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [sys.executable, "-I", __file__, str(raylet)]
        _reapers.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **quiet))


def dismiss() -> None:
    """Ray was shut down: there is nothing left to guard."""
    while _reapers:
        _reapers.pop().communicate()


def _raylet() -> int | None:
    for folder in _processes():
        with suppress(OSError, IndexError):
            name, rest = (folder / "stat").read_text().partition("(")[2].rsplit(")", 1)
            if name == "raylet" and int(rest.split()[1]) == os.getpid():
                return int(folder.name)
    return None


def _processes() -> list[Path]:
    return [folder for folder in PROC.iterdir() if folder.name.isdigit()] if PROC.is_dir() else []


def _reap(raylet: int) -> None:
    """Wait for the end of standard input, then kill all children of the raylet."""
    sys.stdin.buffer.read()
    told = f"\0RAY_RAYLET_PID={raylet}\0".encode()
    until = time.monotonic() + 5.0
    found = True
    while found and time.monotonic() < until:
        found = False
        for folder in _processes():
            with suppress(OSError):
                if told in b"\0" + (folder / "environ").read_bytes() + b"\0" and not _ended(folder):
                    os.kill(int(folder.name), signal.SIGKILL)
                    found = True
        time.sleep(0.05)


def _ended(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


if __name__ == "__main__":
    _reap(int(sys.argv[1]))
