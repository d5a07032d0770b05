"""What a simulation keeps of each trial, of each lane and gang at work, and of each slot.

All of it changes as the simulation goes on, and is private to `Sim`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, inf
from zlib import crc32

from shoal.core.cluster import GiB, ShardId, Slot, SlotId
from shoal.core.event import Fell, Kept
from shoal.core.plan import Gang, Lane, prune
from shoal.core.profile import Cost
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Value, Visit
from shoal.core.visits import EPS

TICK = 1e-9  # seconds within which things happen at once

Trials = frozenset[TrialId]
Slots = frozenset[SlotId]
Shards = list[ShardId]


def learning_curve(config: Mapping[str, Value], epochs: float) -> Mapping[str, float]:
    """Made-up metrics after so many epochs: accuracy rises smoothly, and loss falls.

    The level that accuracy comes to, and its pace, are drawn from the configuration.
    """
    drawn = crc32(repr(sorted(config.items())).encode())
    best = 0.6 + 0.4 * (drawn % 1009) / 1009
    pace = 1.0 + 4.0 * (drawn % 503) / 503
    accuracy = best * (1.0 - exp(-epochs / pace))
    return {"accuracy": accuracy, "loss": 2.0 * (1.0 - accuracy)}


@dataclass(slots=True)
class SimulatedTrial:
    """How far a trial is."""

    trial: Trial
    visits: tuple[Visit, ...] = ()
    samples: Samples = 0.0
    # The visits and the samples of the durable state, and the seconds of training since.
    kept: tuple[int, Samples] = (0, 0.0)
    age: Seconds = 0.0
    # The slots that hold the newest state; none: it is durable, or there is none yet.
    at: tuple[SlotId, ...] = ()
    # Whether nothing is left to do, or the trial failed.
    over: bool = False
    # What it was measured as; empty: it was not yet.
    signature: str = ""

    def is_ahead(self) -> bool:
        """Whether the trial has done more than is durable."""
        return self.kept != (len(self.visits), self.samples)

    def is_far(self, slots: Collection[SlotId]) -> bool:
        """Whether the trial has a state that some of these slots do not hold."""
        return self.samples > 0 and not set(slots) <= set(self.at)

    def keep(self) -> Kept:
        """Make the newest state durable."""
        visits = len(self.visits)
        self.kept = visits, self.samples
        self.age = 0.0
        name = f"{self.trial.id}/{visits:06d}.sim"
        return Kept(self.trial.id, visits, self.samples, name)

    def fall(self) -> Fell:
        """Go back to the durable state, as the newest one is lost."""
        visits, samples = self.kept
        self.visits = self.visits[:visits]
        self.samples = samples
        self.age = 0.0
        self.at = ()
        return Fell(self.trial.id, visits, samples)


@dataclass(slots=True, eq=False)
class UnitAtWork:
    """A lane's unit: a wait (switch, build), then training, then a tail (evaluation, save).

    `visit`: the visit that it will have been; None: the data is not divided, and progress counts
    as it is made. `size`: the samples of the unit. `due`: the seconds of training after which a
    durable state is due; 0: one is due in any case; infinity: none is.
    """

    position: SimulatedTrial
    visit: Visit | None
    size: Samples
    # The samples that are left at the time `since`.
    left: Samples
    since: Seconds
    # The time at which the wait ends.
    ready: Seconds
    # What an evaluation takes; None: there is none.
    evaluate: Seconds | None
    save: Seconds
    due: Seconds
    begun: Seconds = 0.0
    rate: float = 1.0
    waited: Seconds = 0.0
    trained: Seconds = 0.0
    # The lanes that share its slot, and its share of the seconds in which all of them trained.
    lanes: int = 1
    share: Seconds = 0.0
    trains_until: Seconds = 0.0
    end: Seconds = inf
    # The number of the latest `end`; 0: the unit is not at work.
    version: int = 0

    def advance(self, now: Seconds) -> Samples:
        """Train up to `now`; returns the samples made."""
        span = min(now, self.trains_until) - max(self.since, self.ready)
        self.since = now
        if span <= 0 or self.left <= 0:
            return 0.0
        samples = self.left
        if now < self.trains_until - TICK:
            samples = min(self.left, span * self.rate)
        self.left -= samples
        self.trained += span
        self.share += span / self.lanes
        return samples

    def schedule(self, now: Seconds, rate: float, wait: Seconds = 0.0) -> None:
        """Have the unit go at this rate from `now` on, after this further wait.

        It must have been advanced up to now. The tail is not changed any more once it has begun.
        """
        self.since = now
        self.rate = rate
        in_tail = self.left <= 0 and self.trained > 0
        if in_tail:
            return
        self.ready = max(self.ready, now) + wait
        self.waited += wait
        self.trains_until = self.ready + self.left / rate
        self.end = self.trains_until + (self.evaluate or 0.0) + self._saving()

    @property
    def saves(self) -> bool:
        """Whether a durable state is written at the unit's end."""
        return self.trained + self.left / self.rate >= self.due - TICK

    def _saving(self) -> Seconds:
        """The seconds of writing a durable state at the unit's end."""
        if self.saves:
            return self.save
        return 0.0

    def spent(self) -> dict[str, Seconds]:
        """Where the unit's seconds went, once it is at its end; of training, its share of them."""
        parts = {
            "switch": self.waited,
            "train": self.share,
            "evaluate": self.evaluate or 0.0,
            "save": self._saving(),
        }
        return {name: seconds for name, seconds in parts.items() if seconds}


