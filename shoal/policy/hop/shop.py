"""A shop: trials that visit every shard once an epoch, at slots that hold it; and its simulation.

The paper's open shop (Nakandala et al., VLDB 2020, section 5) is the special case in which slot j
alone holds shard j; replicas (its section 5.5) give a shard several slots. Everything is plain
numbers: trials, shards and slots are indices. The planner simulates hundreds of schedules in the
time of one decision, so this is not the simulator of whole studies (`shoal.backend.sim`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.core.trial import Seconds

EPS = 1e-9
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]
Ends = dict[int, Seconds]  # of each trial
Pick = tuple[int, int, int]  # trial, shard, slot
Running = tuple[Seconds, int, int]  # end, trial, slot


class ShopUnit(NamedTuple):
    """One pass of one trial over one shard at one slot."""

    start: Seconds
    end: Seconds
    trial: int
    shard: int
    slot: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ShopSchedule:
    """Units with their times, by start."""

    units: tuple[ShopUnit, ...]

    @property
    def makespan(self) -> Seconds:
        """When the last unit ends."""
        return max((unit.end for unit in self.units), default=0.0)

    def completions(self) -> Ends:
        """When each trial ends its last unit."""
        ends: Ends = {}
        for unit in self.units:
            ends[unit.trial] = max(unit.end, ends.get(unit.trial, 0.0))
        return ends

    def orders(self, slots: int) -> list[list[int]]:
        """The trials of each slot, in the order in which it takes them first."""
        orders: list[dict[int, None]] = [{} for _ in range(slots)]
        for unit in self.units:
            orders[unit.slot].setdefault(unit.trial)
        return [list(order) for order in orders]


@dataclass(frozen=True)
class Shop:
    """How long every pass takes at every slot.

    `seconds[i, q, w]`: trial i's pass over shard q at slot w; infinite where w does not hold q.
    `wanted[i, q]`: whether trial i has yet to visit shard q (None: all have all to visit).
    `running`: the passes under way, which end at these times from now.

    Raises:
        ValueError: not of three dimensions, a time that is not positive, or a pass that no slot can
            make.
    """

    seconds: Floats
    wanted: Flags | None = None
    running: tuple[Running, ...] = ()

    def __post_init__(self) -> None:
        if self.seconds.ndim != 3 or not self.seconds.size:
            raise ValueError(
                "a shop's times are (trials, shards, slots), each at least 1; "
                f"got shape {self.seconds.shape}"
            )
        if not (self.seconds > 0).all():
            raise ValueError("every pass takes more than 0 seconds; check the rates of the profile")
        lost = np.argwhere(np.isinf(self.fastest))
        if lost.size:
            trial, shard = lost[0]
            raise ValueError(
                f"no slot can pass trial {trial} over shard {shard}: "
                "each needs a slot that holds it"
            )

    @classmethod
    def open(cls, times: ArrayLike) -> "Shop":
        """The paper's shop: shard j lies at slot j only.

        `times[i][j]`: seconds of trial i's pass over shard j.
        """
        table = np.asarray(times, float)
        slots = table.shape[1]
        seconds = np.full((*table.shape, slots), inf)
        numbers = np.arange(slots)
        seconds[:, numbers, numbers] = table
        return cls(seconds)

    @cached_property
    def fastest(self) -> Floats:
        """(trials, shards): the time at the fastest slot that holds the shard."""
        fastest: Floats = self.seconds.min(axis=2)
        return fastest

    @cached_property
    def pending(self) -> Flags:
        """(trials, shards): the passes to make in an epoch."""
        if self.wanted is None:
            return np.ones(self.fastest.shape, bool)
        return self.wanted

    @cached_property
    def least(self) -> Floats:
        """(trials, shards): `fastest` of the passes to make; 0 of others."""
        least: Floats = np.where(self.pending, self.fastest, 0.0)
        return least

    @cached_property
    def speeds(self) -> Floats:
        """Passes that each slot makes in a second, in the mean; 0 where it holds nothing."""
        passes = np.isfinite(self.seconds)
        seconds = np.where(passes, self.seconds, 0.0).sum(axis=(0, 1))
        speeds: Floats = passes.sum(axis=(0, 1)) / np.maximum(seconds, EPS)
        return speeds

    @cached_property
    def holds(self) -> Flags:
        """(shards, slots): whether the slot can serve the shard."""
        holds: Flags = np.asarray(np.isfinite(self.seconds).any(axis=0))
        return holds

    @cached_property
    def work(self) -> Floats:
        """(shards, slots): the slot's seconds for all passes over the shard.

        0 where the slot lacks the shard.
        """
        passes = np.isfinite(self.seconds) & self.pending[:, :, None]
        seconds = np.where(passes, self.seconds, 0.0)
        work: Floats = seconds.sum(axis=0)
        return work


class Floor:
    """The state of a simulated shop, as a rule sees it; a rule may not write to it."""

    def __init__(self, shop: Shop, epochs: int) -> None:
        trials = len(shop.seconds)
        self.shop = shop
        self.epochs = epochs
        self.now: Seconds = 0.0
        self.turn = 0  # decisions made so far

        # Of each trial: whether it is idle, the epoch it is in, and what is pending of that.
        self.idle: Flags = np.ones(trials, bool)
        self.epoch: Indices = np.zeros(trials, int)
        self.pending: Flags = shop.pending.copy()

        # Seconds of each trial, over all epochs, at the fastest slots; and of each shard.
        self.left: Floats = shop.least.sum(axis=1) * epochs
        self.load: Floats = shop.least.sum(axis=0) * epochs
        self.work: Floats = shop.work * epochs  # (shards, slots)
        # (shards, slots): passes over the shard begun there, in epochs' worth.
        self.served: Floats = np.zeros(shop.holds.shape)

    def may_start(self, trial: int, shard: int, slot: int) -> bool:
        """Whether an idle trial has this pass to make, at a slot that holds the shard."""
        if not self.idle[trial] or not self.pending[trial, shard]:
            return False
        return bool(self.shop.holds[shard, slot])

    def start(self, trial: int, shard: int, slot: int) -> None:
        """Note that the trial's pass over the shard begins at the slot."""
        self.idle[trial] = False
        self.pending[trial, shard] = False

        fastest = self.shop.fastest[trial, shard]
        self.left[trial] -= fastest
        self.load[shard] -= fastest

        seconds = self.shop.seconds[trial, shard]
        self.work[shard] -= np.where(self.shop.holds[shard], seconds, 0.0)
        self.served[shard, slot] += seconds[slot] / self.shop.work[shard, slot]

    def begin_epoch(self, barrier: bool) -> None:
        """Begin an epoch for the trials that ended theirs.

        At a barrier it begins for all at once or for none.
        """
        ended = ~self.pending.any(axis=1) & self.idle
        over = ended & (self.epoch < self.epochs - 1)
        goes_on = over.any()
        if barrier:
            goes_on = over.all()
        if goes_on:
            self.pending[over] = True
            self.epoch[over] += 1


