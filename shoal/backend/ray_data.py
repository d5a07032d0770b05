"""One copy of the data per node: whoever comes first builds and shelves it, the other slots there map the files."""

import getpass
import io
import mmap
import os
import pickle
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import cloudpickle
from filelock import FileLock

from shoal.train.columns import DataError
from shoal.train.data import Data

ALIGN = 64  # bytes: arrays start at cache lines
OWNER = "owner"  # file with the id of the process whose end makes a shelf rubbish


def place(token: str, node: str, root: str | None = None) -> Path:
    """Where the data of this run lies on this node."""
    base = Path(root) if root else Path(tempfile.gettempdir()) / f"shoal-{getpass.getuser()}"
    return base / f"{token}-{node[:12]}"


def prepare(folder: Path, owner: int) -> None:
    """Make the folder, which is of use as long as the process `owner` lives; clear away those whose owners are gone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / OWNER).exists():
        (folder / OWNER).write_text(str(owner))
    for other in folder.parent.iterdir():
        try:
            os.kill(int((other / OWNER).read_text()), 0)
        except ProcessLookupError:
            shutil.rmtree(other, ignore_errors=True)
        except (OSError, ValueError):
            continue


def shared(folder: Path, owner: int, build: Callable[[], Data], fingerprint: str) -> Data:
    """The data of this node, built by the first who asks, under a lock; all later ones map what that one shelved.

    Raises:
        DataError: it is not the data that the study was opened with.
        OSError: it cannot be shelved (disk full, say).
    """
    prepare(folder, owner)
    with FileLock(folder / "lock"):
        data = _shelved(folder)
        if data is None:
            data = build()
            if data.fingerprint == fingerprint:
                shelve(data, folder)
    if data.fingerprint != fingerprint:
        raise DataError(
            f"{platform.node()}: data() gave other data (fingerprint {data.fingerprint[:12]}) than where the study was "
            f"started ({fingerprint[:12]}): it must give the same on every machine and each time; check its files and seeds"
        )
    return data


def shelve(data: Data, folder: Path) -> None:
    """Write the data so that `shared` finds it: its arrays to one file to be mapped, the rest beside.

    Data that cannot be pickled is left out: then each slot builds its own.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        rest = cloudpickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    except (TypeError, AttributeError, pickle.PicklingError):
        return
    spans = []
    with (folder / "arrays.bin").open("wb") as file:
        for buffer in buffers:
            file.seek(-(-file.tell() // ALIGN) * ALIGN)
            raw = buffer.raw()
            spans.append((file.tell(), raw.nbytes))
            file.write(raw)
    part = folder / "data.part"
    part.write_bytes(pickle.dumps((rest, spans)))
    part.replace(folder / "data.pkl")  # it is there: the arrays are whole


def _shelved(folder: Path) -> Data | None:
    try:
        rest, spans = pickle.loads((folder / "data.pkl").read_bytes())
    except FileNotFoundError:
        return None
    with (folder / "arrays.bin").open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        whole = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)) if size else memoryview(b"")
    data = pickle.loads(rest, buffers=[whole[start : start + length] for start, length in spans])
    assert isinstance(data, Data)
    return data
