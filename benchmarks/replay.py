"""How fast the simulator replays a supercomputer's log, through the ordinary engine; and how
cheap the fold stays.

`python benchmarks/replay.py [--short]`. Uses the log of Summit's idle nodes where it is at hand
(BFTRAINER_DATA names the folder; it has no licence and is not part of Shoal), else a made-up
one of the same size.
"""

import csv
import os
import sys
from pathlib import Path
from time import perf_counter

import numpy as np
from common import write

from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Advanced, Joined, Left, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.policy.elastic.elastic import Elastic
from shoal.profile.table import Row, Table
from shoal.simulate.arrivals import even
from shoal.simulate.idle_log import IdleLog
from shoal.simulate.log_files import read_log
from shoal.simulate.run import run_spec
from shoal.simulate.spec import Spec
from shoal.simulate.synthetic_log import Machine, synthetic

HERE = Path(__file__).resolve()
DATA = Path(os.environ.get("BFTRAINER_DATA", HERE.parents[2] / "shared" / "data" / "bftrainer"))
SPEEDS = [2831.0, 5259.0, 9988.0, 20379.2, 38895.3, 74125.1, 145081.5]
BEGIN = 72743.0  # of Summit's log: where BFTrainer's experiments begin


def summit(nodes: int, hours: float) -> tuple[IdleLog, str]:
    if not DATA.exists():
        return synthetic(Machine(racks=nodes // 18, per_rack=18, idle=0.083), hours), "synthetic"
    with (DATA / "nodes.csv").open() as file:
        names = [row["name"] for row in csv.DictReader(file)]
    log = read_log(DATA / "summit_events.csv.gz", names)
    return log.subset(0, nodes).window(BEGIN, BEGIN + hours * 3600.0), "Summit"


def replay(
    nodes: int, trials: int, hours: float, parallel: int, placement: str = "index"
) -> dict[str, object]:
    log, source = summit(nodes, hours)
    rates = tuple(np.interp(range(1, 65), [1, 2, 4, 8, 16, 32, 64], SPEEDS).tolist())
    arrivals = tuple(
        (at, Trial(TrialId(f"t{i:04d}"), 130e6, {"n": i}, (1, 64)))
        for i, at in enumerate(even(trials, 36.0))
    )
    profile = Table((Row(rates, up=18.0, down=12.0),))
    spec = Spec("replay", (), tuple(log.script()), {}, arrivals, profile, {}, log.span, 0, 600.0)
    begin = perf_counter()
    found, _ = run_spec(spec, Elastic(admit=parallel, placement=placement))  # type: ignore[arg-type]
    return {
        "log": source,
        "nodes": nodes,
        "trials": trials,
        "hours": hours,
        "placement": placement,
        "moments": found["moments"],
        "finished": found["finished"],
        "slots_used": found["slots_used"],
        "cpu_s": found["cpu_s"],
        "wall_s": perf_counter() - begin,
    }


def fold_us(slots: int, rounds: int = 300) -> float:
    """Microseconds to fold one event, as a run makes them: progress, a node that leaves and
    comes back, a gang that changes.
    """
    every = [Slot(SlotId(f"s{i:05d}"), f"n{i}") for i in range(slots)]
    lanes = max(1, slots // 10)
    made = [Trial(TrialId(f"t{i:04d}"), 1e9, {}, (1, 64)) for i in range(lanes)]
    state = fold(State(), [Joined(tuple(every)), *map(Submitted, made)])
    gangs = [
        Gang((Lane(t.id, tuple(s.id for s in every[10 * i : 10 * i + 10])),))
        for i, t in enumerate(made)
    ]
    state = fold(state, [Planned((), tuple(gangs))])
    begin = perf_counter()
    for k in range(rounds):
        i = k % lanes
        slot, gang = every[10 * i + 9], state.running[made[i].id]
        state = fold(state, [Advanced({made[i].id: 1.0})])
        state = fold(state, [Left(frozenset({slot.id}))])
        state = fold(state, [Joined((slot,))])
        now = state.running[made[i].id]
        state = fold(state, [Planned((now,), (gang,))])
    return 1e6 * (perf_counter() - begin) / (4 * rounds)


def main(short: bool) -> None:
    rows = [replay(1024, 1000, 24.0 if short else 168.0, 10)]
    if not short:
        rows += [replay(1024, 1000, 168.0, 10, "spatial"), replay(4734, 2000, 168.0, 46)]
    ratios: dict[str, object] = {f"fold_us_{n}": fold_us(n) for n in (100, 1000, 10000)}
    ratios |= {
        "replay_1024_cpu_s": rows[0]["cpu_s"],
        "replay_4734_cpu_s": rows[-1]["cpu_s"] if not short else None,
    }
    write("replay-short" if short else "replay", rows, ratios)


if __name__ == "__main__":
    main("--short" in sys.argv)
