"""The data of several recipes in one study: side by side, each part under its recipe's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from shoal.core.cluster import OF_RECIPE, ShardId, of_recipe, own_name
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.data import Data
from shoal.train.data.parts import Index, Parts


@dataclass(frozen=True)
class DataByName:
    """Reads each part from the data that it belongs to."""

    data: Mapping[str, Data]

    @property
    def serial(self) -> bool:
        """Whether some of the data must not be read beside training."""
        return any(each.serial for each in self.data.values())

    def read(self, part: ShardId) -> Columns:
        """All samples of the part."""
        return self._owner(part).read(own_name(part))

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the part."""
        return self._owner(part).rows(own_name(part), index)

    def _owner(self, part: ShardId) -> Data:
        return self.data[part.partition(OF_RECIPE)[0]]


class JoinedData(Data):
    """The data of several recipes. `of`: that of each, by the recipe's name.

    Raises:
        DataError: some of it lies at nodes, or is dealt anew in each epoch.
    """

    def __init__(self, of: Mapping[str, Data]) -> None:
        for name, data in of.items():
            _check(name, data)
        hashed = blake2b(digest_size=16)
        for name, data in of.items():
            hashed.update(f"{name}\0{data.fingerprint}\0".encode())
        super().__init__(
            Parts(
                source=DataByName(of),
                training=_sizes(of, "shards"),
                validation=_sizes(of, "validation"),
                row_bytes=int(max(data.row_bytes for data in of.values())),
                fingerprint=hashed.hexdigest(),
            )
        )
        self.of = dict(of)

    @property
    def in_memory(self) -> bool:
        """Whether reading any of it is copying."""
        return all(data.in_memory for data in self.of.values())

    @property
    def by_rows(self) -> bool:
        """Whether `rows` reads no more than it is asked for, wherever it reads."""
        return all(data.by_rows for data in self.of.values())


def own_data(data: Data, recipe: str) -> Data:
    """The data of the recipe with this name, whose parts have names without it."""
    return data.of[recipe] if isinstance(data, JoinedData) else data


def _sizes(of: Mapping[str, Data], kind: str) -> dict[ShardId, int]:
    """Samples in each shard, or validation part, of all the data."""
    found = {}
    for name, data in of.items():
        for part in getattr(data, kind):
            found[of_recipe(name, part)] = data.size(part)
    return found


def _check(name: str, data: Data) -> None:
    """Raise DataError unless the data can stand beside that of other recipes."""
    if data.catalogue is not None or data.arrangement.reshuffles:
        raise DataError(
            f"recipe {name!r}: Data.shards that lie at nodes, and reshuffle, are for studies of "
            "one recipe: give the others a study of their own"
        )
