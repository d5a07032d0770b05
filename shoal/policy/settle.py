"""From how many slots to which: what shrinks releases, what grows takes; nothing migrates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.cluster import GiB, Slot, SlotId
from shoal.core.trial import TrialId
from shoal.policy.spatial import Near, Spatial, Stock, exposure, release, take

Moved = dict[TrialId, tuple[SlotId, ...]]


@dataclass(frozen=True, slots=True)
class Claim:
    """A trial, the slots it holds, and how many it should have. Trials of one `kind` gain alike from each count."""

    trial: TrialId
    held: tuple[SlotId, ...]
    count: int
    need: GiB = 0.0
    fewest: int = 1
    kind: int = 0

    @property
    def more(self) -> int:
        return self.count - len(self.held)


def by_index(claims: Sequence[Claim], free: Sequence[SlotId], slots: Mapping[SlotId, Slot]) -> Moved:
    """The newest slots of a trial go first; free ones are taken in the order given, the neediest trials choosing first.

    Where too few slots are big enough, a trial takes those, or waits if they are fewer than it can run on.
    """
    moved = {c.trial: c.held[: c.count] for c in claims if c.more < 0}
    pool = [*free, *(s for c in claims if c.more < 0 for s in c.held[c.count :])]
    for claim in sorted((c for c in claims if c.more > 0), key=lambda c: -c.need):
        if claim.need == 0.0:
            new, pool = pool[: claim.more], pool[claim.more :]
        else:
            new = [slot for slot in pool if slots[slot].memory >= claim.need][: claim.more]
            if len(claim.held) + len(new) < claim.fewest:
                new = []
            taken = set(new)
            pool = [slot for slot in pool if slot not in taken]
        if new:
            moved[claim.trial] = (*claim.held, *new)
    return moved


def by_rack(
    claims: Sequence[Claim], free: Sequence[SlotId], slots: Mapping[SlotId, Slot], spatial: Spatial, cohorts: Mapping[str, int]
) -> Moved:
    """Slots that are likely to leave together serve one trial. Slots too small for some trial are shared out by index."""
    biggest = max(c.need for c in claims)
    if any(slot.memory < biggest for slot in slots.values()):
        return by_index(claims, free, slots)
    yard = _Yard(claims, free, slots, spatial, cohorts)
    moved: Moved = {}
    for claim in (c for c in claims if c.more < 0):
        own = yard.stock(claim.held)
        going = yard.pick(claim.held, release(own, -claim.more, yard.near))
        moved[claim.trial] = tuple(slot for slot in claim.held if slot not in going)
        yard.free += sorted(going)
    for claim in sorted(yard.fairly(claims), key=lambda c: -c.count):
        wish = take(yard.stock(claim.held), yard.stock(yard.free), claim.more, yard.near)
        new = yard.pick(yard.free, wish)
        yard.free = [slot for slot in yard.free if slot not in new]
        moved[claim.trial] = (*claim.held, *sorted(new))
    return moved


class _Yard:
    """The slots by class (rack, and when they joined), and how near the classes are."""

    def __init__(
        self,
        claims: Sequence[Claim],
        free: Sequence[SlotId],
        slots: Mapping[SlotId, Slot],
        spatial: Spatial,
        cohorts: Mapping[str, int],
    ) -> None:
        self.free = list(free)
        like = {(c.kind, len(c.held)) for c in claims if c.more > 0}
        near = [s for c in claims if c.more != 0 or (c.kind, len(c.held)) in like for s in c.held]
        keys = {s: (spatial.position(slots[s].node), cohorts.get(s, 0)) for s in (*self.free, *near)}
        number = {key: i for i, key in enumerate(sorted(set(keys.values())))}
        self.kind = {s: number[key] for s, key in keys.items()}
        racks, joined = (np.array(column) for column in zip(*number, strict=True))
        self.near: Near = spatial.near(racks.astype(float), joined)

    def stock(self, slots: Sequence[SlotId]) -> Stock:
        kinds = [self.kind[s] for s in slots]
        return np.bincount(np.array(kinds, np.int64), minlength=len(self.near))

    def pick(self, slots: Sequence[SlotId], wish: Stock) -> set[SlotId]:
        """So many of each class, the first ones of those given."""
        left, picked = wish.tolist(), set()
        for slot in slots:
            kind = self.kind[slot]
            if left[kind] > 0:
                left[kind] -= 1
                picked.add(slot)
        return picked

    def fairly(self, claims: Sequence[Claim]) -> list[Claim]:
        """The claims that grow; where one might as well stay and its like grow instead, the better placed of them does."""
        stay: dict[tuple[int, int], list[Claim]] = {}
        for c in claims:
            if c.more == 0 and c.held:
                stay.setdefault((c.kind, len(c.held)), []).append(c)
        stock, grown = self.stock(self.free), []
        for claim in (c for c in claims if c.more > 0):
            rivals = stay.get((claim.kind, len(claim.held)), [])
            if rivals and claim.held:
                best = min((claim, *rivals), key=lambda c: exposure(self.stock(c.held), stock, claim.more, self.near))
                if best is not claim:
                    rivals.remove(best)
                    rivals.append(replace(claim, count=len(claim.held)))
                    claim = replace(best, count=claim.count)
            grown.append(claim)
        return grown
