"""The workloads on which `auto` is judged: trials, slots, what is true of them, and what is to be
reached early. `choice.py` and the tests run them in the simulator.

A study begins as a user's does: nothing is measured. The slots measure what trials cost as they
train, with errors, and report it as the real backends do; every policy decides by the same errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import shoal
from shoal.backend.sim.meter import Measuring
from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import (
    Entry,
    Event,
    Finished,
    Joined,
    Left,
    Measured,
    Opened,
    Remembered,
    Retired,
    Submitted,
)
from shoal.core.fold import fold
from shoal.core.ports import Searcher
from shoal.core.state import State
from shoal.core.trial import Seconds
from shoal.engine.journal import Journal, Line
from shoal.engine.run import Stalled, run
from shoal.policy.aim import Objective
from shoal.profile.measure import Believer
from shoal.profile.pack import Packing
from shoal.profile.table import Row, Table
from shoal.search import Hyperband, Trace
from shoal.study.auto import auto, policy_of

OFF = 0.15  # how far measured figures are off, at most
Shards = Mapping[ShardId, int]


@dataclass(frozen=True)
class Workload:
    """Trials, slots, and what is to be reached early.

    `truth`: figures by configuration. `script`: slots that come and go. `hopping`: as `auto` is
    told: True where no slot has all data, False where each has, None where that does not matter.
    `speeds`: of slots, 1 if not listed. `slower`: by row, how many times slower its trials are once
    they are half trained. `others`: policies to compare with beside those of `auto`.
    """

    name: str
    objective: Objective
    searcher: Callable[[], Searcher[Any]]
    truth: tuple[Row, ...]
    slots: int
    shards: Shards = field(default_factory=lambda: {ShardId("s0"): 1000})
    script: tuple[tuple[Seconds, Event], ...] = ()
    hopping: bool | None = False
    speeds: Mapping[SlotId, float] = field(default_factory=dict)
    slower: Mapping[int, float] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    def here(self) -> list[Slot]:
        """The slots at the beginning; where data stays, each holds its own shards."""
        names = list(self.shards)
        whole = frozenset(names)
        return [
            Slot(
                SlotId(f"g{i}"),
                f"n{i}",
                memory=16.0,
                shards=frozenset(names[i :: self.slots]) if self.hopping else whole,
            )
            for i in range(self.slots)
        ]

    def candidates(self) -> tuple[str, ...]:
        """The policies that `auto` would choose among, at some moment or other; and the others."""
        made = auto("auto", self.policy, hopping=self.hopping)
        return tuple(dict.fromkeys((*made.candidates, *self.others)))

    def policy(self, name: str) -> Any:
        if name == "auto":
            name = f"auto(objective={self.objective})"
        return policy_of(name, True, 0, hopping=self.hopping)


def rates(alone: float, power: float, most: int = 8) -> tuple[float, ...]:
    """Samples/s at widths 1, 2, …: they grow as this power of the width."""
    return tuple(alone * width**power for width in range(1, most + 1))


def arrivals(
    given: Sequence[tuple[Seconds, int, float]], widths: tuple[int, int] = (1, 8)
) -> Trace:
    """Trials as (when it comes, which row it has, epochs)."""
    return Trace(
        [(at, {"row": row, "batch_size": 10}, 1000.0 * n) for at, row, n in given], widths=widths
    )


def large(count: int, power: float, seed: int) -> tuple[Row, ...]:
    """Models of 50 to 200 samples/s."""
    drawn = np.random.default_rng(seed).uniform(50, 200, count)
    return tuple(
        Row(rates(float(rate), power), {"row": i}, memory=6.0, switch=1.0, build=0.5)
        for i, rate in enumerate(drawn)
    )


def small(row: int, share: float = 0.8) -> Row:
    """A model of 100 samples/s that shares most of its step with others on its slot."""
    packing = Packing.shared(share, 100.0, 10)
    return Row(rates(100.0, 0.1), {"row": row}, memory=1.0, switch=0.2, packing=packing)


def workloads() -> tuple[Workload, ...]:
    rng = np.random.default_rng(7)
    shards = {ShardId(f"s{i}"): 250 for i in range(4)}
    eight = {ShardId(f"s{i}"): 125 for i in range(8)}
    churn = tuple(_churn(rng))
    return (
        Workload(
            "many small", "makespan", lambda: arrivals([(0.0, 0, 3)] * 32, (1, 4)), (small(0),), 4
        ),
        Workload(
            "few large",
            "makespan",
            lambda: arrivals([(0.0, i, 4 + 2 * i) for i in range(3)]),
            large(3, 0.85, 1),
            8,
        ),
        Workload(
            "small and large",
            "makespan",
            lambda: arrivals([(0.0, 0, 2)] * 12 + [(0.0, 1, 12)] * 2, (1, 4)),
            (small(0), Row(rates(100.0, 0.9), {"row": 1}, memory=6.0, switch=1.0)),
            4,
        ),
        Workload(
            "many large",
            "mean_completion",
            lambda: arrivals([(0.0, i, 3 + i % 5) for i in range(14)]),
            large(14, 0.8, 2),
            8,
        ),
        Workload(
            "arrivals",
            "mean_completion",
            lambda: arrivals([(15.0 * i, i, 3 + 3 * (i % 3)) for i in range(12)]),
            large(12, 0.7, 3),
            8,
        ),
        Workload(
            "churn",
            "makespan",
            lambda: arrivals([(0.0, i, 6 + i) for i in range(6)]),
            large(6, 0.8, 4),
            8,
            script=churn,
        ),
        Workload(
            "own data",
            "makespan",
            lambda: arrivals([(0.0, 0, 2)] * 8 + [(0.0, i, 3) for i in range(1, 6)], (1, 1)),
            (small(0), *large(6, 0.8, 5)[1:]),
            4,
            shards,
            hopping=True,
        ),
        Workload(
            "first rung",
            "first_result",
            lambda: Hyperband(
                {"row": _rows(4)}, max_epochs=9, metric="loss", mode="min", widths=(1, 8)
            ),
            large(4, 0.8, 6),
            8,
            eight,
        ),
        Workload(
            "unlike neighbours",
            "makespan",
            lambda: arrivals([(0.0, 0, 7.68)] * 3 + [(0.0, 1, 7.68)] * 3, (1, 1)),
            (Row((40_000.0,), {"row": 0}, build=0.005), Row((940.0,), {"row": 1}, build=0.005)),
            2,
            {ShardId("s0"): 256},
            others=("mixed",),
        ),
        Workload(
            "one giant",
            "makespan",
            lambda: arrivals([(0.0, 0, 2)] * 12 + [(0.0, 1, 30)] + [(0.0, 0, 2)] * 12, (1, 4)),
            (small(0, 0.5), Row(rates(100.0, 0.85, 4), {"row": 1}, memory=6.0, switch=1.0)),
            4,
        ),
        Workload(
            "not divisible",
            "makespan",
            lambda: arrivals([(0.0, 0, 6)] * 10, (1, 4)),
            (Row(rates(100.0, 0.8, 4), {"row": 0}, memory=1.0, switch=1.0, build=0.5),),
            4,
        ),
        Workload(
            "thinning rungs",
            "makespan",
            lambda: Hyperband(
                {"row": _rows(4)}, max_epochs=27, metric="loss", mode="min", widths=(1, 4)
            ),
            large(4, 0.8, 8),
            4,
        ),
        Workload(
            "a slow slot",
            "makespan",
            lambda: arrivals([(0.0, 0, 6)] * 9, (1, 1)),
            (Row((100.0,), {"row": 0}, memory=6.0, switch=0.2, build=0.5),),
            4,
            shards,
            hopping=None,
            speeds={SlotId("g0"): 0.3},
        ),
        Workload(
            "slower midway",
            "makespan",
            lambda: arrivals([(0.0, i, 8) for i in range(6)], (1, 4)),
            large(6, 0.8, 10),
            4,
            slower={2: 4.0},
        ),
    )


def named(name: str) -> Workload:
    """The workload of this name."""
    return next(work for work in workloads() if work.name == name)


def _rows(count: int) -> Any:
    return shoal.choice(list(range(count)))


def _churn(rng: np.random.Generator) -> Any:
    """Every 20 to 60 s one slot goes, and comes back 15 s later."""
    at = 0.0
    for _ in range(12):
        at += float(rng.uniform(20, 60))
        gone = SlotId(f"g{rng.integers(8)}")
        whole = frozenset({ShardId("s0")})
        yield at, Left(frozenset({gone}))
        yield at + 15.0, Joined((Slot(gone, gone, memory=16.0, shards=whole),))


# -- running --------------------------------------------------------------------------------


def journal_of(work: Workload, policy: Any, seed: int) -> list[Line]:
    """The study under this policy, in virtual time. `seed`: of errors of up to `OFF`."""
    opened = Opened(1, work.shards)
    journal = Journal()
    journal.append(0.0, opened)
    truth = Table(work.truth, work.speeds)
    sim = Sim(
        truth.of,
        work.here(),
        work.script,
        shards=work.shards,
        seed=seed,
        measuring=Measuring(OFF, seed, tries=True),
    )
    run(
        work.searcher(),
        policy,
        sim,
        Believer(),
        journal,
        fold(State(), [opened]),
        watch=[_Slowing(work, sim)],
    )
    return journal.lines


@dataclass
class _Slowing:
    """Makes the trials of some rows slower once they are half trained."""

    work: Workload
    sim: Sim
    slow: dict[int, float] = field(default_factory=dict)

    def __call__(self, now: Seconds, entries: Sequence[Entry], then: State) -> None:
        for number, times in self.work.slower.items():
            if number not in self.slow and self._is_half_through(number, then):
                self.slow[number] = times
                rows = tuple(map(self._row, self.work.truth))
                self.sim.truth = Table(rows, self.work.speeds).of(self.sim.known)

    def _is_half_through(self, number: int, state: State) -> bool:
        """Whether a trial of this row is half trained."""
        return any(
            trial.config["row"] == number and state.done[name] >= trial.samples / 2
            for name, trial in state.known.items()
        )

    def _row(self, row: Row) -> Row:
        times = self.slow.get(row.config["row"], 1.0)  # type: ignore[arg-type]
        return replace(row, rates=tuple(rate / times for rate in row.rates))


def reached(objective: Objective, lines: Sequence[Line]) -> Seconds:
    """The seconds that the objective counts; infinity: some trial never ended."""
    came: dict[Any, Seconds] = {}
    ends: dict[Any, Seconds] = {}
    first: list[Seconds] = []
    for line in lines:
        if isinstance(line.entry, Submitted):
            came.setdefault(line.entry.trial.id, line.time)
        if isinstance(line.entry, (Finished, Retired)):
            ends[line.entry.trial] = line.time
            first.append(line.time)
    if objective == "first_result":
        return first[0]
    if objective == "mean_completion":
        return sum(ends[trial] - came[trial] for trial in came) / len(came)
    return max(ends.values())


def followed(lines: Sequence[Line]) -> list[str]:
    """What `auto` followed, one after the other."""
    names: list[str] = []
    for line in lines:
        if isinstance(line.entry, Remembered) and line.entry.who == "policy":
            name = line.entry.memory["follows"]
            if name is not None and (not names or names[-1] != name):
                names.append(name)
    return names


def compared(work: Workload, seed: int) -> dict[str, Any]:
    """The seconds under `auto` and under each of its candidates.

    Ratios below one are possible, since `auto` may change its policy on the way.
    """
    took: dict[str, Seconds] = {}
    for name in work.candidates():
        try:
            took[name] = reached(work.objective, journal_of(work, work.policy(name), seed))
        except Stalled:
            continue
    lines = journal_of(work, work.policy("auto"), seed)
    chosen = reached(work.objective, lines)
    best = min(took, key=took.__getitem__)
    return {
        "workload": work.name,
        "objective": work.objective,
        "seed": seed,
        "auto_s": chosen,
        "follows": ", ".join(followed(lines)),
        "best": best,
        "best_s": took[best],
        "worst_s": max(took.values()),
        "auto_over_best": chosen / took[best],
        "auto_over_fifo": chosen / took["fifo"] if "fifo" in took else None,
        "took": took,
        "figures": figures_in(lines),
    }


def figures_in(lines: Sequence[Line]) -> set[str]:
    """The names of the figures that were measured."""
    told = [line.entry for line in lines if isinstance(line.entry, Measured)]
    return {name for entry in told for name in entry.figures}
