"""WHERE trials train: slots, and the shards of data lying at them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf, isnan
from typing import Any, NewType

SlotId = NewType("SlotId", str)
ShardId = NewType("ShardId", str)
GiB = float
# Of several recipes, each has shards of its own. Their names begin with the recipe's name and this.
OF_RECIPE = "::"
LONGEST_NAME = 200  # characters of an id
NO_NAME = re.compile(r"[/\\\0-\x1f\x7f-\x9f]")
RECIPE = "recipe"  # the key of a configuration that names the trial's recipe


def is_name(text: str) -> bool:
    """Whether the text can be an id: it names a file or a folder, and only one in its own place.

    It goes into files, onto terminals and to other processes, so it has no control characters.
    """
    return (
        0 < len(text) <= LONGEST_NAME and text not in (".", "..") and NO_NAME.search(text) is None
    )


def fits_utf8(text: str) -> bool:
    """Whether UTF-8 can hold the text, so that a file can, and C can, which ends texts at a NUL."""
    return "\0" not in text and text == text.encode(errors="ignore").decode()


@dataclass(frozen=True, slots=True)
class Slot:
    """The smallest thing Shoal lends: one GPU, one CPU share, or one whole node.

    Raises:
        ValueError: no id, or one that is no name, memory not positive, or an end that is no time.
    """

    id: SlotId
    node: str = "here"
    kind: str = "cpu"
    memory: GiB = inf
    # The shards that lie here.
    shards: frozenset[ShardId] = frozenset()
    # When it will leave, in seconds of the study: the time limit of a pilot. Infinity: unknown.
    until: float = inf

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("a slot needs an id; got an empty one")
        for what in (self.id, self.node):
            if not is_name(what):
                raise ValueError(
                    "the ids of slots and nodes must hold no '/', '\\\\' or control characters, "
                    f"and have at most {LONGEST_NAME} characters; got {what[:40]!r}"
                )
        if not self.memory > 0:
            raise ValueError(f"slot {self.id}: memory must be > 0 GiB; got {self.memory!r}")
        if isnan(self.until):
            raise ValueError(
                f"slot {self.id}: until must be a time of the study, or infinity; got nan"
            )


def of_recipe(recipe: str, shard: ShardId) -> ShardId:
    """The shard's name in a study of several recipes."""
    return ShardId(f"{recipe}{OF_RECIPE}{shard}")


def own_name(shard: ShardId) -> ShardId:
    """The shard's name in the data of its recipe alone."""
    return ShardId(shard.rpartition(OF_RECIPE)[2])


def shards_of(shards: Mapping[ShardId, int], config: Mapping[str, Any]) -> Mapping[ShardId, int]:
    """Those of a study's shards that make up an epoch of a trial with this configuration.

    Raises:
        ValueError: the study has several recipes, and the configuration names none of them.
    """
    if OF_RECIPE not in next(iter(shards), ""):
        return shards
    begin = f"{config.get(RECIPE)}{OF_RECIPE}"
    own = {name: size for name, size in shards.items() if name.startswith(begin)}
    if not own:
        names = sorted({name.partition(OF_RECIPE)[0] for name in shards})
        raise ValueError(
            f"config[{RECIPE!r}] must be one of {', '.join(names)}; got {config.get(RECIPE)!r}: "
            f"search over {{{RECIPE!r}: shoal.grid({names})}}"
        )
    return own


def epoch_size(shards: Mapping[ShardId, int], config: Mapping[str, Any]) -> float:
    """Samples of an epoch of a trial with this configuration."""
    return float(sum(shards_of(shards, config).values()))


def shard_order(seed: int, epoch: int, shards: Iterable[ShardId]) -> tuple[ShardId, ...]:
    """The order in which training on the whole data set visits its shards in this epoch.

    It depends on the arguments alone, and is the same on every machine. A run that was cut, moved
    or simulated therefore goes on in the order that it would have had.
    """

    def key(shard: ShardId) -> tuple[bytes, ShardId]:
        text = f"{seed}/{epoch}/{own_name(shard)}"
        digest = blake2b(text.encode(), digest_size=8).digest()
        return digest, shard

    return tuple(sorted(shards, key=key))


def proportional(total: int, weights: Sequence[float], least: int = 1) -> tuple[int, ...]:
    """Sizes of shards, proportional to these weights.

    With the slots' speeds as weights, all slots take as long for a pass. The sizes sum to `total`.
    They are rounded to the largest remainders (of equal ones, the first). No shard has fewer than
    `least` samples. The sizes depend on the arguments alone.

    Raises:
        ValueError: there are no weights; a weight is not positive and finite; or the samples are
            fewer than the least sizes sum to.
    """
    count = len(weights)
    if not weights or not all(0 < weight < inf for weight in weights):
        raise ValueError(
            "shards are as large as their weights:"
            f" give each shard's, > 0 and finite; got {list(weights)!r}"
        )
    if total < least * count:
        raise ValueError(
            f"{total} samples cannot be divided into {count} shards of at least {least}:"
            " use fewer shards"
        )
    free = total - least * count
    share = [free * weight / sum(weights) for weight in weights]
    sizes = [least + int(part) for part in share]

    def smallness(shard: int) -> tuple[float, int]:
        """Orders the shards by remainder, the largest first."""
        return int(share[shard]) - share[shard], shard

    missing = total - sum(sizes)
    for shard in sorted(range(count), key=smallness)[:missing]:
        sizes[shard] += 1
    return tuple(sizes)
