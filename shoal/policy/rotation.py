"""Rotation: every trial goes round the shards in one direction, each group of trials starting elsewhere.

Ours. As a closed form it is an optimal open-shop schedule where `Rotation.ok`; as a list
of what comes next (`seat`, `next_shard`) it fixes each trial's order of visits whatever the timing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.cluster import ShardId
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId

Memory = Mapping[str, Any]  # "rings": sorted shards, by number; "seats": trial -> [group, place in the line, ring]
Unit = tuple[Seconds, Seconds, int, int]  # start, end, trial, slot


@dataclass(frozen=True, slots=True)
class Rotation:
    """One epoch as a schedule. Slots and trials are numbered as the rows and columns they came from.

    `ok`: no trial is ever needed twice at once, and the makespan is the load of the slowest slot.
    """

    groups: tuple[tuple[int, ...], ...]
    orders: tuple[tuple[int, ...], ...]  # trials in the order of each slot
    units: tuple[Unit, ...]  # at padded times: valid if ok
    ok: bool

    @property
    def makespan(self) -> Seconds:
        return max((end for _, end, _, _ in self.units), default=0.0)


def spread(sizes: Sequence[float], bins: int) -> list[int]:
    """The bin of each size: the largest goes first, always to the emptiest bin (LPT)."""
    full = [0.0] * bins
    chosen = [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        chosen[item] = full.index(min(full))
        full[chosen[item]] += sizes[item]
    return chosen


def rotation(times: Sequence[Sequence[Seconds]]) -> Rotation:
    """The rotation schedule of one epoch; `times[i][j]`: seconds of trial i's unit at slot j.

    A trial's padded time is that of its slowest unit. The most loaded slot starts with group 0. It is
    `ok` when the smallest group's padded time is at least the longest padded time of one trial.
    """
    slots = len(times[0])
    padded = [max(row) for row in times]
    bins = spread(padded, slots)
    by_size = sorted(range(len(times)), key=lambda i: (-padded[i], i))
    groups = tuple(tuple(i for i in by_size if bins[i] == g) for g in range(slots))
    load = [sum(row[j] for row in times) for j in range(slots)]
    orders: list[tuple[int, ...]] = [()] * slots
    units: list[Unit] = []
    for rank, slot in enumerate(sorted(range(slots), key=lambda j: (-load[j], j))):
        orders[slot] = tuple(i for g in (*groups[rank:], *groups[:rank]) for i in g)
        start = 0.0
        for i in orders[slot]:
            units.append((start, start + times[i][slot], i, slot))
            start += padded[i]
    sums = [sum(padded[i] for i in group) for group in groups]
    return Rotation(groups, tuple(orders), tuple(sorted(units)), min(sums) >= max(padded) - 1e-9)


def seat(view: View, memory: Memory) -> Memory:
    """The memory, with a seat for every trial that had none; the same object when all have one.

    Trials first seen together are spread by the time they take; later ones go to the group that has
    had the fewest, so that an arrival's group depends on the order of arrivals alone.
    """
    if memory and view.trials.keys() <= memory["seats"].keys():
        return memory
    rings: list[list[str]] = list(memory.get("rings", ()))
    seats: dict[str, list[int]] = dict(memory.get("seats", {}))
    first = not seats
    for trial in [t for t in view.trials if t not in seats]:
        ring = [str(s) for s in sorted(view.trials[trial].shards)]
        if ring not in rings:
            rings.append(ring)
        seats[trial] = [-1, len(seats), rings.index(ring)]
    for number, ring in enumerate(rings):
        new = [TrialId(t) for t, (group, _, r) in seats.items() if group < 0 and r == number]
        had = [group for group, _, r in seats.values() if group >= 0 and r == number]
        for trial, group in zip(new, _groups(view, new, had, len(ring), first), strict=True):
            seats[trial] = [group, *seats[trial][1:]]
    return {"rings": rings, "seats": seats}


def _groups(view: View, new: Sequence[TrialId], had: Sequence[int], bins: int, first: bool) -> Sequence[int]:
    if not bins:
        return [0] * len(new)
    if first:
        return spread([1.0 / view.profile.curve(t, 1)[0] for t in new], bins)
    counts = [had.count(group) for group in range(bins)]
    groups = []
    for _ in new:
        groups.append(counts.index(min(counts)))
        counts[groups[-1]] += 1
    return groups


def next_shard(ring: Sequence[ShardId], group: int, made: int, pending: Collection[ShardId]) -> ShardId | None:
    """The shard that a trial of this group visits next, after `made` visits; None: no shard is pending.

    `ring`: the trial's shards, sorted. From shard number `group` it goes downwards, round and round, so that
    the slot at shard r meets the groups r, r + 1, … in turn. Shards visited out of turn (under another
    policy) are passed over.
    """
    expected = ring[(group - made) % len(ring)]
    if expected in pending:
        return expected
    return next((s for k in range(len(ring)) if (s := ring[(group - k) % len(ring)]) in pending), None)
