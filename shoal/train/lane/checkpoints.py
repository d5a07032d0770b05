"""The durable states of one study's trials, as one of its runs writes and reads them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from errno import ENOENT
from functools import partial
from typing import IO, Any, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import torch
from torch import Tensor

from shoal.core.trial import TrialId
from shoal.train.lane import tree
from shoal.train.lane.checkpoint_folder import CheckpointFolder
from shoal.train.lane.tensors import is_sparse
from shoal.train.recipe.unit import StateLost


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


DEEPEST = 100  # levels of a state
FEW = 2**16  # values that even a small file may hold
UNPACKED = 2**26  # bytes that even a small file may unpack to
REPEATED = 64  # how often the bytes of a file may be repeated in its tensors


def read_state(file: IO[bytes]) -> dict[str, Any]:
    """The state that the file holds, its tensors as arrays. No code that it names runs.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no state, or takes more memory than a state of its size does.
        Exception: whatever torch raises for a damaged file.
    """
    size = _size(file)
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    _check_tree(loaded, size)
    state = tree.to_numpy(loaded)
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}, not the state of a trial")
    return state


def short(error: BaseException) -> str:
    """The error's class and message, cut to one line."""
    return f"{type(error).__name__}: {error}"[:300]


def _size(file: IO[bytes]) -> int:
    """Bytes of the file, which is at its begin afterwards."""
    size = file.seek(0, 2)
    file.seek(0)
    return size


def check_members(file: IO[bytes]) -> None:
    """Raise ValueError unless this is a zip file with nothing packed."""
    size = _size(file)
    try:
        infos = ZipFile(file).infolist()
    except (BadZipFile, NotImplementedError) as error:
        raise ValueError(f"it is no zip file: {error}") from error
    packed = any(
        info.compress_type != ZIP_STORED or info.file_size != info.compress_size for info in infos
    )
    if packed or sum(info.file_size for info in infos) > size:
        raise ValueError("its parts are packed, or say that they are larger than it is")
    file.seek(0)


