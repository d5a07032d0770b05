"""`shoal harvest` from end to end, on a real Slurm."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from harvest_kit import Harvest, harvest, largest_difference, shared_memory, undisturbed, weights
from slurm_kit import SlurmLab, wait_for

pytest.importorskip("ray")
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]
ROUNDS = 5
EPOCHS = 10  # of the study that all these rounds disturb
BOUND = 3.0  # seconds that a main job may start later than on the empty cluster


def started_after(lab: SlurmLab, seconds: float = 0.0) -> tuple[str, float]:
    """Submit a main job of all nodes; it, and the seconds until it begins.

    `seconds`: how long it takes.
    """
    file = lab.folder / f"began-{time.monotonic_ns()}"
    began = time.time()
    script = f"date +%s.%N > {file}.new; mv {file}.new {file}; sleep {seconds}"
    job = lab.submit("-N4", command=script)
    wait_for("the main job", file.exists)
    return job, float(file.read_text()) - began


def test_a_study_trains_on_idle_nodes_alone(slurm: SlurmLab, tmp_path: Path) -> None:
    shared = shared_memory()
    busy = slurm.submit("-w", "n1,n2", command=["sleep", "600"])
    wait_for("the main job", lambda: slurm.state(busy) == "RUNNING")
    with harvest(slurm, tmp_path / "study", step=0.3) as made:
        made.start()
        made.wait("slots", lambda: made.slots() == ["n3", "n4"])
        assert slurm.state(busy) == "RUNNING"
        slurm.run("scancel", busy)
        made.wait("more slots", lambda: {"n1", "n2"} & set(made.slots()))
        assert made.end() == 0, made.said()

        # A slot is told again when its shards change.
        nodes = list(dict.fromkeys(node for _, node in made.joined()))
        assert sorted(nodes[:2]) == ["n3", "n4"]
        made.check_nothing_left(shared)
    assert largest_difference(weights(made.folder), undisturbed(tmp_path / "b")) == 0.0


def test_main_jobs_do_not_wait_and_nothing_is_lost(
    slurm: SlurmLab, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    shared = shared_memory()
    empty = []
    for _ in range(ROUNDS):
        job, seconds = started_after(slurm)
        empty.append(seconds)
        wait_for("its end", lambda job=job: slurm.state(job) == "COMPLETED")
    held, again, trains = [], [], []
    with harvest(slurm, tmp_path / "study", step=0.3) as made:
        made.start("--widths", "1", "1", "--max-epochs", str(EPOCHS))
        for _ in range(ROUNDS):
            made.wait("all nodes", lambda: len(made.slots()) == 4)
            job, seconds = started_after(slurm, 1)
            held.append(seconds)
            wait_for("its end", lambda job=job: slurm.state(job) == "COMPLETED")
            freed = time.monotonic()
            made.wait("pilots", lambda: len(made.pilots()) == 4)
            again.append(time.monotonic() - freed)
            made.wait("a slot", made.slots)
            trains.append(time.monotonic() - freed)
        assert made.end() == 0, made.said()
        made.check_nothing_left(shared)

    figures = {
        "empty": median(empty),
        "held": median(held),
        "again": median(again),
        "trains": median(trains),
    }
    for name, value in figures.items():
        record_property(name, value)
    print(  # noqa: T201 - pytest -s shows it
        f"main job of all nodes, submit to start: {figures['empty']:.2f} s on the empty cluster, "
        f"{figures['held']:.2f} s with pilots; freed nodes have pilots after "
        f"{figures['again']:.2f} s, and one trains after {figures['trains']:.2f} s "
        f"(medians of {ROUNDS})"
    )
    assert figures["held"] < figures["empty"] + BOUND
    assert len(made.left()) >= 4 * ROUNDS
    alone = undisturbed(tmp_path / "b", EPOCHS)
    assert largest_difference(weights(made.folder), alone) == 0.0


def test_wide_trials_shrink_and_grow_with_the_nodes(slurm: SlurmLab, tmp_path: Path) -> None:
    with harvest(slurm, tmp_path / "study", step=0.3) as made:
        made.start("--widths", "1", "4", "--space", "width=grid([4])")
        made.wait("all nodes", lambda: len(made.slots()) == 4)
        job = slurm.submit("-w", "n1,n2", command=["sleep", "2"])
        made.wait("fewer", lambda: len(made.slots()) <= 2)
        wait_for("its end", lambda: slurm.state(job) == "COMPLETED")
        assert made.end() == 0, made.said()
    alone = {4: undisturbed(tmp_path / "b")[4]}
    assert largest_difference(weights(made.folder), alone) < 1e-9


def test_without_an_idle_node_it_waits_and_ends_when_told(slurm: SlurmLab, tmp_path: Path) -> None:
    shared = shared_memory()
    busy = slurm.submit("-N4", command=["sleep", "600"])
    wait_for("the main job", lambda: slurm.state(busy) == "RUNNING")
    with harvest(slurm, tmp_path / "study") as made:
        made.start()
        made.wait("a word", lambda: "waiting for one" in made.said())
        assert made.end(signal.SIGTERM) == 143
        assert "Traceback" not in made.said()
        assert slurm.state(busy) == "RUNNING"
        slurm.run("scancel", busy)
        made.check_nothing_left(shared)


def test_a_harvest_that_is_stopped_goes_on_by_its_folder(slurm: SlurmLab, tmp_path: Path) -> None:
    shared = shared_memory()
    with harvest(slurm, tmp_path / "study") as made:
        made.start("--most", "2")
        made.wait("slots", made.slots)
        other = Harvest(slurm, made.folder)
        other.start()
        assert other.end() == 2
        assert "being harvested for already" in made.said()
        assert made.end(signal.SIGINT) == 130, made.said()
        made.check_nothing_left(shared)
        assert f"shoal harvest {made.folder} --partition …   goes on" in made.said()

        made.start(target=made.folder)
        assert made.end() == 0, made.said()
        made.check_nothing_left(shared)
    assert largest_difference(weights(made.folder), undisturbed(tmp_path / "b")) == 0.0


def test_a_killed_harvest_leaves_no_pilot_and_goes_on(slurm: SlurmLab, tmp_path: Path) -> None:
    shared = shared_memory()
    with harvest(slurm, tmp_path / "study") as made:
        made.start()
        made.wait("slots", lambda: len(made.slots()) == 4)
        assert made.end(signal.SIGKILL) == -signal.SIGKILL
        made.check_nothing_left(shared, killed=True)

        made.start()
        assert made.end() == 0, made.said()
        made.check_nothing_left(shared)
    assert largest_difference(weights(made.folder), undisturbed(tmp_path / "b")) == 0.0
