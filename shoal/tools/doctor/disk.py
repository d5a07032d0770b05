"""How fast a folder's disk takes what Shoal writes: checkpoints, and lines of a journal."""

import os
import shutil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

MIB = 2**20
WRITTEN = 64  # MiB
SYNCS = 20


def disk(folder: Path) -> dict[str, Any]:
    """GiB free at the folder, MiB/s written and made durable, ms of making a line durable.

    The folder, or the nearest one above that is there, is written to and left as it was.

    Raises:
        OSError: it cannot be written to.
    """
    place = folder.resolve()
    while not place.is_dir():
        place = place.parent
    with TemporaryDirectory(prefix=".shoal-doctor-", dir=place) as beside:
        speed = _speed(Path(beside) / "large")
        sync = _sync(Path(beside) / "small")
    free = shutil.disk_usage(place).free / 2**30
    return {
        "folder": str(place),
        "free_gib": free,
        "write_mib_s": speed,
        "fsync_ms": sync,
    }


def _speed(file: Path) -> float:
    """MiB/s of a large file."""
    block = os.urandom(MIB)
    since = perf_counter()
    with file.open("wb") as out:
        for _ in range(WRITTEN):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    return WRITTEN / (perf_counter() - since)


def _sync(file: Path) -> float:
    """Milliseconds of a line that is appended and made durable; the median."""
    took = []
    with file.open("ab") as out:
        for _ in range(SYNCS):
            since = perf_counter()
            out.write(b"a line of a journal\n")
            out.flush()
            os.fsync(out.fileno())
            took.append(1000 * (perf_counter() - since))
    return median(took)