UnitsOfTrials = dict[TrialId, UnitAtWork]


@dataclass(slots=True, eq=False)
class SimulatedGang:
    """A gang at work.

    `rates`: samples/s of each lane. `shards_left`: the shards that each lane has yet to visit;
    None: each visits what comes next in its own order. `stream`: the samples that each lane took.
    """

    gang: Gang
    rates: Mapping[TrialId, float]
    shards_left: dict[TrialId, Shards] | None
    stream: dict[TrialId, Samples]
    # The unit under way of each lane.
    units: UnitsOfTrials = field(default_factory=dict)
    # Whether the gang was stopped, and only completes the visits under way.
    leaving: bool = False

    @classmethod
    def of(cls, gang: Gang, rates: Mapping[TrialId, float]) -> "SimulatedGang":
        """The gang at its beginning."""
        shards_left = None
        if gang.shards:
            shards = list(dict.fromkeys(gang.shards))
            shards_left = {trial: list(shards) for trial in gang.trials}
        return cls(gang, rates, shards_left, dict.fromkeys(gang.trials, 0.0))

    def room(self, trial: TrialId) -> Samples:
        """What is left of the lane's quota; 0 also once the lane has seen all its shards."""
        if self.shards_left is not None and not self.shards_left[trial]:
            return 0.0
        if self.gang.quota is None:
            return inf
        return max(0.0, self.gang.quota - self.stream[trial])

    def sharing(self, trial: TrialId) -> tuple[TrialId, ...]:
        """The trials whose lanes share a slot with this trial's lane, and the trial itself."""
        lanes = self.gang.lanes
        if len(lanes) == 1:
            return (trial,)
        slots = next(set(lane.slots) for lane in lanes if lane.trial == trial)
        return tuple(lane.trial for lane in lanes if not slots.isdisjoint(lane.slots))

    def is_over(self) -> bool:
        """Whether no lane has anything left to read."""
        return all(self.room(trial) <= EPS for trial in self.gang.trials)

    def next_shard(self, trial: TrialId) -> ShardId | None:
        """The shard that the lane visits next; None: the trial goes by its own order."""
        if self.shards_left is None:
            return None
        return self.shards_left[trial][0]

    def shards_beside(self, trial: TrialId) -> tuple[ShardId, ...]:
        """The shards that the lane reads together with the next one."""
        if not self.gang.joint or self.shards_left is None:
            return ()
        return tuple(self.shards_left[trial][1:])

    def take(self, trial: TrialId, size: Samples) -> None:
        """Count a unit of this size, which the lane has completed."""
        self.stream[trial] += size
        if self.shards_left is not None:
            count = len(self.shards_left[trial]) if self.gang.joint else 1
            del self.shards_left[trial][:count]

    def take_over(self, old: "SimulatedGang", trial: TrialId, unit: UnitAtWork) -> None:
        """Take over a trial of the old gang, which goes on as it was, with its unit under way."""
        self.units[trial] = unit
        self.stream[trial] = old.stream[trial]
        if self.shards_left is not None and old.shards_left is not None:
            self.shards_left[trial] = old.shards_left[trial]

    def forget(self, trials: Iterable[TrialId]) -> None:
        """Drop the units of these trials."""
        for trial in trials:
            unit = self.units.pop(trial, None)
            if unit is not None:
                unit.version = 0

    def leaving_part(self, late: UnitsOfTrials) -> "SimulatedGang | None":
        """The lanes of these units, as a gang that only completes them; None: no lane."""
        others = frozenset(self.gang.trials) - late.keys()
        gang = prune(self.gang, others)
        if gang is None:
            return None
        stream = dict.fromkeys(late, 0.0)
        return SimulatedGang(gang, self.rates, None, stream, late, leaving=True)


