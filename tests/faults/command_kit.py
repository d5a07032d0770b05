"""`shoal` in processes of its own, and a recipe whose steps take a while until it is to hurry."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import preloaded

import shoal

RECIPE = """
import os, time
import numpy as np, torch, shoal

class Slow(shoal.Recipe):
    batch_size = 20
    def data(self):
        x = np.random.default_rng(0).normal(size=(200, 8)).astype("float32")
        return shoal.Data.arrays(x, (x[:, 0] > 0).astype("int64"), shards=2, validation=0.2)
    def configure_model(self, config):
        return torch.nn.Linear(8, 2)
    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"])
    def training_step(self, model, batch):
        if not os.path.exists(os.environ.get("HURRY", "/")):
            time.sleep(0.1)
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
HERE = Path(shoal.__file__).parents[1]


class Commands:
    """Starts `shoal` with such arguments in a folder with `recipe.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        (folder / "recipe.py").write_text(RECIPE)

    def __call__(self, *arguments: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(HERE), "HURRY": str(self.folder / "hurry")}
        process = preloaded.Popen(
            [sys.executable, "-m", "shoal.cli", *arguments],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def hurry(self) -> None:
        """From now on steps take no time."""
        (self.folder / "hurry").touch()

    def close(self) -> None:
        """End what still runs."""
        self.hurry()
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in self.started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """What it said, once it has ended so."""
    out, _ = process.communicate(timeout=240)
    assert process.returncode == code, out
    return out


def until(met: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.1)
