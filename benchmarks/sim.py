"""How long it takes to simulate a study: 256 trials x 16 slots x 16 shards x 10 epochs, through
the ordinary engine.

One process, one core. "equal": all trials are of one speed, so that 16 units end at a time;
"unlike": no two are, so that each of the 40 960 units is a moment and a decision of its own.
The journal is kept in memory, as simulations do. Asked for: hop in less than 10 s of one core,
which is processor time: other processes do not count.
"""

import gc
from statistics import median
from time import perf_counter, process_time
from typing import Any

from common import write

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Finished, Opened, Planned
from shoal.core.fold import fold
from shoal.core.ports import Policy
from shoal.core.state import State
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.policy import Hop
from shoal.profile.table import Row, Table
from shoal.search import Grid
from shoal.search.space import grid

TRIALS, SLOTS, EPOCHS, SAMPLES = 256, 16, 10, 1000
BUDGET = 10.0  # seconds of processor time
REPEATS = 3


def speeds(kind: str) -> list[float]:
    """Samples/s of each trial."""
    return [
        1000.0 if kind == "equal" else 500.0 + 1000.0 * ((i * 0.6180339887) % 1.0)
        for i in range(TRIALS)
    ]


def simulate(policy: Policy[Any], rates: list[float]) -> tuple[float, float, float, int, int]:
    """Seconds it took, of the processor and by the clock; seconds it says; decisions; journal
    entries.
    """
    shards = {ShardId(f"s{i:03d}"): SAMPLES for i in range(SLOTS)}
    slots = [
        Slot(SlotId(f"slot{i:02d}"), shards=frozenset({shard})) for i, shard in enumerate(shards)
    ]
    table = Table(tuple(Row((rate,), {"x": i}) for i, rate in enumerate(rates)))
    searcher = Grid({"x": grid(range(TRIALS))}, EPOCHS)
    journal, opened = Journal(), Opened(1, shards)
    begin, clock = process_time(), perf_counter()
    state = run(
        searcher,
        policy,
        Sim(table.of, slots, shards=shards),
        table.believe,
        journal,
        fold(State(), [opened]),
    )
    took, waited = process_time() - begin, perf_counter() - clock
    assert set(state.ended.values()) == {"finished"}
    assert all(len(visits) == SLOTS * EPOCHS for visits in state.visits.values())
    ends = max(line.time for line in journal.lines if isinstance(line.entry, Finished))
    return (
        took,
        waited,
        ends,
        sum(isinstance(line.entry, Planned) for line in journal.lines),
        len(journal.lines),
    )


def main() -> None:
    rows: list[dict[str, Any]] = []
    for kind in ("equal", "unlike"):
        rates = speeds(kind)
        bound = EPOCHS * max(sum(SAMPLES / rate for rate in rates), SLOTS * SAMPLES / min(rates))
        for rule in ("rotation", "lrw", "random"):
            runs = []
            for _ in range(REPEATS):
                gc.collect()
                runs.append(simulate(Hop(rule), rates))  # type: ignore[arg-type]
            took = median(run[0] for run in runs)
            _, _, makespan, decisions, entries = runs[0]
            rows.append(
                {
                    "speeds": kind,
                    "rule": rule,
                    "cpu_s": took,
                    "wall_s": median(run[1] for run in runs),
                    "decisions": decisions,
                    "us_per_decision": 1e6 * took / decisions,
                    "entries": entries,
                    "makespan_over_bound": makespan / bound,
                }
            )
    by_cell = {(row["speeds"], row["rule"]): row for row in rows}
    ratios = {
        f"hop_{kind}_over_budget": by_cell[kind, "rotation"]["cpu_s"] / BUDGET
        for kind in ("equal", "unlike")
    }
    write("sim", rows, ratios)


if __name__ == "__main__":
    main()
