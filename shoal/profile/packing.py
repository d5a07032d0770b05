"""What trials that share a slot have in common, per kind of trial: the costs of `profile.pack`, with its figures per row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.cluster import GiB, SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.trial import TrialId, Value
from shoal.profile.pack import PackCost


@dataclass(frozen=True, slots=True)
class Packing:
    """How a kind of trial behaves in a pack.

    `cost`: of its steps. `usual`: the batch size of trials whose configuration has no `batch`, and the one at which the
    rates beside it were measured. `per_sample`: GiB that each sample of a batch takes on top of the trial's memory.

    Raises:
        ValueError: a batch below 1, or memory below 0.
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
    def shared(cls, share: float, rate: float, usual: int, moving: float = 0.3, joint: float = 0.02, **more: Any) -> "Packing":
        """One that trains at `rate` alone at batch `usual`, and of whose steps the part `share` is common to all in a pack.

        `moving`, `joint`: as for `PackCost.sharing`. `more`: `repack` in seconds, and the fields of a `Packing`.

        Raises:
            ValueError: a share outside [0, 1), a rate or batch that is not positive, or as for `Packing`.
        """
        if not (rate > 0 and usual >= 1):
            raise ValueError(f"a step alone takes batch / rate seconds, both > 0; got batch {usual!r} and rate {rate!r}")
        compute = (1 - share) / (rate * (1 + joint))
        cost = PackCost.sharing(share, usual, compute, moving, joint, more.pop("repack", 0.0))
        return cls(cost, usual, **more)

    def size(self, config: Mapping[str, Value]) -> int:
        """The batch size of a trial with this configuration.

        Raises:
            ValueError: the configuration has one that is no number of samples.
        """
        found: Any = config.get(self.batch, self.usual)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or found < 1:
            raise ValueError(f"{self.batch} must be a number of samples >= 1; got {found!r}")
        return int(found)

    def rate(self, batch: int | None = None) -> float:
        """Samples/s of one alone on a slot, at this batch size (default: the usual one)."""
        size = self.usual if batch is None else batch
        return size / self.cost.step([size])


def together(
    gang: Gang,
    known: Mapping[TrialId, tuple[Packing, int]],
    alone: Callable[[Lane], float],
    speeds: Mapping[SlotId, float],
) -> dict[TrialId, float]:
    """Samples/s of lanes that go step by step together: a step takes as long as on the slot where it takes longest.

    Of what is shared on a slot, the dearest counts once; what each computes is added up. A wide lane takes a batch on each of
    its slots, and its steps are longer by as much as its rate alone falls short of perfect scaling.
    """
    step = 0.0
    for slot in gang.slots:
        here = [known[lane.trial] for lane in gang.lanes if slot in lane.slots]
        fixed = max(packing.cost.fixed for packing, _ in here)
        moving = max(packing.cost.moving * batch for packing, batch in here)
        own = sum(packing.cost.compute * batch + packing.cost.joint for packing, batch in here)
        step = max(step, (fixed + moving + own) / speeds.get(slot, 1.0))
    slowed = 1.0
    for lane in gang.lanes:
        if len(lane.slots) > 1:
            packing, batch = known[lane.trial]
            perfect = packing.rate(batch) * len(lane.slots) * min(speeds.get(slot, 1.0) for slot in lane.slots)
            slowed = max(slowed, perfect / alone(lane))
    return {lane.trial: known[lane.trial][1] * len(lane.slots) / (step * slowed) for lane in gang.lanes}
