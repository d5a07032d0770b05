"""The fold: from a journal's entries to the state of the study, and the view of it that deciders get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, replace
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
    Fed,
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
from shoal.core.overlay import writable
from shoal.core.plan import Gang, Plan, prune
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Visit

if TYPE_CHECKING:
    from shoal.core.ports import Profile

Figures = Mapping[str, float]
Score = tuple[float, Mapping[str, float]]  # (epoch, {metric: value})


@dataclass(frozen=True, slots=True)
class State:
    """Everything a journal says. Rebuilt by folding its entries; never written to by anything else.

    Its tables are in the order in which their entries came, and cheap to keep: states share what they have in common.
    """

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
    died: Mapping[TrialId, int] = field(default_factory=dict)  # slots under it, since its last Kept
    deaths: Mapping[TrialId, int] = field(default_factory=dict)  # of slots, or for lack of memory in company, since then
    gangs: Mapping[Gang, None] = field(default_factory=dict)  # what runs now
    busy: Mapping[SlotId, Gang] = field(default_factory=dict)  # index of gangs
    running: Mapping[TrialId, Gang] = field(default_factory=dict)  # index of gangs
    memory: Mapping[str, Any] = field(default_factory=dict)  # of the deciders
    stopped: str | None = None  # why this run was told to stop
    _plan: Plan | None = field(default=None, init=False, repr=False, compare=False)  # made when first asked for

    @property
    def plan(self) -> Plan:
        """What runs now."""
        if self._plan is None:
            object.__setattr__(self, "_plan", Plan(frozenset(self.gangs.keys())))
        assert self._plan is not None
        return self._plan


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
    kept: Mapping[TrialId, Kept]
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

    __slots__ = ("base", "fresh", "scalars")

    def __init__(self, base: State) -> None:
        self.base = base
        self.fresh: dict[str, MutableMapping[Any, Any]] = {}
        self.scalars: dict[str, Any] = {}

    def read(self, name: str) -> Mapping[Any, Any]:
        table: Mapping[Any, Any] = self.fresh[name] if name in self.fresh else getattr(self.base, name)
        return table

    def write(self, name: str) -> MutableMapping[Any, Any]:
        if name not in self.fresh:
            self.fresh[name] = writable(getattr(self.base, name))
        return self.fresh[name]

    def done(self) -> State:
        changes: dict[str, Any] = {**self.fresh, **self.scalars}
        if not changes:
            return self.base
        values: list[Any] = list(map(changes.get, _STATE, _values(self.base)))
        state = State(*values)
        if "gangs" not in changes:
            object.__setattr__(state, "_plan", self.base._plan)
        return state

    # -- the gangs and their two indices change together -----------------------------------------------------------------

    def start(self, gang: Gang) -> None:
        self.write("gangs")[gang] = None
        busy, running = self.write("busy"), self.write("running")
        for lane in gang.lanes:
            running[lane.trial] = gang
            busy.update(dict.fromkeys(lane.slots, gang))

    def stop(self, gang: Gang) -> None:
        if gang not in self.read("gangs"):
            return
        del self.write("gangs")[gang]
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


_STATE = tuple(f.name for f in fields(State) if f.init)
_values: Callable[[State], tuple[Any, ...]] = attrgetter(*_STATE)


def _opened(draft: _Draft, entry: Opened) -> None:
    draft.scalars.update(run=entry.run, shards=entry.shards, stopped=None)
    draft.fresh.update(slots={}, gangs={}, busy={}, running={})


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
        if trial.start is not None:
            _begin_from(draft, trial, *trial.start)


def _begin_from(draft: _Draft, trial: Trial, parent: TrialId, visits: int) -> None:
    """Its first visits are the other's, and the other's checkpoint is its durable state until it has one of its own."""
    kept, other = draft.read("kept").get(parent), draft.read("known").get(parent)
    if kept is None or other is None or kept.visits != visits or other.shards != trial.shards:
        found = "unknown" if other is None else f"durable after {kept.visits if kept else 0} visits"
        raise ValueError(
            f"trial {trial.id} starts from {parent} after {visits} visits to the same shards, but {parent} is {found}: "
            "start from a trial that is finished, after all its visits"
        )
    draft.set_visits(trial.id, draft.read("visits")[parent][:visits])
    draft.write("done")[trial.id] = kept.samples
    draft.write("kept")[trial.id] = replace(kept, trial=trial.id)


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
        for table in ("deaths", "died"):
            if draft.read(table).get(entry.trial):
                del draft.write(table)[entry.trial]


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
            for table in (draft.write("deaths"), draft.write("died")):
                for lane in gang.lanes:
                    if entry.slots.issuperset(lane.slots):  # on slots that are left it goes on
                        table[lane.trial] = table.get(lane.trial, 0) + 1
        draft.prune(gang, frozenset(), entry.slots)


def _ended(draft: _Draft, entry: Ended) -> None:
    draft.stop(entry.gang)
    if entry.why:  # once more, and its trials run alone; but no trial fails for having had company
        deaths = draft.write("deaths")
        for trial in entry.gang.trials:
            deaths[trial] = max(deaths.get(trial, 0), min(deaths.get(trial, 0) + 1, 2))


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
    Ended: _ended,
    Finished: lambda draft, entry: draft.end(entry.trial, "finished"),
    Failed: lambda draft, entry: draft.end(entry.trial, f"failed: {entry.why}"),
    Joined: _joined,
    Left: _left,
    Fed: lambda draft, entry: None,  # for the report
    Planned: _planned,
    Remembered: _remembered,
    Commanded: _commanded,
}
