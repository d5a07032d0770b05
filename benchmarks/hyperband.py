"""Packed Hyperband: the paper's groupings, ours, none, and Ray Tune's HyperBand, on the same
configurations.

Hyperband with R = 81 and eta = 3 draws 143 configurations out of the 1056 of Pack's Table 3 for
MLP-3 (784-64-64-64-10) on 8000 images of mnist10k, validated on 2000: 1581 epochs in all. Every
variant is a process of its own with one slot and one thread, timed from the first plan to the
last result; Ray Tune gets one CPU and reuses its actors. "unpacked", and what the paper packs,
go through one bracket after the other, as in the paper; "ours" goes through all at once and
packs across them, fused where that is faster. Then the promotions: of interleaved packs the
same as of unpacked ones; of fused ones, those that differ lie within half a point.

Those 143 configurations have 44 graphs, and on a CPU a pack of many graphs gains little. With
`--space rates` the searched dimensions are rates, decays and seeds of one network: one graph.
That is where packing a search is to pay: `unpacked_over_ours` >= 2.

    python benchmarks/hyperband.py [--quick] [--space rates] [--images 4000] [--epochs 27]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from shoal.search.halving import hyperband_brackets

ETA, SEED = 3, 1
GROUPINGS = ("batch_size", "random", "nearest")  # the paper's; "nearest" is its kNN
VARIANTS = ("unpacked", *GROUPINGS, "ours", "tune")
MOST, POINTS = (
    10,
    0.5,
)  # models in a pack of the paper's: as many as its GPU held; points of accuracy
Found = dict[str, Any]


def configurations(epochs: int, space: str) -> list[dict[str, Any]]:
    """Those that Shoal's Hyperband draws, in their order."""
    from images import SPACES

    from shoal.search.draws import draws

    count = sum(bracket[0].trials for bracket in hyperband_brackets(epochs, ETA))
    return [dict(draws(SPACES[space], SEED)(i)) for i in range(count)]


def run_shoal(name: str, folder: Path, epochs: int, images: int | None, space: str) -> Found:
    import torch
    from images import SPACES, Mlp3

    import shoal
    from shoal.core.event import Finished, Planned
    from shoal.policy import Fifo, Pack
    from shoal.search import Hyperband

    torch.set_num_threads(1)
    policies: dict[str, Any] = {
        how: Pack(grouping=how, most=MOST, refill=False, seed=SEED) for how in GROUPINGS
    }  # type: ignore[arg-type]
    policy = policies.get(name, Fifo() if name == "unpacked" else Pack(most=16, fuse=True))
    recipe = Mlp3(images)
    study = shoal.create_study(
        recipe,
        storage=folder / "study",
        metric="accuracy",
        mode="max",
        search_space=SPACES[space],
        seed=SEED,
    )
    searcher = Hyperband(max_epochs=epochs, reduction_factor=ETA, concurrent=name == "ours")
    study.optimize(searcher, policy, progress=False)
    lines = study.lines()
    plans = [(line.time, line.entry) for line in lines if isinstance(line.entry, Planned)]
    gangs = [gang for _, plan in plans for gang in plan.start]
    epoch = sum(recipe.data().sizes.values())
    return {
        "training": max(line.time for line in lines if isinstance(line.entry, Finished))
        - plans[0][0],
        "best": study.best_trial.value,
        "reached": [round(study.state.known[trial.id].samples / epoch) for trial in study.trials],
        "failed": sum(trial.status.startswith("failed") for trial in study.trials),
        "scores": [
            {round(at): values["accuracy"] for at, values in trial.scores} for trial in study.trials
        ],
        "lanes": sum(len(gang.lanes) for gang in gangs) / max(1, len(gangs)),
        "fused": sum(gang.fused for gang in gangs),
    }


