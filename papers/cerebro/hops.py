"""Runs a policy over a cell of the workload, through the ordinary engine and `sim`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from noisy import Noisy
from workload import Cell

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Entry, Event, Finished
from shoal.core.fold import fold
from shoal.core.plan import Plan
from shoal.core.ports import Policy, Searcher
from shoal.core.profile import Profile
from shoal.core.state import State, View
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import reopened, run
from shoal.profile.measure import Believer
from shoal.profile.table import Row, Table
from shoal.search.trace import Trace

SIZE = 1000  # samples of a shard


@dataclass
class Outcome:
    """When trials ended, what the policy took for each decision by the clock, and what became
    of every trial.
    """

    ends: dict[TrialId, Seconds] = field(default_factory=dict)
    thought: list[Seconds] = field(default_factory=list)
    state: State = State()

    @property
    def makespan(self) -> Seconds:
        return max(self.ends.values())

    @property
    def mean_end(self) -> Seconds:
        return sum(self.ends.values()) / len(self.ends)


@dataclass(frozen=True)
class Timed:
    """A policy with a clock beside it."""

    inner: Policy[Any]
    thought: list[Seconds]

    def start(self) -> Any:
        return self.inner.start()

    def decide(self, view: View, memory: Any) -> tuple[Plan, Any]:
        began = perf_counter()
        decided = self.inner.decide(view, memory)
        self.thought.append(perf_counter() - began)
        return decided


class Forgetful(Journal):
    """Nothing is read back, so nothing is kept."""

    def append(self, time: Seconds, entry: Entry) -> None:
        return None


def slot_name(number: int) -> SlotId:
    return SlotId(f"w{number:02d}")


def simulate(
    policy: Policy[Any],
    cell: Cell,
    epochs: float = 1,
    noise: float = 0.0,
    seed: int = 0,
    script: Iterable[tuple[Seconds, Event]] = (),
    sizes: Sequence[int] | None = None,
    searcher: Searcher[Any] | None = None,
    learnt: bool = False,
) -> Outcome:
    """Train every trial of the cell. `noise`: deviation of the times that pass from those
    believed. `learnt`: the policy knows no times but those that the run itself has measured.
    """
    shards = {
        ShardId(f"s{q:02d}"): size for q, size in enumerate(sizes or [SIZE] * len(cell.holders))
    }
    names = list(shards)
    held = [
        frozenset(names[q] for q, at in enumerate(cell.holders) if w in at)
        for w in range(len(cell.speeds))
    ]
    slots = [Slot(slot_name(w), shards=here) for w, here in enumerate(held)]
    rows = [Row((SIZE / flops,), {"m": i}) for i, flops in enumerate(cell.flops)]
    table = Table(rows, {slot_name(w): speed for w, speed in enumerate(cell.speeds)})

    def truth(known: Mapping[TrialId, Trial]) -> Profile:
        return Noisy(table.of(known), noise, seed) if noise else table.of(known)

    outcome = Outcome()

    def watch(now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        outcome.ends.update((e.trial, now) for e in entries if isinstance(e, Finished))

    sim = Sim(truth, slots, script, shards=shards, checkpoint_every=1e12)
    searcher = searcher or Trace([(0, {"m": i}) for i in range(len(cell.flops))], max_epochs=epochs)
    state = fold(State(), reopened(State(), shards, {}))
    timed = Timed(policy, outcome.thought)
    believe = Believer() if learnt else table.believe
    outcome.state = run(searcher, timed, sim, believe, Forgetful(), state, watch=[watch])
    return outcome
