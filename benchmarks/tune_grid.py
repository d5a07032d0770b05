"""The 16-configuration digits grid as whole processes: Ray Tune, a plain loop, Shoal here and
on two Ray slots.

Every variant trains the same MLP 64-h-h-10 (h in 64, 128, 256, 512; Adam, lr in 1e-4, 3e-4,
1e-3, 3e-3; batch 32, 10 epochs over 1500 digits, validated each epoch) with one thread, and is
timed as a whole process, imports included, of modules that are compiled already, as those of
installed packages are. Processor seconds do not count what else the machine does, nor the workers
that Ray starts. Rounds rotate the order. "local" leaves the policy
to Shoal, which may pack; "local_fifo" trains one model after the other; "…_narrow" trains the
widths up to 128 only, where packing has something to gain.

    python benchmarks/tune_grid.py [--rounds 3] [--quick]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
WIDTHS, NARROW, RATES = (64, 128, 256, 512), (64, 128), (1e-4, 3e-4, 1e-3, 3e-3)
EPOCHS, BATCH, TRAINING = 10, 32, 1500
VARIANTS = (
    "tune_default",
    "tune_reuse",
    "loop",
    "local",
    "local_fifo",
    "ray2",
    "loop_narrow",
    "local_narrow",
)
GOALS = {
    "tune_default_over_local": 6,
    "tune_reuse_over_local": 1.8,
    "loop_over_local": 1.4,
    "loop_over_local_training_narrow": 2.0,
}


def digits() -> Any:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16).astype("float32"), y


def network(h: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(64, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 10))


def train_plainly(h: int, lr: float, x: Any, y: Any, report: Any = None) -> float:
    """What anyone would write: one model, shuffled batches, accuracy after each epoch."""
    import torch

    torch.manual_seed(0)
    model = network(h)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    accuracy = 0.0
    for _ in range(EPOCHS):
        order = torch.randperm(TRAINING)
        model.train()
        for start in range(0, TRAINING, BATCH):
            rows = order[start : start + BATCH]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = float((model(x[TRAINING:]).argmax(1) == y[TRAINING:]).float().mean())
        if report is not None:
            report({"accuracy": accuracy})
    return accuracy


def run_loop(widths: tuple[int, ...]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    x, y = (torch.as_tensor(part) for part in digits())
    start = time.perf_counter()
    best = max(train_plainly(h, lr, x, y) for h in widths for lr in RATES)
    return {"training": time.perf_counter() - start, "best": best}


def run_tune(folder: Path, reuse: bool) -> dict[str, Any]:
    import ray
    from ray import tune

    def trainable(config: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(1)
        x, y = (torch.as_tensor(part) for part in digits())
        train_plainly(config["h"], config["lr"], x, y, tune.report)

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level="error")
    start = time.perf_counter()
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"h": tune.grid_search(list(WIDTHS)), "lr": tune.grid_search(list(RATES))},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", reuse_actors=reuse),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    )
    results = tuner.fit()
    seconds = time.perf_counter() - start
    assert len(results) == len(WIDTHS) * len(RATES) and results.num_errors == 0
    return {"training": seconds, "best": results.get_best_result().metrics["accuracy"]}


def run_shoal(folder: Path, widths: tuple[int, ...], **options: Any) -> dict[str, Any]:
    import shoal

    class Digits(shoal.Recipe):
        batch_size = BATCH
        shuffle = "each"  # as the loop does

        def data(self) -> shoal.Data:
            x, y = digits()
            return shoal.Data.arrays(
                x[:TRAINING], y[:TRAINING], validation=(x[TRAINING:], y[TRAINING:])
            )

        def configure_model(self, config: dict[str, Any]) -> Any:
            return network(config["h"])

        def configure_optimizers(self, model: Any, config: dict[str, Any]) -> Any:
            import torch

            return torch.optim.Adam(model.parameters(), lr=config["lr"])

        def training_step(self, model: Any, batch: Any) -> Any:
            import torch

            return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

        def validation_step(self, model: Any, batch: Any) -> Any:
            return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}

    space = {"h": shoal.grid(list(widths)), "lr": shoal.grid(list(RATES))}
    study = shoal.create_study(
        Digits(), storage=folder / "study", metric="accuracy", mode="max", search_space=space
    )
    study.optimize(max_epochs=EPOCHS, progress=False, **options)
    from shoal.core.event import Finished, Planned

    lines = study.lines()
    first = next(line.time for line in lines if isinstance(line.entry, Planned))
    last = max(line.time for line in lines if isinstance(line.entry, Finished))
    assert len(study.trials) == len(widths) * len(RATES) and all(
        x.status == "finished" for x in study.trials
    )
    gangs = [gang for line in lines if isinstance(line.entry, Planned) for gang in line.entry.start]
    return {
        "training": last - first,
        "best": study.best_trial.value,
        "lanes": max(len(gang.lanes) for gang in gangs),
    }


def run_variant(name: str, folder: Path) -> dict[str, Any]:
    widths = NARROW if name.endswith("narrow") else WIDTHS
    if name.startswith("loop"):
        return run_loop(widths)
    if name.startswith("tune"):
        return run_tune(folder, reuse=name == "tune_reuse")
    options: dict[str, Any] = {
        "local_fifo": {"policy": "fifo"},
        "ray2": {"backend": "ray", "slots": 2, "policy": "fifo"},
    }
    return run_shoal(folder, widths, **options.get(name, {}))


def time_process(name: str, python: str) -> dict[str, Any]:
    """Run a variant as a process of its own; its wall seconds and what it says of itself."""
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "RAY_AIR_NEW_OUTPUT": "0",
        "PYTHONWARNINGS": "ignore",
    }
    # as where packages are installed: no process compiles Shoal's 450 modules anew (0.7 s)
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [python, __file__, "--run", name, "--folder", folder]
        before = processor_seconds()
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - start
        processor = processor_seconds() - before
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    figures = {"wall": wall, "processor": processor}
    return figures | json.loads(done.stdout.strip().splitlines()[-1])


def processor_seconds() -> float:
    """Seconds of the processor that processes which ended took, user and system."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="one round without Ray, to see that it works"
    )
    parser.add_argument("--run", choices=VARIANTS)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run_variant(args.run, args.folder)))
    else:
        compare(1 if args.quick else args.rounds, args.quick)


