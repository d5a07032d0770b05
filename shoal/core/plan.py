"""WHO runs with whom: lanes in gangs, gangs in a plan. Also what a searcher asks for."""

from dataclasses import dataclass, replace

from shoal.core.cluster import ShardId, SlotId
from shoal.core.trial import Samples, Seconds, Trial, TrialId


@dataclass(frozen=True, slots=True)
class Lane:
    """One trial, data-parallel over these slots. The first slot leads.

    Raises:
        ValueError: there are no slots, or one of them comes twice.
    """

    trial: TrialId
    slots: tuple[SlotId, ...]

    def __post_init__(self) -> None:
        if not self.slots or len(set(self.slots)) < len(self.slots):
            raise ValueError(
                f"lane of {self.trial}: needs one slot or more, each once; got {self.slots!r}"
            )


@dataclass(frozen=True, slots=True)
class Gang:
    """Lanes that advance together over one stream of data.

    `shards`: the shards that the gang reads; empty: the whole data set, shard by shard in
    `shard_order`.
    `quota`: the samples of the stream after which the gang ends by itself. A policy never cuts it
    short. A unit that a stop, a lost slot or lack of memory cuts counts as not visited.
    With a quota over the whole data set a gang only `measures`: a policy may cut it short, or lift
    the quota, and then it goes on as any other.
    `fused`: whether the lanes train in one fused step.
    `since`: the turn that made the gang. Turn and trials together identify a gang.

    Raises:
        ValueError: there are no lanes, a trial comes twice, or the quota is not positive.
    """

    lanes: tuple[Lane, ...]
    shards: tuple[ShardId, ...] = ()
    quota: Samples | None = None
    fused: bool = False
    since: int = 0

    def __post_init__(self) -> None:
        count = len(self.lanes)
        if count == 0:
            raise ValueError("a gang needs a lane or more; got none")
        if count > 1 and len({lane.trial for lane in self.lanes}) < count:
            raise ValueError(
                f"a trial is in one lane of a gang at most; got {self.trials!r}"
            )
        if self.quota is not None and not self.quota > 0:
            raise ValueError(f"a quota must be > 0 samples; got {self.quota!r}")

    def __hash__(self) -> int:
        # Gangs are kept in sets. This hash is quick, and equal for equal gangs.
        return hash((self.since, self.lanes[0].trial, len(self.lanes)))

    @property
    def trials(self) -> tuple[TrialId, ...]:
        lanes = self.lanes
        if len(lanes) == 1:
            return (lanes[0].trial,)
        return tuple([lane.trial for lane in lanes])

    @property
    def measures(self) -> bool:
        """Whether it is there for its rate: once that is known a policy may stop it at once."""
        return self.quota is not None and not self.shards

    @property
    def slots(self) -> frozenset[SlotId]:
        lanes = self.lanes
        if len(lanes) == 1:
            return frozenset(lanes[0].slots)
        return frozenset([slot for lane in lanes for slot in lane.slots])


def solo(
    trial: TrialId,
    slot: SlotId,
    since: int,
    shard: ShardId | None = None,
    quota: Samples | None = None,
) -> Gang:
    """The commonest gang: one trial on one slot.

    `shard`: the shard that it reads; None: the whole data set.
    """
    shards: tuple[ShardId, ...] = ()
    if shard is not None:
        shards = (shard,)
    return Gang((Lane(trial, (slot,)),), shards, quota, since=since)


def prune(
    gang: Gang,
    trials: frozenset[TrialId] = frozenset(),
    slots: frozenset[SlotId] = frozenset(),
) -> Gang | None:
    """The gang without these trials and slots; None if no lane is left.

    The fold and every backend use this, so that they agree on how a gang shrinks by itself.
    """
    kept: list[Lane] = []
    for lane in gang.lanes:
        rest = lane.slots
        if slots:
            rest = tuple(slot for slot in lane.slots if slot not in slots)
        if lane.trial in trials or not rest:
            continue
        if len(rest) < len(lane.slots):
            lane = Lane(lane.trial, rest)
        kept.append(lane)
    if not kept:
        return None
    return replace(gang, lanes=tuple(kept))


def goes_on(before: Gang, after: Gang) -> bool:
    """Whether `after` is the same gang at the same unit, with fewer or more lanes or slots."""
    if before.since != after.since or not same_stream(before, after):
        return False
    return not set(before.trials).isdisjoint(after.trials)


def same_stream(before: Gang, after: Gang) -> bool:
    """Whether both read the same, so that a unit under way may go on in the other gang.

    A gang that measured goes on without its quota.
    """
    if before.shards != after.shards:
        return False
    lifted = before.measures and after.quota is None
    return lifted or before.quota == after.quota


@dataclass(frozen=True, slots=True)
class Plan:
    """The gangs that SHOULD run from now on: a desired state, not orders.

    `wake_at`: the time of the study at which the policy wants to be asked again at the latest.
    """

    gangs: frozenset[Gang] = frozenset()
    wake_at: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a searcher asks for.

    `submit`: new trials, or known ones with more samples. `retire`: trials to take out.
    `wake_at`: the time of the study at which the searcher wants to be asked again at the latest.
    A study ends once all its trials are done and `wake_at` is None.
    """

    submit: tuple[Trial, ...] = ()
    retire: frozenset[TrialId] = frozenset()
    wake_at: Seconds | None = None
