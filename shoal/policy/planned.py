"""Hops as planned: each trial's order of shards is fixed when it is first seen, from a simulated best schedule.

Ours. What a trial learns depends on its order of shards alone, so orders outlive lost slots and
new measurements: an interrupted run equals the undisturbed one. Only where a visit is made follows events.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import solo
from shoal.core.state import View, epoch_of
from shoal.core.trial import Seconds, TrialId
from shoal.policy.idle import fits
from shoal.policy.openshop import best, candidates, settled
from shoal.policy.replicas import quota
from shoal.policy.shop import Flags, Floats, Schedule, Shop

Choice = tuple[Slot, TrialId, ShardId]
Order = Sequence[Sequence[Any]]  # of one trial: (shard, slot, start) of each visit in an epoch
Orders = Mapping[str, Order]  # JSON-able
Head = tuple[int, Seconds, int, TrialId, ShardId]  # epoch, planned start, place among the trials, and what
ABSENT = SlotId("")  # stands for the holder of a shard that lies nowhere yet


def order_all(view: View, orders: Orders) -> Orders:
    """The orders, with one for every trial that had none; the same object when all have one.

    Newcomers are planned together, beside those at work. A shard that lies nowhere is planned as if a slot
    of its own had it.
    """
    if view.trials.keys() <= orders.keys():
        return orders
    new = [t for t, trial in view.trials.items() if t not in orders and trial.shards]
    if not new:
        return orders
    made = {str(t): [list(visit) for visit in order] for t, order in orders.items()}
    for shards in sorted({tuple(sorted(view.trials[t].shards)) for t in new}):
        alike = [t for t in new if view.trials[t].shards == frozenset(shards)]
        made.update(_planned(view, alike, shards))
    return made


def by_order(view: View, slots: Sequence[Slot], trials: Sequence[TrialId], orders: Orders) -> Iterator[Choice]:
    """Each idle slot takes the trial that is due there: of the earliest epoch, then the earliest planned.

    A trial whose planned slot is away, or holds the shard no more, takes any other that does.
    """
    lines: dict[SlotId, list[Head]] = {slot.id: [] for slot in slots}
    for number, trial in enumerate(trials):
        if view.pending[trial]:
            shard, planned, start = _next(orders[trial], len(view.visits[trial]), view.pending[trial])
            head = (epoch_of(view.visits[trial], len(orders[trial])), start, number, trial, shard)
            for slot in [planned] if _serves(view, trial, shard, planned) else [s.id for s in slots if shard in s.shards]:
                if slot in lines:
                    lines[slot].append(head)
    taken: set[TrialId] = set()
    for slot in sorted(slots, key=lambda s: len(lines[s.id])):
        due = (head for head in sorted(lines[slot.id]) if head[3] not in taken and fits(view, head[3], slot))
        first = next(due, None)
        if first is not None:
            taken.add(first[3])
            yield slot, first[3], first[4]


def _next(order: Order, made: int, pending: Collection[ShardId]) -> Sequence[Any]:
    due = order[made % len(order)]
    return due if due[0] in pending else next(visit for visit in order if visit[0] in pending)


def _serves(view: View, trial: TrialId, shard: ShardId, slot: SlotId) -> bool:
    return slot in view.slots and shard in view.slots[slot].shards and fits(view, trial, view.slots[slot])


def _planned(view: View, trials: Sequence[TrialId], shards: Sequence[ShardId]) -> dict[str, list[list[Any]]]:
    seconds, slots = _seconds(view, trials, shards)
    holders: Flags = np.asarray(np.isfinite(seconds).any(axis=0))
    if (holders.sum(axis=1) == 1).all():
        schedule, visited = _each_at_home(seconds, holders)
    else:
        schedule, visited = quota(Shop(seconds)).schedule, [[q] for q in range(len(shards))]
    orders: dict[str, list[list[Any]]] = {str(t): [] for t in trials}
    for unit in schedule.units:
        orders[trials[unit.trial]] += [[shards[q], slots[unit.slot], unit.start] for q in visited[unit.shard]]
    return orders


def _each_at_home(seconds: Floats, holders: Flags) -> tuple[Schedule, list[list[int]]]:
    """An open shop of the slots; a slot's several shards are one unit there. With each unit, its shards."""
    homes = sorted(set(holders.argmax(axis=1)))
    visited = [[int(q) for q in np.flatnonzero(holders[:, w])] for w in homes]
    times = np.stack([seconds[:, at, w].sum(axis=1) for at, w in zip(visited, homes, strict=True)], axis=1).tolist()
    chosen = best(times, (settled(times, plan) for plan in candidates(times))).schedule
    return Schedule(tuple(u._replace(slot=int(homes[u.slot])) for u in chosen.units)), visited


def _seconds(view: View, trials: Sequence[TrialId], shards: Sequence[ShardId]) -> tuple[Floats, list[SlotId]]:
    """(trials, shards, slots): seconds of each pass, infinite where the slot does not hold the shard; and the slots."""
    sizes = {q: view.shards[q] for q in shards}
    columns = [(name, [q in slot.shards for q in shards]) for name, slot in sorted(view.slots.items())]
    columns = [(name, held) for name, held in columns if any(held)]
    absent = [q for q in shards if not any(held[shards.index(q)] for _, held in columns)]
    columns += [(ABSENT, [q == lost for q in shards]) for lost in absent]
    seconds = np.full((len(trials), len(shards), len(columns)), inf)
    for w, (name, held) in enumerate(columns):
        for i, trial in enumerate(trials):
            rate = view.profile.rates(solo(trial, name, view.turn))[trial] if name else view.profile.curve(trial, 1)[0]
            seconds[i, held, w] = [sizes[q] / rate for q, here in zip(shards, held, strict=True) if here]
    return seconds, [name for name, _ in columns]
