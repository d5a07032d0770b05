"""Hops as planned: each trial's order of shards follows a simulated best schedule. Ours.

The order is fixed once the speeds of the trial and of the slots are known: at once where a profile
gives them, else after pilots, which are visits that measure them. What a trial learns depends on
its order of shards alone, so orders outlive lost slots and new measurements. Only where a visit is
made follows events.

The memory has the order of each trial. Under `PILOTS` it has the pilots of trials without one.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Gang, solo
from shoal.core.state import View, epoch_of
from shoal.core.trial import Seconds, TrialId
from shoal.policy.hop.live_rules import by_links
from shoal.policy.hop.schedules import best, candidates, quota, settled
from shoal.policy.hop.shop import EPS, Floats, Running, Shop, ShopSchedule
from shoal.policy.idle import fits
from shoal.profile.evidence import clocked_as, links
from shoal.profile.slot_speeds import Links

Step = Sequence[Any]  # a planned visit: (shard, slot, start)
Order = Sequence[Step]  # of one trial, in one epoch
Orders = Mapping[str, Any]  # JSON-able
PILOTS = ""  # no trial is called so
Shards = frozenset[ShardId]
Holder = tuple[SlotId, Shards]
ABSENT = SlotId("")  # stands for the holder of a shard that lies nowhere yet
Trials = Sequence[TrialId]
Slots = Sequence[Slot]
ByShards = dict[Shards, list[TrialId]]
Choice = tuple[Slot, TrialId, ShardId]


class Head(NamedTuple):
    """The next visit of a trial; of several the smallest goes first.

    `number`: the trial's place among those that wait.
    """

    epoch: int
    start: Seconds
    number: int
    trial: TrialId
    shard: ShardId


# -- what idle slots take


def by_plan(view: View, slots: Slots, trials: Trials, orders: Orders) -> list[Choice]:
    """The choices of idle slots: pilots of trials without an order, then what is due by orders."""
    ordered = [trial for trial in trials if trial in orders]
    known = links(view.profile)
    if len(ordered) == len(trials) or known is None:
        return list(by_order(view, slots, ordered, orders))
    free = [trial for trial in trials if trial not in orders]
    pilots = by_links(view, slots, free, known)
    taken = {slot.id for slot, _, _ in pilots}
    rest = [slot for slot in slots if slot.id not in taken]
    return [*pilots, *by_order(view, rest, ordered, orders)]


def noted(view: View, orders: Orders, choices: Sequence[Choice]) -> Orders:
    """The memory with those of the choices that are pilots."""
    pilots = dict(orders.get(PILOTS, {}))
    for slot, trial, shard in choices:
        if trial not in orders:
            step = [shard, slot.id, view.now]
            pilots[str(trial)] = [*pilots.get(trial, ()), step]
    if not pilots:
        return orders
    return {**orders, PILOTS: pilots}


def by_order(view: View, slots: Slots, trials: Trials, orders: Orders) -> Iterator[Choice]:
    """Each idle slot takes the trial that is due there.

    It is one of the earliest epoch, and of those the one that was planned first.
    A trial whose planned slot is away, or holds the shard no more, takes any other that does.
    """
    lines = _lines(view, slots, trials, orders)
    taken: set[TrialId] = set()
    for slot in sorted(slots, key=lambda s: len(lines[s.id])):
        for head in sorted(lines[slot.id]):
            if head.trial not in taken and fits(view, head.trial, slot):
                taken.add(head.trial)
                yield slot, head.trial, head.shard
                break


def _lines(view: View, slots: Slots, trials: Trials, orders: Orders) -> dict[SlotId, list[Head]]:
    """The trials that may begin their next visit at each idle slot."""
    lines: dict[SlotId, list[Head]] = {slot.id: [] for slot in slots}
    for number, trial in enumerate(trials):
        if not view.pending[trial]:
            continue
        head, planned = _head(view, number, trial, orders[trial])
        for place in _places(view, slots, head, planned):
            if place in lines:
                lines[place].append(head)
    return lines


def planned_shards(orders: Orders, trial: TrialId) -> Sequence[ShardId] | None:
    """The trial's shards in the order planned; None: it has no order yet."""
    if trial not in orders:
        return None
    return tuple(visit[0] for visit in orders[trial])


