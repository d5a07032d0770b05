"""The one loop, for simulated and for real runs alike."""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from shoal.core.check import check, diff, in_order
from shoal.core.cluster import ShardId
from shoal.core.event import Commanded, Entry, Failed, Fell, Finished, Kept, Opened, Planned, Remembered, Retired, Submitted
from shoal.core.plan import Plan
from shoal.core.ports import Backend, Policy, Profile, Searcher
from shoal.core.state import State, fold, view
from shoal.core.trial import Seconds
from shoal.engine.journal import Journal

MAX_DEATHS = 3  # slots that die under a trial, with nothing kept in between, before the trial is set aside
EPS = 1e-6  # samples
Watch = Callable[[Seconds, tuple[Entry, ...], State], None]


class Stalled(RuntimeError):  # noqa: N818 - a state of the study, as its user names it
    """Trials have work left, but nothing runs and nothing will happen."""


def reopened(state: State, shards: Mapping[ShardId, int], head: Mapping[str, Any]) -> tuple[Entry, ...]:
    """The entries that begin a run: nothing of a former one is at work, and what was not durable is lost.

    A trial whose durable state is its last was torn off just before it could be called finished.
    """
    entries: list[Entry] = [Opened(state.run + 1, shards, head)]
    for trial, wanted in state.trials.items():
        kept = state.kept.get(trial)
        at, samples = (kept.visits, kept.samples) if kept else (0, 0.0)
        if state.done[trial] != samples or len(state.visits[trial]) != at:
            entries.append(Fell(trial, at, samples))
        if samples >= wanted.samples - EPS:
            entries.append(Finished(trial))
    return tuple(entries)


def run(
    searcher: Searcher[Any],
    policy: Policy[Any],
    backend: Backend,
    believe: Callable[[State], Profile],
    journal: Journal,
    state: State = State(),
    deadline: Seconds | None = None,
    watch: Iterable[Watch] = (),
) -> State:
    """Fold what happened, ask, check, write down, change; until the backend has no more moments.

    `state`: what the journal holds so far, ending with `reopened`. `believe`: the profile that deciders see.
    `deadline`: seconds of the study after which it stops as if told to. Returns the last state.

    Raises:
        PlanError: the policy asked for what cannot be.
        Stalled: work is left, but nothing runs, wakes or is to come.
    """
    watchers = tuple(watch)
    deciders = _Deciders(searcher, policy, believe, state)
    for trial in state.trials.values():
        backend.submit(trial)
    for now, events in backend.moments():
        noted: list[Entry] = [event for event in events if not isinstance(event, Retired)]
        if deadline is not None and now >= deadline and state.stopped is None:
            noted.append(Commanded("stop", "timeout"))
        state = fold(state, noted)
        before = state.plan  # as the backend knows it: what it did not do itself must reach it as a change
        outside = [event for event in events if isinstance(event, Retired)]  # it was only told
        state = _note(state, noted, [*outside, *_doomed(state)])
        if state.stopped is None:
            state, wakes = deciders.ask(state, now, noted)
        else:  # units with a quota come to their end; what runs on leaves now
            state, wakes = _plan(state, noted, Plan(frozenset(g for g in state.plan.gangs if g.quota is not None))), []
        submits = [entry.trial for entry in noted if isinstance(entry, Submitted)]
        _write(journal, now, noted, before.gangs != state.plan.gangs)
        for trial in submits:
            backend.submit(trial)
        for old, new in diff(before, state.plan):
            backend.change(old, new)
        if deadline is not None and (state.plan.gangs or wakes) and state.stopped is None:
            wakes.append(deadline)
        worth = state.trials and state.stopped is None
        backend.wake(min(wakes, default=None), (inf if deadline is None else deadline) if worth else None)
        for see in watchers:
            see(now, tuple(noted), state)
    journal.sync()
    if state.trials and state.stopped is None:
        raise Stalled(_why(state))
    return state


class _Deciders:
    """The searcher and the policy with their memories."""

    def __init__(self, searcher: Searcher[Any], policy: Policy[Any], believe: Callable[[State], Profile], state: State) -> None:
        self.searcher, self.policy, self.believe = searcher, policy, believe
        former = state.memory
        self.wishes = former["searcher"] if former.get("searcher") is not None else searcher.start()
        self.memory = former["policy"] if former.get("policy") is not None else policy.start()

    def ask(self, state: State, now: Seconds, noted: list[Entry]) -> tuple[State, list[Seconds]]:
        """What should exist, then what should run; the state after it, and when to ask again."""
        proposal, wished = self.searcher.propose(view(state, now, self.believe(state)), self.wishes)
        asked: list[Entry] = [*map(Submitted, proposal.submit), *map(Retired, sorted(proposal.retire))]
        if wished != self.wishes:
            self.wishes = wished
            asked.append(Remembered("searcher", wished))
        state = _note(state, noted, asked)
        looked = view(state, now, self.believe(state))
        plan, remembered = self.policy.decide(looked, self.memory)
        check(plan, looked)
        if remembered != self.memory:
            self.memory = remembered
            state = _note(state, noted, [Remembered("policy", remembered)])
        return _plan(state, noted, plan), [t for t in (plan.wake_at, proposal.wake_at) if t is not None]


def _plan(state: State, noted: list[Entry], plan: Plan) -> State:
    stop, start = state.plan.gangs - plan.gangs, plan.gangs - state.plan.gangs
    if not stop and not start:
        return state
    return _note(state, noted, [Planned(tuple(sorted(stop, key=in_order)), tuple(sorted(start, key=in_order)))])


def _doomed(state: State) -> list[Entry]:
    return [
        Failed(trial, f"its slot died under it {deaths} times")
        for trial, deaths in state.died.items()
        if deaths >= MAX_DEATHS and trial in state.trials
    ]


def _note(state: State, noted: list[Entry], entries: list[Entry]) -> State:
    noted += entries
    return fold(state, entries) if entries else state


def _write(journal: Journal, now: Seconds, noted: list[Entry], changed: bool) -> None:
    """Durable before it is acted upon: a plan before it is applied, a Kept before the state before it is deleted."""
    for entry in noted:
        journal.append(now, entry)
    if changed or any(isinstance(entry, (Submitted, Retired, Kept)) for entry in noted):
        journal.sync()
    else:
        journal.flush()  # it outlives this process, and others see it


def _why(state: State) -> str:
    left = sorted(state.trials)
    some = ", ".join(left[:5]) + (" …" if len(left) > 5 else "")
    if not state.slots:
        return f"{len(left)} trials have work left ({some}) but there is no slot: add one and resume"
    lying = {shard for slot in state.slots.values() for shard in slot.shards}
    lost = {shard for trial in left for shard in state.pending[trial]} - lying
    where = f"; shards {', '.join(sorted(lost))} lie at no slot" if lost else ""
    return f"{len(left)} trials have work left ({some}) but the policy starts none of them on {len(state.slots)} slots{where}"
