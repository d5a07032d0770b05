"""The contract of a backend: one small study, run in several ways through the ordinary engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.core.cluster import ShardId
from shoal.core.event import Advanced, Commanded, Ended, Entry, Failed, Fell, Finished, Joined, Planned, Retired, Submitted
from shoal.core.plan import Gang, Plan, Proposal
from shoal.core.ports import Backend, Moment, Policy, Searcher
from shoal.core.state import State, View, fold
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.journal import Journal, Line
from shoal.engine.run import reopened, run
from shoal.policy.fifo import Fifo
from shoal.policy.hop import Hop
from shoal.profile.measure import Believer
from shoal.search.trace import Trace
from shoal.testing.journals import check_journal

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """A backend and the study that it is tried on.

    `make(state, since)`: a backend that goes on from this state (of a fresh study, or of one that was stopped) at this
    second of the study; called several times, each time after the one before was used up. `shards`: samples of
    each. `configs`: two or more that train well, in seconds. `bad`: one that raises, if the recipe has one.
    `late`: seconds after which the study has nothing left to do. `close`: called when a backend has been used up.
    """

    make: Callable[[State, Seconds], Backend]
    shards: Mapping[ShardId, int]
    configs: Sequence[Config]
    bad: Config | None = None
    epochs: int = 2
    policies: Sequence[Policy[Any]] = field(default_factory=lambda: (Fifo(), Hop()))
    late: Seconds = 1.0
    close: Callable[[Backend], None] = lambda backend: None


def check_backend(setting: Setting) -> None:
    """Hold the backend to its contract, under each of the setting's policies."""
    for policy in setting.policies:
        check_study(setting, policy)
        check_resume(setting, policy)
    check_stopped(setting)
    check_retired(setting)
    check_wake(setting)
    if setting.bad is not None:
        check_failure(setting, setting.bad)


def check_study(setting: Setting, policy: Policy[Any]) -> None:
    """All trials finish; events come in order; ended gangs may be changed again, to no effect."""
    lines, state = _run(setting, policy, Trace([(0.0, c) for c in setting.configs], setting.epochs))
    check_journal(lines, state)
    assert set(state.ended.values()) == {"finished"}, f"not all finished: {state.ended}"
    for trial in state.known:
        visits = state.visits[trial]
        assert len(visits) == setting.epochs * len(setting.shards), f"{trial}: {len(visits)} visits in {setting.epochs} epochs"
        assert state.signature.get(trial), f"{trial} has no signature: it was never measured"
        epochs = [epoch for epoch, _ in state.scores[trial]]
        assert epochs == sorted(epochs), f"{trial} was evaluated at {epochs}"
    assert not state.plan.gangs, f"gangs are left: {state.plan}"
    first = next(line for line in lines if isinstance(line.entry, Joined))
    assert first.time == min(line.time for line in lines[1:]), "slots join at the first moment"


def check_resume(setting: Setting, policy: Policy[Any]) -> None:
    """Stopped half way and gone on with: nothing durable is lost, nothing is done twice."""
    searcher = Trace([(0.0, c) for c in setting.configs], setting.epochs)
    half = len(setting.configs) * setting.epochs * len(setting.shards) // 2
    lines, state = _run(setting, policy, searcher, stop_after=half)
    check_journal(lines, state)
    assert not state.plan.gangs, f"stopped, but gangs are left: {state.plan}"
    kept = {trial: (at.visits, state.visits[trial][: at.visits]) for trial, at in state.kept.items()}
    more, final = _run(setting, policy, searcher, former=lines)
    check_journal(more, final)
    assert set(final.ended.values()) == {"finished"}, f"not all finished: {final.ended}"
    for trial, (count, visits) in kept.items():
        assert final.visits[trial][:count] == visits, f"{trial}: durable visits {visits} became {final.visits[trial][:count]}"


def check_stopped(setting: Setting) -> None:
    """A gang without a quota that is stopped in the midst of a visit completes it; nothing is lost, nothing is done twice."""
    lines, state = _run(setting, _Interrupts(), Trace([(0.0, c) for c in setting.configs], setting.epochs))
    check_journal(lines, state)
    assert set(state.ended.values()) == {"finished"}, f"not all finished: {state.ended}"
    fell = [line.entry for line in lines if isinstance(line.entry, Fell)]
    assert not fell, f"a stop lost work: {fell}"
    plans = [n for n, line in enumerate(lines) if isinstance(line.entry, Planned)]
    stop = next(n for n in plans if lines[n].entry.stop and not lines[n].entry.start)  # type: ignore[union-attr]
    after = next((n for n in plans if n > stop), len(lines))
    made = [line.entry.visits for line in lines[stop:after] if isinstance(line.entry, Advanced)]
    assert any(visits.values() for visits in map(dict, made)), "stopped within a visit, it was not completed before the next plan"


def check_retired(setting: Setting) -> None:
    """A trial that is taken out while it runs stops, and the others go on."""
    lines, state = _run(setting, setting.policies[0], _Retires([(0.0, c) for c in setting.configs], setting.epochs))
    check_journal(lines, state)
    out = [line.entry.trial for line in lines if isinstance(line.entry, Retired)]
    assert [state.ended[trial] for trial in out] == ["retired"], f"retired {out}: {state.ended}"
    assert not [line for line in lines if isinstance(line.entry, Finished) and line.entry.trial in out]
    others = [how for trial, how in state.ended.items() if trial not in out]
    assert others == ["finished"] * (len(setting.configs) - 1), f"not all others finished: {state.ended}"