def _head(view: View, number: int, trial: TrialId, order: Order) -> tuple[Head, SlotId]:
    """The next visit of the trial, and the slot where that is planned."""
    shard, slot, start = _next(view, trial, order)
    epoch = epoch_of(view.visits[trial], len(order))
    return Head(epoch, start, number, trial, shard), slot


def _places(view: View, slots: Slots, head: Head, planned: SlotId) -> list[SlotId]:
    """The planned slot; if that cannot serve the visit, any of these that hold the shard."""
    holder = view.slots.get(planned)
    if holder is not None and head.shard in holder.shards and fits(view, head.trial, holder):
        return [planned]
    return [slot.id for slot in slots if head.shard in slot.shards]


def _next(view: View, trial: TrialId, order: Order) -> Step:
    """The visit that is due; else the first in order whose shard is pending."""
    pending = view.pending[trial]
    due = order[len(view.visits[trial]) % len(order)]
    if due[0] in pending:
        return due
    return next(visit for visit in order if visit[0] in pending)


# -- the orders


def order_all(view: View, orders: Orders) -> Orders:
    """The orders, with one for every trial that can have one; the same object if none is new.

    Newcomers are planned together, beside those at work, once their speeds are known. A shard that
    lies nowhere is planned as if a slot of its own had it.
    """
    if view.trials.keys() <= orders.keys():
        return orders
    fresh = _newcomers(view, orders)
    if not fresh:
        return orders
    pilots = dict(orders.get(PILOTS, {}))
    after: dict[str, Any] = {}
    for trial, order in orders.items():
        if trial != PILOTS:
            after[str(trial)] = [list(visit) for visit in order]
    for shards in sorted(map(sorted, fresh)):
        planned = _planned(view, fresh[frozenset(shards)], shards, pilots)
        after.update(planned)
        for trial in planned:
            pilots.pop(trial, None)
    if pilots:
        after[PILOTS] = pilots
    return after


def _newcomers(view: View, orders: Orders) -> ByShards:
    """The trials that can be planned now, by their shards: their data is divided."""
    fresh: ByShards = defaultdict(list)
    for name, trial in view.trials.items():
        if name not in orders and trial.shards:
            fresh[trial.shards].append(name)
    known = links(view.profile)
    if known is None:
        return fresh
    return {
        shards: trials
        for shards, trials in fresh.items()
        if _comparable(view, trials, shards, known)
    }


def _comparable(view: View, trials: Trials, shards: Shards, known: Links) -> bool:
    """Whether all these trials have known speeds at the slots that hold their shards."""
    slots = [name for name, _ in _present_holders(view, sorted(shards))]
    if len(slots) < 2:
        return True
    kinds = {clocked_as(view.profile, trial) for trial in trials}
    return known.hang_together(kinds, slots)


def _planned(
    view: View, trials: Trials, shards: Sequence[ShardId], pilots: Orders
) -> dict[str, list[Step]]:
    """An order for each of these trials, from one schedule for all: its pilots come first."""
    seconds, slots = _seconds(view, trials, shards)
    left = [_left(view, trial) for trial in trials]
    wanted = np.array([[shard in rest for shard in shards] for rest in left])
    shop = Shop(seconds)
    if not wanted.all():
        shop = Shop(seconds, wanted, _under_way(view, trials, slots, pilots))
    schedule, visited = _scheduled(shop)
    orders: dict[str, list[Step]] = {}
    for trial, rest in zip(trials, left, strict=True):
        orders[str(trial)] = _begun(view, trial, rest, pilots.get(trial, ()))
    for unit in schedule.units:
        order = orders[trials[unit.trial]]
        for q in visited[unit.shard]:
            order.append([shards[q], slots[unit.slot], view.now + unit.start])
    return orders


def _left(view: View, trial: TrialId) -> Shards:
    """The shards that the trial has yet to begin a visit to, in its epoch."""
    gang = view.running.get(trial)
    if gang is None:
        return view.pending[trial]
    return view.pending[trial].difference(gang.shards)


def _begun(view: View, trial: TrialId, left: Shards, pilots: Order) -> list[Step]:
    """The visits that the trial has made in its epoch, and those that it makes now."""
    shards = view.trials[trial].shards
    count = len(view.visits[trial]) % len(shards)
    begun = [visit.shard for visit in view.visits[trial][-count:]] if count else []
    begun += sorted(shards.difference(left, begun))
    known = {step[0]: list(step) for step in pilots}
    steps: list[Step] = []
    for shard in begun:
        holders = _present_holders(view, [shard])
        slot = holders[0][0] if len(holders) == 1 else ABSENT
        steps.append(known.get(shard, [shard, slot, view.now]))
    return steps


