"""Files that are written whole or not at all."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from shoal.engine.plain_files import (
    SMALL_FILE,
    descriptor,
    open_file,
    read_file,
    remove_file,
    rename_file,
    status_of,
    sync_folder,
)

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # a drive has one letter
PARTIAL = ".part"  # ends the name of a file that is not whole yet


def whole(path: str | os.PathLike[str]) -> Path:
    """The path as it will mean the same wherever this process goes: absolute, without `~`.

    Whatever a user names is made whole where it comes in.
    """
    return Path(os.path.expanduser(path)).absolute()


def read_named(path: str | os.PathLike[str], most: int = SMALL_FILE) -> bytes:
    """The content of a file that a user named, or that such a file names.

    It may be a link, but no FIFO or device, of which the end may never come.

    Raises:
        OSError: it is none, is not there, or has more than `most` bytes.
    """
    return read_file(Path(os.path.realpath(path)), most)


def current_folder() -> str:
    """The folder that this process is in; empty if that is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def is_remote(place: str | os.PathLike[str]) -> bool:
    """Whether fsspec must reach it. What names no scheme is a path here, also with `::` in it."""
    # A Path of "s3://bucket/runs", as a command's arguments are, has one of the two slashes.
    made_a_path = isinstance(place, PurePath) and _SCHEME.match(str(place))
    return "://" in os.fspath(place) or bool(made_a_path)


@contextmanager
def replaced(path: Path, root: Path | None = None) -> Iterator[Path]:
    """Write the file beside `path`, where this says; at the end it takes the place of the old one.

    Others then see the old file or the new one, and never a part. An error leaves the old one.
    The new one may be read by those who could read the old one; without one by this user alone.
    `root`: see `engine.plain_files`; so it is for all here.
    """
    beside = path.with_name(path.name + PARTIAL)
    try:
        _create(beside, path, root)
        yield beside
        rename_file(beside, path, root)
    except BaseException:
        with suppress(OSError):
            remove_file(beside, root)
        raise


def _create(beside: Path, like: Path, root: Path | None) -> None:
    """Make an empty file, and nothing of what lay at its place, such as a link, stays."""
    remove_file(beside, root)
    former = status_of(like, root)
    mode = None
    if former is not None and stat.S_ISREG(former.st_mode):
        mode = stat.S_IMODE(former.st_mode)
    os.close(descriptor(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, root, mode))


def write_whole(path: Path, content: bytes, root: Path | None = None) -> None:
    """Write the file whole or not at all."""
    with replaced(path, root) as beside, open_file(beside, "wb", root) as file:
        file.write(content)


def write_durably(path: Path, content: bytes, root: Path | None = None) -> None:
    """Write the file whole or not at all. Afterwards it survives a crash of the machine."""
    with replaced(path, root) as beside, open_file(beside, "wb", root) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent, root)
