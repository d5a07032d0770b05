"""The fold: from a journal's entries to the state of the study, and the view of it that deciders get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import (
    Advanced,
    Commanded,
    Ended,
    Entry,
    Evaluated,
    Failed,
    Fell,
    Finished,
    Joined,
    Kept,
    Left,
    Measured,
    Opened,
    Planned,
    Remembered,
    Retired,
    Submitted,
)
from shoal.core.plan import Gang, Plan, prune
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Visit

if TYPE_CHECKING:
    from shoal.core.ports import Profile

Figures = Mapping[str, float]
Score = tuple[float, Mapping[str, float]]  # (epoch, {metric: value})


@dataclass(frozen=True, slots=True)
class State:
    """Everything a journal says. Rebuilt by folding its entries; never written to by anything else."""

    run: int = 0
    turn: int = 0  # plans made so far
    shards: Mapping[ShardId, int] = field(default_factory=dict)  # samples in each training shard
    slots: Mapping[SlotId, Slot] = field(default_factory=dict)
    known: Mapping[TrialId, Trial] = field(default_factory=dict)  # every trial ever submitted
    trials: Mapping[TrialId, Trial] = field(default_factory=dict)  # those with work left
    ended: Mapping[TrialId, str] = field(default_factory=dict)  # the others: "finished", "retired" or "failed: why"
    done: Mapping[TrialId, Samples] = field(default_factory=dict)
    visits: Mapping[TrialId, tuple[Visit, ...]] = field(default_factory=dict)
    pending: Mapping[TrialId, frozenset[ShardId]] = field(default_factory=dict)  # left of its epoch
    kept: Mapping[TrialId, Kept] = field(default_factory=dict)  # its newest durable state
    scores: Mapping[TrialId, tuple[Score, ...]] = field(default_factory=dict)
    figures: Mapping[str, Figures] = field(default_factory=dict)  # by signature
    signature: Mapping[TrialId, str] = field(default_factory=dict)
    deaths: Mapping[TrialId, int] = field(default_factory=dict)  # slots that died under it since its last Kept
    plan: Plan = Plan()
    busy: Mapping[SlotId, Gang] = field(default_factory=dict)  # index of plan
    running: Mapping[TrialId, Gang] = field(default_factory=dict)  # index of plan
    memory: Mapping[str, Any] = field(default_factory=dict)  # of the deciders
    stopped: str | None = None  # why this run was told to stop


@dataclass(frozen=True, slots=True)
class View:
    """All that a decider may know, and it can only read. Its fields mean what they mean in `State`."""

    now: Seconds
    turn: int  # the plan being made; it seeds randomness: default_rng([seed, turn])
    shards: Mapping[ShardId, int]
    slots: Mapping[SlotId, Slot]
    known: Mapping[TrialId, Trial]
    trials: Mapping[TrialId, Trial]
    ended: Mapping[TrialId, str]
    done: Mapping[TrialId, Samples]
    visits: Mapping[TrialId, tuple[Visit, ...]]
    pending: Mapping[TrialId, frozenset[ShardId]]
    scores: Mapping[TrialId, tuple[Score, ...]]
    deaths: Mapping[TrialId, int]
    plan: Plan  # what runs now
    busy: Mapping[SlotId, Gang]
    running: Mapping[TrialId, Gang]
    profile: Profile


def view(state: State, now: Seconds, profile: Profile) -> View:
    """The state as deciders see it."""
    return _view(now, *_shared(state), profile)


_view: Callable[..., View] = View
_shared: Callable[[State], tuple[Any, ...]] = attrgetter(*(f.name for f in fields(View)[1:-1]))


def epoch_of(visits: tuple[Visit, ...], shards: int) -> int:
    """The epoch a trial with these visits is in, when an epoch is one visit to each of so many shards."""
    return len(visits) // max(shards, 1)


def step(state: State, entry: Entry) -> State:
    """Fold one journal entry into the state. Pure: replaying a journal rebuilds the run."""
    return fold(state, (entry,))


def fold(state: State, entries: Iterable[Entry]) -> State:
    """`step` over several entries, copying each changed table once."""
    draft = _Draft(state)
    for entry in entries:
        _FOLDS[type(entry)](draft, entry)
    return draft.done()


class _Draft:
    """A state being made: tables are copied when first written to, and the original stays as it was."""

    __slots__ = ("base", "fresh", "plan_gangs", "scalars")

    def __init__(self, base: State) -> None:
        self.base = base
        self.fresh: dict[str, dict[Any, Any]] = {}
        self.scalars: dict[str, Any] = {}
        self.plan_gangs: set[Gang] | None = None

    def read(self, name: str) -> Mapping[Any, Any]:
        table: Mapping[Any, Any] = self.fresh[name] if name in self.fresh else getattr(self.base, name)
        return table

    def write(self, name: str) -> dict[Any, Any]:
        if name not in self.fresh:
            self.fresh[name] = dict(getattr(self.base, name))
        return self.fresh[name]

    def gangs(self) -> set[Gang]:
        if self.plan_gangs is None:
            self.plan_gangs = set(self.base.plan.gangs)
        return self.plan_gangs

    def done(self) -> State:
        changes: dict[str, Any] = {**self.fresh, **self.scalars}
        if self.plan_gangs is not None:
            changes["plan"] = Plan(frozenset(self.plan_gangs))
        return State(**{**dict(zip(_STATE, _values(self.base), strict=True)), **changes}) if changes else self.base

    # -- the plan and its two indices change together ------------------------------------------------------------------

    def start(self, gang: Gang) -> None:
        self.gangs().add(gang)
        busy, running = self.write("busy"), self.write("running")
        for lane in gang.lanes:
            running[lane.trial] = gang
            for slot in lane.slots:
                busy[slot] = gang

    def stop(self, gang: Gang) -> None:
        if gang not in self.gangs():
            return
        self.gangs().discard(gang)
        busy, running = self.write("busy"), self.write("running")
        for lane in gang.lanes:
            running.pop(lane.trial, None)
            for slot in lane.slots:
                busy.pop(slot, None)

    def prune(self, gang: Gang, trials: frozenset[TrialId], slots: frozenset[SlotId]) -> None:
        self.stop(gang)
        rest = prune(gang, trials, slots)
        if rest is not None:
            self.start(rest)

    # -- trials --------------------------------------------------------------------------------------------------------

    def end(self, trial: TrialId, how: str) -> None:
        if trial not in self.read("trials"):
            return
        del self.write("trials")[trial]
        self.write("ended")[trial] = how
        gang = self.read("running").get(trial)
        if gang is not None:
            self.prune(gang, frozenset((trial,)), frozenset())

    def set_visits(self, trial: TrialId, visits: tuple[Visit, ...]) -> None:
        self.write("visits")[trial] = visits
        shards: frozenset[ShardId] = self.read("known")[trial].shards
        if shards:
            seen = visits[epoch_of(visits, len(shards)) * len(shards) :]
            self.write("pending")[trial] = shards.difference(visit.shard for visit in seen)


_STATE = tuple(f.name for f in fields(State))
_values: Callable[[State], tuple[Any, ...]] = attrgetter(*_STATE)


def _opened(draft: _Draft, entry: Opened) -> None:
    draft.scalars.update(run=entry.run, shards=entry.shards, stopped=None)
    draft.plan_gangs = set()
    draft.fresh.update(slots={}, busy={}, running={})


def _submitted(draft: _Draft, entry: Submitted) -> None:
    trial = entry.trial
    new = trial.id not in draft.read("known")
    if draft.read("ended").get(trial.id) == "finished" and trial.samples <= draft.read("known")[trial.id].samples:
        return  # nothing is left to do
    draft.write("known")[trial.id] = trial
    draft.write("trials")[trial.id] = trial
    if trial.id in draft.read("ended"):
        del draft.write("ended")[trial.id]
    if new:
        draft.write("done")[trial.id] = 0.0
        draft.write("scores")[trial.id] = ()
        draft.write("pending")[trial.id] = frozenset()
        draft.set_visits(trial.id, ())


def _advanced(draft: _Draft, entry: Advanced) -> None:
    known, done = draft.read("known"), draft.write("done")
    for trial, samples in entry.samples.items():
        if trial in known:
            done[trial] += samples
    for trial, visits in entry.visits.items():
        if trial in known:
            draft.set_visits(trial, draft.read("visits")[trial] + visits)


def _kept(draft: _Draft, entry: Kept) -> None:
    if entry.trial in draft.read("known"):
        draft.write("kept")[entry.trial] = entry
        if draft.read("deaths").get(entry.trial):
            del draft.write("deaths")[entry.trial]


def _fell(draft: _Draft, entry: Fell) -> None:
    trial = entry.trial
    if trial not in draft.read("known"):
        return
    draft.write("done")[trial] = entry.samples
    visits = draft.read("visits")[trial][: entry.visits]
    draft.set_visits(trial, visits)
    shards = len(draft.read("known")[trial].shards)
    if shards:  # evaluations of what is lost are lost too; they come again
        reached = len(visits) / shards
        draft.write("scores")[trial] = tuple(x for x in draft.read("scores")[trial] if x[0] <= reached)


def _evaluated(draft: _Draft, entry: Evaluated) -> None:
    if entry.trial in draft.read("known"):
        draft.write("scores")[entry.trial] = (*draft.read("scores")[entry.trial], (entry.epoch, entry.values))


def _measured(draft: _Draft, entry: Measured) -> None:
    draft.write("signature")[entry.trial] = entry.signature
    if entry.figures:
        draft.write("figures")[entry.signature] = {**draft.read("figures").get(entry.signature, {}), **entry.figures}


def _joined(draft: _Draft, entry: Joined) -> None:
    draft.write("slots").update({slot.id: slot for slot in entry.slots})


def _left(draft: _Draft, entry: Left) -> None:
    slots, busy = draft.write("slots"), draft.read("busy")
    hit = {busy[slot] for slot in entry.slots if slot in busy}
    for slot in entry.slots:
        slots.pop(slot, None)
    for gang in hit:
        if entry.died:
            deaths = draft.write("deaths")
            for lane in gang.lanes:
                if not entry.slots.isdisjoint(lane.slots):
                    deaths[lane.trial] = deaths.get(lane.trial, 0) + 1
        draft.prune(gang, frozenset(), entry.slots)


def _planned(draft: _Draft, entry: Planned) -> None:
    for gang in entry.stop:
        draft.stop(gang)
    for gang in entry.start:
        draft.start(gang)
    draft.scalars["turn"] = draft.scalars.get("turn", draft.base.turn) + 1


def _remembered(draft: _Draft, entry: Remembered) -> None:
    draft.write("memory")[entry.who] = entry.memory


def _commanded(draft: _Draft, entry: Commanded) -> None:
    if entry.what == "stop":
        draft.scalars["stopped"] = entry.why


_FOLDS: Mapping[type[Any], Callable[[_Draft, Any], None]] = {
    Opened: _opened,
    Submitted: _submitted,
    Retired: lambda draft, entry: draft.end(entry.trial, "retired"),
    Advanced: _advanced,
    Kept: _kept,
    Fell: _fell,
    Evaluated: _evaluated,
    Measured: _measured,
    Ended: lambda draft, entry: draft.stop(entry.gang),
    Finished: lambda draft, entry: draft.end(entry.trial, "finished"),
    Failed: lambda draft, entry: draft.end(entry.trial, f"failed: {entry.why}"),
    Joined: _joined,
    Left: _left,
    Planned: _planned,
    Remembered: _remembered,
    Commanded: _commanded,
}
