"""Planned schedules of model hopping: several epochs of an open shop, and the best of four quick ones.

Nakandala et al., VLDB 2020, section 5; the planners here are ours. The paper's own, kept for reference, are in
`policy.reference`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.trial import Seconds
from shoal.policy.insertion import insertion
from shoal.policy.rotation import Rotation, rotation
from shoal.policy.rules import along, by_matching, in_order, most_left, varied
from shoal.policy.shop import EPS, Schedule, Shop, Unit, dispatch

Times = Sequence[Sequence[Seconds]]  # of trial i's pass over the shard at slot j
FEW = 64  # trials: with more, list rules are as good as insertion, which takes long
TRIES, UNITS = 128, 20_000  # variations, and units planned in all of them


@dataclass(frozen=True, slots=True)
class Planned:
    """A schedule, and which way of planning it came from."""

    schedule: Schedule
    how: str


def bound(times: Times, epochs: int = 1) -> Seconds:
    """No schedule is shorter: the longest trial's units, or the most loaded slot's; exact if units may be interrupted."""
    table = np.asarray(times, float)
    return epochs * float(max(table.sum(axis=0).max(), table.sum(axis=1).max()))


def quick4(times: Times, epochs: int = 1, barrier: bool = False) -> Planned:
    """The shortest of: rotation in closed form where that is legal, LRW, matching, rotation as a list, beam insertion.

    Where trials are few and none of them meets the bound, variations of LRW as well. Stops at the first that
    meets `bound`. One epoch's plan is repeated where it cannot be made for several at once.
    """
    return best(times, candidates(times, epochs, barrier), epochs)


def best(times: Times, plans: Iterator[Planned], epochs: int = 1) -> Planned:
    """The shortest of the plans, asked for until one meets the bound."""
    chosen = next(plans)
    while chosen.schedule.makespan > bound(times, epochs) * (1 + EPS):
        other = next(plans, None)
        if other is None:
            break
        if other.schedule.makespan < chosen.schedule.makespan:
            chosen = other
    return chosen


def candidates(times: Times, epochs: int = 1, barrier: bool = False) -> Iterator[Planned]:
    """The plans that `quick4` chooses from, each made when it is asked for; the cheapest first."""
    round_robin = rotation(times)
    if round_robin.ok:
        yield Planned(repeated(closed_form(round_robin), epochs), "rotation, closed form")
    shop = Shop.open(times)
    for how, rule in (("largest remaining work", most_left), ("matching", by_matching), ("rotation", along(round_robin.orders))):
        yield Planned(dispatch(shop, rule, epochs, barrier), how)
    if len(times) <= FEW:
        for beam in (1, 2, 4, 8, 64):
            yield Planned(repeated(insertion(times, beam), epochs), f"insertion, beam {beam}")
        for number in range(min(TRIES, UNITS // shop.fastest.size)):
            yield Planned(
                dispatch(shop, varied(number, len(times)), epochs, barrier), f"largest remaining work, variation {number}"
            )


def closed_form(plan: Rotation) -> Schedule:
    """The rotation at its padded times. Trials overlap unless `plan.ok`."""
    return Schedule(tuple(sorted(Unit(start, end, trial, slot, slot) for start, end, trial, slot in plan.units)))


def repeated(plan: Schedule, epochs: int) -> Schedule:
    """One epoch's schedule, run so many times, each after the end of the one before."""
    if epochs == 1:
        return plan
    length = plan.makespan
    units = (u._replace(start=u.start + k * length, end=u.end + k * length, epoch=k) for k in range(epochs) for u in plan.units)
    return Schedule(tuple(sorted(units)))


def settled(times: Times, plan: Planned, epochs: int = 1) -> Planned:
    """What becomes of the plan when it is followed as a hop follows it: orders are kept, times are not."""
    return Planned(dispatch(Shop.open(times), in_order(plan.schedule), epochs), plan.how)


def groups(trials: int, slots: int, efficiency: Callable[[int], float]) -> tuple[int, Seconds]:
    """Into how many groups of slots to divide the slots when trials are few, and how long an epoch then takes.

    Trials hop from group to group, and within a group train data-parallel. The unit is a pass of one trial over
    one slot's shard, of `slots` in an epoch: G groups take max(trials, G) / e(slots / G), where `efficiency(g)` is the measured
    speed of g slots over g times that of one. Hopping alone is G = slots; data parallelism alone, G = 1. The most
    groups among the equally fast. The paper (5.7, appendix D) hops when trials > slots / 2, else G = 1.

    Raises:
        ValueError: trials or slots below 1.
    """
    if trials < 1 or slots < 1:
        raise ValueError(f"groups need a trial and a slot or more; got {trials} trials, {slots} slots")
    takes = {count: max(trials, count) / efficiency(-(-slots // count)) for count in range(slots, 0, -1)}
    fastest = min(takes, key=lambda count: takes[count])
    return fastest, takes[fastest]