def run_tune(folder: Path, epochs: int, images: int | None, space: str) -> Found:
    import numpy as np
    import ray
    import torch
    from images import divided, network, optimizer
    from ray import tune
    from ray.tune.schedulers import HyperBandScheduler

    counts = [bracket[0].trials for bracket in hyperband_brackets(epochs, ETA)]
    starts = np.cumsum([0, *counts])
    order = [
        i for b in reversed(range(len(counts))) for i in range(starts[b], starts[b + 1])
    ]  # Tune begins with the smallest
    configs = configurations(epochs, space)

    class Trained(tune.Trainable):
        """An epoch a step; actors are reused, so data is read once in each."""

        def setup(self, config: dict[str, Any]) -> None:
            torch.set_num_threads(1)
            self.parts = [torch.as_tensor(part) for part in divided(images)]
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.own = configs[new_config["index"]]
            torch.manual_seed(self.own.get("seed", SEED))
            self.model = network(self.own, self.parts[0].shape[1])
            self.optimizer = optimizer(self.own, self.model)
            return True

        def step(self) -> dict[str, Any]:
            x, y, u, v = self.parts
            order, size = torch.randperm(len(x)), self.own["batch_size"]
            self.model.train()
            for start in range(0, len(x), size):
                rows = order[start : start + size]
                self.optimizer.zero_grad()
                torch.nn.functional.cross_entropy(self.model(x[rows]), y[rows]).backward()
                self.optimizer.step()
            self.model.eval()
            with torch.no_grad():
                return {"accuracy": float((self.model(u).argmax(1) == v).float().mean())}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            torch.save(
                (self.model.state_dict(), self.optimizer.state_dict()),
                Path(checkpoint_dir) / "state.pt",
            )

        def load_checkpoint(self, checkpoint: Any) -> None:
            model, own = torch.load(Path(checkpoint) / "state.pt")
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(own)

    ray.init(num_cpus=1, include_dashboard=False, logging_level="error", log_to_driver=False)
    begin = time.perf_counter()
    tuner = tune.Tuner(
        tune.with_resources(Trained, {"cpu": 1}),
        param_space={"index": tune.grid_search(order)},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            reuse_actors=True,
            scheduler=HyperBandScheduler(max_t=epochs, reduction_factor=ETA),
        ),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    )
    results = tuner.fit()
    seconds = time.perf_counter() - begin
    reached = {r.config["index"]: r.metrics["training_iteration"] for r in results}
    return {
        "training": seconds,
        "best": results.get_best_result(scope="all").metrics["accuracy"],
        "reached": [reached[i] for i in range(len(configs))],
        "failed": results.num_errors,
        "epochs": sum(reached.values()),
    }


# -- promotions
# ----------------------------------------------------------------------------------------------


def promotions(found: Found, epochs: int) -> list[tuple[str, int, set[int], set[int]]]:
    """(bracket, epochs, trials that came to that rung, those that went on) of every rung but
    the last ones.
    """
    rungs, first = [], 0
    for bracket in hyperband_brackets(epochs, ETA):
        trials = range(first, first + bracket[0].trials)
        for rung, after in pairwise(bracket):
            came = {t for t in trials if found["reached"][t] >= rung.epochs}
            rungs.append(
                (
                    f"of {bracket[0].trials}",
                    rung.epochs,
                    came,
                    {t for t in came if found["reached"][t] >= after.epochs},
                )
            )
        first += bracket[0].trials
    return rungs


def differences(one: Found, other: Found, epochs: int) -> list[dict[str, Any]]:
    """Promotions that are not the same, of trials that came to the rung in both; `points`:
    apart in accuracy, at most.
    """
    rows = []
    both = zip(promotions(one, epochs), promotions(other, epochs), strict=True)
    for (bracket, at, came, on), (_, _, came_too, on_too) in both:
        lost, won = (on - on_too) & came_too, (on_too - on) & came
        gaps = [
            abs(_score(run, t, at) - _score(run, u, at))
            for t in lost
            for u in won
            for run in (one, other)
        ]
        if lost or won:
            points = 100 * max(gaps) if gaps else inf
            rows.append(
                {
                    "bracket": bracket,
                    "epochs": at,
                    "lost": sorted(lost),
                    "won": sorted(won),
                    "points": points,
                }
            )
    return rows


def _score(found: Found, trial: int, at: int) -> float:
    scores = found["scores"][trial]
    return float(scores.get(at, scores.get(str(at), inf)))


# -- all of them
# ----------------------------------------------------------------------------------------------


