"""What deciding costs with a thousand slots and more, with ten thousand trials and with long runs.

One process, one core, processor time of one thread: other processes do not count.

- Slots: a whole decision of the engine (fold, view, searcher, policy, check, journal, differences)
  at 1 000 and at 10 000 slots in the simulator, which ends one unit at a time. The simulator's own
  time does not count. Asked for: 0.3 ms and 1 ms. `growth`: how many times as much at ten times as
  many slots.
- Trials: 10 000 of them in packs on 100 slots, all alike, or no two alike; the engine's time and
  the policy's. Asked for: 0.5 ms a trial.
- Runs: the part of a real run's time that goes to deciding, in units of one second and of
  ten. Asked for: 0.5 % and 0.1 %.
- Journal: a million lines of 100 000 trials: processor seconds to open it, of `shoal status` and of
  `shoal report`, Python's start included, and the page's MB. Asked for: 3, 3 and 5 s, 15 MB.

`python benchmarks/scale.py slots trials` runs parts; without names all run.
"""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from subprocess import DEVNULL
from subprocess import run as run_command
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any
from unittest.mock import patch

from common import write

from shoal.backend.local import Local
from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import (
    Advanced,
    Entry,
    Evaluated,
    Finished,
    Joined,
    Kept,
    Opened,
    Planned,
    Submitted,
)
from shoal.core.fold import fold
from shoal.core.plan import Gang, Proposal, solo
from shoal.core.ports import Moment, Policy
from shoal.core.state import State, View
from shoal.core.trial import Seconds, Trial, TrialId, Visit
from shoal.engine.journal import Grouping, Journal, Line
from shoal.engine.run import Stalled, run
from shoal.engine.snapshot import EVERY, Snapshot, runs_in
from shoal.policy import Elastic, Fifo, Hop, Pack
from shoal.profile.pack import Packing
from shoal.profile.table import Row, Table
from shoal.search import Trace
from shoal.study.folder import Folder

SAMPLES = 1000  # of a shard
ROUNDS = 3
MOMENTS = 400  # measured at each number of slots
WARM = 50  # moments before these
Rows = list[dict[str, Any]]
Ratios = dict[str, float]


class AllAtOnce:
    """A searcher that submits these trials at the first moment."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = tuple(trials)

    def start(self) -> bool:
        return False

    def propose(self, view: View, came: bool) -> tuple[Proposal, bool]:
        return Proposal(() if came else self.trials), True


class Apart:
    """A simulated backend that notes the engine's time apart from its own.

    `spent`: the engine's seconds at each moment. It has no more moments after `most`.
    """

    def __init__(self, sim: Sim, most: int | None = None) -> None:
        self.sim = sim
        self.most = most
        self.spent: list[Seconds] = []
        self._own = 0.0

    def moments(self) -> Iterator[Moment]:
        for moment in self.sim.moments():
            self._own = 0.0
            begin = thread_time()
            yield moment
            self.spent.append(thread_time() - begin - self._own)
            if len(self.spent) == self.most:
                return

    def submit(self, trial: Trial) -> None:
        self._apart(lambda: self.sim.submit(trial))

    def change(self, before: Gang | None, after: Gang | None) -> None:
        self._apart(lambda: self.sim.change(before, after))

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        self._apart(lambda: self.sim.wake(at, until))

    def _apart(self, call: Callable[[], None]) -> None:
        begin = thread_time()
        call()
        self._own += thread_time() - begin


@dataclass(frozen=True)
class World:
    """Slots, trials and what they cost."""

    policy: Policy[Any]
    slots: Sequence[Slot]
    shards: dict[ShardId, int]
    trials: Sequence[Trial]
    table: Table

    def run(self, most: int | None = None) -> list[Seconds]:
        """The engine's seconds at each moment, with a journal on disk."""
        backend = Apart(Sim(self.table.of, self.slots, shards=self.shards), most)
        state = fold(State(), [Opened(1, self.shards)])
        gc.collect()
        with TemporaryDirectory() as folder, suppress(Stalled):
            journal = Journal(Path(folder) / "journal.jsonl", Grouping(1.0))
            try:
                run(
                    AllAtOnce(self.trials), self.policy, backend, self.table.believe, journal, state
                )
            finally:
                journal.close()
        return backend.spent


