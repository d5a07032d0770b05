"""A folder of files at any fsspec URL: a file is written whole or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from errno import ENOENT
from pathlib import Path, PurePosixPath
from typing import IO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from shoal.engine.files import is_remote, sync_folder, whole
from shoal.engine.own import make_folder, private


class CheckpointFolder:
    """A folder at an fsspec URL. Files are named by their path within it."""

    def __init__(self, url: str) -> None:
        if is_remote(url):
            self._files, self._root = fsspec.core.url_to_fs(url)
        else:
            self._files, self._root = LocalFileSystem(), whole(url).as_posix()
        self._local = isinstance(self._files, LocalFileSystem)
        self._made = False  # the folder itself was made, or was there

    def names(self) -> list[str]:
        """The files, in no order."""
        self._files.invalidate_cache()
        if not self._files.exists(self._root):
            return []
        start = len(self._root.rstrip("/")) + 1
        return [path[start:] for path in self._files.find(self._root)]

    def open(self, name: str) -> IO[bytes]:
        """A file to read from, in memory where the storage is remote."""
        file: IO[bytes] = self._files.open(self._path(name), "rb")
        if self._local:
            return file
        with file:
            return io.BytesIO(file.read())

    def read(self, name: str) -> bytes:
        """The file's content."""
        return bytes(self._files.cat_file(self._path(name)))

    def part(self, name: str, start: int, end: int) -> bytes:
        """The file's bytes from `start` up to `end`."""
        return bytes(self._files.cat_file(self._path(name), start=start, end=end))

    def size(self, name: str) -> int:
        """The file's bytes."""
        return int(self._files.size(self._path(name)))

    def remove(self, name: str) -> None:
        """Nothing happens if it is not there."""
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def write(
        self, name: str, write: Callable[[IO[bytes]], object], check: Callable[[], None]
    ) -> None:
        """Durable when it returns, and never there in part. `check` may refuse it at the end."""
        path = self._path(name)
        beside = f"{path}.{os.getpid()}.part"
        try:
            with self._created(beside) as file:
                write(file)
                if self._local:
                    file.flush()
                    os.fsync(file.fileno())
            check()
            if self._local:
                os.replace(beside, path)
                sync_folder(Path(path).parent)
            else:
                self._files.mv(beside, path)
        except BaseException:
            with suppress(Exception):
                self._files.rm_file(beside)
            raise

    def _created(self, path: str) -> IO[bytes]:
        """A new file, and the folder that it is in.

        Raises:
            FileNotFoundError: this process has written to the place before, and it is gone.
        """
        folder = path.rpartition("/")[0]
        if self._local:
            if self._made and not Path(self._root).is_dir():
                raise FileNotFoundError(
                    ENOENT, "deleted or moved while the study ran", self._root
                )
            make_folder(Path(folder))
            self._made = True
            return open(path, "wb", opener=private)
        self._files.makedirs(folder, exist_ok=True)
        made: IO[bytes] = self._files.open(path, "wb")
        return made

    def _path(self, name: str) -> str:
        """The file's path in its file system."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(
                f"a checkpoint's name must stay within its study; got {name!r}"
            )
        return f"{self._root.rstrip('/')}/{name}"
