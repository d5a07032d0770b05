"""Searches that hop over shards, and the same searches task-parallel over full copies of the data.

ASHA (R = 9, eta = 3, as in Cerebro section 6.3), Hyperband (R = 25, eta = 3), and TPE over 32
configurations of Pack's Table 3, for MLP-3 on mnist10k, on two Ray slots. "hop": each slot
holds half of the shards and trials hop between them (packed where that is faster); "copies":
each slot holds all of the data and a trial stays where it is. Asynchronous searches depend on
who is through first, so their configurations and best scores are compared as such, not trial by
trial.

    python benchmarks/search_on_hop.py [--quick] [--images 4000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

SHARDS, SLOTS, SEED, ROUNDS = 4, 2, 1, 3
SEARCHES = ("asha", "hyperband", "tpe")
WAYS = ("copies", "hop", "packed hop")
TPE_EPOCHS = 5
Found = dict[str, Any]


def searcher(name: str, quick: bool) -> Any:
    import shoal

    if name == "asha":
        return shoal.ASHA(
            num_samples=9 if quick else 27, max_epochs=9, grace_period=1, reduction_factor=3
        )
    if name == "hyperband":
        return shoal.Hyperband(max_epochs=9 if quick else 25, reduction_factor=3)
    return shoal.Optuna(
        "tpe", num_samples=4 if quick else 32, max_epochs=2 if quick else TPE_EPOCHS
    )


def policy(way: str) -> tuple[Any, dict[str, Any]]:
    """The policy, and options of its run."""
    from shoal.policy import Fifo, Hop
    from shoal.policy.pack.packs_as_trials import PacksAsTrials

    if way == "copies":
        return Fifo(), {"copies": SLOTS}
    return (PacksAsTrials(Hop()) if way == "packed hop" else Hop()), {"copies": 1}


def run(name: str, way: str, folder: Path, images: int | None, quick: bool) -> Found:
    from images import SPACE, Mlp3

    import shoal
    from shoal.core.event import Finished, Planned

    recipe = Mlp3(images, SHARDS)
    study = shoal.create_study(
        recipe,
        storage=folder / "study",
        metric="accuracy",
        mode="max",
        search_space=SPACE,
        seed=SEED,
    )
    rule, options = policy(way)
    study.optimize(
        searcher(name, quick), rule, backend="ray", slots=SLOTS, progress=False, **options
    )
    lines = study.lines()
    first = next(line.time for line in lines if isinstance(line.entry, Planned))
    epoch = sum(recipe.data().sizes.values())
    reached = Counter(round(study.state.known[trial.id].samples / epoch) for trial in study.trials)
    rungs = sorted(reached)
    return {
        "training": max(line.time for line in lines if isinstance(line.entry, Finished)) - first,
        "best": study.best_trial.value,
        "trials": len(study.trials),
        "epochs": sum(trial.epochs for trial in study.trials),
        "rungs": {str(at): sum(reached[x] for x in rungs if x >= at) for at in rungs},
        "failed": sum(trial.status.startswith("failed") for trial in study.trials),
    }


def process(name: str, way: str, args: argparse.Namespace) -> Found:
    """One run as a process of its own: Ray starts afresh for each, and its start is not counted."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--run", name, "--way", way, "--folder", folder]
        command += [] if args.images is None else ["--images", str(args.images)]
        command += ["--quick"] if args.quick else []
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, {way} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: Found = json.loads(done.stdout.strip().splitlines()[-1])
    print(
        f"{name:10} {way:10} {found['training']:8.1f} s  best {found['best']:.3f} "
        f" {found['rungs']}",
        flush=True,
    )
    return found


def compare(args: argparse.Namespace) -> None:
    from common import write
    from images import divided, images

    begin = time.perf_counter()
    seen: dict[tuple[str, str], list[Found]] = {}
    for turn in range(args.rounds):
        for name in args.searches or SEARCHES:
            for way in (*WAYS[turn % len(WAYS) :], *WAYS[: turn % len(WAYS)]):
                seen.setdefault((name, way), []).append(process(name, way, args))
    rows = [
        {
            "search": name,
            "way": way,
            "training_s": median(x["training"] for x in runs),
            "epochs": median(x["epochs"] for x in runs),
            "s_per_epoch": median(x["training"] / x["epochs"] for x in runs),
            "best": median(x["best"] for x in runs),
            "best_scores": [round(x["best"], 4) for x in runs],
            "trials": runs[0]["trials"],
            "trials_per_rung": [x["rungs"] for x in runs],
            "failed": sum(x["failed"] for x in runs),
        }
        for (name, way), runs in sorted(seen.items(), key=lambda x: (x[0][0], WAYS.index(x[0][1])))
    ]
    at = {(row["search"], row["way"]): row for row in rows}
    ratios: dict[str, Any] = {}
    for name in {row["search"]: None for row in rows}:
        for way in WAYS[1:]:
            label = f"{name}_{way.replace(' ', '_')}"
            ratios[f"{label}_over_copies_s_per_epoch"] = (
                at[name, way]["s_per_epoch"] / at[name, "copies"]["s_per_epoch"]
            )
            ratios[f"{label}_minus_copies_best"] = (
                at[name, way]["best"] - at[name, "copies"]["best"]
            )
    size = (
        f"{len(divided(args.images)[0])} images of {images()[2]} in {SHARDS} "
        f"shards, {SLOTS} slots, 1 thread each"
    )
    ratios |= {"size": size, "rounds": args.rounds, "minutes": (time.perf_counter() - begin) / 60}
    write("search_on_hop" + ("-quick" if args.quick else ""), rows, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small searches, to see that it works")
    parser.add_argument("--images", type=int, help="to train on; default: all 8000")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--searches", nargs="*", choices=SEARCHES)
    parser.add_argument("--run", choices=SEARCHES)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    args.images = args.images or (800 if args.quick else None)
    args.rounds = args.rounds or (1 if args.quick else ROUNDS)
    if args.run:
        print(json.dumps(run(args.run, args.way, args.folder, args.images, args.quick)))
    else:
        compare(args)


if __name__ == "__main__":
    main()
