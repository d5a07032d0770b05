"""The one loop, for simulated and for real runs alike.

At each moment of the backend: fold what happened into the state; ask the searcher and the policy;
write everything down; tell the backend what changes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any

from shoal.core.check import Change, check, diff, in_order
from shoal.core.cluster import ShardId, SlotId
from shoal.core.event import (
    Commanded,
    Entry,
    Event,
    Failed,
    Fell,
    Finished,
    Kept,
    Opened,
    Planned,
    Remembered,
    Retired,
    Submitted,
    last_words,
)
from shoal.core.fold import fold
from shoal.core.plan import Gang, Plan, Proposal
from shoal.core.ports import Backend, Policy, Searcher
from shoal.core.profile import Profile
from shoal.core.state import State, View, durable, view
from shoal.core.trial import Seconds, TrialId, shown
from shoal.core.visits import is_met
from shoal.engine.journal import Journal, JournalError

# A trial fails after so many slots died under it with nothing kept in between.
MAX_STRIKES = 3
Believe = Callable[[State], Profile]
Watch = Callable[[Seconds, tuple[Entry, ...], State], None]


class Stalled(RuntimeError):  # noqa: N818 - a state of the study, as its user names it
    """Trials have work left, but nothing runs and nothing will happen."""


class DataMissing(Stalled):
    """The same, for want of data that cannot be read any more: no policy can help."""


def reopened(
    state: State, shards: Mapping[ShardId, int], head: Mapping[str, Any]
) -> tuple[Entry, ...]:
    """The entries that begin a run of a study that is in this state.

    Nothing of a former run is at work any more, and what was not durable is lost. If a trial's
    durable state is its last one, the former run ended before it could say so.
    """
    entries: list[Entry] = [Opened(state.run + 1, shards, head)]
    for name, trial in state.trials.items():
        visits, samples = durable(state.kept.get(name))
        if state.done[name] != samples or len(state.visits[name]) != visits:
            entries.append(Fell(name, visits, samples))
        if is_met(trial, samples):
            entries.append(Finished(name))
    return tuple(entries)


def run(
    searcher: Searcher[Any],
    policy: Policy[Any],
    backend: Backend,
    believe: Believe,
    journal: Journal,
    state: State = State(),
    deadline: Seconds | None = None,
    watch: Iterable[Watch] = (),
) -> State:
    """Run the study until the backend has no more moments; return its last state.

    `believe`: the profile that deciders see. `state`: what the journal holds so far, ending with
    the entries of `reopened`. `deadline`: the time of the study at which the run stops as if
    somebody had asked for it. `watch`: called after each moment, with its time, its entries and
    the state after it.

    Raises:
        PlanError: the policy asked for what cannot be.
        Stalled: work is left, but nothing runs, wakes or is to come.
        DataMissing: the same, because data cannot be read.
    """
    watchers = tuple(watch)
    deciders = _Deciders(searcher, policy, believe, state)
    for trial in state.trials.values():
        backend.submit(trial)
    for now, events in backend.moments():
        at = _AtMoment(now, state)
        at.note(_happened(at, events, deadline))
        before = at.state.plan
        at.note(_imposed(at, events, state.running))
        wake_at = deciders.ask(at)

        state = at.state
        changes = diff(before, state.plan)
        _write(journal, at, _is_urgent(at, events), bool(changes))
        _carry_out(backend, at, changes)
        _set_alarm(backend, wake_at, deadline, state)
        for see in watchers:
            see(now, tuple(at.noted), state)
    journal.sync()
    if state.trials and state.stopped is None:
        if _is_blocked(state):
            raise DataMissing(_why_stalled(state))
        raise Stalled(_why_stalled(state))
    return state


class _AtMoment:
    """What was noted at one moment so far, and the state after it."""

    def __init__(self, now: Seconds, state: State) -> None:
        self.now = now
        self.state = state
        self.noted: list[Entry] = []

    def note(self, entries: Sequence[Entry]) -> None:
        """These entries are written down at this moment."""
        if entries:
            self.noted += entries
            self.state = fold(self.state, entries)

    def note_plan(self, plan: Plan) -> None:
        """The gangs of this plan run from now on."""
        stop, start = plan.since(self.state.plan)
        if stop or start:
            stopped, started = sorted(stop, key=in_order), sorted(start, key=in_order)
            self.note([Planned(tuple(stopped), tuple(started))])


def _happened(at: _AtMoment, events: Sequence[Event], deadline: Seconds | None) -> list[Entry]:
    """The backend's events, without trials that were retired from outside: see `_imposed`."""
    entries: list[Entry] = []
    for event in events:
        if not isinstance(event, Retired):
            entries.append(event)
    if deadline is not None and at.now >= deadline and at.state.stopped is None:
        entries.append(Commanded("stop", "timeout"))
    return entries


