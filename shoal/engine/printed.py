"""What a trial's code prints, in files of a bounded size."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import IO

from shoal.engine.ownership import make_folder
from shoal.engine.plain_files import is_there, open_file, rename_file

# Bytes of one file. A trial has three of them.
PART_BYTES = 1_000_000
_NOTE = re.compile(rb"\[shoal: (\d+) bytes [^\n]*\]\n")


def _note(cut: int) -> bytes:
    """The line that says how many bytes are in no file any more."""
    return (
        f"[shoal: {cut} bytes of what was printed before this are left out; log.0.txt has the "
        "beginning, log.1.txt what came last before this]\n"
    ).encode()


def study_of(log: Path) -> Path:
    """The study's folder, of a trial's log in it: trials/<id>/log.txt."""
    return log.parents[2]


class PrintedLog:
    """A file for what is printed, made when something is; of a long text, beginning and end.

    `log.txt` has the newest part. When it is full it becomes `log.0.txt`, which stays. When it is
    full again it becomes `log.1.txt`, in place of the former one; then the first line of the new
    `log.txt` says how much was left out. `root`: see `engine.plain_files`.
    """

    def __init__(self, path: Path, root: Path | None = None) -> None:
        self._path = path
        self._root = root
        self._file: IO[bytes] | None = None
        self._size = 0  # of the open file

    def write(self, text: str) -> None:
        """Append the text.

        Raises:
            OSError: it cannot be written.
        """
        data = _shortened(text.encode("utf-8", "backslashreplace"))
        if self._file is None:
            self._open()
        if self._size and self._size + len(data) > PART_BYTES:
            self._begin_another()
        assert self._file is not None
        self._file.write(data)
        self._size += len(data)

    def close(self) -> None:
        """Close the file; it is opened again when more is written."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> None:
        make_folder(self._path.parent, self._root)
        self._file = open_file(self._path, "ab", self._root, buffering=0)
        self._size = os.fstat(self._file.fileno()).st_size

    def _begin_another(self) -> None:
        """Put the full file aside."""
        self.close()
        beginning = self._path.with_name("log.0.txt")
        former = self._path.with_name("log.1.txt")
        cut = 0
        if not is_there(beginning, self._root):
            rename_file(self._path, beginning, self._root)
        else:
            cut = _cut_before(self._path, self._root) + _size(former, self._root)
            rename_file(self._path, former, self._root)
        self._open()
        if cut and self._file is not None:
            self._size += self._file.write(_note(cut))


def _shortened(data: bytes) -> bytes:
    """The data; of more than fits a file, its beginning and its end."""
    if len(data) <= PART_BYTES:
        return data
    half = PART_BYTES // 2 - 100
    cut = f"\n[shoal: {len(data) - 2 * half} bytes are left out here]\n".encode()
    return data[:half] + cut + data[-half:]


def _cut_before(file: Path, root: Path | None) -> int:
    """How many bytes were left out before the file began, as its first line says."""
    with suppress(OSError), open_file(file, root=root) as opened:
        found = _NOTE.match(opened.readline(300))
        if found is not None:
            return int(found[1])
    return 0


def _size(file: Path, root: Path | None) -> int:
    """Bytes of what was printed that the file has; 0 if there is none."""
    with suppress(OSError), open_file(file, root=root) as opened:
        found = _NOTE.match(opened.readline(300))
        note = 0 if found is None else len(found[0])
        return os.fstat(opened.fileno()).st_size - note
    return 0
