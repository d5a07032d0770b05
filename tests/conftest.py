"""Shared by all tests: one thread, a limit for their time, and a small recipe that trains in
milliseconds.
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile
import zlib

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" not in os.environ:
    # The key that marks the tests' studies as their own is no file of the user's.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="shoal-state-")
    atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], True)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a script's background job: what the tests start would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.engine.process import STOPPING

BEGAN = monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--within",
        type=float,
        metavar="MINUTES",
        help="skip the tests that have not begun by then; begin anywhere in the list",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With a limit, the tests that it leaves out are others in each run."""
    if config.getoption("within") and items:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
        first = zlib.crc32(run.encode()) % len(items)  # the same in all its processes
        items[:] = items[first:] + items[:first]


def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption("within")
    if limit and monotonic() - BEGAN > limit * 60:
        pytest.skip(f"not begun within {limit:g} minutes")


@pytest.fixture(autouse=True)
def nothing_is_watched() -> Iterator[None]:
    """No run of this process goes on after its test: its limits would be those of the next."""
    yield
    overdue = sys.modules.get("shoal.train.overdue")
    assert overdue is None or not overdue._watches


@pytest.fixture(autouse=True)
def signals_do_what_they_did() -> Iterator[None]:
    """A run gives the handlers back. Ray's own of SIGTERM, which its test cluster sets, goes."""
    before = {each: signal.getsignal(each) for each in STOPPING}
    yield
    after = signal.getsignal(signal.SIGINT)
    for each, handler in before.items():
        if handler is not None:  # one that was not set from Python stays as it is
            signal.signal(each, handler)
    assert after == before[signal.SIGINT]


class Blobs(shoal.Recipe):
    """Three noisy clusters; `fail` raises in trials of that width, `diverge` makes their loss
    nan.
    """

    search_space = {"width": shoal.grid([4, 8]), "lr": shoal.grid([1e-2, 1e-3])}
    metric, mode, max_epochs = "accuracy", "max", 2
    batch_size = 16

    def __init__(
        self,
        shards: int = 3,
        samples: int = 120,
        fail: int | None = None,
        diverge: int | None = None,
        seed: int = 0,
    ) -> None:
        self.shards, self.samples, self.fail, self.diverge, self.seed = (
            shards,
            samples,
            fail,
            diverge,
            seed,
        )

    def data(self) -> shoal.Data:
        rng = np.random.default_rng(self.seed)
        y = rng.integers(0, 3, self.samples)
        x = (rng.normal(size=(self.samples, 5)) + 2 * np.eye(3, 5)[y]).astype("float32")
        return shoal.Data.arrays(x, y, shards=self.shards, validation=0.25, seed=1)

    def configure_model(self, config: Mapping[str, Any]) -> Any:
        from torch import nn

        return nn.Sequential(
            nn.Linear(5, config["width"]),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(config["width"], 3),
        )

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        import torch

        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model: Any, batch: Any) -> Any:
        import torch

        width = model[0].out_features
        if width == self.fail:
            raise RuntimeError("no such width")
        loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        return loss * float("nan") if width == self.diverge else loss

    def validation_step(self, model: Any, batch: Any) -> Any:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


@pytest.fixture(scope="session")
def blobs() -> type[Blobs]:
    return Blobs
