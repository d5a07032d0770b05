"""A shop: trials that each visit every shard once an epoch, at slots that hold it; and what a list rule makes of it.

The paper's open shop (Nakandala et al., VLDB 2020, section 5) is the special case in which slot j alone holds
shard j; replicas (its section 5.5) give a shard several slots. Plain numbers: trials, shards and slots are indices.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.core.trial import Seconds

EPS = 1e-9
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Pick = tuple[int, int, int]  # trial, shard, slot


class Unit(NamedTuple):
    """One pass of one trial over one shard at one slot."""

    start: Seconds
    end: Seconds
    trial: int
    shard: int
    slot: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Units with their times, by start."""

    units: tuple[Unit, ...]

    @property
    def makespan(self) -> Seconds:
        return max((unit.end for unit in self.units), default=0.0)

    def completions(self) -> dict[int, Seconds]:
        """When each trial ends its last unit."""
        ends: dict[int, Seconds] = {}
        for unit in self.units:
            ends[unit.trial] = max(unit.end, ends.get(unit.trial, 0.0))
        return ends

    def orders(self, slots: int) -> list[list[int]]:
        """The trials of each slot, in the order in which it takes them first."""
        found: list[dict[int, None]] = [{} for _ in range(slots)]
        for unit in self.units:
            found[unit.slot].setdefault(unit.trial)
        return [list(trials) for trials in found]


@dataclass(frozen=True)
class Shop:
    """`seconds[i, q, w]`: how long trial i's pass over shard q takes at slot w; infinite where w does not hold q.

    Raises:
        ValueError: not of three dimensions, a time that is not positive, or a pass that no slot can make.
    """

    seconds: Floats

    def __post_init__(self) -> None:
        if self.seconds.ndim != 3 or not self.seconds.size:
            raise ValueError(f"a shop's times are (trials, shards, slots), each at least 1; got shape {self.seconds.shape}")
        if not (self.seconds > 0).all():
            raise ValueError("every pass takes more than 0 seconds; check the rates of the profile")
        lost = np.argwhere(np.isinf(self.fastest))
        if lost.size:
            raise ValueError(f"no slot can pass trial {lost[0][0]} over shard {lost[0][1]}: each needs a slot that holds it")

    @classmethod
    def open(cls, times: ArrayLike) -> "Shop":
        """The paper's: shard j lies at slot j only, and trial i's pass over it takes `times[i][j]`."""
        table = np.asarray(times, float)
        seconds = np.full((*table.shape, table.shape[1]), inf)
        each = np.arange(table.shape[1])
        seconds[:, each, each] = table
        return cls(seconds)

    @cached_property
    def fastest(self) -> Floats:
        """(trials, shards): the time at the fastest slot that holds the shard."""
        found: Floats = self.seconds.min(axis=2)
        return found

    @cached_property
    def holds(self) -> Flags:
        """(shards, slots): whether the slot can serve the shard."""
        found: Flags = np.asarray(np.isfinite(self.seconds).any(axis=0))
        return found

    @cached_property
    def work(self) -> Floats:
        """(shards, slots): seconds the slot would take for one pass of every trial; 0 where it does not hold the shard."""
        total: Floats = np.where(np.isfinite(self.seconds), self.seconds, 0.0).sum(axis=0)
        return total


class Floor:
    """What a rule sees while a shop is simulated; it may not write to it."""

    def __init__(self, shop: Shop, epochs: int) -> None:
        trials, shards, _ = shop.seconds.shape
        self.shop = shop
        self.epochs = epochs
        self.now: Seconds = 0.0
        self.turn = 0  # decisions made so far
        self.idle: Flags = np.ones(trials, bool)
        self.pending: Flags = np.ones((trials, shards), bool)  # of the trial's epoch
        self.epoch = np.zeros(trials, int)
        self.left: Floats = shop.fastest.sum(axis=1) * epochs  # seconds of each trial, over all epochs, at the fastest slots
        self.load: Floats = shop.fastest.sum(axis=0) * epochs  # the same of each shard
        self.work: Floats = shop.work * epochs  # (shards, slots)
        self.served: Floats = np.zeros(shop.holds.shape)  # (shards, slots): epochs' worth of passes over it begun there

    def start(self, trial: int, shard: int, slot: int) -> None:
        shop = self.shop
        self.idle[trial] = self.pending[trial, shard] = False
        self.left[trial] -= shop.fastest[trial, shard]
        self.load[shard] -= shop.fastest[trial, shard]
        self.work[shard] -= np.where(shop.holds[shard], shop.seconds[trial, shard], 0.0)
        self.served[shard, slot] += shop.seconds[trial, shard, slot] / shop.work[shard, slot]


