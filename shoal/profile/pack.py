"""What it costs to train several trials on one slot, step by step together.

Source: Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020. A step of a pack moves its largest batch once, and launches once, for all; each model
computes its own. The figures are not fitted to the paper's: shares and capacities are chosen after
its Figure 4.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shoal.core.cluster import GiB, SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.profile import Cost
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Value


@dataclass(frozen=True, slots=True)
class PackCost:
    """The seconds that a step of k models with batches b takes.

    It takes `fixed` + `moving` max b + `compute` sum b + `joint` k.

    Args:
        compute: seconds for each sample.
        fixed: seconds of a step, whatever is in it.
        moving: seconds for each sample of the largest batch.
        joint: seconds for each model.
        repack: seconds to take a model out of a pack, or to put one in.

    Raises:
        ValueError: a figure is below 0, or computing costs nothing.
    """

    compute: Seconds
    fixed: Seconds = 0.0
    moving: Seconds = 0.0
    joint: Seconds = 0.0
    repack: Seconds = 0.0

    def __post_init__(self) -> None:
        if not self.compute > 0 or min(self.fixed, self.moving, self.joint, self.repack) < 0:
            raise ValueError(f"a pack's costs are >= 0, and compute > 0; got {self}")

    @classmethod
    def sharing(
        cls,
        share: float,
        batch: int = 45,
        compute: Seconds = 1e-3,
        moving: float = 0.3,
        joint: float = 0.02,
        repack: Seconds = 3.0,
    ) -> "PackCost":
        """A model of whose step alone, at this batch, the part `share` is common to all in a pack.

        `moving`: the part of that which grows with the batch. `joint`: what each model adds, as a
        part of a step alone.

        Raises:
            ValueError: the share is outside [0, 1).
        """
        if not 0 <= share < 1:
            raise ValueError(f"the shared part of a step is in [0, 1); got {share!r}")
        alone = compute * batch / (1 - share)
        common = alone * share
        return cls(compute, (1 - moving) * common, moving * common / batch, joint * alone, repack)

    def step(self, batches: Sequence[int]) -> Seconds:
        """One step of all of them."""
        shared = self.fixed + self.moving * max(batches)
        return shared + self.compute * sum(batches) + self.joint * len(batches)

    def epoch(self, batches: Sequence[int], samples: Samples) -> Seconds:
        """One pass of each over so many samples; the largest batches end first, and leave."""
        left = sorted(batches, reverse=True)
        spent = 0.0
        steps = 0.0
        while left:
            batch = left[0]
            spent += (samples / batch - steps) * self.step(left)
            steps = samples / batch
            left = [smaller for smaller in left if smaller < batch]
            if left:
                spent += self.repack
        return spent


@dataclass(frozen=True, slots=True)
class Packing:
    """How a kind of trial behaves in a pack.

    Args:
        cost: of its steps.
        usual: the batch size of trials whose configuration has no `batch`, and the one at which the
            rates beside it were measured.
        batch: the configuration's key with the batch size.
        per_sample: GiB that each sample of a batch takes beside the trial's memory.

    Raises:
        ValueError: the batch is below 1, or the memory below 0.
    """

    cost: PackCost
    usual: int = 1
    batch: str = "batch_size"
    per_sample: GiB = 0.0

    def __post_init__(self) -> None:
        if self.usual < 1:
            raise ValueError(f"a batch is of one sample or more; got {self.usual!r}")
        if not self.per_sample >= 0:
            raise ValueError(f"a sample takes >= 0 GiB; got {self.per_sample!r}")

    @classmethod
    def shared(
        cls,
        share: float,
        rate: float,
        usual: int,
        moving: float = 0.3,
        joint: float = 0.02,
        **more: Any,
    ) -> "Packing":
        """A kind that trains at `rate` alone at batch `usual`, and shares a part of its steps.

        `share`, `moving`, `joint`: as for `PackCost.sharing`. `more`: `repack` in seconds, and the
        fields of a `Packing`.

        Raises:
            ValueError: the share is outside [0, 1), the rate or the batch is not positive, or as
                for `Packing`.
        """
        if not (rate > 0 and usual >= 1):
            raise ValueError(
                "a step alone takes batch / rate seconds, both > 0; "
                f"got batch {usual!r} and rate {rate!r}"
            )
        compute = (1 - share) / (rate * (1 + joint))
        repack = more.pop("repack", 0.0)
        cost = PackCost.sharing(share, usual, compute, moving, joint, repack)
        return cls(cost, usual, **more)

    def size(self, config: Mapping[str, Value]) -> int:
        """The batch size of a trial with this configuration.

        Raises:
            ValueError: the configuration's batch size is no number of samples.
        """
        size: Any = config.get(self.batch, self.usual)
        if not _is_batch(size):
            raise ValueError(f"{self.batch} must be a number of samples >= 1; got {size!r}")
        return int(size)

    def rate(self, batch: int | None = None) -> float:
        """Samples/s of a trial alone on a slot, at this batch size (None: the usual one)."""
        size = batch or self.usual
        return size / self.cost.step([size])


def _is_batch(size: Any) -> bool:
    """Whether this is a number of samples."""
    if isinstance(size, bool) or not isinstance(size, (int, float)):
        return False
    return size >= 1


class Share(NamedTuple):
    """The part of a trial at this batch size in a step of those that share its slot.

    `fixed` and `moving`: of these the dearest of all counts. `added`: what each adds.
    """

    packing: Packing
    batch: int
    fixed: Seconds
    moving: Seconds
    added: Seconds

    @classmethod
    def of(cls, packing: Packing, batch: int) -> "Share":
        cost = packing.cost
        added = cost.compute * batch + cost.joint
        return cls(packing, batch, cost.fixed, cost.moving * batch, added)


def together(
    gang: Gang,
    known: Mapping[TrialId, Share],
    alone: Callable[[Lane], float],
    speeds: Mapping[SlotId, float],
) -> dict[TrialId, float]:
    """Samples/s of lanes that go step by step together.

    A step takes as long as on the slot where it takes longest. Of what is shared on a slot, the
    dearest counts once; what each model computes is added up. A wide lane takes a batch on each of
    its slots; its steps are longer by as much as its rate alone falls short of perfect scaling.

    `known`: what each trial brings. `alone`: samples/s of a lane by itself. `speeds`:
    of slots, 1 if not listed.
    """
    slots = gang.lanes[0].slots
    if len(slots) == 1 and all(lane.slots == slots for lane in gang.lanes):
        step = _step_of(known.values()) / speeds.get(slots[0], 1.0)
        return {trial: share.batch / step for trial, share in known.items()}
    step = max(
        _step_of([known[lane.trial] for lane in gang.lanes if slot in lane.slots])
        / speeds.get(slot, 1.0)
        for slot in gang.slots
    )
    slowed = 1.0
    for lane in gang.lanes:
        if len(lane.slots) > 1:
            packing, batch, *_ = known[lane.trial]
            slowest = min(speeds.get(slot, 1.0) for slot in lane.slots)
            perfect = packing.rate(batch) * len(lane.slots) * slowest
            slowed = max(slowed, perfect / alone(lane))
    rates: dict[TrialId, float] = {}
    for lane in gang.lanes:
        rates[lane.trial] = known[lane.trial].batch * len(lane.slots) / (step * slowed)
    return rates


def _step_of(lanes: Iterable[Share]) -> Seconds:
    """Seconds of a step of these lanes, at speed 1; asked thousands of times for one decision."""
    fixed = moving = added = 0.0
    for _, _, once, moved, more in lanes:
        fixed = max(fixed, once)
        moving = max(moving, moved)
        added += more
    return fixed + moving + added


@dataclass(frozen=True, slots=True)
class Packs:
    """A profile of trials that go in lockstep, step by step, with those that share their slot.

    `cost_of`: of their steps. A trial takes `memory` + `per_sample` times its batch, in GiB.
    `batch`: the configuration's key with the batch size. `evaluate`: seconds of an evaluation.
    `speeds`: of slots, 1 if not listed. As a truth, give a simulator `Packs(…).of`.
    """

    cost_of: PackCost
    memory: GiB = 0.0
    per_sample: GiB = 0.0
    batch: str = "batch_size"
    evaluate: Seconds = 0.0
    speeds: Mapping[SlotId, float] = field(default_factory=dict)
    known: Mapping[TrialId, Trial] = field(default_factory=dict)

    def of(self, known: Mapping[TrialId, Trial]) -> "Packs":
        """The profile of the same figures for these trials."""
        if known is self.known:
            return self
        return Packs(
            self.cost_of,
            self.memory,
            self.per_sample,
            self.batch,
            self.evaluate,
            self.speeds,
            known,
        )

    def believe(self, state: State) -> "Packs":
        """The profile that deciders see, whatever was measured."""
        return self.of(state.known)

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        step = 0.0
        for slot in gang.slots:
            here = [self._batch(lane.trial) for lane in gang.lanes if slot in lane.slots]
            step = max(step, self.cost_of.step(here) / self.speeds.get(slot, 1.0))
        return {trial: self._batch(trial) / step for trial in gang.trials}

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        batch = self._batch(trial)
        return [batch / self.cost_of.step([batch])] * upto

    def cost(self, trial: TrialId) -> Cost:
        memory = self.memory + self.per_sample * self._batch(trial)
        return Cost(memory, evaluate=self.evaluate)

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        if before is None or after is None or before.lanes == after.lanes:
            return 0.0
        return self.cost_of.repack

    def _batch(self, trial: TrialId) -> int:
        return int(self.known[trial].config[self.batch])  # type: ignore[arg-type]
