"""Whether a process is at work on a study: its journal alone cannot tell."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shoal.core.trial import Seconds
from shoal.engine.lock import is_released
from shoal.engine.plain_files import is_there, open_file, read_file, remove_file, status_of
from shoal.engine.process import lives
from shoal.engine.small import HolderFile, decoded
from shoal.study.folder import Folder

# A run writes of its slots every three seconds: if it did within these, it is at work.
FRESH: Seconds = 15.0
HARVEST = "harvest"  # the folder of `shoal harvest`, within the study's


def is_held(folder: Folder) -> bool | None:
    """Whether the process that opened the study last is alive; None: that cannot be told."""
    try:
        file = folder.path / "holder.json"
        holder = decoded(read_file(file), HolderFile)
    except (OSError, ValueError):
        return None
    if is_released(holder):
        return False
    if holder.get("host") != platform.node():
        return None
    return lives(holder["pid"])


def process_of(folder: Folder, now: Seconds) -> dict[str, Any]:
    """Who is at work on a study that its journal says is open.

    `running`; None: that cannot be told. `heard`: when the run wrote last, in seconds since 1970,
    as `now`. `silent`: seconds since then. `again`: the command that goes on with it.
    """
    heard = [0.0]
    status = status_of(folder.journal)
    if status is not None:
        heard.append(status.st_mtime)
    board = folder.slots()
    if board is not None:
        heard.append(board["written"])
    running = is_held(folder)
    if running and (board is None or now - board["written"] > FRESH):
        running = None  # the process lives, as a notebook's may long after the run
    last = max(heard)
    return {
        "running": running,
        "heard": last,
        "silent": max(0.0, now - last),
        "again": command_to_go_on(folder),
    }


def command_to_go_on(folder: Folder) -> str:
    """What to type, so that the study goes on as its last run was set up."""
    if was_harvested(folder):
        return f"shoal harvest {folder.path} --partition …"
    return f"shoal resume {folder.path}"


def was_harvested(folder: Folder) -> bool:
    """Whether the last run trained on idle nodes, as far as can be told.

    It joined a cluster, and `shoal harvest` has used the study's folder.
    """
    options = folder.head().get("options")
    joined = isinstance(options, dict) and options.get("address") is not None
    return joined and is_there(folder.path / HARVEST)


NAME = "running"  # of the file that marks a run at work


@contextmanager
def running_mark(folder: Folder) -> Iterator[None]:
    """Within, a file says that a run is at work. Only a run that is killed leaves it."""
    mark = folder.path / NAME
    with suppress(OSError):  # without room for it nothing is known of the end
        open_file(mark, "ab").close()
    try:
        yield
    finally:
        with suppress(OSError):
            remove_file(mark)


def was_cut_off(folder: Folder) -> bool:
    """Whether the last run's process ended in its midst; the caller holds the study."""
    return is_there(folder.path / NAME)