Rule = Callable[[Floor, Sequence[int]], Iterable[Pick]]


def dispatch(
    shop: Shop, rule: Rule, epochs: int = 1, barrier: bool = False, actual: Shop | None = None
) -> ShopSchedule:
    """The schedule by a rule that gives idle slots units to begin, at time 0 and when units end.

    `rule` gets the idle slots, in order, and names units of idle trials that are pending.
    `barrier`: no trial begins an epoch before all have ended the one before. `actual`: the times
    that pass, where they are not those the rule believes in.

    Raises:
        ValueError: the rule named a unit that cannot begin, or none while nothing ran.
    """
    floor = Floor(shop, epochs)
    work = _Dispatch(floor, (actual or shop).seconds)
    total = int(shop.pending.sum()) * epochs
    while len(work.units) < total:
        for trial, shard, slot in list(rule(floor, sorted(work.free))):
            work.start(trial, shard, slot)
        floor.turn += 1
        if not work.running:
            undone = total - len(work.units)
            raise ValueError(f"the rule leaves {undone} units undone and every slot idle")
        work.to_the_next_end()
        if epochs > 1:
            floor.begin_epoch(barrier)
    return ShopSchedule(tuple(sorted(work.units)))


class _Dispatch:
    """The units of a simulation: those made, and those under way.

    `seconds`: the times that pass, as in `Shop`.
    """

    def __init__(self, floor: Floor, seconds: Floats) -> None:
        self.floor = floor
        self.seconds = seconds
        self.free = set(range(seconds.shape[2]))  # slots
        self.units: list[ShopUnit] = []
        self.running = sorted(floor.shop.running)  # a heap: the first ends first
        for _, trial, slot in self.running:
            floor.idle[trial] = False
            self.free.discard(slot)

    def start(self, trial: int, shard: int, slot: int) -> None:
        """Let the unit begin now."""
        floor = self.floor
        if slot not in self.free or not floor.may_start(trial, shard, slot):
            raise ValueError(
                f"trial {trial} cannot begin a pass over shard {shard} at slot {slot} now"
            )
        end = floor.now + float(self.seconds[trial, shard, slot])
        epoch = int(floor.epoch[trial])
        self.units.append(ShopUnit(floor.now, end, trial, shard, slot, epoch))
        self.free.discard(slot)
        floor.start(trial, shard, slot)
        heappush(self.running, (end, trial, slot))

    def to_the_next_end(self) -> None:
        """Let time pass until a unit ends, and free the trials and slots of all that end then."""
        now = self.running[0][0]
        self.floor.now = now
        while self.running and self.running[0][0] <= now * (1 + EPS):
            _, trial, slot = heappop(self.running)
            self.floor.idle[trial] = True
            self.free.add(slot)