def _imposed(at: _AtMoment, events: Sequence[Event], ran: Mapping[TrialId, Gang]) -> list[Entry]:
    """The trials that end whatever the deciders want.

    They are retired from outside, or too many slots died under them. The backend must be told to
    stop them. So `run` notes them after it has looked at the plan `before`, and the difference
    between that plan and the next one is carried out. `ran`: what ran until this moment.
    """
    ends: list[Entry] = [event for event in events if isinstance(event, Retired)]
    state = at.state
    for trial, strikes in state.strikes_of_slots.items():
        if strikes >= MAX_STRIKES and trial in state.trials:
            why = f"its slot died under it {strikes} times{last_words(at.noted)}"
            if trial in ran and ran[trial].shards:
                why += f", the last time at shard {' or '.join(ran[trial].shards)}"
            ends.append(Failed(trial, why))
    return ends


class _Deciders:
    """The searcher and the policy, with their memories."""

    def __init__(
        self, searcher: Searcher[Any], policy: Policy[Any], believe: Believe, state: State
    ) -> None:
        self.searcher = searcher
        self.policy = policy
        self.believe = believe
        self._journalled = state.memory
        self.searcher_memory = state.memory.get("searcher")
        if self.searcher_memory is None:
            self.searcher_memory = searcher.start()
        self.policy_memory = state.memory.get("policy")
        if self.policy_memory is None:
            self.policy_memory = policy.start()

    def ask(self, at: _AtMoment) -> Seconds | None:
        """Ask what should exist, then what should run, and note the answers.

        Returns when to ask again; None: there is no need.
        """
        if at.state.stopped is not None:
            at.note_plan(_last_plan(at.state))
            return None
        searcher_wakes = self._propose(at)
        policy_wakes = self._decide(at)
        return _earliest(searcher_wakes, policy_wakes)

    def _see(self, at: _AtMoment) -> View:
        """What a decider sees now."""
        return view(at.state, at.now, self.believe(at.state))

    def _propose(self, at: _AtMoment) -> Seconds | None:
        """Ask the searcher; returns when to ask it again.

        If it takes out all trials that had work left, it is asked a second time at once. They have
        made room, and nothing else may happen that would ask it.
        """
        proposal = self._asked(at)
        if proposal.retire and not at.state.trials:
            proposal = self._asked(at)
        return proposal.wake_at

    def _asked(self, at: _AtMoment) -> Proposal:
        """What the searcher proposes now; it is noted."""
        seen = self._see(at)
        with self._going_on("searcher", self.searcher_memory):
            proposal, remembered = self.searcher.propose(seen, self.searcher_memory)
        answers: list[Entry] = [Submitted(trial) for trial in proposal.submit]
        answers += [Retired(trial) for trial in sorted(proposal.retire)]
        if _is_news(remembered, self.searcher_memory):
            self.searcher_memory = remembered
            answers.append(Remembered("searcher", remembered))
        at.note(answers)
        return proposal

    def _decide(self, at: _AtMoment) -> Seconds | None:
        """Ask the policy; returns when to ask it again."""
        seen = _without_held_back(self._see(at), at.state)
        with self._going_on("policy", self.policy_memory):
            plan, remembered = self.policy.decide(seen, self.policy_memory)
        check(plan, seen)
        if _is_news(remembered, self.policy_memory):
            self.policy_memory = remembered
            at.note([Remembered("policy", remembered)])
        at.note_plan(plan)
        return plan.wake_at

    @contextmanager
    def _going_on(self, who: str, memory: Any) -> Iterator[None]:
        """A decider is asked; with what the journal says that it remembers, the first time.

        Raises:
            JournalError: that is of another form than this decider's memory.
        """
        try:
            yield
        except (TypeError, LookupError, AttributeError) as error:
            if memory is None or self._journalled.get(who) is not memory:
                raise
            kind = type(getattr(self, who)).__name__
            raise JournalError(
                f"the {who} {kind} cannot go on with what the journal says it remembers, "
                f"{shown(memory)} ({type(error).__name__}: {str(error)[:200]}): take a copy of the "
                f"journal that is as Shoal wrote it, or mend the {who} if it is your own"
            ) from error


def _is_news(memory: Any, before: Any) -> bool:
    """Whether a decider remembers something else; what is large is mostly the same object."""
    return memory is not before and bool(memory != before)


def _without_held_back(seen: View, state: State) -> View:
    """What a policy sees: without the trials that wait for data which cannot be read."""
    held_back = state.held_back
    if not held_back:
        return seen
    trials = {name: each for name, each in seen.trials.items() if name not in held_back}
    ranked = {name: each for name, each in seen.ranked.items() if name not in held_back}
    return replace(seen, trials=trials, ranked=ranked)


def _last_plan(state: State) -> Plan:
    """What still runs in a study that was stopped: gangs with a quota end by themselves."""
    return Plan(frozenset(gang for gang in state.gangs if gang.quota is not None))