def check_wake(setting: Setting) -> None:
    """A trial that arrives later is met by a moment then, though nothing else happens."""
    one, other = setting.configs[:2]
    arrivals = [(0.0, one), (1e-3, other), (setting.late, other)]
    lines, state = _run(setting, setting.policies[0], Trace(arrivals, 1))
    check_journal(lines, state)
    came = [line.time for line in lines if isinstance(line.entry, Submitted)]
    assert len(came) == 3, f"submitted at {came}"
    assert all(time >= due for time, (due, _) in zip(came, arrivals, strict=True)), f"submitted at {came}, before {arrivals}"
    assert set(state.ended.values()) == {"finished"}


def check_failure(setting: Setting, bad: Config) -> None:
    """A configuration that raises is reported with one line of why, and harms no other."""
    lines, state = _run(setting, setting.policies[0], Trace([(0.0, bad), *((0.0, c) for c in setting.configs)], 1))
    check_journal(lines, state)
    failed = [line.entry for line in lines if isinstance(line.entry, Failed)]
    assert [entry.trial for entry in failed] == ["t000"], f"the first configuration fails; failed: {failed}"
    assert failed[0].why and "\n" not in failed[0].why, f"why is one line; got {failed[0].why!r}"
    assert [state.ended[t] == "finished" for t in sorted(state.known)[1:]] == [True] * len(setting.configs), f"{state.ended}"


def _run(
    setting: Setting, policy: Policy[Any], searcher: Searcher[Any], former: Sequence[Line] = (), stop_after: int | None = None
) -> tuple[list[Line], State]:
    journal, since = Journal(), max((line.time for line in former), default=0.0)
    journal.lines += former
    state = fold(State(), (line.entry for line in former))
    opening = reopened(state, setting.shards, {})
    for entry in opening:
        journal.append(since, entry)
    state = fold(state, opening)
    inner = setting.make(state, since)
    backend = Probed(inner, stop_after)
    try:
        state = run(searcher, policy, backend, Believer(), journal, state, watch=[backend.see])
    finally:
        setting.close(inner)
    return journal.lines, state


class Probed:
    """A backend that is also asked to change gangs that ended, and is told to stop after so many visits."""

    def __init__(self, inner: Backend, stop_after: int | None) -> None:
        self.inner = inner
        self.left = stop_after
        self.ended: list[Gang] = []

    def moments(self) -> Iterator[Moment]:
        at = 0.0
        for now, events in self.inner.moments():
            assert now >= at, f"a moment at {now} after one at {at}"
            at = now
            self.ended += [event.gang for event in events if isinstance(event, Ended)]
            if self.left is not None:
                self.left -= sum(len(v) for event in events if isinstance(event, Advanced) for v in event.visits.values())
                if self.left <= 0:
                    self.left = None
                    yield now, (*events, Commanded("stop", "as asked"))
                    continue
            yield now, events

    def submit(self, trial: Trial) -> None:
        self.inner.submit(trial)

    def change(self, before: Gang | None, after: Gang | None) -> None:
        while self.ended:
            self.inner.change(self.ended.pop(), None)
        self.inner.change(before, after)

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        self.inner.wake(at, until)

    def see(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        """Watch that the plan holds nobody twice."""
        gangs = state.plan.gangs
        slots = [slot for gang in gangs for slot in gang.slots]
        trials = [trial for gang in gangs for trial in gang.trials]
        assert len(set(slots)) == len(slots) and len(set(trials)) == len(trials), f"{now}: {gangs}"


@dataclass(frozen=True, slots=True)
class _Interrupts:
    """First come, first served; but once, all that runs is stopped in the midst of a visit, until that was made."""

    def start(self) -> dict[str, Any]:
        return {"stage": 0, "seen": []}

    def decide(self, view: View, memory: dict[str, Any]) -> tuple[Plan, dict[str, Any]]:
        made = sum(map(len, view.visits.values()))
        if memory["stage"] == 0 and memory["seen"] == [made] and view.running:
            return Plan(), {"stage": 1, "seen": [made]}
        if memory["stage"] == 1 and memory["seen"] == [made]:
            return view.plan, memory
        plan, _ = Fifo().decide(view, None)
        if memory["stage"] == 0:
            return replace(plan, wake_at=view.now + 1e-3), {"stage": 0, "seen": [made] if view.running else []}
        return plan, {"stage": 2, "seen": []}


@dataclass(frozen=True, slots=True)
class _Retires:
    """A trace whose first trial is taken out once it has visited a shard."""

    arrivals: Sequence[tuple[float, Config]]
    epochs: int

    def start(self) -> list[int]:
        return [0, 0]

    def propose(self, view: View, memory: list[int]) -> tuple[Proposal, list[int]]:
        proposal, came = Trace(self.arrivals, self.epochs).propose(view, memory[0])
        first = TrialId("t000")
        if not memory[1] and view.visits.get(first) and first in view.trials:
            return Proposal(proposal.submit, frozenset({first}), proposal.wake_at), [came, 1]
        return proposal, [came, memory[1]]
