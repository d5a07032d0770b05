"""The 16-configuration digits grid as whole processes: Ray Tune, a plain loop, Shoal here and on two Ray slots.

Every variant trains the same MLP 64-h-h-10 (h in 64, 128, 256, 512; Adam, lr in 1e-4, 3e-4, 1e-3, 3e-3; batch 32, 10 epochs over
1500 digits, validated each epoch) with one thread, and is timed as a whole process, imports included. Rounds rotate the order.

    python benchmarks/tune_grid.py [--rounds 3]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
GRID = [(h, lr) for h in (64, 128, 256, 512) for lr in (1e-4, 3e-4, 1e-3, 3e-3)]
EPOCHS, BATCH, TRAINING = 10, 32, 1500
VARIANTS = ("tune_default", "tune_reuse", "loop", "local", "ray2")


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


def run_loop(_: Path) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    x, y = (torch.as_tensor(part) for part in digits())
    start = time.perf_counter()
    best = max(train_plainly(h, lr, x, y) for h, lr in GRID)
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
        param_space={"h": tune.grid_search([64, 128, 256, 512]), "lr": tune.grid_search([1e-4, 3e-4, 1e-3, 3e-3])},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", reuse_actors=reuse),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    )
    results = tuner.fit()
    seconds = time.perf_counter() - start
    assert len(results) == len(GRID) and results.num_errors == 0
    return {"training": seconds, "best": results.get_best_result().metrics["accuracy"]}


def run_shoal(folder: Path, backend: str) -> dict[str, Any]:
    import shoal

    class Digits(shoal.Recipe):
        batch_size = BATCH
        shuffle = "each"  # as the loop does

        def data(self) -> shoal.Data:
            x, y = digits()
            return shoal.Data.arrays(x[:TRAINING], y[:TRAINING], validation=(x[TRAINING:], y[TRAINING:]))

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

    space = {"h": shoal.grid([64, 128, 256, 512]), "lr": shoal.grid([1e-4, 3e-4, 1e-3, 3e-3])}
    study = shoal.create_study(Digits(), storage=folder / "study", metric="accuracy", mode="max", search_space=space)
    options: dict[str, Any] = {"backend": "ray", "slots": 2, "policy": "fifo"} if backend == "ray" else {}
    study.optimize(max_epochs=EPOCHS, progress=False, **options)
    from shoal.core.event import Finished, Planned

    lines = study.lines()
    first = next(line.time for line in lines if isinstance(line.entry, Planned))
    last = max(line.time for line in lines if isinstance(line.entry, Finished))
    assert len(study.trials) == len(GRID) and all(x.status == "finished" for x in study.trials)
    return {"training": last - first, "best": study.best_trial.value}


def run_variant(name: str, folder: Path) -> dict[str, Any]:
    if name == "loop":
        return run_loop(folder)
    if name.startswith("tune"):
        return run_tune(folder, reuse=name == "tune_reuse")
    return run_shoal(folder, "ray" if name == "ray2" else "local")


def time_process(name: str, python: str) -> dict[str, Any]:
    """Run a variant as a process of its own; its wall seconds and what it says of itself."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAY_AIR_NEW_OUTPUT": "0", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [python, __file__, "--run", name, "--folder", folder]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return {"wall": wall} | json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", choices=VARIANTS)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run_variant(args.run, args.folder)))
        return
    from common import peers, write

    with_tune = peers("tune", ["ray[tune]"])
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    for turn in range(args.rounds):
        for name in (*VARIANTS[turn % len(VARIANTS) :], *VARIANTS[: turn % len(VARIANTS)]):
            seen[name].append(time_process(name, with_tune if name.startswith("tune") else sys.executable))
            print(f"round {turn + 1}  {name:13} {seen[name][-1]['wall']:7.2f} s", flush=True)
    rows = [
        {
            "variant": name,
            "wall_s": median(x["wall"] for x in runs),
            "training_s": median(x["training"] for x in runs),
            "best_accuracy": max(x["best"] for x in runs),
            "walls_s": [round(x["wall"], 2) for x in runs],
        }
        for name, runs in seen.items()
    ]
    wall = {row["variant"]: row["wall_s"] for row in rows}
    training = {row["variant"]: row["training_s"] for row in rows}
    write(
        "tune_grid",
        rows,
        {
            "tune_default_over_local": wall["tune_default"] / wall["local"],
            "tune_reuse_over_local": wall["tune_reuse"] / wall["local"],
            "local_over_loop": wall["local"] / wall["loop"],
            "loop_over_ray2_training": training["loop"] / training["ray2"],
        },
    )


if __name__ == "__main__":
    main()
