"""What a slot's process does beside training: its prints go to logs, its memory is limited, its errors travel."""

import io
import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import ray
from ray.exceptions import RayError

from shoal.core.cluster import GiB
from shoal.train.unit import DeviceLost

# What a call returns below 100 kB travels inside its answer, to the driver. Filled up beyond, it stays in the object store.
FILL = np.zeros(128 * 1024, dtype=np.uint8)


def limit_space(more: GiB) -> None:
    """Let this process's address space grow by so much from now on (Linux; elsewhere nothing happens)."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return
    import resource

    ray.get(ray.put(FILL))  # the object store's memory is mapped with its first object
    size = int(status.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + int(more * 2**30), resource.RLIM_INFINITY))


def fetched(ref: Any) -> Any:
    """What lies in the object store.

    Raises:
        RayError: it is nowhere any more.
    """
    try:
        return ray.get(ref)
    except RayError:
        raise
    except OSError:  # a broken pipe: this node's object store is gone, and so is the slot; no trial is to blame, nor any disk
        os._exit(1)


class Prints(io.TextIOBase):
    """A text file that is made when something is written to it. What cannot be written is left out: it is not worth a trial."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._files: dict[Path, IO[str]] = {}

    def go_to(self, path: Path | None) -> None:
        """Write there from now on; None: nowhere."""
        self._path = path

    def close_all(self) -> None:
        """What was written is in its files; from now on nothing is."""
        for file in self._files.values():
            with suppress(OSError):
                file.close()
        self._path, self._files = None, {}

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with suppress(OSError):
            if self._path is not None:
                if self._path not in self._files:
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    self._files[self._path] = self._path.open("a", buffering=1)
                self._files[self._path].write(text)
        return len(text)


def portable(error: BaseException) -> BaseException:
    """The exception, or its text where it cannot be pickled. With its device lost the process ends; another one comes."""
    if isinstance(error, DeviceLost):
        sys.stdout.write(f"{error}\n")  # to the trial's log
        os._exit(1)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 whatever its class does when copied
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
