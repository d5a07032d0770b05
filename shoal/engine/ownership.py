"""What belongs to one user: folders and files that nobody else reads, and the tokens in them."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from shoal.engine.plain_files import (
    check_plain,
    descriptor,
    make_folders,
    open_file,
    remove_file,
    rename_file,
)

TOKEN_BYTES = 32


# -- what nobody else reads ----------------------------------------------------------------------


def make_folder(folder: Path, root: Path | None = None) -> None:
    """Make the folder, and those above it that are missing, for this user alone.

    One that is there stays as it is. In a folder with the set-group-ID bit (`chmod g+s`) the
    group may use what is made, as far as the umask lets it. `root`: see `engine.plain_files`.
    """
    if root is not None and folder != root:
        make_folder(root)
        make_folders(folder, root)
        return
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o770 if _is_shared(folder.parent) else 0o700)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} must be a folder, but is a file or a link")


def file_mode(folder: Path) -> int:
    """The mode of a new file in the folder: for this user, and the group where it shares it."""
    return 0o660 if _is_shared(folder) else 0o600


def write_private(file: Path, text: str, root: Path | None = None) -> None:
    """Write the text; if the file is new nobody else may read it."""
    with open_file(file, "w", root, encoding="utf-8") as opened:
        opened.write(text)


def lock_file(
    file: Path, timeout: float = -1, thread_local: bool = True, root: Path | None = None
) -> FileLock:
    """A lock whose file nobody else may open; its options are FileLock's."""
    check_plain(file, root)
    mode = file_mode(file.parent)
    return FileLock(file, timeout, mode=mode, thread_local=thread_local)


def _is_shared(folder: Path) -> bool:
    """Whether the folder's owner lets its group have what is made in it."""
    try:
        return bool(folder.stat().st_mode & stat.S_ISGID)
    except OSError:
        return False


# -- what nobody else wrote ------------------------------------------------------------------------


def own_folder(folder: Path) -> None:
    """Make the folder for this user alone, or check that it is so.

    Whoever can write to the folder could put a pickle there, and with it run code as this user.

    A folder of this user that others could read, but not write to, becomes private.

    Raises:
        PermissionError: the folder is a link, belongs to another user, or others may write to it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)

    found = folder.lstat()
    why = why_not_own(found)
    if not stat.S_ISDIR(found.st_mode):
        why = "it is not a folder of its own but a link or a file"
    if why is not None:
        raise PermissionError(
            f"{folder} must be a folder that only you can use, but {why}: remove it, or make it "
            "yours with mode 700, or set TMPDIR to another folder"
        )

    folder.chmod(0o700)


def check_own_file(file: Path) -> None:
    """Refuse a file that somebody else may have written.

    Raises:
        FileNotFoundError: there is no such file.
        PermissionError: it is a link, belongs to another user, or others may write to it.
    """
    found = file.lstat()
    why = why_not_own(found)
    if not stat.S_ISREG(found.st_mode):
        why = "it is a link or no file"
    if why is not None:
        raise PermissionError(
            f"{file} must be a file that only you can write to, but {why}: remove it"
        )


def why_not_own(found: os.stat_result) -> str | None:
    """Why a file or folder may hold what others wrote; None if it does not."""
    if found.st_uid != os.getuid():
        return f"it belongs to user {found.st_uid}"
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022:
        return f"others may write to it (mode {mode:o})"
    return None


def why_foreign(found: os.stat_result) -> str | None:
    """Why somebody else may have written an open file; None if only this user can."""
    if not hasattr(os, "getuid"):
        return None
    if found.st_uid not in (os.getuid(), 0):
        return f"it belongs to user {found.st_uid}"
    mode = stat.S_IMODE(found.st_mode)
    others = 0o022
    if found.st_gid == found.st_uid:  # a group of this user alone, as many systems have
        others = 0o002
    if mode & others:
        return f"others may write to it (mode {mode:o})"
    return None


# -- tokens ----------------------------------------------------------------------------------------


def new_token(file: Path) -> Path:
    """Write a token that cannot be guessed, for this user alone, in place of a former one."""
    rename_file(_token_beside(file), file)
    return file


def token_file(file: Path) -> Path:
    """The file with a token that cannot be guessed; it is made if it is not there.

    Another takes the place of one that others could read. Processes that ask at the same time get
    one token, and whole: clusters that they start would not know another one.

    Raises:
        PermissionError: it is a link, or belongs to another user.
    """
    make_folder(file.parent)
    try:
        found = file.lstat()
    except FileNotFoundError:
        beside = _token_beside(file)
        with suppress(FileExistsError):  # another process was faster
            os.link(beside, file)
        remove_file(beside)
        found = file.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(
            f"{file} must be a file of yours with a token, but is a link or belongs to another "
            "user: remove it"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        return new_token(file)
    return file


def _token_beside(file: Path) -> Path:
    """A new token, in a file of this user's alone beside that one."""
    beside = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(descriptor(beside, flags, mode=0o600), "w") as opened:
        opened.write(secrets.token_hex(TOKEN_BYTES))
    return beside
