"""The ways to train many tiny models, each run in a process of its own.

    python benchmarks/many_ways.py WAY TRIALS FOLDER

It prints one line of JSON: the seconds from the first line of work to the last, imports left out,
and the process's peak memory in MB. `many.py` starts these processes and compares them.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import shoal

INPUTS, HIDDEN, CLASSES = 16, 16, 4
BATCH, STEPS = 32, 4
LEAST_RATE, MOST_RATE = 1e-4, 1e-1


def network() -> nn.Module:
    """A multi-layer perceptron with one hidden layer: 340 parameters."""
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def made_up(seed: int, rows: int) -> tuple[Tensor, Tensor]:
    """So many samples and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (rows,), generator=generator)
    centres = torch.eye(CLASSES).repeat(1, INPUTS // CLASSES)
    return centres[labels] + torch.randn(rows, INPUTS, generator=generator), labels


class FirstStep:
    """Where this is set, Shoal's first training step prints the seconds since then and exits."""

    ends_process_since: float | None = None


class Tiny(shoal.Recipe):
    """One epoch of four steps, then one validation batch."""

    batch_size = BATCH
    metric = "accuracy"
    mode = "max"
    max_epochs = 1

    def data(self) -> shoal.Data:
        training = [part.numpy() for part in made_up(0, BATCH * STEPS)]
        held_out = [part.numpy() for part in made_up(1, BATCH)]
        return shoal.Data.arrays(*training, validation=tuple(held_out))

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return network()

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        if FirstStep.ends_process_since is not None:
            tell(time.perf_counter() - FirstStep.ends_process_since)
            os._exit(0)
        return cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


# -- plain PyTorch -----------------------------------------------------------------------------


class Plain:
    """What anyone would write for one model: four steps of Adam, then the accuracy."""

    def __init__(self) -> None:
        self.x, self.y = made_up(0, BATCH * STEPS)
        self.held_out_x, self.held_out_y = made_up(1, BATCH)
        self.model = network()

    def train(self, rate: float) -> float:
        """Train a new model; its accuracy."""
        self.model = model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        model.train()
        for rows in torch.randperm(len(self.x)).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(self.x[rows]), self.y[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = model(self.held_out_x).argmax(1) == self.held_out_y
            return float(right.float().mean())


def run_loop(trials: int, folder: Path) -> None:
    """A sequential loop that remembers each trial's accuracy and forgets its weights."""
    plain = Plain()
    for _ in range(trials):
        plain.train(random_rate())


def run_saving_loop(trials: int, folder: Path) -> None:
    """The same loop; each trial's final weights go to a file, and its accuracy to a line of JSON.

    Nothing is flushed to the disk: a power failure may lose all of it.
    """
    plain = Plain()
    weights = folder / "weights"
    weights.mkdir()
    with (folder / "results.jsonl").open("w") as results:
        for trial in range(trials):
            rate = random_rate()
            accuracy = plain.train(rate)
            torch.save(plain.model.state_dict(), weights / f"{trial}.pt")
            line = {"trial": trial, "lr": rate, "accuracy": accuracy}
            results.write(json.dumps(line) + "\n")


def random_rate() -> float:
    span = MOST_RATE / LEAST_RATE
    return float(LEAST_RATE * span ** random.random())


# -- Shoal -------------------------------------------------------------------------------------


def run_shoal(trials: int, folder: Path, policy: str = "auto") -> None:
    """Random search; or what is left of it, where the folder holds a study already."""
    space = {"lr": shoal.loguniform(LEAST_RATE, MOST_RATE)}
    study = shoal.create_study(
        Tiny(), storage=folder / "study", search_space=space, load_if_exists=True
    )
    study.optimize(num_samples=trials, policy=policy, progress=False)
    assert all(status == "finished" for status in study.state.ended.values())
    assert len(study.state.ended) == trials


def run_fifo(trials: int, folder: Path) -> None:
    run_shoal(trials, folder, "fifo")


def resume_shoal(trials: int, folder: Path, policy: str = "auto") -> None:
    """Go on with a study that was killed; the process ends at its first training step."""
    FirstStep.ends_process_since = time.perf_counter()
    run_shoal(trials, folder, policy)
    raise SystemExit("nothing was left to train")


def resume_fifo(trials: int, folder: Path) -> None:
    resume_shoal(trials, folder, "fifo")


def read_trials(trials: int, folder: Path) -> None:
    """Open a study and list its trials."""
    assert len(shoal.load_study(folder / "study").trials) == trials


# -- peers -------------------------------------------------------------------------------------


def run_optuna(trials: int, folder: Path, storage: Any = None) -> None:
    """Optuna's random sampler over the same plain training; no weights are kept."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    plain = Plain()
    study = optuna.create_study(
        storage=storage, sampler=optuna.samplers.RandomSampler(seed=0), direction="maximize"
    )
    study.optimize(
        lambda trial: plain.train(trial.suggest_float("lr", LEAST_RATE, MOST_RATE, log=True)),
        n_trials=trials,
    )


def run_optuna_journal(trials: int, folder: Path) -> None:
    """The same with Optuna's journal in a file."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path = folder / "journal.log"
    run_optuna(trials, folder, JournalStorage(JournalFileBackend(str(path))))


def run_tune(trials: int, folder: Path) -> None:
    """Ray Tune on one CPU with reused actors: trials follow each other in one process."""
    import ray
    from ray import tune

    def trainable(config: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        tune.report({"accuracy": Plain().train(config["lr"])})

    ray.init(num_cpus=1, include_dashboard=False, logging_level="error")
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"lr": tune.loguniform(LEAST_RATE, MOST_RATE)},
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", num_samples=trials, reuse_actors=True
        ),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    )
    results = tuner.fit()
    assert len(results) == trials
    assert results.num_errors == 0


WAYS: Mapping[str, Callable[[int, Path], None]] = {
    "loop": run_loop,
    "loop, saving": run_saving_loop,
    "shoal": run_shoal,
    "shoal, fifo": run_fifo,
    "optuna, in memory": run_optuna,
    "optuna, journal": run_optuna_journal,
    "tune": run_tune,
    "resume shoal": resume_shoal,
    "resume shoal, fifo": resume_fifo,
    "trials": read_trials,
}


def tell(seconds: float) -> None:
    """Print what this process took. Linux and macOS count peak memory in different units."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bytes_each = 1 if sys.platform == "darwin" else 1024
    print(json.dumps({"seconds": seconds, "peak_MB": peak * bytes_each / 1e6}), flush=True)


def main() -> None:
    way, trials, folder = sys.argv[1:]
    torch.set_num_threads(1)
    random.seed(0)
    torch.manual_seed(0)
    Plain().train(1e-3)  # torch loads much of itself at the first step
    begin = time.perf_counter()
    WAYS[way](int(trials), Path(folder))
    tell(time.perf_counter() - begin)


if __name__ == "__main__":
    main()
