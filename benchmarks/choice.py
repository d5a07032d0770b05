"""How good the choice of `auto` is: the workloads of `workloads.py` under it, and under each policy
that it chooses among, in the simulator.

A study begins unmeasured. What the slots measure is up to 15 % wrong, and so is what trials gain by
more slots or by sharing one. All policies decide by the same errors. Each workload has an
objective, by which all are measured.

The ratio of a workload is the time under `auto` over that under the best fixed policy of the same
seed, or under `fifo`, in the mean over the seeds. A seed is one set of errors.

    python benchmarks/choice.py [--seeds 8] [--only "one giant"]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

from workloads import Workload, compared, workloads


def compare(works: Sequence[Workload], seeds: int, name: str) -> None:
    from common import write

    begin = time.perf_counter()
    rows = []
    for work in works:
        for seed in range(seeds):
            found = compared(work, seed)
            del found["figures"]
            rows.append(found)
    ratios: dict[str, Any] = {}
    for work in works:
        mine = [row for row in rows if row["workload"] == work.name]
        key = work.name.replace(" ", "_")
        over_best = [row["auto_over_best"] for row in mine]
        over_fifo = [row["auto_over_fifo"] for row in mine if row["auto_over_fifo"]]
        ratios[f"auto_over_best_{key}"] = mean(over_best)
        if over_fifo:
            ratios[f"auto_over_fifo_{key}"] = mean(over_fifo)
        ratios[f"worst_{key}"] = max(over_best)
    worst = max(rows, key=lambda row: row["auto_over_best"])
    ratios |= {
        "auto_over_best": _most(ratios, "auto_over_best_"),
        "auto_over_best_goal": 1.05,
        "auto_over_fifo": _most(ratios, "auto_over_fifo_"),
        "auto_over_fifo_goal": 1.05,
        "worst_auto_over_best": worst["auto_over_best"],
        "worst_at": f"{worst['workload']}, seed {worst['seed']}",
        "worst_over_auto": max(row["worst_s"] / row["auto_s"] for row in rows),
        "minutes": (time.perf_counter() - begin) / 60,
    }
    took = [{"workload": row["workload"], "seed": row["seed"], **row.pop("took")} for row in rows]
    write(name, rows, ratios, more={"each_policy_s": took})


def _most(ratios: dict[str, Any], start: str) -> float:
    """The greatest of the ratios whose names begin so."""
    return float(max(ratios[key] for key in ratios if key.startswith(start)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8, help="sets of errors to try")
    parser.add_argument("--only", action="append", help="one workload, by its name")
    given = parser.parse_args()
    works = [work for work in workloads() if not given.only or work.name in given.only]
    compare(works, given.seeds, "choice-quick" if given.only else "choice")


if __name__ == "__main__":
    main()
