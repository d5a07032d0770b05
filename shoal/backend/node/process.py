"""What a slot's process does beside training.

What it prints goes to logs, its memory is limited, and its errors travel to the driver.
"""

import io
import os
import pickle
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from shoal.core.cluster import GiB
from shoal.engine.printed import PrintedLog, study_of
from shoal.train.recipe.unit import DeviceLost

# What a call returns below 100 kB travels inside its answer, to the driver. Filled up beyond that,
# it stays in the object store.
FILL = np.zeros(128 * 1024, dtype=np.uint8)


def limit_threads(threads: int) -> None:
    """Let libraries for arrays use so many threads, if they are imported after this.

    Torch is here already: a trainer and a feeder's stream tell it by themselves.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)


def born(pid: int) -> str:
    """When the process began, in a form of the system's own; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def end(pid: int, since: str) -> None:
    """End the process at once, even one that is stopped, unless it is gone. `since`: as `born`."""
    if since and born(pid) == since:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def limit_space(more: GiB) -> None:
    """Let this process's own memory grow by so much from now on. Mapped files do not count.

    This needs Linux. On other systems nothing happens.
    """
    status = Path("/proc/self/statm")
    if not status.exists():
        return
    ray.get(ray.put(FILL))  # the object store's memory is mapped with its first object
    size = int(status.read_text().split()[5]) * resource.getpagesize()
    limit = size + int(more * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


def fetched(ref: Any) -> Any:
    """The value of a reference, from the object store.

    If this node's object store itself is gone, so is the slot, and its process ends.

    Raises:
        RayError: it is nowhere any more.
    """
    try:
        return ray.get(ref)
    except RayError:
        raise
    except OSError:  # a broken pipe: no trial is to blame, nor any disk
        os._exit(1)


class Prints(io.TextIOBase):
    """A text file whose place changes; what is written goes to the file of this moment.

    What cannot be written is left out: it is not worth a trial.
    """

    def __init__(self) -> None:
        self._log: PrintedLog | None = None
        self._logs: dict[Path, PrintedLog] = {}

    def go_to(self, path: Path | None) -> None:
        """Write to this file from now on; None: nowhere."""
        self._log = None
        if path is not None:
            self._log = self._logs.setdefault(path, PrintedLog(path, study_of(path)))

    def close_all(self) -> None:
        """Close all files; from now on nothing is written."""
        for log in self._logs.values():
            log.close()
        self._log = None
        self._logs = {}

    def writable(self) -> bool:
        """Always: `print` asks."""
        return True

    def write(self, text: str) -> int:
        """Write the text to the file of this moment."""
        log = self._log
        if log is not None:
            with suppress(OSError):
                log.write(text)
        return len(text)


def portable(error: BaseException) -> BaseException:
    """The exception, or its text if it cannot be pickled.

    If its device was lost the process ends; another one takes its place.
    """
    if isinstance(error, DeviceLost):
        sys.stdout.write(f"{error}\n")  # to the trial's log
        os._exit(1)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 whatever its class does when copied
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
