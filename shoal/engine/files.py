"""Files that are written whole or not at all."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.engine.own import file_mode

PARTIAL = ".part"  # ends the name of a file that is not whole yet


def whole(path: str | os.PathLike[str]) -> Path:
    """The path as it will mean the same wherever this process goes: absolute, without `~`.

    Whatever a user names is made whole where it comes in.
    """
    return Path(os.path.expanduser(path)).absolute()


def current_folder() -> str:
    """The folder that this process is in; empty if that is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def is_remote(place: str | os.PathLike[str]) -> bool:
    """Whether fsspec must reach it. What names no scheme is a path here, also with `::` in it."""
    return "://" in os.fspath(place)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Write the file beside `path`, where this says; at the end it takes the place of the old one.

    Others then see the old file or the new one, and never a part. An error leaves the old one.
    The new one may be read by those who could read the old one; without one by this user alone.
    """
    beside = path.with_name(path.name + PARTIAL)
    try:
        _create(beside, like=path)
        yield beside
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _create(beside: Path, like: Path) -> None:
    """Make an empty file, and nothing of what lay at its place, such as a link, stays."""
    beside.unlink(missing_ok=True)
    mode = file_mode(beside.parent)
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(like.stat().st_mode)
    os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))


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
