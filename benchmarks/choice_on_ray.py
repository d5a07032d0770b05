"""How good the choice of `auto` is on real slots: six workloads, under it and under fixed policies.

Real slots of the `ray` backend, real gradients, sums over the slots of a wide trial, and states;
the time of a step is emulated (`emulated.py`). Each study begins unmeasured. "few": three unequal
models on four slots. "many": ten, and the mean of their ends counts. "mix": three small models and
three large ones on two slots, which none may share at a gain. "giant": one among many small. "odd":
ten equal trials on four slots. "midway": a model that becomes four times slower when it is half
trained. All ways run by turns, each as a process of its own; the median of the rounds counts.

    python benchmarks/choice_on_ray.py [--rounds 3] [--only mix]
    python benchmarks/choice_on_ray.py --quick   # "mix" alone, one round: auto and fifo
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from emulated import BATCH, SAMPLES, Emulated, Found, own_process, times
from workloads import figures_in, followed

import shoal
from shoal.policy.aim import Objective
from shoal.search import Trace

SEED = 5
FIXED = 4.0  # milliseconds a step
Trials = Sequence[tuple[dict[str, float], int]]  # each with its epochs of eight steps


@dataclass(frozen=True)
class OnRay:
    """Trials on so many slots. `fixed`: the policies to compare with, beside `fifo`.

    Those are what `auto` chooses among there, but for what is far from the best in the simulator.
    """

    trials: Trials
    fixed: tuple[str, ...]
    slots: int = 4
    objective: Objective = "makespan"
    widths: tuple[int, int] = (1, 4)

    @property
    def ways(self) -> tuple[str, ...]:
        return ("auto", "fifo", *self.fixed)


def _model(number: int, per_sample: float, fixed: float = FIXED) -> dict[str, float]:
    return {"model": number, "fixed": fixed, "per_sample": round(float(per_sample), 2)}


def _mix() -> Trials:
    """Hidden layers of 32 and 2048, as `Emulated` makes them of these numbers."""
    kinds = [_model(-32, 0.0, 0.0), _model(1984, 1.0, 0.0)]
    return [({**kind, "lr": lr}, 16) for kind in kinds for lr in (0.1, 0.2, 0.3)]


def _giant() -> Trials:
    small = [({**_model(0, 0.5, 0.0), "lr": 0.1 + 0.01 * i}, 4) for i in range(12)]
    return [*small[:6], (_model(900, 4.0), 8), *small[6:]]


def _odd() -> Trials:
    return [({**_model(0, 2.0), "lr": 0.1 + 0.01 * i}, 6) for i in range(10)]


def _midway() -> Trials:
    """Six models, of which the third is slower from its third epoch on."""
    trials = [(_model(i, 2.0), 6) for i in range(6)]
    trials[2][0].update({"slower": 4.0, "after": 3 * SAMPLES / BATCH})
    return trials


def _many() -> Trials:
    slow = np.random.default_rng(SEED).uniform(4.0, 16.0, 10)
    return [(_model(i, slow[i]), 1 + i % 3) for i in range(10)]


SHARES = ("waterfill", "doubling", "equi", "elastic")
WORKLOADS = {
    "few": OnRay([(_model(i, 14.0), 6 + 2 * i) for i in range(3)], SHARES),
    "many": OnRay(_many(), SHARES, objective="mean_completion"),
    "mix": OnRay(_mix(), ("pack", "mixed"), slots=2, widths=(1, 1)),
    "giant": OnRay(_giant(), ("mixed", "waterfill", "doubling")),
    "odd": OnRay(_odd(), ("waterfill", "doubling", "equi")),
    "midway": OnRay(_midway(), ("waterfill", "doubling", "equi")),
}


def run(workload: str, way: str, folder: Path) -> Found:
    """One study: when its trials ended, and which policies it followed."""
    work = WORKLOADS[workload]
    given = [(0.0, config, float(SAMPLES * epochs)) for config, epochs in work.trials]
    study = shoal.create_study(Emulated(), storage=folder / "study", seed=SEED)
    study.optimize(
        Trace(given, widths=work.widths),
        policy=f"auto(objective={work.objective})" if way == "auto" else way,
        backend="ray",
        slots=work.slots,
        feeders=0,
        progress=False,
    )
    lines = study.lines()
    found = times(lines)
    names = followed(lines) if way == "auto" else []
    return {
        "seconds": found[f"{work.objective}_s"],
        "followed": names,
        "figures": sorted(figures_in(lines)),
    } | found


def compare(names: Sequence[str], rounds: int, quick: bool) -> None:
    from common import write

    begin = time.perf_counter()
    rows: list[dict[str, Any]] = []
    ratios: dict[str, Any] = {}
    for name in names:
        work = WORKLOADS[name]
        ways = work.ways[:2] if quick else work.ways
        runs: dict[str, list[Found]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way in ways:
                runs[way].append(own_process(__file__, way, "--workload", name))
        seconds = {way: median(run["seconds"] for run in runs[way]) for way in ways}
        best = min(ways[1:], key=seconds.__getitem__)
        for way in ways:
            each = [run["seconds"] for run in runs[way]]
            rows.append(
                {
                    "workload": name,
                    "objective": work.objective,
                    "way": way,
                    "seconds": seconds[way],
                    "least": min(each),
                    "most": max(each),
                    "followed": ", ".join(runs[way][-1]["followed"]),
                }
            )
        ratios[f"auto_over_best_{name}"] = seconds["auto"] / seconds[best]
        ratios[f"best_{name}"] = best
        ratios[f"auto_over_fifo_{name}"] = seconds["auto"] / seconds["fifo"]
        worst = max(seconds.values())
        ratios[f"worst_over_auto_{name}"] = worst / seconds["auto"]
    ratios |= {
        "auto_over_best": max(ratios[f"auto_over_best_{name}"] for name in names),
        "auto_over_best_goal": 1.10,
        "auto_over_fifo": max(ratios[f"auto_over_fifo_{name}"] for name in names),
        "auto_over_fifo_goal": 1.05,
        "rounds": rounds,
        "minutes": (time.perf_counter() - begin) / 60,
    }
    whole = set(names) == set(WORKLOADS)
    write("choice_on_ray" if whole else "choice_on_ray-quick", rows, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=tuple(WORKLOADS), action="append")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="few")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run(given.workload, given.run, given.folder)))
    elif given.quick:
        compare(["mix"], 1, quick=True)
    else:
        compare(given.only or tuple(WORKLOADS), given.rounds, quick=False)


if __name__ == "__main__":
    main()
