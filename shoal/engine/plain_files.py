"""The one place where files of a folder that may be a stranger's are reached.

A study's folder may come from anybody. A link in it could lead out of it, and a FIFO or a device
could hold a command up for ever. So files are opened relative to the descriptor of their folder:
below the folder that a user named (`root`) no link is followed, and only plain files are opened.
Without `root` that is the folder that the file is in.

Where files have no such descriptors (Windows), each part of the path is looked at before.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from errno import EISDIR, ELOOP, ENOTDIR, ENXIO
from pathlib import Path
from typing import IO, Any

# Bytes of a small file that is read whole, such as a note.
SMALL_FILE = 2**26
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
# Opening a FIFO does not wait for somebody at its other end.
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class NotPlainFile(OSError):  # noqa: N818 - what the file is
    """What lies there is no plain file, or no folder, of the folder that was named."""


class TooLarge(OSError):  # noqa: N818 - what the file is
    """The file is larger than what Shoal writes there."""


# -- reaching a file -------------------------------------------------------------------------------


@contextmanager
def _reached(path: Path, root: Path | None) -> Iterator[tuple[int | None, str]]:
    """The descriptor of the folder that the path is in, and its name there.

    Raises:
        NotPlainFile: one of the folders below `root` is a link or no folder, or the path leads out.
        FileNotFoundError: one of the folders is not there.
    """
    top = path.parent if root is None else root
    parts = () if root is None else _parts_below(path, root)
    if not _BY_DESCRIPTOR:
        for number in range(1, len(parts)):
            _check_folder(top.joinpath(*parts[:number]))
        yield None, str(path)
        return
    try:
        opened = os.open(top, _FOLDER | os.O_CLOEXEC)
    except OSError as error:
        raise _named(error, path) from None
    try:
        for number, part in enumerate(parts[:-1], 1):
            below = _folder_below(opened, part, top.joinpath(*parts[:number]))
            os.close(opened)
            opened = below
        yield opened, parts[-1] if parts else path.name
    finally:
        os.close(opened)


def _parts_below(path: Path, root: Path) -> tuple[str, ...]:
    """The names that lead from the root to the path."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    if not parts or any(part in ("..", "") or "\0" in part for part in parts):
        raise NotPlainFile(f"{path} must lie below {root}")
    return parts


def _folder_below(opened: int, name: str, path: Path) -> int:
    """The descriptor of the folder of that name."""
    try:
        return os.open(name, _FOLDER | _NOFOLLOW | os.O_CLOEXEC, dir_fd=opened)
    except OSError as error:
        if error.errno in (ELOOP, ENOTDIR):
            raise _not_plain(path, _kind_at(opened, name), "a folder") from None
        raise _named(error, path) from None


def _check_folder(path: Path) -> None:
    mode = path.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise _not_plain(path, mode, "a folder")


def _kind_at(folder: int | None, name: str) -> int:
    """The mode of what lies there, links not followed; 0: nothing."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _not_plain(path: Path, mode: int, wanted: str) -> NotPlainFile:
    kind = next((word for is_kind, word in _KINDS if is_kind(mode)), "a file")
    if stat.S_ISREG(mode) and wanted == "a plain file":
        kind = "a file of two names (a hard link)"
    return NotPlainFile(
        f"{path} must be {wanted} of its folder, but is {kind}, which Shoal neither makes nor "
        "follows there: move it away"
    )


def _named(error: OSError, path: Path) -> OSError:
    """The error with the whole path, as `os` knows the name alone."""
    return OSError(error.errno, error.strerror, str(path))


# -- opening ---------------------------------------------------------------------------------------


def descriptor(path: Path, flags: int, root: Path | None = None, mode: int | None = None) -> int:
    """An open plain file.

    `mode`: of a new file; by default for this user, and the group where the folder is shared with
    it (the set-group-ID bit).

    Raises:
        NotPlainFile: something else lies there, or a link leads there. Of files that are written in
            place also: it has a second name, and so may be another user's file, too.
    """
    writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
    cut = flags & os.O_TRUNC
    with _reached(path, root) as (folder, name):
        there = _kind_at(folder, name)
        if there and not stat.S_ISREG(there):  # to open a device may do something
            raise _not_plain(path, there, "a plain file")
        if mode is None:
            mode = _mode_in(folder, path.parent)
        try:
            opened = os.open(
                name,
                (flags & ~os.O_TRUNC) | _NOFOLLOW | _NONBLOCK | getattr(os, "O_CLOEXEC", 0),
                mode,
                dir_fd=folder,
            )
        except OSError as error:
            if error.errno in (ELOOP, EISDIR, ENXIO):
                raise _not_plain(path, _kind_at(folder, name), "a plain file") from None
            raise _named(error, path) from None
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise _not_plain(path, found.st_mode, "a plain file")
        if writes and found.st_nlink > 1:
            raise NotPlainFile(
                f"{path} is written in place, but has a second name (a hard link), whose file "
                "would change, too: put a copy in its place"
            )
        if cut:
            os.ftruncate(opened, 0)
    except BaseException:
        os.close(opened)
        raise
    return opened


def _mode_in(folder: int | None, path: Path) -> int:
    """The mode of a new file in the folder: for this user, and the group where it shares it."""
    found = os.fstat(folder) if folder is not None else path.stat()
    return 0o660 if found.st_mode & stat.S_ISGID else 0o600


def open_file(path: Path, mode: str = "rb", root: Path | None = None, **how: Any) -> IO[Any]:
    """As `open`, of a plain file; see `descriptor`. New files nobody else may read."""
    return open(path, mode, opener=lambda _, flags: descriptor(path, flags, root), **how)


def read_file(path: Path, most: int = SMALL_FILE, root: Path | None = None) -> bytes:
    """The content of a plain file of at most so many bytes.

    Raises:
        NotPlainFile: it is something else.
        TooLarge: it has more bytes.
    """
    with open_file(path, root=root) as file:
        size = os.fstat(file.fileno()).st_size
        content = bytearray()
        while size <= most and (piece := file.read(2**20)):
            content += piece
            size = max(size, len(content))
    if size > most:
        raise _too_large(path, size, most)
    return bytes(content)


def _too_large(path: Path, size: int, most: int) -> TooLarge:
    return TooLarge(
        f"{path} has {size} bytes, and {most} are the most that is read there: move it away"
    )


# -- what there is ---------------------------------------------------------------------------------


def status_of(path: Path, root: Path | None = None) -> os.stat_result | None:
    """What lies there, links not followed; None: nothing."""
    try:
        with _reached(path, root) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_there(path: Path, root: Path | None = None) -> bool:
    """Whether anything lies there."""
    return status_of(path, root) is not None


def names_in(folder: Path, root: Path | None = None) -> list[str]:
    """The names of what lies in the folder, in order; empty if there is none."""
    try:
        if not _BY_DESCRIPTOR:
            if root is not None:
                _check_folder(folder)
            return sorted(os.listdir(folder))
        opened = _opened_folder(folder, root)
    except FileNotFoundError:
        return []
    try:
        return sorted(os.listdir(opened))
    finally:
        os.close(opened)


def _opened_folder(folder: Path, root: Path | None) -> int:
    """A descriptor of the folder that it can be listed and synced by."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if root is None or folder == root:
        return os.open(folder, flags)
    with _reached(folder, root) as (above, name):
        try:
            return os.open(name, flags | _NOFOLLOW, dir_fd=above)
        except OSError as error:
            if error.errno in (ELOOP, ENOTDIR):
                raise _not_plain(folder, _kind_at(above, name), "a folder") from None
            raise _named(error, folder) from None


