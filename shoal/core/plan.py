"""WHO runs with whom: lanes in gangs, gangs in a plan; and what a searcher asks for."""

from dataclasses import dataclass, replace

from shoal.core.cluster import ShardId, SlotId
from shoal.core.trial import Samples, Seconds, Trial, TrialId


@dataclass(frozen=True, slots=True)
class Lane:
    """One trial, data-parallel over these slots (the first is its lead).

    Raises:
        ValueError: no slots, or one twice.
    """

    trial: TrialId
    slots: tuple[SlotId, ...]

    def __post_init__(self) -> None:
        if not self.slots or len(set(self.slots)) < len(self.slots):
            raise ValueError(f"lane of {self.trial}: needs one slot or more, each once; got {self.slots!r}")


@dataclass(frozen=True, slots=True)
class Gang:
    """Lanes that advance together over one stream of data.

    `shards`: what it reads; none: the whole data set, shard by shard in `shard_order`.
    `quota`: stream samples after which it ends by itself; a policy never cuts it short. A unit cut
    by a stop, a lost slot or lack of memory counts as not visited.
    `since`: the turn that made it. Together with its trials it is the gang's identity.

    Raises:
        ValueError: no lanes, a trial twice, or a quota that is not positive.
    """

    lanes: tuple[Lane, ...]
    shards: tuple[ShardId, ...] = ()
    quota: Samples | None = None
    fused: bool = False
    since: int = 0

    def __post_init__(self) -> None:
        if not self.lanes:
            raise ValueError("a gang needs a lane or more; got none")
        if len(self.lanes) > 1 and len({lane.trial for lane in self.lanes}) < len(self.lanes):
            raise ValueError(f"a trial is in one lane of a gang at most; got {self.trials!r}")
        if self.quota is not None and not self.quota > 0:
            raise ValueError(f"a quota must be > 0 samples; got {self.quota!r}")

    def __hash__(self) -> int:  # cheap, and equal for equal gangs: gangs live in sets
        return hash((self.since, self.lanes[0].trial, len(self.lanes)))

    @property
    def trials(self) -> tuple[TrialId, ...]:
        lanes = self.lanes
        return (lanes[0].trial,) if len(lanes) == 1 else tuple(lane.trial for lane in lanes)

    @property
    def slots(self) -> frozenset[SlotId]:
        lanes = self.lanes
        return frozenset(lanes[0].slots if len(lanes) == 1 else (slot for lane in lanes for slot in lane.slots))


def solo(trial: TrialId, slot: SlotId, since: int, shard: ShardId | None = None, quota: Samples | None = None) -> Gang:
    """The commonest gang: one trial on one slot, over one shard or over the whole data set."""
    return Gang((Lane(trial, (slot,)),), () if shard is None else (shard,), quota, since=since)


def prune(gang: Gang, trials: frozenset[TrialId] = frozenset(), slots: frozenset[SlotId] = frozenset()) -> Gang | None:
    """The gang without those trials and slots; None when no lane is left.

    The one way in which a gang shrinks by itself: the fold and every backend use it, lest they drift apart.
    """
    kept = []
    for lane in gang.lanes:
        rest = tuple(slot for slot in lane.slots if slot not in slots)
        if lane.trial not in trials and rest:
            kept.append(lane if len(rest) == len(lane.slots) else Lane(lane.trial, rest))
    return replace(gang, lanes=tuple(kept)) if kept else None


def goes_on(before: Gang, after: Gang) -> bool:
    """Whether `after` is the same gang at the same unit, with lanes or slots fewer or more."""
    same = before.since == after.since and before.shards == after.shards and before.quota == after.quota
    return same and not set(before.trials).isdisjoint(after.trials)


@dataclass(frozen=True, slots=True)
class Plan:
    """The gangs that SHOULD run from now on: a desired state, not orders. `wake_at`: ask again then at the latest."""

    gangs: frozenset[Gang] = frozenset()
    wake_at: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a searcher asks for: trials to submit (or to extend), trials to stop, and when to ask again.

    A study whose trials are all done ends when no `wake_at` is set.
    """

    submit: tuple[Trial, ...] = ()
    retire: frozenset[TrialId] = frozenset()
    wake_at: Seconds | None = None
