"""WHERE trials train: slots, and the shards of data lying at them."""

from collections.abc import Iterable, Sequence
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


def proportional(total: int, weights: Sequence[float], least: int = 1) -> tuple[int, ...]:
    """Sizes of shards as their weights; with the slots' speeds all slots take as long for a pass.

    They sum to `total`; rounding goes to the largest remainders (the first of equal ones), and no shard has fewer than
    `least` samples. A function of the arguments alone.

    Raises:
        ValueError: no weights, one that is not positive and finite, or fewer samples than the least sizes sum to.
    """
    if not weights or not all(0 < weight < inf for weight in weights):
        raise ValueError(f"shards are as large as their weights: give each shard's, > 0 and finite; got {list(weights)!r}")
    if total < least * len(weights):
        raise ValueError(f"{total} samples cannot be divided into {len(weights)} shards of at least {least}: use fewer shards")
    share = [(total - least * len(weights)) * weight / sum(weights) for weight in weights]
    sizes = [least + int(part) for part in share]
    rest = sorted(range(len(weights)), key=lambda j: (int(share[j]) - share[j], j))
    for shard in rest[: total - sum(sizes)]:
        sizes[shard] += 1
    return tuple(sizes)
