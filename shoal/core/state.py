"""The state of a study, and the view of it that deciders get.

`shoal.core.fold` makes a state from a journal's entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Kept
from shoal.core.plan import Gang, Plan
from shoal.core.profile import Place, Profile, Work
from shoal.core.queues import Queues
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Visit

Figures = Mapping[str, float]
Score = tuple[float, Mapping[str, float]]  # (epoch, {metric: value})


class News:
    """The trials that a journal's entries were about, up to one moment.

    Successive states share one list that only grows, so that a new state costs what it adds. A
    decider that keeps the `News` of its last look asks the next one what came `since`. It then
    looks at those trials only, however many there are in all.
    """

    __slots__ = ("_length", "_log")

    def __init__(self) -> None:
        self._log: list[TrialId] = []
        self._length = 0

    def after(self, trials: Iterable[TrialId]) -> News:
        """The news with these trials added; the news itself stays as it is."""
        later = News()
        later._log = self._log
        if len(self._log) != self._length:  # another state went on from here: part ways
            later._log = self._log[: self._length]
        later._log.extend(trials)
        later._length = len(later._log)
        return later

    def since(self, before: News | None) -> Collection[TrialId] | None:
        """The trials that may have changed, each once; None if `before` was no earlier state."""
        if before is None or before._log is not self._log or before._length > self._length:
            return None
        return dict.fromkeys(self._log[before._length : self._length])


@dataclass(frozen=True, slots=True)
class State:
    """Everything a journal says.

    Only `fold` makes new states, and it never changes an old one. Successive states share the
    tables that did not change, so that keeping many of them is cheap. Each table is in the order
    in which its keys first came.
    """

    # How often the study was started or resumed.
    run: int = 0
    # How many plans were made.
    turn: int = 0
    # The samples in each training shard.
    shards: Mapping[ShardId, int] = field(default_factory=dict)
    # The slots that are here now.
    slots: Mapping[SlotId, Slot] = field(default_factory=dict)

    # The nodes of slots that left in this run, by the shards that lay there.
    gone: Mapping[ShardId, frozenset[str]] = field(default_factory=dict)
    # The shards that could not be read in this run: why, by slot.
    unread: Mapping[ShardId, Mapping[SlotId, str]] = field(default_factory=dict)

    # Every trial ever submitted: those with work left, and those that ended.
    known: Mapping[TrialId, Trial] = field(default_factory=dict)
    # The trials with work left.
    trials: Mapping[TrialId, Trial] = field(default_factory=dict)
    # The priorities of the trials with work left; a trial with priority 1 is left out.
    ranked: Mapping[TrialId, float] = field(default_factory=dict)
    # The trials that ended, and how: "finished", "retired" or "failed: why".
    ended: Mapping[TrialId, str] = field(default_factory=dict)

    # Trials with work left that wait for a shard which cannot be read, until the next run.
    held_back: Mapping[TrialId, ShardId] = field(default_factory=dict)

    # The samples that each trial has trained.
    done: Mapping[TrialId, Samples] = field(default_factory=dict)
    # The visits that each trial has completed, in order.
    visits: Mapping[TrialId, tuple[Visit, ...]] = field(default_factory=dict)
    # The shards that each trial has yet to visit in its present epoch.
    pending: Mapping[TrialId, frozenset[ShardId]] = field(default_factory=dict)
    # The newest durable state of each trial that has one.
    kept: Mapping[TrialId, Kept] = field(default_factory=dict)
    # The durable state before that one, if there was one.
    former: Mapping[TrialId, Kept] = field(default_factory=dict)
    # The evaluations of each trial, oldest first.
    scores: Mapping[TrialId, tuple[Score, ...]] = field(default_factory=dict)

    # Of trials that fell back after evaluations: the scores of each epoch as they first came.
    # Deciders that compare trials go by them, so that what was decided is not decided anew.
    first_scores: Mapping[TrialId, tuple[Score, ...]] = field(default_factory=dict)

    # What was measured, by signature. Trials of one signature cost the same.
    figures: Mapping[str, Figures] = field(default_factory=dict)
    # The signature of each trial that was measured.
    signature: Mapping[TrialId, str] = field(default_factory=dict)
    # The slot on which the rate of each signature was measured.
    rated: Mapping[str, SlotId] = field(default_factory=dict)
    # What gangs on one slot have trained there of late: see `core.profile.kind_of`.
    worked: Mapping[Place, Work] = field(default_factory=dict)
    # Samples/s of those gangs; a rate changes only if it was off by more than a little.
    speeds: Mapping[Place, float] = field(default_factory=dict)

    # How often slots died under a trial since its last Kept.
    strikes_of_slots: Mapping[TrialId, int] = field(default_factory=dict)
    # The same, and how often the trial's gang could not go on (see `Ended`).
    strikes: Mapping[TrialId, int] = field(default_factory=dict)

    # The gangs that run now. The values mean nothing: this is a set that keeps its order.
    gangs: Mapping[Gang, None] = field(default_factory=dict)
    # The gang that runs on each slot, and the gang that trains each trial.
    busy: Mapping[SlotId, Gang] = field(default_factory=dict)
    running: Mapping[TrialId, Gang] = field(default_factory=dict)

    # What the deciders remember: "policy" and "searcher".
    memory: Mapping[str, Any] = field(default_factory=dict)
    # Why this run is to stop; None: it is not.
    stopped: str | None = None
    # Which trials had new entries.
    news: News = field(default_factory=News, repr=False, compare=False)
    # What `plan` and `queues` answered, once they were asked; `fold` keeps them by change then.
    _plan: Plan | None = field(default=None, init=False, repr=False, compare=False)
    _queues: Queues | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def plan(self) -> Plan:
        """What runs now."""
        if self._plan is None:
            self.take(Plan.running(self.gangs), self._queues)
            assert self._plan is not None
        return self._plan

    @property
    def queues(self) -> Queues:
        """Which slots and trials wait."""
        if self._queues is None:
            queues = Queues.of(self.slots, self.busy, self.trials, self.running)
            self.take(self._plan, queues)
            assert self._queues is not None
        return self._queues

    @property
    def answered(self) -> tuple[Plan | None, Queues | None]:
        """What `plan` and `queues` answered; None: they were not asked."""
        return self._plan, self._queues

    def take(self, plan: Plan | None, queues: Queues | None) -> None:
        """Note what `plan` and `queues` answer."""
        object.__setattr__(self, "_plan", plan)
        object.__setattr__(self, "_queues", queues)


@dataclass(frozen=True, slots=True)
class View:
    """All that a decider may know. A decider only reads it.

    A field that `State` has too means the same here.
    """

    now: Seconds
    # The number of the plan being made. It seeds randomness: default_rng([seed, turn]).
    turn: int
    shards: Mapping[ShardId, int]
    slots: Mapping[SlotId, Slot]
    known: Mapping[TrialId, Trial]
    trials: Mapping[TrialId, Trial]
    ranked: Mapping[TrialId, float]
    ended: Mapping[TrialId, str]
    done: Mapping[TrialId, Samples]
    visits: Mapping[TrialId, tuple[Visit, ...]]
    pending: Mapping[TrialId, frozenset[ShardId]]
    kept: Mapping[TrialId, Kept]
    scores: Mapping[TrialId, tuple[Score, ...]]
    first_scores: Mapping[TrialId, tuple[Score, ...]]
    strikes: Mapping[TrialId, int]
    plan: Plan
    busy: Mapping[SlotId, Gang]
    running: Mapping[TrialId, Gang]
    # Which slots and trials wait; of these very tables only: see `policy.idle`.
    queues: Queues
    # Ask it which trials changed since an earlier view.
    news: News
    # How fast trials train and what they cost, as far as is known.
    profile: Profile


# Two views are made at each moment: one attrgetter and positional arguments make them quickly.
_SHARED = [f.name for f in fields(View)[1:-1]]
_shared: Callable[[State], tuple[Any, ...]] = attrgetter(*_SHARED)
_view: Callable[..., View] = View


def view(state: State, now: Seconds, profile: Profile) -> View:
    """The state as deciders see it at this time of the study."""
    return _view(now, *_shared(state), profile)


def having(scores: Iterable[Score], metric: str | None) -> tuple[Score, ...]:
    """The evaluations that give the metric; others of the trial may give other values only."""
    return tuple(score for score in scores if metric in score[1])


def durable(kept: Kept | None) -> tuple[int, Samples]:
    """The visits and the samples of a trial's newest durable state; of the beginning if None."""
    if kept is None:
        return 0, 0.0
    return kept.visits, kept.samples


def epoch_of(visits: tuple[Visit, ...], shards: int) -> int:
    """The complete epochs in these visits: an epoch is one visit to each of so many shards."""
    return len(visits) // max(shards, 1)


def start_of(trial: Trial, known: Mapping[TrialId, Trial], kept: Mapping[TrialId, Kept]) -> Kept:
    """The durable state of another trial that a new trial starts from.

    Raises:
        ValueError: that trial has no such state, or has other shards.
    """
    assert trial.start is not None
    parent, visits = trial.start
    state = kept.get(parent)
    found = "unknown"
    if parent in known:
        found = f"durable after {durable(state)[0]} passes"
        same_shards = known[parent].shards == trial.shards
        if state is not None and state.visits == visits and same_shards:
            return state
    raise ValueError(
        f"trial {trial.id} starts from {parent} after {visits} passes"
        f" over the same shards, but {parent} is {found}:"
        " start from a trial that is finished, after all its passes"
    )