def compare(rounds: int, quick: bool) -> None:
    from common import peers, write

    with_tune = "" if quick else peers("tune", ["ray[tune]"])
    variants = [name for name in VARIANTS if not (quick and name.startswith(("tune", "ray")))]
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for name in ("loop_narrow", "local_narrow"):  # compile what they import
        time_process(name, sys.executable)
    for turn in range(rounds):
        for name in (*variants[turn % len(variants) :], *variants[: turn % len(variants)]):
            seen[name].append(
                time_process(name, with_tune if name.startswith("tune") else sys.executable)
            )
            print(f"round {turn + 1}  {name:13} {seen[name][-1]['wall']:7.2f} s", flush=True)
    rows = [
        {
            "variant": name,
            "wall_s": median(x["wall"] for x in runs),
            "processor_s": median(x["processor"] for x in runs),
            "training_s": median(x["training"] for x in runs),
            "best_accuracy": max(x["best"] for x in runs),
            "most_lanes": max(x.get("lanes", 1) for x in runs),
            "walls_s": [round(x["wall"], 2) for x in runs],
        }
        for name, runs in seen.items()
    ]
    write(
        "tune_grid" + ("-quick" if quick else ""),
        rows,
        ratios({row["variant"]: row for row in rows}),
    )


def ratios(at: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of medians, with their goals; those whose variants were run."""
    pairs = {
        "tune_default_over_local": ("wall_s", "tune_default", "local"),
        "tune_reuse_over_local": ("wall_s", "tune_reuse", "local"),
        "loop_over_local": ("wall_s", "loop", "local"),
        "local_fifo_over_local": ("wall_s", "local_fifo", "local"),
        "loop_over_local_processor": ("processor_s", "loop", "local"),
        "loop_over_local_processor_narrow": ("processor_s", "loop_narrow", "local_narrow"),
        "loop_over_local_training": ("training_s", "loop", "local"),
        "loop_over_local_training_narrow": ("training_s", "loop_narrow", "local_narrow"),
        "loop_over_ray2_training": ("training_s", "loop", "ray2"),
    }
    found = {
        name: at[one][what] / at[other][what]
        for name, (what, one, other) in pairs.items()
        if {one, other} <= at.keys()
    }
    return found | {"goals": GOALS}


if __name__ == "__main__":
    main()
