"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".part"  # ends the name of a file that is not whole yet


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Write the file beside `path`, where this says; at the end it takes the place of the old one.

    Others then see the old file or the new one, and never a part. An error leaves the old one.
    """
    beside = path.with_name(path.name + PARTIAL)
    try:
        yield beside
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_durably(path: Path, content: bytes) -> None:
    """Write the file whole or not at all. Afterwards it survives a crash of the machine."""
    with replaced(path) as beside, beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Let the names of the folder's files survive a crash of the machine."""
    if os.name != "posix":  # a folder cannot be opened
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
