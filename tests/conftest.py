"""Shared by all tests: one thread, a limit for their time, and a small recipe that trains in
milliseconds.
"""

import atexit
import gc
import os
import re
import shutil
import signal
import sys
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# Ray's processes would get what the other tests leave of the processors, which is next to nothing.
os.environ.setdefault("RAY_worker_niceness", "0")
if "PYTEST_XDIST_WORKER" not in os.environ:
    # The key that marks the tests' studies as their own is no file of the user's.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="shoal-state-")
    atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], True)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a script's background job: what the tests start would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import hypothesis
import numpy as np
import pytest

try:
    from _pytest.nodeid import coerce_node_id
except ImportError:  # of an older pytest
    coerce_node_id = str
import typer.testing
from browser_kit import browser, page  # noqa: F401 - fixtures

import shoal
from shoal.backend.local import Local
from shoal.engine.process import STOPPING

# No test fails because the machine is busy.
hypothesis.settings.register_profile(
    "any speed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any speed")

# Seconds that a quick test may take: longer ones are marked slow. Machines of CI differ by two.
QUICK = 5.0
MOST = 2 * QUICK
LATE = 10_000.0  # seconds that `late_after` sets the clock ahead
HANDLERS = {each: signal.getsignal(each) for each in STOPPING}
# Slow tests that run in one process, one after the other, beside Slurm's in another: several at a
# time keep a small machine too busy.
GROUPS = {
    "processes of ray": re.compile(r"/test_(processes|network|pool|pilots|slots|ray_locks)\.py"),
    "ray": re.compile(r"(?<![a-zA-Z])ray(?![a-z])"),
}
ORDER = ["slurm", *GROUPS, "slow", "quick"]

# A command line is built once, not for each that is typed.
typer.testing._get_command = cache(typer.testing._get_command)
gc.disable()  # ten thousand tests are collected, and none of them is garbage: a tenth of the time


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    gc.enable()
    for item in session.items:
        # pytest-xdist 3.8 writes the groups where pytest 9.2 does not look for them any more.
        grouped = item.__dict__.get("_nodeid", "")
        if grouped.startswith(f"{item.nodeid}@"):
            item._id = coerce_node_id(grouped)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist takes the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest first: Slurm's tests, and those that start Ray; then other slow ones; then the rest.

    Tests that share a cluster come before those that start their own.
    """
    groups = {item: _group(item) for item in items}
    items.sort(key=lambda item: (ORDER.index(groups[item]), "shared_ray" not in item.fixturenames))
    for item, group in groups.items():
        if group not in ("slow", "quick"):
            item.add_marker(pytest.mark.xdist_group(group))
        elif group == "quick" and _shares(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _group(item: pytest.Item) -> str:
    if item.get_closest_marker("slurm"):
        return "slurm"
    if not _is_slow(item):
        return "quick"
    if "shared_ray" in item.fixturenames:
        return "ray"
    return next((name for name, ray in GROUPS.items() if ray.search(item.nodeid)), "slow")


def _shares(item: Any) -> bool:
    """Whether it needs what is made once for its module: then one process makes that."""
    found = getattr(item, "_fixtureinfo", None)
    return bool(found) and any(
        each[-1].scope == "module" for each in found.name2fixturedefs.values() if each
    )


def _is_slow(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in ("slow", "slurm", "soak", "nightly"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that do not share the cluster of this process are in none when they begin."""
    if "one_cluster" in sys.modules and "shared_ray" not in item.fixturenames:
        sys.modules["one_cluster"].leave()


@pytest.fixture
def shared_ray() -> None:
    """The test is in a cluster, with others before and after it."""
    pytest.importorskip("ray", reason="Ray is an extra")
    import one_cluster

    one_cluster.join()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """In CI a quick test that takes longer than quick ones may is an error.

    Of the processor, by it and by processes that it waited for: the clock on the wall also counts
    what else the machine does.
    """
    began = sum(os.times()[:4])
    called = yield
    took = sum(os.times()[:4]) - began
    if os.environ.get("CI") and took > MOST and not _is_slow(pyfuncitem):
        pytest.fail(
            f"took {took:.1f} s; quick is {QUICK} s: mark it slow, or make it quicker",
            pytrace=False,
        )
    return called


@pytest.fixture(autouse=True)
def nothing_is_watched() -> Iterator[None]:
    """No run of this process goes on after its test: its limits would be those of the next."""
    yield
    overdue = sys.modules.get("shoal.train.overdue")
    assert overdue is None or not overdue._watches


@pytest.fixture(autouse=True)
def signals_do_what_they_did() -> Iterator[None]:
    """A run gives the handlers back. Ray's own of SIGTERM, which a test's cluster or that of a
    whole file sets, goes: tests close over handlers, and Ray's cannot be pickled.
    """
    _reset_signals()
    before = signal.getsignal(signal.SIGINT)
    yield
    after = signal.getsignal(signal.SIGINT)
    _reset_signals()
    assert after == before


def _reset_signals() -> None:
    for each, handler in HANDLERS.items():
        if handler is not None:  # one that was not set from Python stays as it is
            signal.signal(each, handler)


@pytest.fixture(autouse=True)
def folders_of_recipes_are_forgotten() -> Iterator[None]:
    """What a test pickles names the folders of its own recipes, not those of all tests before."""
    from shoal.train.recipe import pickling, text_modules

    count = len(pickling._recipe_folders)
    texts = [(each, dict(each)) for each in (text_modules._known, text_modules._folders)]
    yield
    del pickling._recipe_folders[count:]
    for now, before in texts:
        now.clear()
        now.update(before)


@pytest.fixture
def late_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], AbstractContextManager[None]]:
    """The local backend's clock is `LATE` ahead once so many visits were made within this: a
    timeout comes there and then, however quick or slow the machine is.
    """
    usual = Local.now

    @contextmanager
    def late(visits: int) -> Iterator[None]:
        def now(backend: Local) -> float:
            made = sum(len(at.visits) for at in backend.course.positions.values())
            return usual(backend) + LATE * (made >= visits)

        with monkeypatch.context() as patched:
            patched.setattr(Local, "now", now)
            yield

    return late


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
            nn.Linear(5, config["width"]), nn.ReLU(), nn.Dropout(0.1), nn.Linear(config["width"], 3)
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
