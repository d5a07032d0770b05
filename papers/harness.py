"""Runs a policy over given arrivals through the ordinary engine and `sim`, and keeps what the
papers' tables need.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Entry, Opened, Planned
from shoal.core.fold import fold
from shoal.core.ports import Policy
from shoal.core.profile import Profile
from shoal.core.state import State
from shoal.core.trial import Seconds, TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.profile.table import Table
from shoal.simulate.arrivals import Arrival, Arrivals


@dataclass
class Outcome:
    """What a run came to. `ends`: when each trial ended; `peak`: most trials with work left at
    once; `busy`: slot-seconds.
    """

    came: dict[TrialId, Seconds]
    ends: dict[TrialId, Seconds] = field(default_factory=dict)
    starts: dict[TrialId, Seconds] = field(default_factory=dict)
    plans: list[tuple[Seconds, Planned]] = field(default_factory=list)
    peak: int = 0
    busy: float = 0.0

    @property
    def makespan(self) -> Seconds:
        return max(self.ends.values())

    @property
    def mean_hours(self) -> float:
        """Mean time from arrival to end, in hours."""
        return sum(end - self.came[t] for t, end in self.ends.items()) / len(self.ends) / 3600

    @property
    def changes(self) -> float:
        """Changes of slots per trial, after its first start."""
        started: set[TrialId] = set()
        count = 0
        for _, plan in self.plans:
            for gang in plan.start:
                count += sum(trial in started for trial in gang.trials)
                started.update(gang.trials)
        return count / len(self.came)

    @property
    def flotillas(self) -> list[dict[TrialId, Seconds]]:
        """For each plan that starts gangs: how long each of the trials that it starts ran, until
        it ended or got other slots.
        """
        stops = {gang: at for at, plan in self.plans for gang in plan.stop}
        return [
            {
                t: min(self.ends[t], stops.get(gang, self.ends[t])) - at
                for gang in plan.start
                for t in gang.trials
            }
            for at, plan in self.plans
            if plan.start
        ]


def nodes(count: int, per_node: int) -> tuple[Slot, ...]:
    """So many GPUs, so many to a node."""
    return tuple(
        Slot(SlotId(f"g{i:03d}"), node=f"n{i // per_node:03d}", kind="gpu") for i in range(count)
    )


def simulate(
    policy: Policy[Any],
    arrivals: Sequence[Arrival],
    slots: Sequence[Slot],
    truth: Table,
    believe: Callable[[Profile], Profile] = lambda profile: profile,
    shards: Mapping[ShardId, int] = MappingProxyType({}),
) -> Outcome:
    """Run to the end. The policy believes what `believe` makes of the truth.

    `shards`: the samples of each; none: the data is not divided, and there are no visits.
    """
    outcome = Outcome({trial.id: time for time, trial in arrivals})
    before = (0.0, 0)  # when, and slots busy since

    def watch(now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        nonlocal before
        outcome.busy += before[1] * (now - before[0])
        before = now, len(state.busy)
        outcome.peak = max(outcome.peak, len(state.trials))
        for trial in state.running:
            outcome.starts.setdefault(trial, now)
        for trial in state.ended.keys() - outcome.ends.keys():
            outcome.ends[trial] = now
        outcome.plans += [(now, entry) for entry in entries if isinstance(entry, Planned)]

    backend = Sim(truth.of, slots, checkpoint_every=0, shards=shards)
    begun = fold(State(), [Opened(1, dict(shards))])
    run(
        Arrivals(arrivals),
        policy,
        backend,
        lambda state: believe(truth.of(state.known)),
        _Forgetful(),
        begun,
        watch=[watch],
    )
    return outcome


class _Forgetful(Journal):
    """Nothing is read back, so nothing is kept."""

    def append(self, time: Seconds, entry: Entry) -> None:
        return None
