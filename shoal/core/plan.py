"""WHO runs with whom: lanes in gangs, gangs in a plan. Also what a searcher asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.cluster import ShardId, SlotId
from shoal.core.overlay import as_dict
from shoal.core.trial import Samples, Seconds, Trial, TrialId

# Plans of successive states, of which the last one knows what changed since each.
LONGEST = 64


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
    `joint`: the one lane reads all the shards at once, slot number j of it the shard number j; each
    batch has rows of every shard. Slots may name the same shard. The gang ends with this one unit.
    Otherwise the shards are read one after another, each at all slots.
    `since`: the turn that made the gang. Turn and trials together identify a gang.

    Raises:
        ValueError: there are no lanes, a trial comes twice, or the quota is not positive.
    """

    lanes: tuple[Lane, ...]
    shards: tuple[ShardId, ...] = ()
    quota: Samples | None = None
    fused: bool = False
    since: int = 0
    joint: bool = False

    def __post_init__(self) -> None:
        count = len(self.lanes)
        if count == 0:
            raise ValueError("a gang needs a lane or more; got none")
        if count > 1 and len({lane.trial for lane in self.lanes}) < count:
            raise ValueError(f"a trial is in one lane of a gang at most; got {self.trials!r}")
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
    gang: Gang, trials: frozenset[TrialId] = frozenset(), slots: frozenset[SlotId] = frozenset()
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


def evenness(gang: Gang, sizes: Mapping[ShardId, int]) -> float:
    """How evenly the slots of a joint gang share its samples; 1: each has as many.

    Each batch waits for the slot with the most: the lane goes at so much of its width's speed.
    """
    readers = Counter(gang.shards)
    most = max(sizes[shard] / count for shard, count in readers.items())
    return sum(sizes[shard] for shard in readers) / (most * len(gang.shards))


def same_stream(before: Gang, after: Gang) -> bool:
    """Whether both read the same, so that a unit under way may go on in the other gang.

    A gang that measured goes on without its quota. A joint one has the same slots: each reads a
    shard of its own.
    """
    if before.joint != after.joint or (before.joint and before.lanes != after.lanes):
        return False
    if before.shards != after.shards:
        return False
    lifted = before.measures and after.quota is None
    return lifted or before.quota == after.quota


NO_GANGS: frozenset[Gang] = frozenset()


class Plan:
    """The gangs that SHOULD run from now on: a desired state, not orders.

    `wake_at`: the time of the study at which the policy wants to be asked again at the latest.

    A plan that is made of another one (`but`) knows what changed. Its set `gangs` is made when
    somebody asks for it; who asks what changed pays for that only, however many gangs there are.
    """

    __slots__ = ("_former", "_gangs", "_length", "_start", "_stop", "_table", "wake_at")

    def __init__(self, gangs: frozenset[Gang] = NO_GANGS, wake_at: Seconds | None = None) -> None:
        self.wake_at = wake_at
        self._gangs: frozenset[Gang] | None = gangs
        # The plan that this one was made of, without `_stop` and with `_start`; of how many plans.
        self._former: Plan | None = None
        self._stop = self._start = NO_GANGS
        self._length = 0
        # The gangs as a state has them.
        self._table: Mapping[Gang, None] | None = None

    def but(
        self, start: Iterable[Gang] = (), stop: Iterable[Gang] = (), wake_at: Seconds | None = None
    ) -> Plan:
        """What is in this plan without some gangs, and with others."""
        new = Plan(wake_at=wake_at)
        new._gangs = None
        new._former = self
        wanted = frozenset(start)
        new._start = frozenset([gang for gang in wanted if gang not in self])
        new._stop = frozenset([gang for gang in stop if gang in self]) - wanted
        return new

    @classmethod
    def running(
        cls,
        table: Mapping[Gang, None],
        former: Plan | None = None,
        start: Iterable[Gang] = (),
        stop: Iterable[Gang] = (),
    ) -> Plan:
        """The gangs of this table, which is never written to again.

        `former`: the plan before, to which these started and then these stopped.
        """
        new = cls()
        new._gangs = None
        new._table = table
        if former is not None and former._length < LONGEST:
            new._former, new._length = former, former._length + 1
            new._start, new._stop = frozenset(start), frozenset(stop)
        return new

    @property
    def gangs(self) -> frozenset[Gang]:
        """The gangs, all of them."""
        gangs = self._gangs
        if gangs is None:
            if self._table is not None:
                # From a dict itself, not from its keys: so no hash is computed again.
                gangs = frozenset(as_dict(self._table))
            else:
                assert self._former is not None, "made by `but`"
                gangs = (self._former.gangs - self._stop) | self._start
            self._gangs = gangs
        return gangs

    def __contains__(self, gang: Gang) -> bool:
        if self._gangs is not None:
            return gang in self._gangs
        if self._table is not None:
            return gang in self._table
        assert self._former is not None, "made by `but`"
        return gang in self._start or (gang not in self._stop and gang in self._former)

    def since(self, before: Plan) -> tuple[frozenset[Gang], frozenset[Gang]]:
        """The gangs that stop, and those that start, where this plan follows that one."""
        steps: list[Plan] = []
        plan: Plan | None = self
        while plan is not None and plan is not before:
            steps.append(plan)
            plan = plan._former
        if plan is None:
            return before.gangs - self.gangs, self.gangs - before.gangs
        if len(steps) == 1:
            return self._stop, self._start
        stop, start = NO_GANGS, NO_GANGS
        for step in reversed(steps):
            stop, start = (
                (stop | (step._stop - start)) - step._start,
                (start - step._stop) | (step._start - stop),
            )
        return stop, start

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return self.wake_at == other.wake_at and self.gangs == other.gangs

    def __hash__(self) -> int:
        return hash((self.gangs, self.wake_at))

    def __repr__(self) -> str:
        return f"Plan(gangs={self.gangs!r}, wake_at={self.wake_at!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (self.gangs, self.wake_at)


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
