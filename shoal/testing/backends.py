"""The contract of a backend: one small study, run in several ways through the ordinary engine."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

from shoal.core.cluster import ShardId, SlotId
from shoal.core.event import (
    Advanced,
    Commanded,
    Ended,
    Entry,
    Event,
    Failed,
    Fell,
    Finished,
    Joined,
    Planned,
    Retired,
    Submitted,
)
from shoal.core.plan import Gang, Plan, Proposal
from shoal.core.ports import Backend, Moment, Policy, Searcher
from shoal.core.state import State, View
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.journal import Line
from shoal.engine.run import run
from shoal.policy.fifo import Fifo
from shoal.policy.hop.hop import Hop
from shoal.profile.measure import Believer
from shoal.search.trace import Trace
from shoal.testing.journals import check_journal, resumed

Config = Mapping[str, Any]
TimedConfig = tuple[Seconds, Config]
StageAndVisits = list[int]
E = TypeVar("E")
FIRST = TrialId("t000")  # the name of the first trial of a trace


@dataclass(frozen=True)
class Setting:
    """A backend and the study that it is tried on.

    `make(state, since)`: makes a backend that goes on from this state, of a fresh study or of one
    that was stopped, at this second of the study. It is called several times, each time after the
    backend before was used up.
    `shards`: the samples of each.
    `configs`: two or more configurations that train well, within seconds.
    `bad`: a configuration that raises, if the recipe has one.
    `late`: the seconds after which the study has nothing left to do.
    `close`: called when a backend has been used up.
    """

    make: Callable[[State, Seconds], Backend]
    shards: Mapping[ShardId, int]
    configs: Sequence[Config]
    bad: Config | None = None
    epochs: int = 2
    policies: Sequence[Policy[Any]] = field(default_factory=lambda: (Fifo(), Hop()))
    late: Seconds = 1.0
    close: Callable[[Backend], None] = lambda backend: None

    def at_once(self, epochs: int) -> Trace:
        """All configurations from the beginning, for so many epochs."""
        return Trace(_at_the_beginning(self.configs), epochs)


def _at_the_beginning(configs: Iterable[Config]) -> list[TimedConfig]:
    """The configurations, all of which arrive at once."""
    return [(0.0, config) for config in configs]


def check_backend(setting: Setting) -> None:
    """Check that the backend keeps its contract, under each of the setting's policies."""
    for policy in setting.policies:
        check_study(setting, policy)
        check_resume(setting, policy)
    check_stopped(setting)
    check_retired(setting)
    check_wake(setting)
    if setting.bad is not None:
        check_failure(setting, setting.bad)


def check_study(setting: Setting, policy: Policy[Any]) -> None:
    """All trials finish, and events come in order.

    Gangs that ended may be changed again, which has no effect.
    """
    lines, state = _run(setting, policy, setting.at_once(setting.epochs))
    _check_all_finished(state)
    for trial in state.known:
        _check_trained(setting, state, trial)
    assert not state.plan.gangs, f"gangs are left: {state.plan}"
    first = min(line.time for line in lines[1:])
    joined = _lines_of(Joined, lines)
    assert joined[0].time == first, "slots join at the first moment"


def _check_trained(setting: Setting, state: State, trial: TrialId) -> None:
    """The trial has made all its visits, was measured, and was evaluated in order."""
    count = len(state.visits[trial])
    wanted = setting.epochs * len(setting.shards)
    assert count == wanted, f"{trial}: {count} visits in {setting.epochs} epochs"
    measured = state.signature.get(trial)
    assert measured, f"{trial} has no signature: it was never measured"
    epochs = [epoch for epoch, _ in state.scores[trial]]
    assert epochs == sorted(epochs), f"{trial} was evaluated at {epochs}"


def _check_all_finished(state: State) -> None:
    how = set(state.ended.values())
    assert how == {"finished"}, f"not all finished: {state.ended}"


