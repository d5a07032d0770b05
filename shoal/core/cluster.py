"""WHERE trials train: slots, and the shards of data lying at them."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import NewType

SlotId = NewType("SlotId", str)
ShardId = NewType("ShardId", str)
GiB = float


@dataclass(frozen=True, slots=True)
class Slot:
    """The smallest thing Shoal lends: one GPU, one CPU share, or one whole node.

    Raises:
        ValueError: no id, or memory not positive.
    """

    id: SlotId
    node: str = "here"
    kind: str = "cpu"
    memory: GiB = inf
    shards: frozenset[ShardId] = frozenset()  # those registered as lying here

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("a slot needs an id; got an empty one")
        if not self.memory > 0:
            raise ValueError(f"slot {self.id}: memory must be > 0 GiB; got {self.memory!r}")


def shard_order(seed: int, epoch: int, shards: Iterable[ShardId]) -> tuple[ShardId, ...]:
    """The order in which training on the whole data set visits its shards in this epoch.

    A function of the arguments alone, the same on every machine, so that a run that was cut, moved
    or simulated goes on in the order it would have had.
    """

    def key(shard: ShardId) -> tuple[bytes, ShardId]:
        return blake2b(f"{seed}/{epoch}/{shard}".encode(), digest_size=8).digest(), shard

    return tuple(sorted(shards, key=key))
