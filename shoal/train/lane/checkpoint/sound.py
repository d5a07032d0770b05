"""Whether a checkpoint's file holds what was written: a zip file has checksums of its parts."""

from typing import IO
from zipfile import ZipFile


class Damaged(OSError):  # noqa: N818
    """A checkpoint's file is there but cannot be read, or is not what was written."""


def check_parts(file: IO[bytes]) -> None:
    """Compare the file's parts with their checksums, which torch writes and does not check.

    Raises:
        ValueError: a part was changed.
        Exception: the file is no such zip file; there are many ways not to be one.
    """
    try:
        with ZipFile(file) as parts:
            changed = parts.testzip()
    except OSError as error:  # it says that its parts lie where no file has any
        raise ValueError(f"it is no whole zip file ({error})") from error
    if changed is not None:
        raise ValueError(f"its part {changed} was changed since it was written")
    file.seek(0)
