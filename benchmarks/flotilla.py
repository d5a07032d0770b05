"""An ensemble of unequal models on four slots: FLEET's flotillas and water-fill against rounds
and one slot for each model.

Guan et al. 2020, section 6: eight models of unlike pace, each trained until it has converged,
over one preprocessing stream (a feeder makes each chunk once for all slots). "random": a slot for
each model, the next one when a slot is free; "rounds": as many models as slots, then the next
ones (Pittman et al., SC'18); "flotilla": local and global, which measure the models first;
"waterfill": ours. No policy is told how fast a model is, nor when it converges. Real slots of the
`ray` backend, real gradients, losses and scores, device time emulated (`emulated.py`).

    # FOLDER gets each study with its report
    python benchmarks/flotilla.py [--quick] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emulated import BATCH, SAMPLES, Emulated, Found, own_process, times
from torch import nn

SLOTS, MODELS, SEED = 4, 8, 3
EPOCHS, PATIENCE = 12, 2  # at most, and without a better score
WAYS = ("random", "rounds", "flotilla local", "flotilla global", "waterfill")


def ensemble(quick: bool) -> Any:
    """Paces as unlike as those of FLEET's models (20 to 176 images/s). Each model leaves when it
    has converged.
    """
    from shoal.search import Trace
    from shoal.search.stopping.patience import Patience

    rng = np.random.default_rng(SEED)
    given = []
    for i in range(MODELS):
        slow = float(np.exp(rng.uniform(0.0, np.log(8.0))))
        lr = float(np.exp(rng.uniform(np.log(0.1), np.log(1.0))))
        config = {"model": i, "fixed": 20.0, "per_sample": round(2.5 * slow, 2)}
        config["lr"] = round(lr, 4)
        epochs = 2 if quick else EPOCHS
        given.append((0.0, config, float(SAMPLES * epochs)))
    return Patience(
        Trace(given, widths=(1, SLOTS)), PATIENCE, metric="accuracy", mode="max"
    )


class Converging(Emulated):
    """Its models get no better after some epochs: at noisy labels there is an end to that."""

    def data(self) -> Any:
        import shoal

        rng = np.random.default_rng(0)
        x = rng.normal(size=(self.samples + 1000, 64)).astype(np.float32)
        y = x.sum(1) + rng.normal(scale=4.0, size=len(x)) > 0
        data = shoal.Data.arrays(
            x[:-1000],
            y[:-1000].astype(np.int64),
            validation=(x[-1000:], y[-1000:].astype(np.int64)),
        )
        data.chunk = 2 * BATCH
        return data

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        model.emulated = (float(config["fixed"]), float(config["per_sample"]))
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def validation_step(self, model: Any, batch: Any) -> Any:
        x, y = batch
        scores = model(x)
        right = (scores.argmax(1) == y).float().mean()
        return {"loss": nn.functional.cross_entropy(scores, y), "accuracy": right}


@dataclass
class Timed:
    """A policy, and the seconds that its decisions take: by the clock, and of the processor."""

    inner: Any
    spent: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def start(self) -> Any:
        return self.inner.start()

    def decide(self, view: Any, memory: Any) -> Any:
        begin, before = time.perf_counter(), time.thread_time()
        made = self.inner.decide(view, memory)
        self.processor.append(time.thread_time() - before)
        self.spent.append(time.perf_counter() - begin)
        return made


def policy(way: str) -> Any:
    from shoal.policy import Fifo
    from shoal.policy.width.flotilla import Flotilla, Rounds
    from shoal.policy.width.waterfill import WaterFill

    if way.startswith("flotilla"):
        return Flotilla("global" if way.endswith("global") else "local")
    return {"random": Fifo, "rounds": lambda: Rounds(SEED), "waterfill": WaterFill}[
        way
    ]()


def run(way: str, folder: Path, quick: bool, keep: Path | None) -> Found:
    import shoal
    from shoal import reporting
    from shoal.reporting.facts.cost.overhead import OverheadTally

    searcher, rule = ensemble(quick), Timed(policy(way))
    study = shoal.create_study(Converging(prepare_ms=0.5), storage=folder / "study")
    study.optimize(
        searcher,
        rule,
        backend="ray",
        slots=SLOTS,
        feeders=1,
        progress=False,
    )
    if keep is not None:
        study.report()
        shutil.copytree(
            folder / "study", keep / way.replace(" ", "-"), dirs_exist_ok=True
        )
    lines = study.lines()
    told = reporting.account(lines)
    tally = OverheadTally(forms=True)
    for line in lines:
        tally.take(line.time, line.entry)
    found = times(lines)
    there, waiting = (
        sum(told.used.values()),
        told.used.get("idle", 0.0) + told.used.get("other", 0.0),
    )
    return found | {
        "idle_share": told.used.get("idle", 0.0) / there,
        "waiting_share": waiting / there,  # without work, or for the others of a round
        "save_s": told.used.get("save", 0.0),
        "deciding_s": sum(rule.spent),
        "deciding_cpu_s": sum(rule.processor),
        "decisions": len(rule.spent),
        "flotillas": [each._asdict() for each in tally.so_far().formed],
        "samples": told.trained,
    }


def compare(args: argparse.Namespace) -> None:
    from common import write

    begin, runs = time.perf_counter(), dict[str, Found]()
    more = (["--quick"] if args.quick else []) + (
        ["--keep", str(args.keep.resolve())] if args.keep else []
    )
    for way in WAYS:
        runs[way] = own_process(__file__, way, *more)
        print(
            f"{way:16} {runs[way]['makespan_s']:7.1f} s, slots wait "
            f"{100 * runs[way]['waiting_share']:.0f} %",
            flush=True,
        )
    rows = [
        {
            "way": way,
            "finished": found["finished"],
            "makespan_s": found["makespan_s"],
            "mean_completion_s": found["mean_completion_s"],
            "idle_share": found["idle_share"],
            "waiting_per_slot_s": found["waiting_share"] * found["makespan_s"],
            "decisions": found["decisions"],
            "deciding_share": found["deciding_s"] / found["makespan_s"],
            "deciding_cpu_share": found["deciding_cpu_s"] / found["makespan_s"],
            "saving_share": found["save_s"] / (SLOTS * found["makespan_s"]),
        }
        for way, found in runs.items()
    ]
    at = {row["way"]: row["makespan_s"] for row in rows}
    ratios: dict[str, Any] = {
        f"{base}_over_{way.replace(' ', '_')}": at[base] / at[way]
        for base in WAYS[:2]
        for way in WAYS[2:]
    }
    # What no schedule beats: a lane takes the least of its slots' time while it has only one.
    ratios["bound_s"] = bound([runs[way]["flotillas"] for way in WAYS[:2]])
    ratios["best_other_over_bound"] = (
        min(at[way] for way in WAYS[:-1]) / ratios["bound_s"]
    )
    ratios["waterfill_over_bound"] = at["waterfill"] / ratios["bound_s"]
    # FLEET-G against the rounds of SC'18 (in the paper 1.23 to 1.97), ours against all of theirs
    ratios["rounds_over_flotilla"] = at["rounds"] / at["flotilla global"]
    ratios["rounds_over_flotilla_goal"] = 1.23
    ratios["best_other_over_waterfill"] = (
        min(at[way] for way in WAYS[:-1]) / at["waterfill"]
    )
    ratios["best_other_over_waterfill_goal"] = 1.2
    ratios["deciding_share"] = max(row["deciding_share"] for row in rows)
    ratios["deciding_cpu_share"] = max(row["deciding_cpu_share"] for row in rows)
    ratios["deciding_share_goal"] = 0.001
    ratios["run_lengths"] = {way: lengths(runs[way]["flotillas"]) for way in WAYS}
    ratios["minutes"] = (time.perf_counter() - begin) / 60
    write("flotilla" + ("-quick" if args.quick else ""), rows, ratios)


def bound(runs: Sequence[Sequence[Mapping[str, Any]]]) -> float:
    """Seconds that all models need if each takes as long as alone on one slot, and no slot waits.

    `runs`: of policies that give each model one slot. The shortest counts.
    """
    return min(
        sum(len(each["trials"]) * each["mean"] for each in flotillas) / SLOTS
        for flotillas in runs
    )


def lengths(flotillas: Sequence[Mapping[str, Any]]) -> list[str]:
    """How long the models that started at one time ran (FLEET, Table 3)."""
    return [
        f"{len(f['trials'])} on {f['slots']} slots: {f['mean']:.1f} s +- {f['deviation']:.1f}"
        for f in flotillas
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="short lengths, to see that it works"
    )
    parser.add_argument(
        "--keep", type=Path, help="where the studies and their reports go"
    )
    parser.add_argument("--run", choices=WAYS)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run, args.folder, args.quick, args.keep)))
    else:
        compare(args)


if __name__ == "__main__":
    main()