def _write(journal: Journal, at: _AtMoment, urgent: bool, changed: bool) -> None:
    """Write down what was noted. It is durable before anything outside the engine relies on it.

    `urgent`: make it durable at once. `changed`: the plan changed, so the backend relies on it.
    """
    for entry in at.noted:
        journal.append(at.now, entry)
    if urgent:
        journal.sync()
    elif changed or _is_relied_on(at.noted):
        journal.sync_soon()
    else:
        journal.flush()


def _is_relied_on(noted: Sequence[Entry]) -> bool:
    """Whether trials came or went, or a checkpoint replaces a former one, which is deleted."""
    return any(isinstance(entry, (Submitted, Retired, Kept)) for entry in noted)


def _is_urgent(at: _AtMoment, events: Sequence[Event]) -> bool:
    """Whether somebody outside asked for something, or no gang runs.

    Whoever asked is told that it was done. If no gang runs, the next moment may be far away.
    """
    asked = any(isinstance(event, (Submitted, Retired, Commanded)) for event in events)
    return asked or not at.state.gangs


def _carry_out(backend: Backend, at: _AtMoment, changes: Sequence[Change]) -> None:
    """Tell the backend of new and extended trials, then of gangs that change."""
    for entry in at.noted:
        if isinstance(entry, Submitted):
            backend.submit(entry.trial)
    for old, new in changes:
        backend.change(old, new)


def _set_alarm(
    backend: Backend, wake_at: Seconds | None, deadline: Seconds | None, state: State
) -> None:
    """Say when to ask again, and how long to wait for slots that may come by themselves."""
    if state.stopped is not None:
        backend.wake(wake_at, None)
        return
    until: Seconds | None = None
    if state.trials and not _is_blocked(state):
        until = inf
        if deadline is not None:
            until = deadline
    if state.gangs or wake_at is not None:
        wake_at = _earliest(wake_at, deadline)
    backend.wake(wake_at, until)


def _earliest(one: Seconds | None, other: Seconds | None) -> Seconds | None:
    """The earlier of two times, each of which may be missing."""
    if one is None:
        return other
    if other is None:
        return one
    return min(one, other)


def _is_blocked(state: State) -> bool:
    """Whether nothing runs, and every trial waits for data that cannot be read."""
    if not state.unread or state.gangs:
        return False
    missing = state.unread.keys() & _lost_shards(state)
    for trial in state.trials:
        if trial not in state.held_back and missing.isdisjoint(state.pending[trial]):
            return False
    return True


def _why_stalled(state: State) -> str:
    """What the user is told: which trials are left, and what is missing."""
    work = f"{len(state.trials)} trials have work left ({_some_trials(state)})"
    if not state.slots:
        return f"{work} but there is no slot: add one and resume"
    lost = _lost_shards(state)
    missing = [*_unread(state, lost), *_lying_nowhere(state, lost)]
    if missing:
        return f"{work} but {'; '.join(missing)}"
    return f"{work} but the policy starts none of them on {len(state.slots)} slots"


def _unread(state: State, lost: Set[ShardId]) -> list[str]:
    """What cannot be read of the shards that trials need, where, and why."""
    needed = lost | set(state.held_back.values())
    texts: list[str] = []
    for shard in sorted(state.unread.keys() & needed):
        by_why: dict[str, list[str]] = {}
        for slot, why in state.unread[shard].items():
            by_why.setdefault(why, []).append(_place(state, slot))
        texts += [f"at {', '.join(at)} {why}" for why, at in by_why.items()]
    return texts


def _place(state: State, slot: SlotId) -> str:
    """The slot, and its node if the slot is there."""
    if slot in state.slots:
        return f"{slot} on {state.slots[slot].node}"
    return slot


def _lying_nowhere(state: State, lost: Set[ShardId]) -> list[str]:
    """The shards that lie at no slot though they could be read, and the nodes that had them."""
    shards = sorted(lost - state.unread.keys())
    if not shards:
        return []
    nodes: set[str] = set()
    for shard in shards:
        nodes |= state.gone.get(shard, frozenset())
    text = f"shards {', '.join(shards)} lie at no slot"
    if nodes:
        text += f" since {', '.join(sorted(nodes))} left: bring a node back"
    return [f"{text}; register another copy, or use a policy over whole data, then resume"]


def _some_trials(state: State) -> str:
    """The first few trials that have work left."""
    left = sorted(state.trials)
    some = ", ".join(left[:5])
    if len(left) > 5:
        some += " …"
    return some


def _lost_shards(state: State) -> set[ShardId]:
    """The shards that trials have yet to visit and that lie at no slot."""
    pending: set[ShardId] = set()
    for trial in state.trials:
        pending |= state.pending[trial]
    lying: set[ShardId] = set()
    for slot in state.slots.values():
        lying |= slot.shards
    return pending - lying