def check_plain(path: Path, root: Path | None = None, most: int | None = None) -> None:
    """See that somebody else's code may open the path: nothing lies there, or a plain file.

    Raises:
        NotPlainFile: something else does, or it has a second name.
        TooLarge: it has more than `most` bytes.
    """
    found = status_of(path, root)
    if found is None:
        return
    if not stat.S_ISREG(found.st_mode):
        raise _not_plain(path, found.st_mode, "a plain file")
    if found.st_nlink > 1:
        os.close(descriptor(path, os.O_RDWR, root))  # says what is wrong
    if most is not None and found.st_size > most:
        raise _too_large(path, found.st_size, most)


def check_plain_below(folder: Path, root: Path | None = None, unread: Collection[str] = ()) -> None:
    """See that somebody else's code may use the folder: nothing in it leads out of it or waits.

    `unread`: names of links that this code makes and never opens.

    Raises:
        NotPlainFile: something else than folders, plain files and links within is there.
    """
    found = status_of(folder, root)
    if found is None:
        return
    if not stat.S_ISDIR(found.st_mode):
        raise _not_plain(folder, found.st_mode, "a folder")
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            found = path.lstat()
            if stat.S_ISLNK(found.st_mode):
                if name in unread or path.resolve().is_relative_to(folder.resolve()):
                    continue
            elif stat.S_ISDIR(found.st_mode) or (
                stat.S_ISREG(found.st_mode) and found.st_nlink == 1
            ):
                continue
            raise _not_plain(path, found.st_mode, "a plain file")


# -- changing names --------------------------------------------------------------------------------


def remove_file(path: Path, root: Path | None = None) -> None:
    """Remove the file, or the link; nothing happens if it is not there."""
    with suppress(FileNotFoundError), _reached(path, root) as (folder, name):
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            mode = _kind_at(folder, name)
            if stat.S_ISDIR(mode):
                raise _not_plain(path, mode, "a plain file") from None
            raise _named(error, path) from None


def rename_file(path: Path, new: Path, root: Path | None = None) -> None:
    """Give the file another name, in place of what had it."""
    with _reached(path, root) as (folder, name), _reached(new, root) as (target, new_name):
        try:
            os.replace(name, new_name, src_dir_fd=folder, dst_dir_fd=target)
        except OSError as error:
            mode = _kind_at(target, new_name)
            if stat.S_ISDIR(mode):
                raise _not_plain(new, mode, "a plain file") from None
            raise _named(error, new) from None


def make_folders(folder: Path, root: Path) -> None:
    """Make the folders from `root`, which is there, to this one, for this user alone.

    In a folder with the set-group-ID bit the group may use what is made.

    Raises:
        NotPlainFile: one of them is a link or a file.
    """
    path = root
    for part in _parts_below(folder, root):
        path = path / part
        with _reached(path, root) as (above, name):
            shared = _mode_in(above, path.parent) == 0o660
            with suppress(FileExistsError):
                os.mkdir(name, 0o770 if shared else 0o700, dir_fd=above)
            there = _kind_at(above, name)
            if not stat.S_ISDIR(there):
                raise _not_plain(path, there, "a folder")


def sync_folder(folder: Path, root: Path | None = None) -> None:
    """Let the names of the folder's files survive a crash of the machine."""
    if os.name != "posix":  # a folder cannot be opened
        return
    opened = _opened_folder(folder, root)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
