"""Planned schedules of model hopping: several epochs of an open shop, and the best of four.

Nakandala et al., VLDB 2020, section 5; the planners here are ours. The paper's own are kept for
reference in papers/cerebro.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.trial import Seconds
from shoal.policy.hop.insertion import insertion
from shoal.policy.hop.rotation import Rotation, rotation
from shoal.policy.hop.rules import along, by_matching, in_order, most_left, varied
from shoal.policy.hop.shop import EPS, Rule, Shop, ShopSchedule, ShopUnit, dispatch

Times = Sequence[Sequence[Seconds]]  # of trial i's pass over the shard at slot j
FEW = 64  # trials: with more, list rules are as good as insertion, which takes long
BEAMS = (1, 2, 4, 8, 64)  # of insertion
TRIES = 128  # variations
UNITS = 20_000  # planned in all variations together


@dataclass(frozen=True, slots=True)
class PlannedOrder:
    """A schedule, and which way of planning it came from."""

    schedule: ShopSchedule
    how: str

    @property
    def makespan(self) -> Seconds:
        """When the schedule's last unit ends."""
        return self.schedule.makespan


def bound(times: Times, epochs: int = 1) -> Seconds:
    """No schedule is shorter: the longest trial's units, or the most loaded slot's.

    It is exact if units may be interrupted.
    """
    table = np.asarray(times, float)
    slots = table.sum(axis=0)
    trials = table.sum(axis=1)
    return epochs * float(max(slots.max(), trials.max()))


def quick4(times: Times, epochs: int = 1, barrier: bool = False) -> PlannedOrder:
    """The shortest of four kinds of plan: rotation, LRW, matching and beam insertion.

    Rotation is tried in closed form where that is legal, and as a list. Where trials are few and
    none of these meets the bound, variations of LRW are tried as well. Stops at the first plan that
    meets `bound`. One epoch's plan is repeated where it cannot be made for several at once.
    """
    return best(times, candidates(times, epochs, barrier), epochs)


def best(times: Times, plans: Iterator[PlannedOrder], epochs: int = 1) -> PlannedOrder:
    """The shortest of the plans, asked for until one meets the bound."""
    return first_within(bound(times, epochs) * (1 + EPS), plans)


def first_within(target: Seconds, plans: Iterator[PlannedOrder]) -> PlannedOrder:
    """The first of the plans that is no longer than the target; without one the shortest."""
    chosen = next(plans)
    while chosen.makespan > target:
        other = next(plans, None)
        if other is None:
            break
        if other.makespan < chosen.makespan:
            chosen = other
    return chosen


def candidates(times: Times, epochs: int = 1, barrier: bool = False) -> Iterator[PlannedOrder]:
    """The plans that `quick4` chooses from, each made when it is asked for; the cheapest first."""
    round_robin = rotation(times)
    if round_robin.ok:
        schedule = repeated(closed_form(round_robin), epochs)
        yield PlannedOrder(schedule, "rotation, closed form")
    shop = Shop.open(times)
    for how, rule in _list_rules(round_robin):
        yield PlannedOrder(dispatch(shop, rule, epochs, barrier), how)
    if len(times) <= FEW:
        yield from _inserted(times, epochs)
        for how, rule in _variations(shop):
            yield PlannedOrder(dispatch(shop, rule, epochs, barrier), how)


def _list_rules(round_robin: Rotation) -> Iterator[tuple[str, Rule]]:
    yield "largest remaining work", most_left
    yield "matching", by_matching
    yield "rotation", along(round_robin.orders)


def _inserted(times: Times, epochs: int) -> Iterator[PlannedOrder]:
    """Beam insertion, with ever wider beams."""
    for beam in BEAMS:
        schedule = repeated(insertion(times, beam), epochs)
        yield PlannedOrder(schedule, f"insertion, beam {beam}")


def _variations(shop: Shop) -> Iterator[tuple[str, Rule]]:
    """Variations of LRW, fewer of them where there are many units to plan."""
    trials = len(shop.seconds)
    for number in range(min(TRIES, UNITS // shop.fastest.size)):
        yield f"largest remaining work, variation {number}", varied(number, trials)


def closed_form(plan: Rotation) -> ShopSchedule:
    """The rotation at its padded times. Trials overlap unless `plan.ok`."""
    units = [ShopUnit(start, end, trial, slot, slot) for start, end, trial, slot in plan.units]
    return ShopSchedule(tuple(sorted(units)))


def repeated(plan: ShopSchedule, epochs: int) -> ShopSchedule:
    """One epoch's schedule, run so many times, each after the end of the one before."""
    if epochs == 1:
        return plan
    length = plan.makespan
    units = []
    for epoch in range(epochs):
        units += [_in_epoch(unit, epoch, epoch * length) for unit in plan.units]
    return ShopSchedule(tuple(sorted(units)))


def _in_epoch(unit: ShopUnit, epoch: int, before: Seconds) -> ShopUnit:
    """The unit in this epoch, so many seconds later."""
    start = unit.start + before
    return unit._replace(start=start, end=unit.end + before, epoch=epoch)


def settled(times: Times, plan: PlannedOrder, epochs: int = 1) -> PlannedOrder:
    """What becomes of the plan when a hop follows it: orders are kept, times are not."""
    schedule = dispatch(Shop.open(times), in_order(plan.schedule), epochs)
    return PlannedOrder(schedule, plan.how)