def _under_way(
    view: View, trials: Trials, slots: Sequence[SlotId], pilots: Orders
) -> tuple[Running, ...]:
    """The visits of these trials that began already: when they end, from now."""
    running: list[Running] = []
    for i, trial in enumerate(trials):
        gang = view.running.get(trial)
        if gang is None or len(gang.shards) != 1 or not gang.slots <= set(slots):
            continue
        slot = min(gang.slots)
        rest = _rest_of_visit(view, gang, trial, pilots.get(trial, ()))
        running.append((rest, i, slots.index(slot)))
    return tuple(running)


def _rest_of_visit(view: View, gang: Gang, trial: TrialId, pilots: Order) -> Seconds:
    """Seconds until the visit under way ends.

    Half of it is taken to be left if it is no pilot, for then nothing says when it began.
    """
    shard = gang.shards[0]
    whole = view.shards[shard] / _rate(view, trial, min(gang.slots))
    if not pilots or pilots[-1][0] != shard:
        return whole / 2
    begin: Seconds = pilots[-1][2]
    return max(EPS, begin + whole - view.now)


def _scheduled(shop: Shop) -> tuple[ShopSchedule, list[list[int]]]:
    """A schedule of the shop, and which shards each shard of it stands for, by number."""
    holders = shop.holds
    if bool((holders.sum(axis=1) == 1).all()) and shop.wanted is None:
        # An open shop of the slots, and the shards that each unit of it visits.
        homes = sorted(set(holders.argmax(axis=1).tolist()))
        visited = [np.flatnonzero(holders[:, home]).tolist() for home in homes]
        # For each trial, the seconds of its unit at each of these slots.
        columns = []
        for home, shards in zip(homes, visited, strict=True):
            columns.append(shop.seconds[:, shards, home].sum(axis=1))
        times: list[list[Seconds]] = np.stack(columns, axis=1).tolist()
        plans = (settled(times, plan) for plan in candidates(times))
        chosen = best(times, plans).schedule
        units = tuple(unit._replace(slot=homes[unit.slot]) for unit in chosen.units)
        return ShopSchedule(units), visited
    schedule = ShopSchedule(())
    if shop.pending.any():
        schedule = quota(shop).schedule
    return schedule, [[q] for q in range(len(holders))]


def _seconds(view: View, trials: Trials, shards: Sequence[ShardId]) -> tuple[Floats, list[SlotId]]:
    """(trials, shards, slots): seconds of each pass; and the slots.

    Infinite where the slot does not hold the shard.
    """
    holders = _holders(view, shards)
    sizes = [view.shards[shard] for shard in shards]
    table = np.full((len(trials), len(shards), len(holders)), inf)
    for column, (name, here) in enumerate(holders):
        rates = [_rate(view, trial, name) for trial in trials]
        for place, shard in enumerate(shards):
            if shard in here:
                table[:, place, column] = sizes[place] / np.array(rates)
    return table, [name for name, _ in holders]


def _holders(view: View, shards: Sequence[ShardId]) -> list[Holder]:
    """The slots that hold any of these shards, and which.

    At the end an absent slot for each shard that lies nowhere.
    """
    holders = _present_holders(view, shards)
    present = frozenset().union(*(here for _, here in holders))
    lost = [shard for shard in shards if shard not in present]
    return holders + [(ABSENT, frozenset([shard])) for shard in lost]


def _present_holders(view: View, shards: Sequence[ShardId]) -> list[Holder]:
    """The slots that hold any of these shards, and which."""
    holders = []
    for name, slot in sorted(view.slots.items()):
        here = slot.shards.intersection(shards)
        if here:
            holders.append((name, here))
    return holders


def _rate(view: View, trial: TrialId, slot: SlotId) -> float:
    """Samples/s of the trial at this slot; at an absent one, those at a slot of speed 1."""
    if slot == ABSENT:
        return view.profile.curve(trial, 1)[0]
    return view.profile.rates(solo(trial, slot, view.turn))[trial]
