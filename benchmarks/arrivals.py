"""Trials that arrive one after another on four slots: doubling and equal shares against fixed
widths, for real and simulated.

Capes et al. 2019, section 7: six trials arrive, each may have 1 to 4 slots; the mean time from
arrival to end, with widths that change while trials train, against 1, 2 or 4 slots each. Real
slots of the `ray` backend, real gradients and their sums over wide lanes, device time emulated
(`emulated.py`). Then the same arrivals in virtual time, at the rates and the rescale times that
the real runs measured.

Then how often widths change, in virtual time: three equal trials on four slots, and the loads of
the paper's Table 3, with an epoch a visit, so that policies are asked at each epoch's end.

    python benchmarks/arrivals.py [--quick] [--simulated]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from emulated import (
    SAMPLES,
    Emulated,
    Found,
    FromTheStart,
    own_process,
    profile_of,
    rate,
    simulated,
    times,
)

SLOTS, WIDTHS = 4, (1, 2, 4)
CONFIGS = (
    {"model": 0, "fixed": 12.0, "per_sample": 4.0},
    {"model": 1, "fixed": 30.0, "per_sample": 3.0},
)  # the second gains less by more slots
POLICIES = ("doubling", "equi", "fixed 1", "fixed 2", "fixed 4")


def arrivals(quick: bool) -> Any:
    """Three small trials and three large, as (seconds, configuration, samples)."""
    from shoal.search import Trace

    epochs, apart = ((3, 6, 3), 2.0) if quick else ((18, 36, 12, 30, 15, 24), 6.0)
    given = [(apart * i, CONFIGS[i % 2], float(SAMPLES * n)) for i, n in enumerate(epochs)]
    return Trace(given, widths=(1, SLOTS))


def policy(name: str) -> Any:
    from shoal.policy.reference.baselines import Width
    from shoal.policy.width.doubling import Doubling
    from shoal.policy.width.equi import Equi

    if name.startswith("fixed"):
        return Width(int(name.split()[1]))
    return Doubling() if name == "doubling" else Equi()


def run(name: str, folder: Path, quick: bool) -> Found:
    import shoal

    study = shoal.create_study(Emulated(), storage=folder / "study")
    study.optimize(
        FromTheStart(arrivals(quick)),
        policy(name),
        profile=profile_of(CONFIGS, SLOTS, folder),
        backend="ray",
        slots=SLOTS,
        progress=False,
    )
    known, names = study.state.known, study.state.signature
    figures = {
        str(known[t].config["model"]): dict(study.state.figures[s])
        for t, s in names.items()
        if s in study.state.figures
    }
    return times(study.lines()) | {"figures": figures}


def measured(runs: Mapping[str, Found]) -> Any:
    """The rates and rescale times that the real runs saw: medians over them."""
    from shoal.profile.table import Row, Table

    def all_of(config: Any, name: str) -> list[float]:
        found = [run["figures"].get(str(config["model"]), {}).get(name) for run in runs.values()]
        return [x for x in found if x]

    rows = []
    for config in CONFIGS:
        seen = {w: all_of(config, "rate" if w == 1 else f"rate@{w}") for w in WIDTHS}
        points = {w: median(x) if x else rate(config, w) for w, x in seen.items()}
        rates = [points[1], points[2], (points[2] + points[4]) / 2, points[4]]
        cost = {
            name: median(x)
            for name in ("up", "down", "switch", "build")
            if (x := all_of(config, name))
        }
        rows.append(Row(rates=tuple(rates), config=config, **cost))
    return Table(rows)


CAPES = Path(__file__).resolve().parent.parent / "papers"
RULES = ("fifo", "equi", "doubling", "exact", "plus-one", "explore")
PRINTED = {"Extreme": 7.63, "Moderate": 2.63, "None": 1.40}  # hours, Table 3, Precompute


def rule(name: str) -> Any:
    from shoal.policy.description import parse

    if name in ("exact", "plus-one"):
        return parse(f"doubling(rule={name!r})")
    return parse(name)


def over_epochs(name: str, load: list[Any], slots: int, per_node: int) -> Found:
    """The load in virtual time: mean hours, the last end, and changes of width a trial."""
    sys.path[:0] = [str(CAPES), str(CAPES / "capes")]
    from harness import nodes, simulate
    from workload import EPOCH, speeds

    from shoal.core.cluster import ShardId

    shards = {ShardId("cifar"): EPOCH}
    trials = [(at, replace(trial, shards=frozenset(shards))) for at, trial in load]
    here = [replace(slot, shards=frozenset(shards)) for slot in nodes(slots, per_node)]
    found = simulate(rule(name), trials, here, speeds(), shards=shards)
    return {
        "mean_hours": found.mean_hours,
        "makespan_hours": found.makespan / 3600,
        "changes_a_trial": found.changes,
    }


def changes(seeds: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """How often widths change, and what that comes to."""
    sys.path[:0] = [str(CAPES), str(CAPES / "capes")]
    from workload import EPOCH, LOADS
    from workload import SLOTS as GPUS
    from workload import arrivals as capes

    from shoal.core.trial import Trial, TrialId

    rows: list[dict[str, Any]] = []
    equal = [(0.0, Trial(TrialId(f"t{i}"), 100.0 * EPOCH, widths=(1, SLOTS))) for i in range(3)]
    three = {name: over_epochs(name, equal, SLOTS, SLOTS) for name in RULES}
    rows += [{"load": "three equal", "policy": n, **each} for n, each in three.items()]
    loads: dict[tuple[str, str], Found] = {}
    for load in LOADS:
        for name in RULES[2:]:
            draws = [over_epochs(name, capes(load, s), GPUS, 8) for s in range(seeds)]
            loads[load, name] = {key: sum(each[key] for each in draws) / seeds for key in draws[0]}
            rows.append({"load": load, "policy": name, **loads[load, name]})
            print(rows[-1], flush=True)

    doublings = RULES[2:5]

    def last(name: str) -> float:
        return float(three[name]["makespan_hours"])

    ratios: dict[str, Any] = {
        "three_equal_changes": max(3 * three[n]["changes_a_trial"] for n in doublings),
        "three_equal_changes_goal": 4,
        "three_equal_over_equi": max(last(n) / last("equi") for n in doublings),
        "three_equal_over_equi_goal": 1.03,
        "three_equal_over_fifo": max(last(n) / last("fifo") for n in doublings),
        "capes_changes_a_job": max(
            loads[load, n]["changes_a_trial"] for load in LOADS for n in doublings
        ),
        "capes_changes_a_job_goal": 5,
        "capes_changes_a_job_exploring": max(
            loads[load, "explore"]["changes_a_trial"] for load in LOADS
        ),
    }
    for load, printed in PRINTED.items():
        over = loads[load, "doubling"]["mean_hours"] / printed
        ratios[f"capes_{load.lower()}_over_printed"] = over
    return rows, ratios


def compare(quick: bool, seeds: int) -> None:
    from common import write

    begin, runs = time.perf_counter(), dict[str, Found]()
    for name in POLICIES:
        runs[name] = own_process(__file__, name, *(["--quick"] if quick else []))
        mean, until = runs[name]["mean_completion_s"], runs[name]["makespan_s"]
        print(f"{name:10} {mean:7.1f} s in the mean, all after {until:.1f} s", flush=True)
    profile, rows = measured(runs), []
    for name, found in runs.items():
        told = simulated(arrivals(quick), policy(name), profile, SLOTS, {"s000": SAMPLES})
        rows.append(
            {
                "policy": name,
                "finished": found["finished"],
                "mean_completion_s": found["mean_completion_s"],
                "simulated_s": told["mean_completion_s"],
                "real_over_simulated": found["mean_completion_s"] / told["mean_completion_s"],
                "makespan_s": found["makespan_s"],
            }
        )
    at = {row["policy"]: row["mean_completion_s"] for row in rows}
    fixed = {
        f"{name.replace(' ', '_')}_over_{best}": at[name] / at[best]
        for best in POLICIES[:2]
        for name in POLICIES[2:]
    }
    off = max((abs(row["real_over_simulated"] - 1), row["policy"]) for row in rows)
    ratios = fixed | {
        "furthest_from_simulation": off[0],
        "furthest_from_simulation_goal": 0.2,
        "at": off[1],
    }
    ratios["measured"] = {
        str(row.config): [round(r, 1) for r in row.rates] + [row.up, row.down]
        for row in profile.rows
    }
    more, said = changes(seeds)
    rows += more
    ratios |= said
    ratios["minutes"] = (time.perf_counter() - begin) / 60
    write("arrivals" + ("-quick" if quick else ""), rows, ratios)


def main() -> None:
    from common import write

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="three short trials, to see that it works"
    )
    parser.add_argument("--simulated", action="store_true", help="only how often widths change")
    parser.add_argument("--seeds", type=int, default=2, help="draws of the paper's arrivals")
    parser.add_argument("--run", choices=POLICIES)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run, args.folder, args.quick)))
    elif args.simulated:
        write("arrivals-simulated", *changes(args.seeds))
    else:
        compare(args.quick, 1 if args.quick else args.seeds)


if __name__ == "__main__":
    main()
