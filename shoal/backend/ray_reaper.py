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
    """Have what this process's Ray started end soon after this process does. Where there is no /proc, nothing happens."""
    session = _session()
    if session is not None:
        command, out = [sys.executable, "-I", __file__, session], subprocess.DEVNULL
        _reapers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True))


def dismiss() -> None:
    """Ray was shut down: there is nothing left to guard."""
    while _reapers:
        _reapers.pop().communicate()


def _session() -> str | None:
    """The folder of the raylet that this process started."""
    for folder in _processes():
        with suppress(OSError, ValueError):
            name, rest = (folder / "stat").read_text().partition("(")[2].rsplit(")", 1)
            if name == "raylet" and int(rest.split()[1]) == os.getpid():
                words = (folder / "cmdline").read_text().split("\0")
                return next((w.partition("=")[2] for w in words if w.startswith("--session_dir=")), None)
    return None


def _processes() -> list[Path]:
    return [folder for folder in PROC.iterdir() if folder.name.isdigit()] if PROC.is_dir() else []


def _reap(session: str) -> None:
    """Wait for the end of standard input, then kill what belongs to the session until nothing does."""
    sys.stdin.buffer.read()
    until = time.monotonic() + 10.0
    while time.monotonic() < until:
        left = [int(folder.name) for folder in _processes() if _belongs(folder, session)]
        if not left:
            return
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _belongs(folder: Path, session: str) -> bool:
    """Whether its arguments name the session (Ray's own, and a slot just starting), or it is a slot or an agent at work.

    Those call themselves "ray::…" instead, and have files of the session open (their logs).
    """
    with suppress(OSError):
        words = (folder / "cmdline").read_bytes()
        if session.encode() + b"/" in words:
            return int(folder.name) != os.getpid()
        if words.startswith(b"ray::"):
            return any(os.readlink(file).startswith(session + "/") for file in (folder / "fd").iterdir())
    return False


if __name__ == "__main__":
    _reap(sys.argv[1])
