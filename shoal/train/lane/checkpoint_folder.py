"""A folder of files at any fsspec URL: a file is written whole or not at all."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from contextlib import suppress
from errno import ENOENT
from pathlib import Path, PurePosixPath
from typing import IO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from shoal.engine.files import is_remote, whole
from shoal.engine.ownership import make_folder
from shoal.engine.plain_files import (
    is_there,
    names_in,
    open_file,
    read_file,
    remove_file,
    rename_file,
    status_of,
    sync_folder,
)

# What this folder's files are called: others are none of its files, and stay as they are.
_CHECKPOINT = r"[^/]+/[0-9]{6,}-[0-9]+(-[A-Za-z0-9_.:-]+)?\.pt"
_PACK = r"pack-[0-9]+(-[A-Za-z0-9_.:-]+)?-[0-9]{6,}\.zip"
OURS = re.compile(rf"(RUN|{_PACK}|{_CHECKPOINT})(\.[0-9]+\.part)?")
LARGEST = 2**10  # bytes of a file that is read whole: the mark of a run


class CheckpointFolder:
    """A folder at an fsspec URL. Files are named by their path within it.

    On a local file system it is reached as all files of a study are (`engine.plain_files`): the
    folder itself and what is in it may be no links.
    """

    def __init__(self, url: str) -> None:
        self._local: Path | None = None
        self._folder_existed = False  # when this process last wrote
        if not is_remote(url):
            self._local = whole(url)
            return
        self._files, self._root = fsspec.core.url_to_fs(url)
        if isinstance(self._files, LocalFileSystem):
            self._local = Path(self._root).resolve()

    def names(self) -> list[str]:
        """The files that Shoal writes there, in no order."""
        if self._local is not None:
            names = _names_below(self._local)
        else:
            self._files.invalidate_cache()
            if not self._files.exists(self._root):
                return []
            start = len(self._root.rstrip("/")) + 1
            names = [path[start:] for path in self._files.find(self._root)]
        return [name for name in names if OURS.fullmatch(name)]

    def open(self, name: str) -> IO[bytes]:
        """A file to read from, in memory where the storage is remote."""
        if self._local is not None:
            return open_file(self._path(name), root=self._local.parent)
        with self._files.open(self._url(name), "rb") as file:
            return io.BytesIO(file.read())

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        if self._local is not None:
            return read_file(self._path(name), LARGEST, self._local.parent)
        return bytes(self._files.cat_file(self._url(name)))

    def part(self, name: str, start: int, end: int) -> bytes:
        """The file's bytes from `start` up to `end`."""
        if self._local is not None:
            with open_file(self._path(name), root=self._local.parent) as file:
                file.seek(start)
                content: bytes = file.read(end - start)
                return content
        return bytes(self._files.cat_file(self._url(name), start=start, end=end))

    def size(self, name: str) -> int:
        """The file's bytes."""
        if self._local is not None:
            status = status_of(self._path(name), self._local.parent)
            if status is None:
                raise FileNotFoundError(ENOENT, "there is no such file", self._path(name))
            return status.st_size
        return int(self._files.size(self._url(name)))

    def remove(self, name: str) -> None:
        """Remove the file, if it is there and one that Shoal writes there."""
        if not OURS.fullmatch(name):
            return
        if self._local is not None:
            remove_file(self._path(name), self._local.parent)
            return
        with suppress(FileNotFoundError):
            self._files.rm_file(self._url(name))

    def write(
        self, name: str, write: Callable[[IO[bytes]], object], check: Callable[[], None]
    ) -> None:
        """Write the file: durable at the return, never there in part. `check` may refuse it last.

        Raises:
            FileNotFoundError: this process has written to the local folder before, and it is gone.
        """
        part_name = f"{name}.{os.getpid()}.part"
        try:
            if self._local is not None:
                folder, root = self._local, self._local.parent
                if self._folder_existed and not is_there(folder):
                    why = "deleted or moved while the study ran"
                    raise FileNotFoundError(ENOENT, why, str(folder))
                path, part = self._path(name), self._path(part_name)
                make_folder(part.parent, root)
                self._folder_existed = True
                remove_file(part, root)
                with open_file(part, "xb", root) as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                check()
                rename_file(part, path, root)
                sync_folder(path.parent, root)
            else:
                url = self._url(part_name)
                self._files.makedirs(url.rpartition("/")[0], exist_ok=True)
                with self._files.open(url, "wb") as file:
                    write(file)
                check()
                self._files.mv(url, self._url(name))
        except BaseException:
            with suppress(Exception):
                if self._local is not None:
                    remove_file(self._path(part_name), self._local.parent)
                else:
                    self._files.rm_file(self._url(part_name))
            raise

    def _path(self, name: str) -> Path:
        """The file's path on this file system."""
        assert self._local is not None
        _check_within(name)
        return self._local / name

    def _url(self, name: str) -> str:
        """The file's path in its file system."""
        _check_within(name)
        return f"{self._root.rstrip('/')}/{name}"


def _check_within(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"a checkpoint's name must stay within its study; got {name!r}")


def _names_below(folder: Path) -> list[str]:
    """The files in the folder and in its folders, by their paths in it."""
    root = folder.parent
    names: list[str] = []
    for name in names_in(folder, root):
        if name == "RUN" or "." in name:
            names.append(name)
        try:
            names += [f"{name}/{each}" for each in names_in(folder / name, root)]
        except OSError:  # a file, or a link, in which nothing of ours lies
            continue
    return names
