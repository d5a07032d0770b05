"""What it costs to train several trials on one slot, step by step together.

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter Tuning", 2020: a step of
a pack moves its largest batch once, and launches once, for all; each model computes its own. Not fitted to the
paper's figures: shares and capacities are chosen after its Figure 4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.cluster import GiB, SlotId
from shoal.core.plan import Gang
from shoal.core.ports import Cost
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial, TrialId


@dataclass(frozen=True, slots=True)
class PackCost:
    """A step of batches b of k models takes `fixed` + `moving` max b + `compute` sum b + `joint` k seconds.

    `repack`: seconds to take a model out of a pack, or to put one in.

    Raises:
        ValueError: a figure below 0, or computing for nothing.
    """

    compute: Seconds  # a sample
    fixed: Seconds = 0.0  # a step, whatever is in it
    moving: Seconds = 0.0  # a sample of the largest batch
    joint: Seconds = 0.0  # a model
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
        """A model of which one step alone, at this batch, is for the part `share` common to all in a pack.

        `moving`: of that part, what grows with the batch. `joint`: of a step alone, what each model adds.

        Raises:
            ValueError: a share outside [0, 1).
        """
        if not 0 <= share < 1:
            raise ValueError(f"the shared part of a step is in [0, 1); got {share!r}")
        alone = compute * batch / (1 - share)
        common = alone * share
        return cls(compute, (1 - moving) * common, moving * common / batch, joint * alone, repack)

    def step(self, batches: Sequence[int]) -> Seconds:
        """One step of all of them."""
        return self.fixed + self.moving * max(batches) + self.compute * sum(batches) + self.joint * len(batches)

    def epoch(self, batches: Sequence[int], samples: Samples) -> Seconds:
        """One pass of each over so many samples: the largest batches are through first, and leave."""
        left = sorted(batches, reverse=True)
        spent, steps = 0.0, 0.0
        while left:
            batch = left[0]
            spent += (samples / batch - steps) * self.step(left)
            steps = samples / batch
            left = [b for b in left if b < batch]
            spent += self.repack if left else 0.0
        return spent


@dataclass(frozen=True, slots=True)
class Packs:
    """A profile of trials that go in lockstep, step by step, with those that share their slot.

    `cost`: of their steps; `memory` + `per_sample` times the batch: GiB of a trial; `batch`: the configuration's key
    with its batch size; `speeds`: of slots, 1 if not listed. As a truth, `Packs(…).of`.
    """

    cost_of: PackCost
    memory: GiB = 0.0
    per_sample: GiB = 0.0
    batch: str = "batch_size"
    evaluate: Seconds = 0.0
    speeds: Mapping[SlotId, float] = field(default_factory=dict)
    known: Mapping[TrialId, Trial] = field(default_factory=dict)

    def of(self, known: Mapping[TrialId, Trial]) -> "Packs":
        """The same figures, for these trials."""
        made = (self.cost_of, self.memory, self.per_sample, self.batch, self.evaluate, self.speeds)
        return self if known is self.known else Packs(*made, known)

    def believe(self, state: State) -> "Packs":
        """What deciders see, whatever was measured."""
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
        return Cost(self.memory + self.per_sample * self._batch(trial), evaluate=self.evaluate)

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        if before is None or after is None or before.lanes == after.lanes:
            return 0.0
        return self.cost_of.repack

    def _batch(self, trial: TrialId) -> int:
        return int(self.known[trial].config[self.batch])  # type: ignore[arg-type]
