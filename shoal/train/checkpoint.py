"""Durable states: written whole or not at all, at any fsspec URL, and refused from a run that was overtaken."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem

from shoal.core.trial import TrialId
from shoal.train import tree

_MARKER = "RUN"


class StaleRun(RuntimeError):  # noqa: N818
    """A later run of the study has begun; this one may write nothing any more."""


class Damaged(OSError):  # noqa: N818
    """A checkpoint's file is there but cannot be read."""


class Vault:
    """The checkpoints of a study at `url`, as the run number `run` of it sees them.

    Names are "<trial>/<visits>-<run>.pt", or "…-<run>-<token>.pt": the token tells processes that write side by side. What the
    storage raises (OSError: full, read-only, not there) comes through as it is.

    Raises:
        StaleRun: on writing, when a run with a higher number has left its mark here.
    """

    def __init__(self, url: str | os.PathLike[str], run: int, token: str = "") -> None:
        self._ending = f"{run}-{token}.pt" if token else f"{run}.pt"
        self.url, self.run = os.fspath(url), run
        self._files, self._root = fsspec.core.url_to_fs(self.url)
        self._local = isinstance(self._files, LocalFileSystem)

    def name(self, trial: TrialId, visits: int) -> str:
        """The checkpoint's name for a state after so many visits."""
        return f"{trial}/{visits:06d}-{self._ending}"

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Durable when it returns: NumPy arrays are stored as tensors, everything else must be plain."""
        self._refuse_stale()
        self._write(name, lambda file: torch.save(tree.to_torch(dict(state), copy=False), file))

    def load(self, name: str) -> dict[str, Any]:
        """The state as it was saved, its tensors as arrays.

        Raises:
            FileNotFoundError: no such checkpoint.
            Damaged: its content is not what was written.
        """
        with self._files.open(self._path(name), "rb") as file:
            content = file if self._local else io.BytesIO(file.read())
            try:
                loaded = torch.load(content, map_location="cpu", weights_only=True)
            except OSError:
                raise
            except Exception as error:
                raise Damaged(f"checkpoint {name} at {self.url} cannot be read ({error}); bring it back from a copy") from error
        state: dict[str, Any] = tree.to_numpy(loaded)
        return state

    def delete(self, name: str) -> None:
        """Nothing happens if it is not there."""
        self._refuse_stale()
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def names(self) -> tuple[str, ...]:
        """All checkpoints, in order of their names; half-written ones are not among them."""
        self._files.invalidate_cache()
        if not self._files.exists(self._root):
            return ()
        start = len(self._root.rstrip("/")) + 1
        found = (path[start:] for path in self._files.find(self._root))
        return tuple(sorted(name for name in found if name.endswith(".pt")))

    def size(self, name: str) -> int:
        """Bytes stored."""
        return int(self._files.size(self._path(name)))

    def mark(self) -> None:
        """From now on refuse runs with lower numbers, and clear away what they left half-written."""
        self._refuse_stale()
        self._write(_MARKER, lambda file: file.write(str(self.run).encode()))
        for path in self._files.find(self._root):
            if path.endswith(".part"):
                with suppress(FileNotFoundError):
                    self._files.rm_file(path)

    def _refuse_stale(self) -> None:
        try:
            marked = int(self._files.cat_file(self._path(_MARKER)))
        except FileNotFoundError:
            return
        if marked > self.run:
            raise StaleRun(f"run {marked} of the study has begun; run {self.run} may write nothing at {self.url} any more")

    def _path(self, name: str) -> str:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"a checkpoint's name must stay within its study; got {name!r}")
        return f"{self._root.rstrip('/')}/{name}"

    def _write(self, name: str, write: Any) -> None:
        path = self._path(name)
        beside = f"{path}.{os.getpid()}.part"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            with self._files.open(beside, "wb") as file, _plainly():
                write(file)
                if self._local:
                    file.flush()
                    os.fsync(file.fileno())
            self._refuse_stale()  # it may have been overtaken meanwhile
            if self._local:
                _replace(beside, path)
            else:
                self._files.mv(beside, path)
        except BaseException:
            with suppress(Exception):
                self._files.rm_file(beside)
            raise


@contextmanager
def _plainly() -> Iterator[None]:
    """What the file raised, where torch makes a RuntimeError of it ("unexpected pos …", on a full disk)."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _replace(beside: str, path: str) -> None:
    os.replace(beside, path)
    if os.name == "posix":  # the rename itself must survive too; elsewhere a directory cannot be opened
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
