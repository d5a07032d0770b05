"""Recipes that loop, crash their process, or change it: their trial fails, the others go on."""

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fault_kit import EVERY, Driver, Steady, content, kill, processes
from wild_kit import CHILD, WILD, Wild, log_bytes

import shoal
from shoal.core.event import Failed, Left

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra")
OTHERS = (4, 6, 7)
METHODS = ("training_step", "validation_step", "configure_model")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> shoal.Study:
    """The same trials, of which none does anything wild."""
    study = shoal.create_study(Steady(slow=0), storage=tmp_path_factory.mktemp("alone") / "s")
    study.optimize(policy="fifo", progress=False)
    return study


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What recipes change in this process is put back: later tests run in it, too."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    where, environment, depth = os.getcwd(), dict(os.environ), sys.getrecursionlimit()
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    anomaly = torch.is_anomaly_enabled()
    with np.errstate(), warnings.catch_warnings(), torch.enable_grad():
        yield
    torch.autograd.set_detect_anomaly(anomaly)
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(False)
    sys.setrecursionlimit(depth)
    for number, former in handlers.items():
        signal.signal(number, former)
    os.chdir(where)
    os.environ.clear()
    os.environ.update(environment)


def ends(study: shoal.Study) -> dict[int, str]:
    return {t.config["width"]: t.status for t in study.trials}


def check_others(study: shoal.Study, alone: shoal.Study) -> None:
    """The trials that did nothing wild learnt what they learn alone, to the bit."""
    found = ends(study)
    assert {width: found[width] for width in OTHERS} == dict.fromkeys(OTHERS, "finished")
    for trial in study.trials:
        if trial.config["width"] == WILD:
            continue
        one, two = (s.load_model(trial.id).state_dict() for s in (study, alone))
        assert all(one[name].equal(two[name]) for name in one), trial


# -- loops and waits without an end


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("deed", ["loop", "forever"])
def test_what_does_not_return_fails_on_local(
    tmp_path: Path, alone: shoal.Study, deed: str, method: str
) -> None:
    step = 1 if method == "configure_model" else 3
    study = shoal.create_study(Wild(deed, method, step), storage=tmp_path / "s")
    study.optimize(policy="fifo", progress=False, stuck_after=1.0)
    why = ends(study)[WILD]
    assert why.startswith("failed: the recipe's code did not return for"), why
    assert "stuck_after" in why
    traces = (tmp_path / "s" / "trials").rglob("error.txt")
    assert all("wild_kit.py" in trace.read_text() for trace in traces)
    check_others(study, alone)


def test_what_does_not_return_in_a_pack_fails_alone(tmp_path: Path, alone: shoal.Study) -> None:
    study = shoal.create_study(Wild("loop"), storage=tmp_path / "s")
    study.optimize(policy="pack", fuse=False, progress=False, stuck_after=1.0)
    assert ends(study)[WILD].startswith("failed: the recipe's code did not return")
    check_others(study, alone)


@needs_ray
@pytest.mark.nightly  # a step that does not return on Ray is in test_ray_hangs, all deeds above
@pytest.mark.parametrize("deed", ["loop", "forever"])
def test_what_does_not_return_fails_on_ray(tmp_path: Path, alone: shoal.Study, deed: str) -> None:
    """A loop is ended within its slot; a wait ends with the slot, and the third time it fails."""
    options: dict[str, Any] = {"backend": "ray", "slots": 2, "policy": "hop"}
    given = {"deed": deed, "slow": 0.005}
    with Driver(tmp_path / "s", given, stuck_after=2.0, **options) as driver:
        code, said = driver.end()
        assert code == 0, said
        driver.vanish()
    study = shoal.load_study(tmp_path / "s")
    left = [each.entry for each in study.lines() if isinstance(each.entry, Left)]
    why = ends(study)[WILD]
    if deed == "loop":
        assert why.startswith("failed: the recipe's code did not return for")
        assert not left
    else:
        assert why.startswith("failed: its slot died under it 3 times (it hung: no")
        assert len(left) == 3
    study.recipe.slow = 0.0
    assert all(row["equal"] for row in study.replay())
    assert {ends(study)[width] for width in OTHERS} == {"finished"}


# -- what a recipe raises, and how it ends its process


@pytest.mark.parametrize(
    ("deed", "why"),
    [
        ("sys.exit", "SystemExit: 3"),
        ("memory", "MemoryError: no room"),
        ("recursion", "RecursionError"),
        ("interrupt", "KeyboardInterrupt"),
    ],
)
def test_what_a_step_raises_ends_its_trial_only(
    tmp_path: Path, alone: shoal.Study, deed: str, why: str
) -> None:
    study = shoal.create_study(Wild(deed), storage=tmp_path / "s")
    study.optimize(policy="fifo", progress=False)
    assert why in ends(study)[WILD]
    check_others(study, alone)


