"""Processes of this machine."""

import os
from pathlib import Path


def lives(pid: int) -> bool | None:
    """Whether the process is there and has not ended; None: this system cannot tell."""
    if os.name != "posix":
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    except OverflowError:  # no process has such a number
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended, and only waits for its parent to notice."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == ["Z"]


def cpus_here() -> int:
    """CPUs of this machine that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
