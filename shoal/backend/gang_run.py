"""A gang at work: what it has yet to read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal.core.cluster import ShardId
from shoal.core.plan import Gang, prune
from shoal.core.trial import Samples, TrialId, Visit
from shoal.core.visits import EPS
from shoal.train.recipe.unit import Unit


@dataclass(slots=True)
class GangRun:
    """A gang at work.

    `left`: the shards it has yet to visit; None: it reads the whole data set.
    `quota`: the samples that are left of its quota; None: it has none.
    """

    gang: Gang
    left: list[ShardId] | None
    quota: Samples | None

    @classmethod
    def of(cls, gang: Gang) -> "GangRun":
        return cls(gang, list(dict.fromkeys(gang.shards)) or None, gang.quota)

    @property
    def over(self) -> bool:
        if self.left == []:
            return True
        return self.quota is not None and self.quota <= EPS

    def next_shard(self) -> ShardId | None:
        """The shard that the gang visits next; None: each trial goes by its own order."""
        if self.left is None:
            return None
        return self.left[0]

    def shards_beside(self) -> tuple[ShardId, ...]:
        """The shards that are read together with the next one."""
        if not self.gang.joint or self.left is None:
            return ()
        return tuple(self.left[1:])

    def waiting(self, units: Iterable[Unit], shard: ShardId) -> tuple[TrialId, ...]:
        """The trials of these units that cannot go on, as the shard cannot be read.

        A gang that was told its shards has no such trials: they may visit others meanwhile.
        """
        if self.left is not None:
            return ()
        return tuple(unit.trial.id for unit in units if shard in unit.visit.shards)

    def count_down(self, visited: Sequence[Visit], sizes: Mapping[ShardId, int]) -> None:
        """Each lane has made a unit: these visits are the lanes' newest ones."""
        passed = max((visit.samples for visit in visited), default=0)
        if self.left is not None:
            count = len(self.left) if self.gang.joint else 1
            passed = sum(sizes[shard] for shard in self.left[:count])
            del self.left[:count]
        if self.quota is not None:
            self.quota -= passed

    def turn_into(self, gang: Gang) -> None:
        """The gang goes on as this one; one that measured may have no quota any more."""
        self.gang = gang
        if gang.quota is None:
            self.quota = None

    def shrink(self, trials: frozenset[TrialId]) -> None:
        """The gang goes on without these trials, or is over if none is left."""
        rest = prune(self.gang, trials)
        if rest is None:
            self.left = []
        else:
            self.gang = rest