def check_resume(setting: Setting, policy: Policy[Any]) -> None:
    """A study that is stopped half way and resumed keeps all durable visits, and finishes."""
    searcher = setting.at_once(setting.epochs)
    half = len(setting.configs) * setting.epochs * len(setting.shards) // 2
    lines, state = _run(setting, policy, searcher, stop_after=half)
    assert not state.plan.gangs, f"stopped, but gangs are left: {state.plan}"
    _, final = _run(setting, policy, searcher, former=lines)
    _check_all_finished(final)
    for trial, kept in state.kept.items():
        durable = state.visits[trial][: kept.visits]
        repeated = final.visits[trial][: kept.visits]
        assert repeated == durable, f"{trial}: durable visits {durable} became {repeated}"


def check_stopped(setting: Setting) -> None:
    """A gang without a quota that is stopped amid a visit completes the visit.

    Nothing is lost, and nothing is done twice.
    """
    lines, state = _run(setting, _Interrupts(), setting.at_once(setting.epochs))
    _check_all_finished(state)
    fell = _lines_of(Fell, lines)
    assert not fell, f"a stop lost work: {fell}"
    completed = _visits_after_first_stop(lines)
    assert completed, "stopped amid a visit, it was not completed before the next plan"


def _visits_after_first_stop(lines: Sequence[Line]) -> int:
    """How many visits were completed between the first plan that only stops and the next plan."""
    stopped = False
    visits = 0
    for line in lines:
        entry = line.entry
        if isinstance(entry, Planned):
            if stopped:
                return visits
            stopped = bool(entry.stop) and not entry.start
        elif stopped:
            visits += _visits(entry)
    return visits


def _visits(entry: Entry) -> int:
    """How many visits were completed, if the entry is an Advanced; else 0."""
    if not isinstance(entry, Advanced):
        return 0
    return sum(map(len, entry.visits.values()))


def check_retired(setting: Setting) -> None:
    """A trial that is taken out while it runs stops, and the others go on."""
    searcher = _Retires(_at_the_beginning(setting.configs), setting.epochs)
    lines, state = _run(setting, setting.policies[0], searcher)
    retired = _lines_of(Retired, lines)
    assert len(retired) == 1, f"one trial is retired, not {retired}"
    out = retired[0].entry.trial
    assert state.ended[out] == "retired", f"retired {out}: {state.ended}"
    finished = [line.entry.trial for line in _lines_of(Finished, lines)]
    assert out not in finished, f"retired {out}, but finished {finished}"
    _check_others_finished(state, out, len(setting.configs) - 1)


def _check_others_finished(state: State, out: TrialId, count: int) -> None:
    """So many trials finished: all but the trial that is out."""
    others = [how for trial, how in state.ended.items() if trial != out]
    assert others == ["finished"] * count, f"not all others finished: {state.ended}"


def check_wake(setting: Setting) -> None:
    """When a trial arrives later there is a moment, even if nothing else happens then."""
    one, other = setting.configs[:2]
    arrivals = [(0.0, one), (1e-3, other), (setting.late, other)]
    lines, state = _run(setting, setting.policies[0], Trace(arrivals, 1))
    came = [line.time for line in _lines_of(Submitted, lines)]
    assert len(came) == 3, f"submitted at {came}"
    for time, (due, _) in zip(came, arrivals, strict=True):
        assert time >= due, f"submitted at {came}, before {arrivals}"
    _check_all_finished(state)


def check_failure(setting: Setting, bad: Config) -> None:
    """A configuration that raises is reported, with one line that says why.

    The other trials finish.
    """
    searcher = Trace(_at_the_beginning([bad, *setting.configs]), 1)
    lines, state = _run(setting, setting.policies[0], searcher)
    failed = _lines_of(Failed, lines)
    assert len(failed) == 1, f"one trial fails, not {failed}"
    entry = failed[0].entry
    assert entry.trial == FIRST, f"the first configuration fails; failed: {failed}"
    assert entry.why, "a failure says why"
    assert "\n" not in entry.why, f"why is one line; got {entry.why!r}"
    _check_others_finished(state, entry.trial, len(setting.configs))


