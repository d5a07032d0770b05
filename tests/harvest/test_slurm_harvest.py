"""`shoal harvest` from end to end, on a real Slurm."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harvest_kit import Harvest, harvest, largest_difference, shared_memory, undisturbed, weights
from slurm_kit import SlurmLab, wait_for

pytest.importorskip("ray")
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]
# Seconds that a main job may start later than on the empty cluster. Pilots that did not go when
# they are told to would hold it up for as long as Slurm has patience with them, KillWait.
BOUND = 15.0


@pytest.fixture
def slurm(start_slurm: Callable[..., SlurmLab]) -> SlurmLab:
    """Two nodes: what starts on a third takes time, and shows nothing new."""
    return start_slurm(nodes=2)


def started_after(lab: SlurmLab) -> float:
    """Seconds until a main job of all nodes begins. It has ended when this returns."""
    file = lab.folder / f"began-{time.monotonic_ns()}"
    began = time.time()
    job = lab.submit("-N2", command=f"date +%s.%N > {file}.new; mv {file}.new {file}; sleep 1")
    wait_for("the main job's end", lambda: lab.state(job) == "COMPLETED")
    return float(file.read_text()) - began


def test_a_study_trains_on_idle_nodes_alone_and_main_jobs_do_not_wait(
    slurm: SlurmLab, tmp_path: Path
) -> None:
    shared = shared_memory()
    empty = started_after(slurm)
    busy = slurm.submit("-w", "n1", command=["sleep", "600"])
    wait_for("the main job", lambda: slurm.state(busy) == "RUNNING")
    with harvest(slurm, tmp_path / "study") as made:
        made.start()
        made.wait("a slot", lambda: made.slots() == ["n2"])
        assert slurm.state(busy) == "RUNNING"
        slurm.run("scancel", busy)
        made.wait("another slot", lambda: made.slots() == ["n1", "n2"])

        # A slot is told again when its shards change.
        assert list(dict.fromkeys(node for _, node in made.joined())) == ["n2", "n1"]
        assert started_after(slurm) < empty + BOUND
        made.wait("slots again", lambda: made.left() and len(made.slots()) == 2)
        made.finish()
        made.check_nothing_left(shared)
    assert len(made.left()) >= 2
    assert largest_difference(weights(made.folder), undisturbed(tmp_path / "b")) == 0.0


def test_wide_trials_shrink_and_grow_with_the_nodes(slurm: SlurmLab, tmp_path: Path) -> None:
    with harvest(slurm, tmp_path / "study") as made:
        made.start("--widths", "1", "2", "--space", "width=grid([4])")
        made.wait("all nodes", lambda: len(made.slots()) == 2)
        job = slurm.submit("-w", "n1", command=["sleep", "2"])
        made.wait("fewer", lambda: len(made.slots()) <= 1)
        wait_for("its end", lambda: slurm.state(job) == "COMPLETED")
        made.wait("more", lambda: len(made.slots()) == 2)
        made.finish()
    alone = {4: undisturbed(tmp_path / "b")[4]}
    assert largest_difference(weights(made.folder), alone) < 1e-9


def test_without_an_idle_node_it_waits_and_ends_when_told(slurm: SlurmLab, tmp_path: Path) -> None:
    shared = shared_memory()
    busy = slurm.submit("-N2", command=["sleep", "600"])
    wait_for("the main job", lambda: slurm.state(busy) == "RUNNING")
    with harvest(slurm, tmp_path / "study") as made:
        made.start()
        made.wait("a word", lambda: "waiting for one" in made.said())
        assert made.end(signal.SIGTERM) == 143
        assert "Traceback" not in made.said()
        assert slurm.state(busy) == "RUNNING"
        slurm.run("scancel", busy)
        made.check_nothing_left(shared)


def test_a_harvest_that_is_killed_or_stopped_leaves_nothing_and_goes_on(
    slurm: SlurmLab, tmp_path: Path
) -> None:
    shared = shared_memory()
    with harvest(slurm, tmp_path / "study") as made:
        made.start("--most", "1")
        made.wait("a slot", made.slots)
        other = Harvest(slurm, made.folder)
        other.start()
        assert other.end() == 2
        assert "being harvested for already" in made.said()
        assert made.end(signal.SIGKILL) == -signal.SIGKILL
        made.check_nothing_left(shared, killed=True)

        made.start()
        made.wait("slots", lambda: len(made.slots()) == 2)
        assert made.end(signal.SIGINT) == 130, made.said()
        made.check_nothing_left(shared)
        assert f"shoal harvest {made.folder} --partition …   goes on" in made.said()

        made.start("--most", "1", target=made.folder)
        made.wait("a slot again", made.slots)
        made.finish()
        made.check_nothing_left(shared)
    assert largest_difference(weights(made.folder), undisturbed(tmp_path / "b")) == 0.0
