"""Which visit a trial makes next, and what follows it. Every backend goes by these rules."""

from collections.abc import Sequence
from functools import lru_cache

from shoal.core.cluster import ShardId, shard_order
from shoal.core.trial import Samples, Trial, Visit

EPS: Samples = 1e-6  # sums of samples that differ by less are equal


def next_visit(
    seed: int,
    visits: Sequence[Visit],
    shards: frozenset[ShardId],
    shard: ShardId | None = None,
) -> Visit:
    """The visit that comes after these visits.

    Its `samples` are 0, because how many it will have is not known yet. An epoch is one visit to
    each of the `shards`. `shard`: the shard to visit, if the trial's gang decides that; None: the
    first one in `shard_order` that this epoch still lacks.
    """
    epoch, seen = divmod(len(visits), len(shards))
    if shard is None:
        gone = {visit.shard for visit in visits[len(visits) - seen :]}
        shard = next(
            each for each in whole_order(seed, epoch, shards) if each not in gone
        )
    return Visit(epoch, shard, epoch, 0)


@lru_cache(maxsize=64)
def whole_order(
    seed: int, epoch: int, shards: frozenset[ShardId]
) -> tuple[ShardId, ...]:
    """`shard_order`, remembered: all trials of a study ask for the same few."""
    return shard_order(seed, epoch, shards)


def is_met(trial: Trial, samples: Samples) -> bool:
    """Whether so many samples are all that the trial asks for."""
    return samples >= trial.samples - EPS


def falls_on_visits(shards: int, validate_every: float) -> bool:
    """Whether so many epochs are a whole number of visits, of so many `shards` to an epoch."""
    visits = shards * validate_every
    return round(visits) >= 1 and abs(visits - round(visits)) < EPS


def is_scored(visits: int, shards: int, validate_every: float, last: bool) -> bool:
    """Whether an evaluation follows the last of so many visits.

    One follows every `validate_every` epochs of so many `shards`, and the trial's `last` visit.
    A fraction of an epoch is some of its shards.
    """
    return last or visits % max(1, round(shards * validate_every)) == 0