class SlotEnds:
    """When slots leave, of which that is known; and those that have no time for another unit.

    `memory`: of the slots that came.
    """

    def __init__(self) -> None:
        self._until: dict[SlotId, Seconds] = {}
        self.over: set[SlotId] = set()
        self._gone: set[SlotId] = set()
        self.memory: dict[SlotId, GiB] = {}

    def join(self, slots: Iterable[Slot]) -> None:
        """Note slots that came, and when they leave."""
        for slot in slots:
            self._gone.discard(slot.id)
            self._until.pop(slot.id, None)
            self.memory[slot.id] = slot.memory
            if slot.until < inf:
                self._until[slot.id] = slot.until

    def last(self, slots: Iterable[SlotId]) -> Seconds:
        """When the last of these slots leaves; infinity where one may stay."""
        if not self._until:
            return inf
        return max(self._until.get(slot, inf) for slot in slots)

    def has_time(self, lane: Lane, unit: UnitAtWork, rate: float, left: Seconds) -> bool:
        """Whether the lane's slots can make the unit and a save in the time that is left.

        If not, they are to leave.
        """
        takes = unit.left / rate + (unit.evaluate or 0.0) + unit.save
        fits = left == inf or (unit.left > 0 and takes <= left + TICK)
        if fits and self.over.isdisjoint(lane.slots):
            return True
        self.over.update(lane.slots)
        return False

    def known(self, slots: Slots) -> Slots:
        """Those of the slots whose ends are known."""
        return slots & self._until.keys()

    def leave(self, slots: Slots) -> None:
        """Note slots that leave by themselves."""
        self.over -= slots
        self._gone |= slots

    def still_there(self, slots: Slots) -> Slots:
        """Those of the slots, which are gone now, that had not left by themselves."""
        present = slots - self._gone
        self.over -= slots
        self._gone -= slots
        return present


class BuiltModels:
    """Which models were built at each slot."""

    def __init__(self) -> None:
        self._trials: dict[SlotId, set[TrialId]] = {}

    def build(self, trial: TrialId, slot: SlotId, cost: Cost) -> Seconds:
        """Build the trial's model at the slot; returns the seconds that this takes."""
        built = self._trials.setdefault(slot, set())
        if trial in built:
            return 0.0
        seconds = cost.build
        if not built:
            seconds += cost.first
        built.add(trial)
        return seconds

    def lose(self, slot: SlotId) -> None:
        """Forget a slot that is gone, with all models that were built there."""
        self._trials.pop(slot, None)


@dataclass(slots=True)
class Leaving:
    """Gangs that were stopped, and gangs that wait for them.

    `runs`: stopped gangs, which complete the visits under way. `waiting`: gangs to be started,
    which wait for their slots or their trials.
    """

    runs: list[SimulatedGang] = field(default_factory=list)
    waiting: list[Gang] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs or self.waiting)

    def free_at(self, gang: Gang, now: Seconds) -> Seconds:
        """When the gang's slots and trials will be free; now, if they are."""
        slots = gang.slots
        trials = frozenset(gang.trials)
        ends: list[Seconds] = []
        for run in self.runs:
            apart = slots.isdisjoint(run.gang.slots) and trials.isdisjoint(run.units)
            if not apart:
                ends += [unit.end for unit in run.units.values()]
        return max(ends, default=now)

    def holds(self, trials: Iterable[TrialId]) -> bool:
        """Whether one of these trials is still at a unit of a stopped gang."""
        return any(not run.units.keys().isdisjoint(trials) for run in self.runs)

    def ready(self, now: Seconds) -> list[Gang]:
        """Take out the gangs that need not wait any more."""
        gangs = [gang for gang in self.waiting if self.free_at(gang, now) <= now]
        self.waiting = [gang for gang in self.waiting if gang not in gangs]
        return gangs

    def withdraw(self, gang: Gang | None) -> None:
        """Drop a gang that need not start any more."""
        self.waiting = [each for each in self.waiting if each != gang]

    def shrink(self, trials: Trials = frozenset(), slots: Slots = frozenset()) -> None:
        """Take these trials and slots out of the gangs that wait."""
        rests = [prune(gang, trials, slots) for gang in self.waiting]
        self.waiting = [rest for rest in rests if rest is not None]
