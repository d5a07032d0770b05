"""A process that waits for this one to end, and then ends what its Ray left running.

It also removes Ray's folder of this session, which nobody else would, and ends processes that
recipes started and left.

It runs this file, with the standard library alone. When the driver is killed the system kills the
processes that the driver started itself, but not those that the raylet did: slots went on for 2 s,
and Ray's agents for 62 s (Ray 2.60 waits a minute for the dead GCS to take their report).
"""

import atexit
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROC = Path("/proc")
CLIENTS = b"ray.util.client.server"
# The environment variable by which all processes of a cluster are found, those of recipes, too:
# who starts a process hands its environment on.
MARK = "SHOAL_CLUSTER"
RAYS_OWN = ("raylet", "gcs_server")
_reapers: list["subprocess.Popen[bytes]"] = []
_parting: list[threading.Thread] = []


@contextmanager
def marking() -> Iterator[str]:
    """Mark the processes that are started meanwhile, and all that these start; gives the mark."""
    os.environ[MARK] = secrets.token_hex(8)
    try:
        yield os.environ[MARK]
    finally:
        del os.environ[MARK]


def guard(mark: str) -> None:
    """Have what this process's Ray started end soon after this process does.

    `mark`: as `marking` gave it. Without /proc nothing happens.
    """
    session = _session()
    if session is None:
        return

    reaper = subprocess.Popen(
        [sys.executable, "-I", __file__, session, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _reapers.append(reaper)


def clear_up(folder: Path) -> None:
    """Have this folder removed, too, when this process ends."""
    for reaper in _reapers:
        if reaper.stdin is not None:
            reaper.stdin.write(f"{folder}\n".encode())
            reaper.stdin.flush()


def close(shutdown: Callable[[], object], patience: float) -> None:
    """End the cluster that this process started; its processes are killed after so many seconds."""
    late = threading.Timer(patience, dismiss)
    late.daemon = True
    late.start()
    shutdown()
    late.cancel()


def part(shutdown: Callable[[], object], patience: float) -> None:
    """Leave a cluster that others keep; after so many seconds without a word.

    Ray waits for processes that are stopped, again when this process ends. So then that ends at
    once, with status 1, when all of its own is done.
    """
    parting = threading.Thread(target=shutdown, name="shoal-part", daemon=True)
    parting.start()
    parting.join(patience)
    if parting.is_alive():
        _parting.append(parting)
        atexit.register(_end_at_once)


def is_parting() -> bool:
    """Whether this process still waits for a cluster that it left without a word."""
    return any(thread.is_alive() for thread in _parting)


def _end_at_once() -> None:
    """End this process if Ray would have it wait."""
    if not is_parting():
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(1)


def dismiss() -> None:
    """End the reapers, as Ray was shut down and there is nothing left to guard."""
    while _reapers:
        _reapers.pop().communicate()


def states() -> dict[str, str]:
    """The states of Ray's own processes that this one started, "raylet" and "gcs_server", by name.

    A state is a letter, as the system has it: T of a process that somebody stopped, Z of one that
    has ended. Empty without /proc.
    """
    states_by_name: dict[str, str] = {}
    for folder in _processes():
        with suppress(OSError, ValueError):
            name, state, parent = _about(folder)
            if name in RAYS_OWN and parent == os.getpid():
                states_by_name[name] = state
    return states_by_name


def _session() -> str | None:
    """The folder of the raylet that this process started."""
    for folder in _processes():
        with suppress(OSError, ValueError):
            name, _, parent = _about(folder)
            if name == "raylet" and parent == os.getpid():
                return _session_of((folder / "cmdline").read_text())
    return None


def _about(folder: Path) -> tuple[str, str, int]:
    """The name of the process, its state, and its parent."""
    _, _, rest = (folder / "stat").read_text().partition("(")
    name, numbers = rest.rsplit(")", 1)
    state, parent = numbers.split()[:2]
    return name, state, int(parent)


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


def _reap(session: str, mark: str) -> None:
    """Wait for the end of standard input, then kill what belongs to the session, and clear up.

    `mark`: of the session's processes.
    """
    folders = sys.stdin.buffer.read().decode()
    until = time.monotonic() + 10.0
    while time.monotonic() < until:
        alive = [folder for folder in _processes() if _belongs(folder, session, mark)]
        if not alive:
            break
        for folder in alive:
            with suppress(OSError):
                os.kill(int(folder.name), signal.SIGKILL)
        time.sleep(0.05)
    _clear(Path(session))
    for place in folders.splitlines():
        shutil.rmtree(place, ignore_errors=True)


def _clear(session: Path) -> None:
    """Remove the folder of the session, which holds logs and sockets, and what points to it."""
    shutil.rmtree(session, ignore_errors=True)
    link = session.parent / "session_latest"
    with suppress(OSError):
        if link.is_symlink() and not link.exists():
            link.unlink()


def _belongs(folder: Path, session: str, mark: str) -> bool:
    """Whether the process is of the session.

    A process that a recipe started has the mark, however many others are in between.

    The arguments of Ray's own processes, and of a slot just starting, name the session. A slot or
    an agent at work calls itself "ray::…" instead, and has files of the session open (its logs).
    So has a head's server for Ray's clients.
    """
    with suppress(OSError):
        environment = (folder / "environ").read_bytes().split(b"\0")
        if f"{MARK}={mark}".encode() in environment:
            return int(folder.name) != os.getpid()
        words = (folder / "cmdline").read_bytes()
        if session.encode() + b"/" in words:
            return int(folder.name) != os.getpid()
        if words.startswith(b"ray::") or CLIENTS in words:
            files = (folder / "fd").iterdir()
            return any(os.readlink(file).startswith(session + "/") for file in files)
    return False


if __name__ == "__main__":
    _reap(*sys.argv[1:])