def _run(
    setting: Setting,
    policy: Policy[Any],
    searcher: Searcher[Any],
    former: Sequence[Line] = (),
    stop_after: int | None = None,
) -> tuple[list[Line], State]:
    """Run the study, after the lines of a `former` run, and check its journal.

    `stop_after`: the visits after which the run is stopped; None: it is not.
    """
    journal, state, since = resumed(former, setting.shards)
    inner = setting.make(state, since)
    backend = Probed(inner, stop_after)
    watch = [backend.see]
    try:
        state = run(searcher, policy, backend, Believer(), journal, state, watch=watch)
    finally:
        setting.close(inner)
    check_journal(journal.lines, state)
    return journal.lines, state


class _LineOf(NamedTuple, Generic[E]):
    """A line of a journal whose entry is of a known kind."""

    time: Seconds
    entry: E


def _lines_of(kind: type[E], lines: Iterable[Line]) -> list[_LineOf[E]]:
    """The lines with entries of this kind."""
    return [_LineOf(time, entry) for time, entry in lines if isinstance(entry, kind)]


class Probed:
    """A backend that is also asked to stop gangs that ended.

    `stop_after`: the visits after which the run is asked to stop; None: it is not.
    """

    def __init__(self, inner: Backend, stop_after: int | None) -> None:
        self.inner = inner
        self.left = stop_after
        self.ended: list[Gang] = []

    def moments(self) -> Iterator[Moment]:
        last = 0.0
        for now, events in self.inner.moments():
            assert now >= last, f"a moment at {now} after one at {last}"
            last = now
            self.ended += [event.gang for event in events if isinstance(event, Ended)]
            if self._is_to_stop(events):
                events = (*events, Commanded("stop", "as asked"))
            yield now, events

    def _is_to_stop(self, events: Sequence[Event]) -> bool:
        """Count the visits; returns whether they are as many as were asked for."""
        if self.left is None:
            return False
        self.left -= sum(map(_visits, events))
        if self.left > 0:
            return False
        self.left = None
        return True

    def submit(self, trial: Trial) -> None:
        self.inner.submit(trial)

    def change(self, before: Gang | None, after: Gang | None) -> None:
        while self.ended:
            self.inner.change(self.ended.pop(), None)
        self.inner.change(before, after)

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        self.inner.wake(at, until)

    def see(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        """Check that no slot and no trial is in two gangs of the plan."""
        slots: list[SlotId] = []
        trials: list[TrialId] = []
        for gang in state.plan.gangs:
            slots += gang.slots
            trials += gang.trials
        assert len(set(slots)) == len(slots), f"{now}: {state.plan}"
        assert len(set(trials)) == len(trials), f"{now}: {state.plan}"


@dataclass(frozen=True, slots=True)
class _Interrupts:
    """First come, first served; but once, all that runs is stopped amid a visit.

    The memory is a stage, and the number of visits that were made when it was noted. In stage 0 it
    looks for two moments, both amid the same visit. It then stops all and is in stage 1, until the
    visit is completed. Stage 2 is plain first come, first served. Without a number it is -1.
    """

    def start(self) -> StageAndVisits:
        return [0, -1]

    def decide(self, view: View, memory: StageAndVisits) -> tuple[Plan, StageAndVisits]:
        stage, noted = memory
        visits = sum(map(len, view.visits.values()))
        if stage == 0 and noted == visits and view.running:
            return Plan(), [1, visits]
        if stage == 1 and noted == visits:
            return view.plan, memory
        plan, _ = Fifo().decide(view, None)
        if stage > 0:
            return plan, [2, -1]
        return Plan(plan.gangs, view.now + 1e-3), [0, visits if view.running else -1]


@dataclass(frozen=True, slots=True)
class _Retires:
    """A trace whose first trial is taken out once it has visited a shard.

    The memory is that of the trace, and 1 once the trial was taken out.
    """

    arrivals: Sequence[TimedConfig]
    epochs: int

    def start(self) -> list[int]:
        return [0, 0]

    def propose(self, view: View, memory: list[int]) -> tuple[Proposal, list[int]]:
        arrived, out = memory
        trace = Trace(self.arrivals, self.epochs)
        proposal, arrived = trace.propose(view, arrived)
        running = FIRST in view.trials and view.visits.get(FIRST)
        if running and not out:
            out = 1
            proposal = replace(proposal, retire=frozenset({FIRST}))
        return proposal, [arrived, out]
