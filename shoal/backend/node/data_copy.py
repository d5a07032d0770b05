"""One copy of the data per node.

The first slot that comes builds the data and writes it to files; the other slots of the node map
these files. The files hold pickles, so nobody else may write to them: they lie in a folder that
only this user can enter.
"""

import getpass
import mmap
import os
import pickle
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from shoal.backend.ray.cluster import node_here
from shoal.engine.files import replaced
from shoal.engine.ownership import check_own_file, lock_file, own_folder
from shoal.engine.process import lives
from shoal.train.data.catalogue import LOCAL
from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.recipe.pickling import dumps
from shoal.train.recipe.recipe_data import adopt, bring

ALIGN = 64  # bytes: arrays start at cache lines
OWNER = "owner"  # the file with the id of the process whose end makes a copy of the data useless


def place(token: str, node: str, root: str | None = None) -> Path:
    """Where the data of this run lies on this node.

    `token`: names the run; it cannot be guessed. `root`: a folder for the data of all runs; None:
    one in the system's temporary folder, named after the user.
    """
    base = Path(tempfile.gettempdir()) / f"shoal-{getpass.getuser()}"
    if root:
        base = Path(root)
    return base / f"{token}-{node[:12]}"


def prepare(folder: Path, owner: int) -> None:
    """Make the folder, which is of use as long as the process `owner` lives.

    Folders beside it whose owners are gone are removed.

    Raises:
        PermissionError: as `own_folder`, of this folder or the one above it.
    """
    own_folder(folder.parent)
    own_folder(folder)
    with _locked(folder):  # slots of a node come at the same time
        if not (folder / OWNER).exists():
            with _created(folder / OWNER) as file:
                file.write(str(owner).encode())
    for other in folder.parent.iterdir():
        _remove_orphan(other)


def _remove_orphan(folder: Path) -> None:
    """Remove a copy of the data whose owner's process is gone."""
    try:
        owner = int((folder / OWNER).read_text())
    except (OSError, ValueError):
        return  # it is another user's, or no such copy
    if lives(owner) is False:
        shutil.rmtree(folder, ignore_errors=True)


def shared(folder: Path, owner: int, build: Callable[[], Data], fingerprint: str) -> Data:
    """The data of this node.

    The first who asks builds it, under a lock, and writes it to files. All later ones map these.

    Raises:
        DataError: it is not the data that the study was opened with.
        OSError: it cannot be written (the disk is full, say), or as `prepare`.
    """
    prepare(folder, owner)
    with _locked(folder):
        data = _shelved(folder)
        if data is None:
            data = build()
            if data.fingerprint == fingerprint:
                shelve(data, folder)

    if data.fingerprint != fingerprint:
        raise DataError(
            f"{platform.node()}: data() gave other data (fingerprint {data.fingerprint[:12]}) than "
            f"where the study was started ({fingerprint[:12]}): it must give the same on every "
            "machine and each time; check its files and seeds"
        )
    return data


def offer(data: Data, folder: Path, recipe: Any) -> None:
    """Write the data that this process has, unless a slot was faster; slots wait for it meanwhile.

    `recipe`: as `shelve`. Raises as `prepare` does.
    """
    prepare(folder, os.getpid())
    with _locked(folder):
        if not (folder / "data.pkl").exists():
            shelve(data, folder, recipe)


def data_here(recipe: Any, placed: Data | None, folder: Path, fingerprint: str) -> Data:
    """The data as a process of a node reads it.

    `placed`: data that stays at its nodes, so that nothing is built or copied here. Raises as
    `shared` does.
    """
    if placed is None:
        build = partial(bring, recipe)
        data = shared(folder, os.getppid(), build, fingerprint)
    else:
        data = placed.at((*node_here().names, LOCAL))
    adopt(recipe, data)
    return data


def shelve(data: Data, folder: Path, recipe: Any = None) -> None:
    """Write the data so that `shared` finds it: the arrays to one file, everything else to another.

    Who calls this holds the folder's lock, or is alone there.

    Data that cannot be pickled is left out: then each slot builds its own. `recipe`: whose classes
    the data may hold; slots get the recipe's code with the recipe.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        rest = dumps(data, buffers.append, code_of=recipe)
    except (TypeError, AttributeError, pickle.PicklingError):
        return

    spans = _write_arrays(folder / "arrays.bin", buffers)
    # Once this file is there, the arrays are known to be whole.
    with replaced(folder / "data.pkl") as part, _created(part) as file:
        file.write(pickle.dumps((rest, spans)))


def _write_arrays(path: Path, buffers: Iterable[pickle.PickleBuffer]) -> list[tuple[int, int]]:
    """Write the arrays one after another; where each begins, and its bytes."""
    spans: list[tuple[int, int]] = []
    with _created(path) as file:
        for buffer in buffers:
            raw = buffer.raw()
            file.seek(-(-file.tell() // ALIGN) * ALIGN)  # up to a cache line
            spans.append((file.tell(), raw.nbytes))
            file.write(raw)
    return spans


def _locked(folder: Path) -> FileLock:
    """The folder's lock: the processes that share the folder write its files one by one."""
    return lock_file(folder / "lock")


def _created(path: Path) -> IO[bytes]:
    """A new file that only this user can read and write, in place of any that is there."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    return os.fdopen(descriptor, "wb")


def _shelved(folder: Path) -> Data | None:
    """The data that lies in the folder, its arrays mapped; None if there is none.

    It runs what code the file holds, so the folder and the file must be this user's alone.

    Raises:
        PermissionError: as `check_own_file`.
    """
    file = folder / "data.pkl"
    if not file.exists():
        return None
    own_folder(folder)
    check_own_file(file)
    rest, spans = pickle.loads(file.read_bytes())

    whole = _mapped(folder / "arrays.bin")
    buffers = [whole[start : start + length] for start, length in spans]
    data = pickle.loads(rest, buffers=buffers)
    assert isinstance(data, Data)
    return data


def _mapped(path: Path) -> memoryview:
    """The file's bytes, read when they are needed."""
    if not path.stat().st_size:
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
