"""Small states that share a file: a zip file whose members are what their own files would be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import IO, NamedTuple
from zipfile import ZipFile, ZipInfo

from shoal.train.lane.checkpoint.folder import CheckpointFolder
from shoal.train.lane.checkpoint.sound import Damaged

_HEADER = 30  # bytes of a zip member's header before its name


class PackMember(NamedTuple):
    """Where a state lies."""

    pack: str
    start: int  # of its header
    size: int  # of its content, in bytes


class CheckpointPacks:
    """Which states lie in packs, as far as was looked."""

    def __init__(self, place: CheckpointFolder) -> None:
        self._place = place
        self._members: dict[str, PackMember] = {}  # by checkpoint
        self._rest: dict[str, dict[str, None]] = {}  # by pack: its checkpoints
        self._bytes: dict[str, int] = {}  # by pack
        # Packs whose directories cannot be read, and so nobody knows what lies in them.
        self.damaged: set[str] = set()
        self._made = 0

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def names(self) -> Iterable[str]:
        return self._members.keys()

    def size(self, name: str) -> int:
        return self._members[name].size

    def rest(self, pack: str) -> tuple[list[str], bool]:
        """The checkpoints that are wanted of this pack; whether they are half of it or less."""
        names = list(self._rest[pack])
        return names, 2 * sum(map(self.size, names)) <= self._bytes[pack]

    def next_name(self, run: str) -> str:
        """A name for this run's next pack."""
        self._made += 1
        return f"pack-{run}-{self._made:06d}.zip"

    def look(self) -> None:
        """Learn of all packs that lie there now. The states in a damaged one count as missing."""
        there = {name for name in self._place.names() if name.endswith(".zip")}
        for pack in self._rest.keys() - there:
            self.forget(pack)
        self.damaged &= there
        for pack in sorted(there):
            with suppress(FileNotFoundError):  # somebody has just removed it
                if self._bytes.get(pack) != self._place.size(pack):
                    self.forget(pack)
                    with suppress(Damaged):
                        self.learn(pack)

    def learn(self, pack: str) -> None:
        """Read what lies in this pack.

        Raises:
            FileNotFoundError: it is not there.
            Damaged: its directory cannot be read.
        """
        try:
            with self._place.open(pack) as file:
                infos = ZipFile(file).infolist()
        except FileNotFoundError:
            raise
        except Exception:  # noqa: BLE001 there are many ways to be no zip file
            infos = []
        size = self._place.size(pack)
        beyond = any(info.header_offset + info.file_size > size for info in infos)
        # without its end one finds a member's own end
        if not infos or infos[0].header_offset or beyond:
            self.damaged.add(pack)
            raise Damaged(f"{pack} holds checkpoints, and cannot be read")
        self.damaged.discard(pack)
        for info in infos:
            member = PackMember(pack, info.header_offset, info.file_size)
            self._members[info.filename] = member
        self._rest[pack] = dict.fromkeys(info.filename for info in infos)
        self._bytes[pack] = size

    def forget(self, pack: str) -> None:
        """The pack is gone, or about to be read again."""
        for name in self._rest.pop(pack, {}):
            del self._members[name]
        self._bytes.pop(pack, None)

    def read(self, name: str) -> bytes | None:
        """The checkpoint's content; None if no pack is known to hold it."""
        at = self._members.get(name)
        if at is None:
            return None
        start = at.start + _HEADER
        stored = name.encode()
        try:
            found = self._place.part(at.pack, start, start + len(stored) + at.size)
        except FileNotFoundError:
            return None
        if found.startswith(stored):
            return found[len(stored) :]
        return None  # the pack was written again, by another process

    def drop(self, names: Iterable[str]) -> list[str]:
        """These checkpoints are not wanted any more; the packs that held them."""
        touched: dict[str, None] = {}
        for name in names:
            pack = self._members.pop(name).pack
            del self._rest[pack][name]
            touched[pack] = None
        return list(touched)


def write_zip(contents: Mapping[str, bytes], file: IO[bytes]) -> None:
    """Write a zip file with these members, not compressed: each lies in it as it is."""
    with ZipFile(file, "w") as pack:
        for name, content in contents.items():
            # The time of day is left out: zip files have no years before 1980, and a clock may.
            pack.writestr(ZipInfo(name), content)
