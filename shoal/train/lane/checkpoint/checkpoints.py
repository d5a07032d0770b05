"""Durable states at any fsspec URL: written whole or not at all, never by a run that was overtaken.

A state has a file of its own. With `together`, small states wait in memory for the next `commit`,
which writes them to one file: a zip file whose members are what their own files would have been.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from errno import ENOENT
from typing import IO, Any

import torch

from shoal.core.trial import TrialId
from shoal.train.lane import tree
from shoal.train.lane.checkpoint.contents import check_members, read_state, short
from shoal.train.lane.checkpoint.folder import CheckpointFolder
from shoal.train.lane.checkpoint.packs import CheckpointPacks, write_zip
from shoal.train.lane.checkpoint.sound import Damaged, check_parts
from shoal.train.recipe.unit import StateLost

_MARKER = "RUN"
_NAME = "checkpoint_name"  # the key of a stored state's own name
SMALL = 2**18  # bytes of a state that may share a file
WAITING = 2**25  # bytes that may wait for a commit


class StaleRun(RuntimeError):  # noqa: N818
    """A later run of the study has begun; this one may write nothing any more."""


class Checkpoints:
    """The checkpoints of a study at `url`, as the run number `run` of it sees them.

    Names are "<trial>/<visits>-<run>.pt", or "…-<run>-<token>.pt": the token tells processes that
    write side by side. What the storage raises (OSError: full, read-only, not there) comes through.

    `together`: small states are durable after the next `commit`, not when `save` returns. What is
    deleted goes with `sweep`: until then a journal that was not synced may still need it.

    Raises:
        StaleRun: on writing, when a run with a higher number has left its mark here.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        run: int,
        token: str = "",
        together: bool = False,
    ) -> None:
        self._run_and_token = f"{run}"
        if token:
            self._run_and_token += f"-{token}"
        self.url = os.fspath(url)
        self.run = run
        self._place = CheckpointFolder(self.url)
        self._packs = CheckpointPacks(self._place)
        self.together = together
        self._waiting: dict[str, bytes] = {}  # states that the next commit writes
        self._unwanted: list[str] = []  # names that the next sweep deletes

    def name(self, trial: TrialId, visits: int) -> str:
        """The checkpoint's name for a state after so many visits."""
        return f"{trial}/{visits:06d}-{self._run_and_token}.pt"

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Store a state. NumPy arrays are stored as tensors, everything else must be plain.

        It is durable when this returns; with `together` and less than `SMALL` bytes after `commit`.
        """

        def write(file: IO[bytes]) -> None:
            with _plainly():
                named = {**state, _NAME: name}
                torch.save(tree.to_torch(named, copy=False), file)

        if self.together and tree.size_of(state) <= SMALL:
            content = io.BytesIO()
            write(content)
            self._waiting[name] = content.getvalue()
            if sum(map(len, self._waiting.values())) > WAITING:
                self.commit()
        else:
            self._refuse_stale()
            self._write(name, write)

    def commit(self) -> None:
        """Make durable what waits. If it raises, the same states wait for the next commit."""
        waiting = self._waiting
        if not waiting:
            return
        self._refuse_stale()
        if len(waiting) == 1:
            [(name, content)] = waiting.items()
            self._write(name, lambda file: file.write(content))
        else:
            pack = self._packs.next_name(self._run_and_token)
            self._write(pack, lambda file: write_zip(waiting, file))
            self._packs.learn(pack)
        self._waiting = {}

    def load(self, name: str) -> dict[str, Any]:
        """The state as it was saved, its tensors as arrays.

        Its checksums are checked first, and nothing in it is run.

        Raises:
            FileNotFoundError: no such checkpoint.
            Damaged: its content is not what was written under that name.
        """
        try:
            with self._open(name) as file:
                check_members(file)
                check_parts(file)
                state = read_state(file)
                own = state.pop(_NAME, name)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise Damaged(f"{_at(name, self.url)} cannot be read: {short(error)}") from error
        if own != name:
            raise Damaged(f"{_at(name, self.url)} holds another state: {own!r:.80}")
        return state

    def restore(self, name: str) -> dict[str, Any]:
        """As `load`, of the state that a trial is to go on from.

        Raises:
            StateLost: it is damaged or missing. The trial can go on from an older one.
            FileNotFoundError: all checkpoints of the study are gone, as if a disk was not mounted.
        """
        try:
            return self.load(name)
        except Damaged as error:
            raise StateLost(str(error)) from error
        except FileNotFoundError as error:
            self.check_there()
            raise StateLost(f"{_at(name, self.url)} is missing") from error

    def check_there(self) -> None:
        """Raise FileNotFoundError if the place of the checkpoints is gone altogether."""
        try:
            self._place.read(_MARKER)
        except FileNotFoundError:
            raise FileNotFoundError(
                ENOENT,
                "the place of the study's checkpoints is gone, or is another one: it lacks the "
                "file RUN. Mount it or bring it back; an empty file RUN there says that they are "
                "lost, and trials begin again",
                self.url,
            ) from None

    def _open(self, name: str) -> IO[bytes]:
        if name in self._waiting:
            return io.BytesIO(self._waiting[name])
        packed = self._packs.read(name)
        if packed is not None:
            return io.BytesIO(packed)
        try:
            return self._place.open(name)
        except FileNotFoundError:
            self._packs.look()
            packed = self._packs.read(name)
            if packed is not None:
                return io.BytesIO(packed)
            if not self._packs.damaged:
                raise
            packs = ", ".join(sorted(self._packs.damaged))
            raise Damaged(f"{name} is missing, or lies in a damaged file: {packs}") from None

    def delete(self, name: str) -> None:
        """Nothing happens if it is not there."""
        self._unwanted.append(name)
        if not self.together:
            self.sweep()

    def sweep(self) -> None:
        """Carry out what `delete` was asked for."""
        if not self._unwanted:
            return
        self._refuse_stale()
        packed = []
        for name in self._unwanted:
            self._waiting.pop(name, None)
            if name in self._packs:
                packed.append(name)
            else:
                self._place.remove(name)
        self._unwanted = []
        for pack in self._packs.drop(packed):
            self._clean(pack)

    def _clean(self, pack: str) -> None:
        """Remove a pack without states; write one again that is half empty."""
        rest, half_empty = self._packs.rest(pack)
        if not rest:
            self._packs.forget(pack)
            self._place.remove(pack)
        elif half_empty:
            content = {name: self._packs.read(name) or b"" for name in rest}
            self._write(pack, lambda file: write_zip(content, file))
            self._packs.forget(pack)
            self._packs.learn(pack)

    def names(self) -> tuple[str, ...]:
        """All durable checkpoints, in order of their names; half-written ones are left out."""
        own = [name for name in self._place.names() if name.endswith(".pt")]
        self._packs.look()
        return tuple(sorted([*own, *self._packs.names()]))

    def size(self, name: str) -> int:
        """Bytes stored.

        Raises:
            FileNotFoundError: no such checkpoint.
        """
        if name in self._waiting:
            return len(self._waiting[name])
        if name in self._packs:
            return self._packs.size(name)
        try:
            return self._place.size(name)
        except FileNotFoundError:
            self._packs.look()
            if name not in self._packs:
                raise
            return self._packs.size(name)

    def mark(self) -> None:
        """From now on refuse runs with lower numbers; clear away what they left half-written.

        Raises:
            StaleRun: a later run has marked the place.
        """
        self._refuse_stale()
        self._write(_MARKER, self._write_number)
        for name in self._place.names():
            if name.endswith(".part"):
                self._place.remove(name)

    def mark_back(self) -> int | None:
        """Make this the newest run again: its journal has lost the later ones.

        Returns the number that was marked, None if it was no later one.
        """
        marked = self._marked()
        if marked is None or marked <= self.run:
            return None
        self._place.write(_MARKER, self._write_number, check=lambda: None)
        return marked

    def _write_number(self, file: IO[bytes]) -> None:
        file.write(str(self.run).encode())

    def _marked(self) -> int | None:
        """The newest run that has marked the place. None without a mark, or with a damaged one."""
        try:
            return int(self._place.read(_MARKER))
        except (FileNotFoundError, ValueError):
            return None

    def _refuse_stale(self) -> None:
        marked = self._marked()
        if marked is not None and marked > self.run:
            raise StaleRun(
                f"run {marked} of the study has begun; "
                f"run {self.run} may write nothing at {self.url} any more"
            )

    def _write(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        # The run may have been overtaken while it wrote.
        self._place.write(name, write, self._refuse_stale)


def _at(name: str, url: str) -> str:
    """How errors name a checkpoint."""
    return f"checkpoint {name} at {url}"


@contextmanager
def _plainly() -> Iterator[None]:
    """Raise what the file raised, where torch makes a RuntimeError of it, as on a full disk."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