Rule = Callable[[Floor, Sequence[int]], Iterable[Pick]]


def dispatch(shop: Shop, rule: Rule, epochs: int = 1, barrier: bool = False, actual: Shop | None = None) -> Schedule:
    """What happens when, at time 0 and whenever units end, the rule gives idle slots units to begin.

    `rule` gets the idle slots, in order, and names units of idle trials that are pending. `barrier`: no trial
    begins an epoch before all have ended the one before. `actual`: the times that pass, where they are not those
    the rule believes in.

    Raises:
        ValueError: the rule named a unit that cannot begin, or none while nothing ran.
    """
    floor, truth = Floor(shop, epochs), (actual or shop).seconds
    running: list[tuple[Seconds, int, int]] = []  # end, trial, slot
    free = set(range(truth.shape[2]))
    units: list[Unit] = []
    total = truth.shape[0] * truth.shape[1] * epochs
    while len(units) < total:
        for trial, shard, slot in list(rule(floor, sorted(free))):
            if slot not in free or not floor.idle[trial] or not floor.pending[trial, shard] or not shop.holds[shard, slot]:
                raise ValueError(f"trial {trial} cannot begin a pass over shard {shard} at slot {slot} now")
            end = floor.now + float(truth[trial, shard, slot])
            units.append(Unit(floor.now, end, trial, shard, slot, int(floor.epoch[trial])))
            free.discard(slot)
            floor.start(trial, shard, slot)
            heappush(running, (end, trial, slot))
        floor.turn += 1
        if not running:
            raise ValueError(f"the rule leaves {total - len(units)} units undone and every slot idle")
        floor.now = running[0][0]
        while running and running[0][0] <= floor.now * (1 + EPS):
            _, trial, slot = heappop(running)
            floor.idle[trial] = True
            free.add(slot)
        if epochs > 1:
            _next_epoch(floor, barrier)
    return Schedule(tuple(sorted(units)))


def _next_epoch(floor: Floor, barrier: bool) -> None:
    over: Any = ~floor.pending.any(axis=1) & floor.idle & (floor.epoch < floor.epochs - 1)
    if over.all() if barrier else over.any():
        floor.pending[over] = True
        floor.epoch[over] += 1


def check_schedule(schedule: Schedule, shop: Shop, epochs: int = 1) -> None:
    """Raise ValueError unless the schedule keeps the paper's invariants (section 3).

    Completeness: every trial visits every shard once an epoch, epochs in order. Isolation: a trial is at one
    place at a time. Exclusive access: a slot serves one trial at a time. Non-preemption: each unit lasts its time.
    """
    total = shop.fastest.size * epochs
    seen = {(u.trial, u.shard, u.epoch) for u in schedule.units}
    if len(schedule.units) != len(seen) or len(seen) != total:
        raise ValueError(f"every unit runs exactly once: {total} expected, {len(seen)} of {len(schedule.units)} differ")
    for unit in schedule.units:
        seconds = shop.seconds[unit.trial, unit.shard, unit.slot]
        if not abs(unit.end - unit.start - seconds) <= EPS * max(1.0, unit.end):
            raise ValueError(f"{unit} does not last its {seconds:g} s")
    for who in ("trial", "slot"):
        ends: dict[int, Unit] = {}
        for unit in sorted(schedule.units):
            before = ends.get(getattr(unit, who))
            if before is not None and unit.start < before.end - EPS * max(1.0, before.end):
                raise ValueError(f"{who} {getattr(unit, who)} is in two units at once: {before} and {unit}")
            if who == "trial" and before is not None and unit.epoch < before.epoch:
                raise ValueError(f"trial {unit.trial} goes back an epoch: {before} and {unit}")
            ends[getattr(unit, who)] = unit