def check_schedule(schedule: ShopSchedule, shop: Shop, epochs: int = 1) -> None:
    """Raise ValueError unless the schedule keeps the paper's invariants (section 3).

    Completeness: every trial visits every shard once an epoch, epochs in order. Isolation: a trial
    is at one place at a time. Exclusive access: a slot serves one trial at a time. Non-preemption:
    each unit lasts its time.
    """
    # Every trial visits every shard once an epoch.
    total = shop.fastest.size * epochs
    seen = {(unit.trial, unit.shard, unit.epoch) for unit in schedule.units}
    count = len(schedule.units)
    if count != len(seen) or len(seen) != total:
        raise ValueError(
            f"every unit runs exactly once: {total} expected, {len(seen)} of {count} differ"
        )
    # Each unit lasts its time.
    for unit in schedule.units:
        seconds = shop.seconds[unit.trial, unit.shard, unit.slot]
        off = abs(unit.end - unit.start - seconds)
        if not off <= EPS * max(1.0, unit.end):
            raise ValueError(f"{unit} does not last its {seconds:g} s")
    _check_alone(schedule, "trial")
    _check_alone(schedule, "slot")
    # No trial goes back to an earlier epoch.
    for before, unit in _successive(schedule, "trial"):
        if unit.epoch < before.epoch:
            raise ValueError(f"trial {unit.trial} goes back an epoch: {before} and {unit}")


def _check_alone(schedule: ShopSchedule, who: str) -> None:
    """No trial, or no slot, is in two units at once."""
    for before, unit in _successive(schedule, who):
        if unit.start < before.end - EPS * max(1.0, before.end):
            number = getattr(unit, who)
            raise ValueError(f"{who} {number} is in two units at once: {before} and {unit}")


def _successive(schedule: ShopSchedule, who: str) -> Iterator[tuple[ShopUnit, ShopUnit]]:
    """Each unit with the one before it of the same trial, or slot."""
    last: dict[int, ShopUnit] = {}
    for unit in sorted(schedule.units):
        number = getattr(unit, who)
        if number in last:
            yield last[number], unit
        last[number] = unit
