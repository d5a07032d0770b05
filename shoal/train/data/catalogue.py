"""The catalogue of placed data: which node holds which shard, and at which path."""

from __future__ import annotations

import json
import os
import platform
import socket
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.cluster import OF_RECIPE, ShardId
from shoal.engine.files import read_named, whole
from shoal.train.data.columns import DataError

LOCAL = "local"  # the node of the local backend
EVERYWHERE = "*"  # in place of a node: each node finds the shard there
FILE = "file://"
COPIED = "local://"  # of fsspec: a path here, which is fetched as any URL is
TABLES = ("train", "valid")
FORM = 'a catalogue is {shard id: {node: path}}, such as {"s000": {"node1": "/data/s000.npz"}}'

Places = Mapping[str, str]  # a path or URL, by node
Parts = Mapping[ShardId, Places]


class Place(NamedTuple):
    """Where a part lies: the node as the catalogue names it, and the path or URL."""

    node: str
    path: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Which node holds which training shard and validation part, and where.

    The node "*" stands for every node: a shared folder, say, or a URL.

    Raises:
        DataError: no training shard, a shard without a holder, one name for two things, or a name
            that stands for the shard of one of several recipes.
    """

    train: Parts
    valid: Parts = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.train:
            raise DataError("a catalogue needs at least one training shard; got none")
        both = sorted(set(self.train) & set(self.valid))
        if both:
            raise DataError(
                "training shards and validation parts need names of their own; "
                f"{', '.join(both[:5])} is both"
            )
        wrong = [part for part in self.parts if OF_RECIPE in part]
        if wrong:
            raise DataError(f"a shard's name must be without {OF_RECIPE!r}; got {wrong[0]!r}")
        alone = [part for part, places in self.parts.items() if not places]
        if alone:
            raise DataError(
                f"every shard needs a holder; {', '.join(alone[:5])} has none: name a node and "
                "its path"
            )

    @property
    def parts(self) -> dict[ShardId, Places]:
        """The places of each training shard, then of each validation part."""
        return {**self.train, **self.valid}

    @property
    def nodes(self) -> list[str]:
        """The nodes that are named, in the order of the catalogue."""
        named = {node: None for places in self.parts.values() for node in places}
        return [node for node in named if node != EVERYWHERE]

    def at(self, names: Collection[str]) -> dict[ShardId, Place]:
        """The place of each part that lies at the node with these names."""
        place_of = {}
        for part, places in self.parts.items():
            for node, path in places.items():
                if node in names or node == EVERYWHERE:
                    place_of[part] = Place(node, path)
                    break
        return place_of

    def shards_at(self, names: Collection[str]) -> frozenset[ShardId]:
        """The training shards that lie at the node with these names."""
        return frozenset(part for part in self.at(names) if part in self.train)

    def is_whole_at(self, names: Collection[str]) -> bool:
        """Whether all training shards lie at the node with these names."""
        return len(self.shards_at(names)) == len(self.train)

    @property
    def is_whole(self) -> bool:
        """Whether some node holds all training shards."""
        return any(self.is_whole_at((node,)) for node in [*self.nodes, LOCAL])

    @property
    def is_whole_everywhere(self) -> bool:
        """Whether each node that is named holds all training shards."""
        return all(self.is_whole_at((node,)) for node in self.nodes)

    @property
    def is_scored_whole(self) -> bool:
        """Whether each node that holds a training shard holds all validation parts, too."""
        holders = {node for places in self.train.values() for node in places}
        return all(self.valid.keys() <= self.at((node,)).keys() for node in holders)

    def with_place(self, part: str, node: str, path: str, validation: bool) -> Catalogue:
        """The catalogue with one more place, or with another path at that node."""
        parts = {"train": dict(self.train), "valid": dict(self.valid)}
        table = parts[TABLES[validation]]
        name = ShardId(part)
        table[name] = {**table.get(name, {}), node: path}
        return Catalogue(parts["train"], parts["valid"])

    def staged(self) -> Catalogue:
        """The catalogue with what lies everywhere as URLs, so that each node fetches it."""
        return Catalogue(*(_staged(parts) for parts in (self.train, self.valid)))

    def text(self) -> str:
        """The catalogue as TOML."""
        lines: list[str] = []
        for table, parts in zip(TABLES, (self.train, self.valid), strict=True):
            for part, places in parts.items():
                lines += ["", f"[{table}.{json.dumps(part)}]"]
                lines += [
                    f"{json.dumps(node)} = {json.dumps(path)}" for node, path in places.items()
                ]
        return "\n".join(lines[1:]) + "\n"


def here() -> tuple[str, ...]:
    """The names of the node that this process is on, where there is no cluster."""
    return LOCAL, platform.node()


def of_this_machine(nodes: Iterable[str]) -> list[str]:
    """Those of the nodes that certainly are the machine of this process."""
    names = {*here(), "localhost", "127.0.0.1", socket.gethostname()}
    return [node for node in nodes if node in names]


def catalogue_of(train: Any, valid: Any = None) -> Catalogue:
    """The catalogue that a user gave: a TOML file, or the places of each shard.

    Raises:
        DataError: it is neither, or says something else than a catalogue does.
    """
    if not isinstance(train, str | os.PathLike):
        return Catalogue(_parts("train", train, None), _parts("valid", valid or {}, None))
    if valid is not None:
        raise DataError(
            "a catalogue's file says where validation parts lie: leave valid= out, and give them "
            "in the file as [valid.ID]"
        )
    return read_catalogue(whole(train))


def read_catalogue(file: Path) -> Catalogue:
    """The catalogue in a TOML file. Relative paths are relative to its folder.

    Raises:
        DataError: there is no such file, it is no TOML, or no catalogue.
    """
    try:
        tables = tomllib.loads(read_named(file).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"the catalogue {file} cannot be read ({type(error).__name__}: {error})"
        ) from error
    wrong = sorted(set(tables) - set(TABLES))
    if wrong:
        raise DataError(
            f"the catalogue {file} has tables [train.ID] and [valid.ID]; got {', '.join(wrong)}"
        )
    folder = file.resolve().parent
    return Catalogue(*(_parts(name, tables.get(name, {}), folder) for name in TABLES))


def _parts(table: str, entries: Any, folder: Path | None) -> Parts:
    """The places of the parts in one of a catalogue's tables.

    Raises:
        DataError: `entries` is not what a catalogue holds.
    """
    if not isinstance(entries, Mapping):
        raise DataError(f"{table}: {FORM}; got {type(entries).__name__}")
    parts: dict[ShardId, Places] = {}
    for part, places in entries.items():
        if not isinstance(part, str) or not part or not isinstance(places, Mapping):
            raise DataError(f"{table}: {FORM}; got {part!r}: {places!r}")
        parts[ShardId(part)] = {
            _node(part, node): _path(part, path, folder) for node, path in places.items()
        }
    return parts


def _node(part: str, node: Any) -> str:
    if not isinstance(node, str) or not node:
        raise DataError(f"{part}: a node is named by text; got {node!r}")
    return node


def _path(part: str, path: Any, folder: Path | None) -> str:
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise DataError(f"{part}: a place is a path or a URL; got {path!r}")
    text = as_path(str(os.fspath(path)))
    if is_url(text):
        return text
    text = os.path.expanduser(text)
    return str(whole((folder or Path()) / text))


def _staged(parts: Parts) -> Parts:
    """The parts, with paths that every node has written as URLs."""
    return {
        part: {node: _as_url(node, path) for node, path in places.items()}
        for part, places in parts.items()
    }


def _as_url(node: str, path: str) -> str:
    """The place of a part, which is fetched if it lies everywhere.

    Raises:
        DataError: it is a folder.
    """
    if node != EVERYWHERE or is_url(path):
        return path
    if Path(path).is_dir():
        raise DataError(
            f"{path} is a folder, and stage=True fetches files: make it a .tar, or leave stage out"
        )
    return COPIED + Path(path).as_posix()


def is_url(path: str) -> bool:
    """Whether fsspec must fetch it; `file://` is a path."""
    return "://" in path and not path.startswith(FILE)


def as_path(place: str) -> str:
    """The path of a `file://` URL; any other place as it is."""
    return place.removeprefix(FILE)
