"""How good the choice of `auto` is on real slots: two of the workloads of `choice.py`, under it and
under each policy that it chooses among there.

"few": three unequal models on four slots, all to end early. "many": ten, and the mean of their ends
counts. Real slots of the `ray` backend, real gradients, sums over the slots of a wide trial, and
states; the time of a step is emulated (`emulated.py`). Policies and `auto` believe a profile that
is up to 15 % off, and go on with what they measure. All ways run by turns.

    python benchmarks/choice_on_ray.py [--rounds 2] [--quick]   # --quick: "few" alone, three ways
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from emulated import SAMPLES, Emulated, Found, own_process, rate, times
from workloads import OFF, followed

import shoal
from shoal.profile.table import Row, Table
from shoal.search import Trace

SLOTS, SEED = 4, 5
FEW, MANY = 3, 10
FIXED = 4.0  # milliseconds a step
WAYS = ("auto", "fifo", "waterfill", "doubling", "equi", "elastic", "flotilla")
QUICK = ("auto", "fifo", "waterfill")
OBJECTIVES = {"few": "makespan", "many": "mean_completion"}


def trials(workload: str) -> list[tuple[dict[str, float], int]]:
    """Each trial's configuration, and its epochs of eight steps."""
    rng = np.random.default_rng(SEED)
    if workload == "few":
        return [(_config(i, 14.0), 6 + 2 * i) for i in range(FEW)]
    slow = rng.uniform(4.0, 16.0, MANY)
    return [(_config(i, slow[i]), 1 + i % 3) for i in range(MANY)]


def _config(model: int, per_sample: float) -> dict[str, float]:
    return {
        "model": model,
        "fixed": FIXED,
        "per_sample": round(float(per_sample), 2),
    }


def believed(workload: str) -> Table:
    """A profile of the trials, each with one factor up to `OFF` from one."""
    rng = np.random.default_rng(SEED + 1)
    rows = []
    for config, _ in trials(workload):
        off = float(1 + rng.uniform(-OFF, OFF))
        rates = tuple(off * rate(config, width) for width in range(1, SLOTS + 1))
        rows.append(Row(rates, config))
    return Table(tuple(rows))


def run(workload: str, way: str, folder: Path) -> Found:
    """One study: when its trials ended, and which policies it followed."""
    objective = OBJECTIVES[workload]
    given = [
        (0.0, config, float(SAMPLES * epochs)) for config, epochs in trials(workload)
    ]
    study = shoal.create_study(Emulated(), storage=folder / "study", seed=SEED)
    study.optimize(
        Trace(given, widths=(1, SLOTS)),
        policy=f"auto(objective={objective})" if way == "auto" else way,
        profile=believed(workload),
        backend="ray",
        slots=SLOTS,
        feeders=0,
        progress=False,
    )
    lines = study.lines()
    found = times(lines)
    names = followed(lines) if way == "auto" else []
    return {"seconds": found[f"{objective}_s"], "followed": names} | found


def compare(quick: bool, rounds: int) -> None:
    from common import write

    begin = time.perf_counter()
    workloads = ("few",) if quick else tuple(OBJECTIVES)
    ways = QUICK if quick else WAYS
    rows: list[dict[str, Any]] = []
    ratios: dict[str, Any] = {}
    for workload in workloads:
        runs: dict[str, list[Found]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way in ways:
                runs[way].append(own_process(__file__, way, "--workload", workload))
        seconds = {way: mean(run["seconds"] for run in runs[way]) for way in ways}
        best = min(ways[1:], key=seconds.__getitem__)
        for way in ways:
            each = [run["seconds"] for run in runs[way]]
            rows.append(
                {
                    "workload": workload,
                    "objective": OBJECTIVES[workload],
                    "way": way,
                    "seconds": seconds[way],
                    "least": min(each),
                    "most": max(each),
                    "followed": ", ".join(runs[way][-1]["followed"]),
                }
            )
        ratios[f"auto_over_best_{workload}"] = seconds["auto"] / seconds[best]
        ratios[f"best_{workload}"] = best
        worst = max(seconds.values())
        ratios[f"worst_over_auto_{workload}"] = worst / seconds["auto"]
    ratios |= {
        "auto_over_best_goal": 1.05,
        "minutes": (time.perf_counter() - begin) / 60,
    }
    write("choice_on_ray-quick" if quick else "choice_on_ray", rows, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--run", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--workload", choices=tuple(OBJECTIVES), default="few")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run(given.workload, given.run, given.folder)))
    else:
        compare(given.quick, given.rounds)


if __name__ == "__main__":
    main()
