"""Which visit a trial makes next, and what follows it. Every backend goes by these rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import floor, inf

from shoal.core.cluster import ShardId, shard_order
from shoal.core.trial import Samples, Trial, Visit, shown

EPS: Samples = 1e-6  # sums of samples that differ by less are equal

LEAST = 1e-4  # epochs between two evaluations
RULE = (
    'validate_every is a number of epochs >= 0.0001, as 1 or 0.25, or of optimizer steps, as "200 '
    'steps"'
)


def next_visit(
    seed: int,
    visits: Sequence[Visit],
    shards: frozenset[ShardId],
    shard: ShardId | None = None,
    beside: tuple[ShardId, ...] = (),
) -> Visit:
    """The visit that comes after these visits.

    Its `samples` are 0, because how many it will have is not known yet. An epoch is one visit to
    each of the `shards`. `shard`: the shard to visit, if the trial's gang decides that; None: the
    first one in `shard_order` that this epoch still lacks. `beside`: shards to read together with
    it.
    """
    epoch, seen = divmod(len(visits), len(shards))
    if shard is None:
        gone = {visit.shard for visit in visits[len(visits) - seen :]}
        shard = next(each for each in whole_order(seed, epoch, shards) if each not in gone)
    return Visit(epoch, shard, epoch, 0, beside=beside)


def counted(visit: Visit, sizes: Mapping[ShardId, int]) -> tuple[Visit, ...]:
    """The visits that this one counts as, each with the samples of its shard (`sizes`).

    They are several if it read shards together. The first one says so, and has the widths.
    """
    first = visit._replace(samples=sizes[visit.shard])
    others = (Visit(visit.epoch, shard, visit.turn, sizes[shard]) for shard in visit.beside)
    return (first, *others)


@lru_cache(maxsize=64)
def whole_order(seed: int, epoch: int, shards: frozenset[ShardId]) -> tuple[ShardId, ...]:
    """`shard_order`, remembered: all trials of a study ask for the same few."""
    return shard_order(seed, epoch, shards)


def is_met(trial: Trial, samples: Samples) -> bool:
    """Whether so many samples are all that the trial asks for."""
    return samples >= trial.samples - EPS


@dataclass(frozen=True, slots=True)
class ValidateEvery:
    """How often a trial is evaluated, beside its end.

    Every so many `epochs`; a fraction below 1 counts from each epoch's begin, and the epoch's end
    is evaluated, too. With `steps`, instead: every so many optimizer steps of the trial.

    Raises:
        ValueError: a number is out of its range.
    """

    epochs: float = 1
    steps: int = 0

    def __post_init__(self) -> None:
        if not LEAST <= self.epochs < inf or self.steps < 0:
            raise ValueError(f"{RULE}; got {self.steps or self.epochs!r}")

    @classmethod
    def of(cls, said: object) -> ValidateEvery:
        """What the user said: a number of epochs, or "200 steps".

        Raises:
            ValueError: it is neither.
        """
        if not isinstance(said, str | int | float) or isinstance(said, bool):
            raise ValueError(f"{RULE}; got {shown(said)}")
        words = said.split() if isinstance(said, str) else [said]
        try:
            if len(words) == 2 and words[1] in ("step", "steps") and int(words[0]) > 0:
                return cls(steps=int(words[0]))
            if len(words) == 1:
                return cls(float(words[0]))
        except (ValueError, OverflowError):
            pass
        raise ValueError(f"{RULE}; got {shown(said)}")

    def parts(self, made: int, shards: int) -> tuple[float, ...]:
        """After which parts of the visit that follows so many a trial is evaluated; 1.0: its end.

        An epoch is one visit to each of so many `shards`. Steps are not counted here.
        """
        if self.steps:
            return ()
        begin = 0
        if self.epochs < 1:
            begin = made // shards * shards
        length = self.epochs * shards
        number = floor((made - begin) / length + EPS) + 1
        parts = []
        while (part := begin + number * length - made) < 1 - EPS:
            parts.append(round(part, 9))
            number += 1
        ends_epoch = self.epochs < 1 and (made + 1) % shards == 0
        if part <= 1 + EPS or ends_epoch:
            parts.append(1.0)
        return tuple(parts)

    def within(self, shards: int) -> bool:
        """Whether an evaluation may come before the end of a visit."""
        length = self.epochs * shards
        return bool(self.steps) or abs(length - round(length)) > EPS or length < 1 - EPS