def unlike(number: int) -> float:
    """A number in [0.5, 1.5), another one for each number."""
    return 0.5 + (number * 0.6180339887) % 1.0


def shards_of(count: int) -> dict[ShardId, int]:
    return {ShardId(f"s{i:03d}"): SAMPLES for i in range(count)}


def slots_with(count: int, shards: dict[ShardId, int]) -> list[Slot]:
    """So many slots; each holds one of the shards, in turn."""
    names = list(shards)
    return [
        Slot(SlotId(f"slot{i:05d}"), shards=frozenset({names[i % len(names)]}))
        for i in range(count)
    ]


def trials_of(
    count: int, shards: dict[ShardId, int], widths: tuple[int, int] = (1, 1)
) -> list[Trial]:
    """So many trials of one epoch."""
    whole = float(sum(shards.values()))
    return [
        Trial(TrialId(f"t{i:06d}"), whole, {"x": i}, widths, frozenset(shards))
        for i in range(count)
    ]


# -- slots


def world_of(name: str, count: int) -> World:
    """So many slots under this policy, and more trials than they take; no two end together."""
    if name == "hop":
        shards = shards_of(100)
        trials = trials_of(count + count // 10, shards)
        return World(Hop(), slots_with(count, shards), shards, trials, rows_of(trials))
    shards = shards_of(1)
    slots = slots_with(count, shards)
    if name == "elastic":
        trials = trials_of(count // 4 + count // 8, shards, (1, 8))
        return World(Elastic(), slots, shards, trials, rows_of(trials, wide=(1, 1.9, 2.7, 3.4, 4)))
    if name == "pack":
        trials = trials_of(count * 5, shards)
        return World(Pack(most=4), slots, shards, trials, rows_of(trials, packed=True))
    trials = trials_of(count + count // 2, shards)
    return World(Fifo(), slots, shards, trials, rows_of(trials))


def rows_of(trials: Sequence[Trial], wide: Sequence[float] = (1.0,), packed: bool = False) -> Table:
    """A profile in which no two of the trials are of one speed."""
    rows = []
    for number, trial in enumerate(trials):
        rate = 100.0 * unlike(number)
        packing = Packing.shared(0.5, rate, 32) if packed else None
        rates = tuple(rate * more for more in wide)
        rows.append(Row(rates, dict(trial.config), packing=packing))
    return Table(tuple(rows))


def decisions(rounds: int = ROUNDS, counts: Sequence[int] = (1000, 10_000)) -> Rows:
    """Milliseconds of a decision under each policy, the mean over many moments."""
    rows = []
    for name in ("fifo", "hop", "pack", "elastic"):
        for count in counts:
            found = []
            # Forming the first ten thousand packs takes minutes.
            for _ in range(1 if (name, count) == ("pack", 10_000) else rounds):
                spent = world_of(name, count).run(1 + WARM + MOMENTS)
                measured = spent[1 + WARM :]
                found.append(1e3 * sum(measured) / len(measured))
            rows.append(
                {
                    "part": "slots",
                    "policy": name,
                    "slots": count,
                    "ms": median(found),
                    "least": min(found),
                    "most": max(found),
                }
            )
            print(rows[-1], flush=True)
    return rows


def of_slots() -> tuple[Rows, Ratios]:
    rows = decisions()
    ms = {(row["policy"], row["slots"]): row["ms"] for row in rows}
    policies = {policy for policy, _ in ms}
    return rows, {
        "decision_ms_1000_slots": max(ms[policy, 1000] for policy in policies),
        "decision_ms_10000_slots": max(ms[policy, 10_000] for policy in policies),
        "growth": max(ms[policy, 10_000] / ms[policy, 1000] for policy in policies),
    }


# -- trials


def packs_of(like: bool, trials: int, slots: int) -> World:
    """So many trials in packs, all alike or no two alike."""
    shards = shards_of(1)
    many = trials_of(trials, shards)
    if like:
        table = Table((Row((100.0,), packing=Packing.shared(0.5, 100.0, 32)),))
    else:
        table = rows_of(many, packed=True)
    return World(Pack(), slots_with(slots, shards), shards, many, table)


def of_trials() -> tuple[Rows, Ratios]:
    rows: Rows = []
    for like in (True, False):
        for trials, slots in ((2500, 25), (10_000, 100)):
            found = [1e3 * sum(packs_of(like, trials, slots).run()) / trials for _ in range(ROUNDS)]
            rows.append(
                {
                    "part": "trials",
                    "policy": "pack, like" if like else "pack, unlike",
                    "trials": trials,
                    "slots": slots,
                    "ms": median(found),
                    "least": min(found),
                    "most": max(found),
                }
            )
            print(rows[-1], flush=True)
    return rows, {"pack_ms_a_trial": max(row["ms"] for row in rows if row["trials"] == 10_000)}


# -- real runs


def deciding(policy: str, unit: Seconds, units: int) -> dict[str, Any]:
    """What part of a real run the engine took. Units are so long; each trial has `units`.

    All that happens between two moments counts: searcher, policy, check, notes, and the wait for
    the disk where states and lines become durable. `flotilla.py` has the share on Ray.
    """
    from emulated import SAMPLES as EPOCH
    from emulated import Emulated

    import shoal

    spent: list[Seconds] = []
    work: list[Seconds] = []
    moments = Local.moments

    def watched(self: Local) -> Iterator[Moment]:
        for moment in moments(self):
            clock, processor = perf_counter(), thread_time()
            yield moment
            spent.append(perf_counter() - clock)
            work.append(thread_time() - processor)

    given = [(0.0, _slow(model, unit / EPOCH), float(EPOCH * units)) for model in range(4)]
    with TemporaryDirectory() as folder, patch.object(Local, "moments", watched):
        study = shoal.create_study(Emulated(), storage=Path(folder) / "study")
        study.optimize(Trace(given), policy=policy, progress=False)
        lines = study.lines()
    whole = max(line.time for line in lines)
    return {
        "part": "runs",
        "policy": policy,
        "unit_s": unit,
        "seconds": whole,
        "decided_s": sum(spent),
        "share": sum(spent) / whole,
        "processor_share": sum(work) / whole,
    }


def _slow(model: int, per_sample: Seconds) -> dict[str, float]:
    """A configuration of which a sample takes so long."""
    return {"model": model, "fixed": 0.0, "per_sample": 1e3 * per_sample}


def of_runs() -> tuple[Rows, Ratios]:
    """Shares of the wall time in units of one second and of ten."""
    rows = []
    for policy in ("fifo", "pack", "hop"):
        for unit, units in ((1.0, 4), (10.0, 1)):
            rows.append(deciding(policy, unit, units))
            print(rows[-1], flush=True)
    ratios = {}
    for unit in (1, 10):
        here = [row for row in rows if row["unit_s"] == unit]
        ratios[f"deciding_share_{unit}_s"] = max(row["share"] for row in here)
        ratios[f"deciding_processor_share_{unit}_s"] = max(row["processor_share"] for row in here)
    return rows, ratios


# -- long journals


def lines_of(trials: int, slots: int = 100) -> Iterator[tuple[Seconds, Entry]]:
    """What a run of so many trials writes, ten lines a trial: two epochs of two shards."""
    shards = shards_of(2)
    head = {"study": "many", "metric": "loss", "mode": "min", "backend": "local"}
    draw = Random(0)
    time = 0.0
    yield time, Opened(1, shards, head)
    yield (
        time,
        Joined(tuple(Slot(SlotId(f"n{n}"), shards=frozenset(shards)) for n in range(slots))),
    )
    for first in range(0, trials, slots):
        wave = [TrialId(f"t{first + n:06d}") for n in range(min(slots, trials - first))]
        for n, name in enumerate(wave):
            config = {"lr": draw.random(), "width": draw.choice([64, 128])}
            yield (time, Submitted(Trial(name, 4.0 * SAMPLES, config, shards=frozenset(shards))))
            yield time, Planned((), (solo(name, SlotId(f"n{n}"), first + n),))
        for epoch in range(2):
            for shard in shards:
                for name in wave:
                    time += 0.01
                    visits = {name: (Visit(epoch, shard, first, SAMPLES),)}
                    spent = {name: {"train": 0.9, "data": 0.1}}
                    values = {name: {"loss": (draw.random() * SAMPLES, float(SAMPLES))}}
                    yield time, Advanced({name: float(SAMPLES)}, values, visits, spent)
            for name in wave:
                yield (time, Evaluated(name, epoch + 1.0, {"loss": draw.random() / (epoch + 1)}))
        for name in wave:
            yield time, Kept(name, 4, 4.0 * SAMPLES, f"{name}/000001-4.pt")
            yield time, Finished(name)


def write_journal(folder: Folder, trials: int) -> None:
    """The journal, and the snapshots that its run would have left: half of the last part is new."""
    journal = Journal(folder.journal, Grouping(inf))
    state = State()
    waiting: list[Entry] = []
    runs: list[Line] = []
    for time, entry in lines_of(trials):
        journal.append(time, entry)
        waiting.append(entry)
        runs += runs_in([Line(time, entry)])
        if journal.number % EVERY == EVERY // 2:
            state, waiting = fold(state, waiting), []
            journal.sync()
            at = journal.number, journal.size, time
            folder.snapshots.write(Snapshot(*at, runs, state))
    journal.close()


def seconds_of(*command: str) -> Seconds:
    """Processor time of a command, Python's start and imports included."""
    before = getrusage(RUSAGE_CHILDREN)
    run_command([sys.executable, *command], check=True, stdout=DEVNULL)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def of_journal() -> tuple[Rows, Ratios]:
    """A journal of a million lines of 100 000 trials: what it takes to open, and to show."""
    with TemporaryDirectory() as place:
        path = Path(place) / "many"
        folder = Folder(path)
        folder.make()
        write_journal(folder, 100_000)
        page = path / "report.html"
        look = f"from shoal.study.folder import Folder; Folder({str(path)!r}).past()"
        commands = {
            "open_million_lines_s": ("-c", look),
            "status_100000_trials_s": ("-m", "shoal", "status", str(path)),
            "report_100000_trials_s": ("-m", "shoal", "report", str(path)),
        }
        rows: Rows = []
        for name, command in commands.items():
            found = [seconds_of(*command) for _ in range(ROUNDS)]
            rows.append(
                {
                    "part": "journal",
                    "what": name,
                    "s": median(found),
                    "least": min(found),
                    "most": max(found),
                }
            )
            print(rows[-1], flush=True)
        ratios = {row["what"]: row["s"] for row in rows}
        return rows, {**ratios, "report_100000_trials_mb": page.stat().st_size / 1e6}


# Each gives rows and ratios.
PARTS: dict[str, Callable[[], tuple[Rows, Ratios]]] = {
    "slots": of_slots,
    "trials": of_trials,
    "runs": of_runs,
    "journal": of_journal,
}


def main() -> None:
    rows: Rows = []
    ratios: Ratios = {}
    for name in sys.argv[1:] or PARTS:
        more, found = PARTS[name]()
        rows += more
        ratios |= found
    write("scale", rows, ratios)


if __name__ == "__main__":
    main()