def _check_tree(loaded: Any, size: int) -> None:
    """Raise ValueError if the tree is too deep, or repeats what it holds too often."""
    values = 0
    nbytes = 0
    pending = [(loaded, 0)]
    while pending:
        value, depth = pending.pop()
        values += 1
        if depth > DEEPEST or values > max(FEW, size):
            raise ValueError(f"its values lie more than {DEEPEST} deep, or within each other")
        if isinstance(value, Tensor) and not is_sparse(value):
            nbytes += value.nbytes
        elif isinstance(value, Mapping):
            pending += [(each, depth + 1) for each in value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            pending += [(each, depth + 1) for each in value]
    if nbytes > max(UNPACKED, REPEATED * size):
        raise ValueError(f"its {size} bytes say that they are {nbytes} bytes")


_HEADER = 30  # bytes of a zip member's header before its name


class PackMember(NamedTuple):
    """The place of one state in a pack."""

    pack: str
    start: int  # of its header
    size: int  # of its content, in bytes


class CheckpointPacks:
    """Which checkpoints lie in which pack, as of the last `look`."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._members: dict[str, PackMember] = {}  # by checkpoint
        self._wanted: dict[str, dict[str, None]] = {}  # by pack: the checkpoints in it
        self._bytes: dict[str, int] = {}  # by pack
        # Packs whose directories cannot be read, and so nobody knows what lies in them.
        self.damaged: set[str] = set()
        self._pack_count = 0

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def names(self) -> Iterable[str]:
        return self._members.keys()

    def size(self, name: str) -> int:
        return self._members[name].size

    def wanted(self, pack: str) -> tuple[list[str], bool]:
        """The checkpoints still wanted of this pack; whether they are half of its bytes or less."""
        wanted = list(self._wanted[pack])
        return wanted, 2 * sum(map(self.size, wanted)) <= self._bytes[pack]

    def next_name(self, run: str) -> str:
        """A name for this run's next pack."""
        self._pack_count += 1
        return f"pack-{run}-{self._pack_count:06d}.zip"

    def look(self) -> None:
        """Learn of all packs in the folder. The states in a damaged one count as missing."""
        packs = {name for name in self._folder.names() if name.endswith(".zip")}
        for pack in self._wanted.keys() - packs:
            self.forget(pack)
        self.damaged &= packs
        for pack in sorted(packs):
            with suppress(FileNotFoundError):  # somebody has just removed it
                if self._bytes.get(pack) != self._folder.size(pack):
                    self.forget(pack)
                    with suppress(Damaged):
                        self.learn(pack)

    def learn(self, pack: str) -> None:
        """Read which checkpoints lie in this pack.

        Raises:
            FileNotFoundError: it is not there.
            Damaged: its directory cannot be read.
        """
        try:
            with self._folder.open(pack) as file:
                infos = ZipFile(file).infolist()
        except FileNotFoundError:
            raise
        except Exception:  # noqa: BLE001 there are many ways to be no zip file
            infos = []
        size = self._folder.size(pack)
        beyond = any(info.header_offset + info.file_size > size for info in infos)
        # without its end one finds a member's own end
        if not infos or infos[0].header_offset or beyond:
            self.damaged.add(pack)
            raise Damaged(f"{pack} holds checkpoints, and cannot be read")
        self.damaged.discard(pack)
        for info in infos:
            member = PackMember(pack, info.header_offset, info.file_size)
            self._members[info.filename] = member
        self._wanted[pack] = dict.fromkeys(info.filename for info in infos)
        self._bytes[pack] = size

    def forget(self, pack: str) -> None:
        """Forget the pack: it is gone, or about to be read again."""
        for name in self._wanted.pop(pack, {}):
            del self._members[name]
        self._bytes.pop(pack, None)

    def read(self, name: str) -> bytes | None:
        """The checkpoint's content; None if no pack is known to hold it."""
        member = self._members.get(name)
        if member is None:
            return None
        start = member.start + _HEADER
        encoded_name = name.encode()
        try:
            content = self._folder.part(member.pack, start, start + len(encoded_name) + member.size)
        except FileNotFoundError:
            return None
        if content.startswith(encoded_name):
            return content[len(encoded_name) :]
        return None  # the pack was written again, by another process

    def drop(self, names: Iterable[str]) -> list[str]:
        """Forget checkpoints that are not wanted any more; returns the packs that held them."""
        touched: dict[str, None] = {}
        for name in names:
            pack = self._members.pop(name).pack
            del self._wanted[pack][name]
            touched[pack] = None
        return list(touched)


def write_zip(contents: Mapping[str, bytes], file: IO[bytes]) -> None:
    """Write a zip file with these members, not compressed: each lies in it as it is."""
    with ZipFile(file, "w") as pack:
        for name, content in contents.items():
            # The time of day is left out: zip files have no years before 1980, and a clock may.
            pack.writestr(ZipInfo(name), content)


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
        self, url: str | os.PathLike[str], run: int, token: str = "", together: bool = False
    ) -> None:
        self._run_and_token = f"{run}"
        if token:
            self._run_and_token += f"-{token}"
        self.url = os.fspath(url)
        self.run = run
        self._folder = CheckpointFolder(self.url)
        self._packs = CheckpointPacks(self._folder)
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
            named = tree.to_torch({**state, _NAME: name}, copy=False)
            try:
                torch.save(named, file)
            except RuntimeError as error:  # torch's, of what the file raised, as on a full disk
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

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
                stored_name = state.pop(_NAME, name)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise Damaged(f"{_place_of(name, self.url)} cannot be read: {short(error)}") from error
        if stored_name != name:
            raise Damaged(f"{_place_of(name, self.url)} holds another state: {stored_name!r:.80}")
        return state

    def restore(self, name: str) -> dict[str, Any]:
        """Load the state that a trial is to go on from.

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
            raise StateLost(f"{_place_of(name, self.url)} is missing") from error

    def check_there(self) -> None:
        """Raise FileNotFoundError if the place of the checkpoints is gone altogether."""
        try:
            self._folder.read(_MARKER)
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
            return self._folder.open(name)
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
        """Delete the checkpoint, if it is there; with `together` at the next `sweep`."""
        self._unwanted.append(name)
        if not self.together:
            self.sweep()

    def sweep(self) -> None:
        """Remove the checkpoints that `delete` named."""
        if not self._unwanted:
            return
        self._refuse_stale()
        packed = []
        for name in self._unwanted:
            self._waiting.pop(name, None)
            if name in self._packs:
                packed.append(name)
            else:
                self._folder.remove(name)
        self._unwanted = []
        for pack in self._packs.drop(packed):
            wanted, half_empty = self._packs.wanted(pack)
            if not wanted:
                self._packs.forget(pack)
                self._folder.remove(pack)
            elif half_empty:  # it is written again
                content = {name: self._packs.read(name) or b"" for name in wanted}
                self._write(pack, partial(write_zip, content))
                self._packs.forget(pack)
                self._packs.learn(pack)

    def names(self) -> tuple[str, ...]:
        """All durable checkpoints, in order of their names; half-written ones are left out."""
        files = [name for name in self._folder.names() if name.endswith(".pt")]
        self._packs.look()
        return tuple(sorted([*files, *self._packs.names()]))

    def size(self, name: str) -> int:
        """The bytes of the stored checkpoint.

        Raises:
            FileNotFoundError: no such checkpoint.
        """
        if name in self._waiting:
            return len(self._waiting[name])
        if name in self._packs:
            return self._packs.size(name)
        try:
            return self._folder.size(name)
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
        for name in self._folder.names():
            if name.endswith(".part"):
                self._folder.remove(name)

    def mark_back(self) -> int | None:
        """Make this the newest run again: its journal has lost the later ones.

        Returns the number that was marked, None if it was no later one.
        """
        marked = self._marked()
        if marked is None or marked <= self.run:
            return None
        self._folder.write(_MARKER, self._write_number, check=lambda: None)
        return marked

    def _write_number(self, file: IO[bytes]) -> None:
        file.write(str(self.run).encode())

    def _marked(self) -> int | None:
        """The newest run that has marked the place. None without a mark, or with a damaged one."""
        try:
            return int(self._folder.read(_MARKER))
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
        self._folder.write(name, write, self._refuse_stale)


def _place_of(name: str, url: str) -> str:
    """How errors name a checkpoint."""
    return f"checkpoint {name} at {url}"