@needs_ray
@pytest.mark.nightly  # a trial that ends its slot each time is in test_faults
@pytest.mark.parametrize(
    "deed",
    [
        "segfault",
        "interrupt",
        *(pytest.param(d, marks=pytest.mark.soak) for d in ("exit", "sys.exit")),
    ],
)
def test_what_ends_its_slot_fails_on_ray(tmp_path: Path, deed: str) -> None:
    options: dict[str, Any] = {"backend": "ray", "slots": 2, "policy": "hop"}
    given = {"deed": deed, "slow": 0.005}
    with Driver(tmp_path / "s", given, checkpoint_every=EVERY, **options) as driver:
        code, said = driver.end()
        assert code == 0, said
        driver.vanish()
    study = shoal.load_study(tmp_path / "s")
    assert ends(study)[WILD].startswith("failed")
    assert {ends(study)[width] for width in OTHERS} == {"finished"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "policy"),
    [
        ("segfault", "fifo"),
        ("exit", "pack"),
        pytest.param("exit", "fifo", marks=pytest.mark.soak),
        pytest.param("kill", "pack", marks=pytest.mark.soak),
    ],
)
def test_what_ends_the_process_of_local_is_set_aside(
    tmp_path: Path, alone: shoal.Study, deed: str, policy: str
) -> None:
    """The process ends each time. The fourth run knows which trial it was."""
    folder = tmp_path / "s"
    died = 0
    for _ in range(6):
        with Driver(folder, {"deed": deed}, policy=policy, fuse=False) as driver:
            code, said = driver.end()
            driver.vanish()
        if code == 0:
            break
        died += 1
        assert code in (7, -signal.SIGSEGV, -signal.SIGKILL), said
    study = shoal.load_study(folder)
    why = ends(study)[WILD]
    assert why.startswith("failed: its slot died under it 3 times"), why
    assert died <= 4
    failed = [line for line in study.lines() if isinstance(line.entry, Failed)]
    assert len(failed) == 1
    check_others(study, alone)


@pytest.mark.slow
def test_a_process_that_is_killed_from_outside_costs_no_trial(
    tmp_path: Path, alone: shoal.Study
) -> None:
    """Five times, each time before anything is durable by itself."""
    folder = tmp_path / "s"
    for _ in range(5):
        with Driver(folder, {"slow": 0.02}, policy="fifo") as driver:
            seen = driver.visits() + 1
            driver.until(lambda d=driver, n=seen: d.visits() >= n, "a visit")
            driver.process.kill()
            driver.process.wait()
            driver.vanish()
    with Driver(folder, {"slow": 0.0}, policy="fifo") as driver:
        assert driver.end()[0] == 0
    check_others(shoal.load_study(folder), alone)
    assert set(ends(shoal.load_study(folder)).values()) == {"finished"}


# -- what a recipe leaves


def children(driver: Driver) -> list[int]:
    """The processes that the recipe started and left."""
    return [pid for pid in driver.pids() if CHILD.encode() in content(Path(f"/proc/{pid}/cmdline"))]


@needs_ray
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="it looks into /proc")
@pytest.mark.parametrize(
    "killed", [pytest.param("nothing", marks=pytest.mark.nightly), "slot", "driver"]
)
def test_no_child_of_a_recipe_is_left_on_ray(tmp_path: Path, killed: str) -> None:
    options: dict[str, Any] = {"backend": "ray", "slots": 2, "policy": "hop"}
    given = {"deed": "children", "slow": 0.02}
    with Driver(tmp_path / "s", given, checkpoint_every=EVERY, **options) as driver:
        driver.until(lambda: children(driver), "a child")
        born = children(driver)
        parents = {pid: int(stat[1]) for pid, stat in processes()}
        if killed == "driver":
            driver.kill()
            return
        if killed == "slot":
            slots = {parents[child] for child in born if child in parents}
            assert slots
            for slot in slots:
                kill(slot)
        code, said = driver.end()
        assert code == 0, said
        driver.vanish()


@needs_ray
@pytest.mark.nightly  # the bound is met on local below
def test_what_a_recipe_prints_without_end_is_bounded_on_ray(tmp_path: Path) -> None:
    options: dict[str, Any] = {"backend": "ray", "slots": 1, "policy": "fifo"}
    with Driver(tmp_path / "s", {"deed": "chatter", "slow": 0.0}, **options) as driver:
        code, said = driver.end()
        assert code == 0, said
    assert set(ends(shoal.load_study(tmp_path / "s")).values()) == {"finished"}
    assert 2_000_000 < log_bytes(tmp_path / "s" / "trials") <= 3_000_000


# -- what a recipe changes


@pytest.mark.parametrize("policy", ["fifo", "pack"])
@pytest.mark.parametrize("deed", ["threads", "torch", "process", "chatter"])
def test_what_a_recipe_changes_is_not_seen_by_its_neighbours(
    tmp_path: Path, alone: shoal.Study, deed: str, policy: str
) -> None:
    study = shoal.create_study(Wild(deed), storage=tmp_path / "s")
    study.optimize(policy=policy, fuse=False, progress=False)
    assert study.recipe.calls["training_step"] >= 3, "it was done"
    check_others(study, alone)
    if deed != "torch":  # which turned its own gradients off
        assert ends(study)[WILD] == "finished"
