"""Data of four times the memory that a slot may take."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import shoal

MIB = 2**20
LIMIT = 144 * MIB  # beyond what the process takes when it begins to train
SHARDS, ROWS, WIDTH = 4, 590_000, 64  # float32: four times the limit

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's"),
]


class Large(shoal.Recipe):
    """A linear model of large data."""

    batch_size = 2048

    def __init__(self, folder):
        self.folder = folder

    def data(self):
        return shoal.Data.folder(self.folder)

    def configure_model(self, config):
        return nn.Linear(WIDTH, 1)

    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        return (model(batch[0]) - 1).square().mean()


def trained(folder, storage, **options):
    study = shoal.create_study(
        Large(folder),
        storage=storage,
        search_space={"lr": shoal.grid([1e-3, 1e-2])},
        metric="loss",
        mode="min",
    )
    study.optimize(max_epochs=1, slot_memory_gb=LIMIT / 2**30, **options)
    return study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("large")
    drawn = np.random.default_rng(0)
    for number in range(SHARDS):
        np.savez(made / f"{number}.npz", drawn.random((ROWS, WIDTH), dtype=np.float32))
    assert sum(file.stat().st_size for file in made.iterdir()) > 4 * LIMIT
    return made


LOCAL = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from test_more_data_than_memory import LIMIT, trained
data = [line for line in open("/proc/self/status") if line.startswith("VmData")]
limit = int(data[0].split()[1]) * 1024 + LIMIT
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
study = trained(sys.argv[2], sys.argv[3], policy="fifo", workers=0)
print([trial.status for trial in study.trials])
"""


def test_it_trains_within_the_limit_on_local(folder, tmp_path):
    here = str(Path(__file__).parent)
    ran = subprocess.run(
        [sys.executable, "-c", LOCAL, here, str(folder), str(tmp_path / "study")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.split("\n")[-2] == "['finished', 'finished']"


def test_it_trains_within_the_limit_on_ray(folder, tmp_path):
    """Each slot's process has the limit; the trials hop between the two."""
    pytest.importorskip("ray", reason="this is about slots of a Ray cluster")
    study = trained(folder, tmp_path / "study", backend="ray", slots=2, policy="hop", feeders=0)
    assert [trial.status for trial in study.trials] == ["finished", "finished"]