def process(name: str, python: str, args: argparse.Namespace) -> Found:
    """Run a variant as a process of its own."""
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "RAY_AIR_NEW_OUTPUT": "0",
        "PYTHONWARNINGS": "ignore",
    }
    env["PYTHONPATH"] = str(
        Path(__file__).resolve().parents[1]
    )  # the space and the configurations are Shoal's
    with tempfile.TemporaryDirectory() as folder:
        command = [
            python,
            __file__,
            "--run",
            name,
            "--folder",
            folder,
            "--epochs",
            str(args.epochs),
            "--space",
            args.space,
        ]
        command += [] if args.images is None else ["--images", str(args.images)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: Found = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"{name:12} {found['training']:8.1f} s", flush=True)
    return found


def compare(args: argparse.Namespace) -> None:
    from common import peers, write
    from images import divided, images

    begin = time.perf_counter()
    variants = args.variants or VARIANTS
    found = {
        name: process(
            name, peers("tune", ["ray[tune]"]) if name == "tune" else sys.executable, args
        )
        for name in variants
    }
    again = process("unpacked", sys.executable, args)[
        "training"
    ]  # last as well as first: the machine's own drift
    alone = (found["unpacked"]["training"] + again) / 2
    rows = []
    for name, run in found.items():
        apart = (
            differences(found["unpacked"], run, args.epochs)
            if name not in ("unpacked", "tune")
            else []
        )
        same = run.get("scores") == found["unpacked"]["scores"] if name != "tune" else None
        points = max((row["points"] for row in apart), default=0.0)
        rows.append(
            {
                "variant": name,
                "training_s": run["training"],
                "epochs": sum(run["reached"]),
                "speedup": alone / run["training"],
                "lanes": run.get("lanes"),
                "fused_gangs": run.get("fused"),
                "same_scores": same,
                "other_promotions": len(apart) if name != "tune" else None,
                "apart_points": points if name != "tune" else None,
                "best": run["best"],
                "failed": run["failed"],
            }
        )
    size = (
        f"R={args.epochs}, eta={ETA}, {len(configurations(args.epochs, args.space))} "
        f"configurations, {len(divided(args.images)[0])} images"
    )
    ratios: dict[str, Any] = {
        f"unpacked_over_{row['variant']}": row["speedup"]
        for row in rows
        if row["variant"] != "unpacked"
    }
    if "tune" in found and "ours" in found:
        ratios["tune_over_ours"] = found["tune"]["training"] / found["ours"]["training"]
    ratios |= {
        "interleaved_identical": all(
            row["same_scores"] and not row["other_promotions"]
            for row in rows
            if row["variant"] in GROUPINGS
        ),
        "fused_promotions_apart_points": max(
            (row["apart_points"] for row in rows if row["variant"] == "ours"), default=None
        ),
        "fused_promotions_apart_goal": POINTS,
        "unpacked_again_s": again,
        "size": f"{size} of {images()[2]}; 1 slot, 1 thread",
        "minutes": (time.perf_counter() - begin) / 60,
    }
    name = "hyperband" if args.space == "table3" else f"hyperband-{args.space}"
    write(name + ("-quick" if args.quick else ""), rows, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="R = 9 and 1000 images, to see that it works"
    )
    parser.add_argument("--epochs", type=int, help="R")
    parser.add_argument("--images", type=int, help="to train on; default: all 8000")
    parser.add_argument("--space", choices=("table3", "rates"), default="table3")
    parser.add_argument("--variants", nargs="*", choices=VARIANTS)
    parser.add_argument("--run", choices=VARIANTS)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    args.epochs = args.epochs or (9 if args.quick else 81)
    args.images = args.images or (1000 if args.quick else None)
    if args.variants and "unpacked" not in args.variants:
        args.variants = ["unpacked", *args.variants]
    if args.run is None:
        compare(args)
    elif args.run == "tune":
        print(json.dumps(run_tune(args.folder, args.epochs, args.images, args.space)))
    else:
        print(json.dumps(run_shoal(args.run, args.folder, args.epochs, args.images, args.space)))


if __name__ == "__main__":
    main()
