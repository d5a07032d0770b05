"""What a simulation keeps of each trial and of each lane at work. Mutable, and private to `Sim`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, inf
from zlib import crc32

from shoal.core.cluster import ShardId, SlotId, shard_order
from shoal.core.event import Fell, Kept
from shoal.core.plan import Gang, prune
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Value, Visit

EPS = 1e-6  # samples
TICK = 1e-9  # seconds within which things happen at once


def learning_curve(config: Mapping[str, Value], epochs: float) -> Mapping[str, float]:
    """A made-up, smooth one: accuracy rises and loss falls, to a level and at a pace drawn from the configuration."""
    drawn = crc32(repr(sorted(config.items())).encode())
    best, pace = 0.6 + 0.4 * (drawn % 1009) / 1009, 1.0 + 4.0 * (drawn % 503) / 503
    accuracy = best * (1.0 - exp(-epochs / pace))
    return {"accuracy": accuracy, "loss": 2.0 * (1.0 - accuracy)}


@lru_cache(maxsize=64)
def whole_order(seed: int, epoch: int, shards: frozenset[ShardId]) -> tuple[ShardId, ...]:
    """`shard_order`, remembered: every trial of a study asks for the same few."""
    return shard_order(seed, epoch, shards)


@dataclass(slots=True)
class Stand:
    """How far a trial is. `at`: the slots that hold its newest state; none: it is durable, or there is none yet."""

    trial: Trial
    visits: tuple[Visit, ...] = ()
    samples: Samples = 0.0
    kept: tuple[int, Samples] = (0, 0.0)  # visits and samples of the durable state
    age: Seconds = 0.0  # trained since
    at: tuple[SlotId, ...] = ()
    over: bool = False  # nothing is left to do, or it failed
    measured: bool = False

    def ahead(self) -> bool:
        """It has done more than is durable."""
        return self.kept != (len(self.visits), self.samples)

    def keep(self) -> Kept:
        self.kept = len(self.visits), self.samples
        self.age = 0.0
        return Kept(self.trial.id, *self.kept, f"{self.trial.id}/{len(self.visits):06d}.sim")

    def fall(self) -> Fell:
        self.visits, self.samples = self.visits[: self.kept[0]], self.kept[1]
        self.age, self.at = 0.0, ()
        return Fell(self.trial.id, *self.kept)


@dataclass(slots=True, eq=False)
class Leg:
    """A lane's unit: a wait (switch, build), then training of `left` samples, then a tail (evaluation, save).

    `visit`: what it will have been; None: data is not divided, and progress counts as it is made.
    """

    stand: Stand
    visit: Visit | None
    size: Samples
    left: Samples
    since: Seconds  # up to when `left` is right
    ready: Seconds  # the wait ends
    evaluate: Seconds | None  # what it takes, if it is done
    save: Seconds
    due: Seconds  # seconds of training after which a save is due; 0: in any case; inf: in none
    begun: Seconds = 0.0
    rate: float = 1.0
    waited: Seconds = 0.0
    trained: Seconds = 0.0
    trains_until: Seconds = 0.0
    end: Seconds = inf
    version: int = 0  # of `end`; 0: not at work

    def advance(self, now: Seconds) -> Samples:
        """Train up to `now`; the samples made."""
        span = min(now, self.trains_until) - max(self.since, self.ready)
        self.since = now
        if span <= 0 or self.left <= 0:
            return 0.0
        made = self.left if now >= self.trains_until - TICK else min(self.left, span * self.rate)
        self.left -= made
        self.trained += span
        return made

    def schedule(self, now: Seconds, rate: float, wait: Seconds = 0.0) -> None:
        """From `now` on it goes at this rate, after this (further) wait; `advance` it up to now first."""
        self.since, self.rate = now, rate
        if self.left <= 0 and self.trained > 0:  # in its tail, which takes as long as it takes
            return
        self.ready = max(self.ready, now) + wait
        self.waited += wait
        self.trains_until = self.ready + self.left / rate
        self.end = self.trains_until + (self.evaluate or 0.0) + (self.save if self.saves else 0.0)

    @property
    def saves(self) -> bool:
        """A durable state is written at its end."""
        return self.trained + self.left / self.rate >= self.due - TICK

    def spent(self) -> dict[str, Seconds]:
        """Where its seconds went, once it is at its end."""
        save = self.save if self.saves else 0.0
        parts = {"switch": self.waited, "train": self.trained, "evaluate": self.evaluate or 0.0, "save": save}
        return {name: seconds for name, seconds in parts.items() if seconds}


@dataclass(slots=True, eq=False)
class Run:
    """A gang at work. `left`: shards each lane has yet to visit (None: whatever comes next). `stream`: samples it took.

    `leaving`: it was stopped, and only completes the visits under way.
    """

    gang: Gang
    rates: Mapping[TrialId, float]
    left: dict[TrialId, list[ShardId]] | None
    stream: dict[TrialId, Samples]
    legs: dict[TrialId, Leg] = field(default_factory=dict)
    leaving: bool = False

    @classmethod
    def of(cls, gang: Gang, rates: Mapping[TrialId, float]) -> "Run":
        left = {t: list(gang.shards) for t in gang.trials} if gang.shards else None
        return cls(gang, rates, left, dict.fromkeys(gang.trials, 0.0))

    def room(self, trial: TrialId) -> Samples:
        """What is left of the lane's quota; 0 also when it has seen all its shards."""
        if self.left is not None and not self.left[trial]:
            return 0.0
        return inf if self.gang.quota is None else max(0.0, self.gang.quota - self.stream[trial])

    def is_over(self) -> bool:
        return all(self.room(t) <= EPS for t in self.gang.trials)


@dataclass(slots=True)
class Leaving:
    """Stopped gangs that complete the visits under way, and gangs that wait for their slots or for their trials."""

    runs: list[Run] = field(default_factory=list)
    waiting: list[Gang] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs or self.waiting)

    def free_at(self, gang: Gang, now: Seconds) -> Seconds:
        """When those who hold the gang's slots or trials are gone; now, if there are none."""
        slots, trials = gang.slots, frozenset(gang.trials)
        held = [run for run in self.runs if not slots.isdisjoint(run.gang.slots) or not trials.isdisjoint(run.legs)]
        return max((leg.end for run in held for leg in run.legs.values()), default=now)

    def ready(self, now: Seconds) -> list[Gang]:
        """Those that need not wait any more; they are no longer among the waiting."""
        found = [gang for gang in self.waiting if self.free_at(gang, now) <= now]
        self.waiting = [gang for gang in self.waiting if gang not in found]
        return found

    def withdraw(self, gang: Gang | None) -> None:
        """This gang need not start any more."""
        self.waiting = [each for each in self.waiting if each != gang]

    def shrink(self, trials: frozenset[TrialId] = frozenset(), slots: frozenset[SlotId] = frozenset()) -> None:
        """The trials and slots are gone, also for those that wait."""
        self.waiting = [rest for gang in self.waiting if (rest := prune(gang, trials, slots)) is not None]
