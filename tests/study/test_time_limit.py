"""A run in an allocation of Slurm: it stops before the end, and may go on."""

import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.core.cluster import SlotId
from shoal.core.errors import StudyError
from shoal.core.event import Advanced, Commanded, Ended, Failed, Finished, Kept, Opened, Planned
from shoal.core.plan import Gang, Lane
from shoal.core.state import State
from shoal.core.trial import TrialId
from shoal.engine.journal import Line
from shoal.harvest.allocation import Allocation
from shoal.options import Options
from shoal.study.backends import check_slots
from shoal.study.slurm_job import (
    AllocatedNodes,
    LongestVisit,
    RunPlace,
    TimeLimit,
    allocation_text,
    run_place,
    why_not_requeued,
)

A, B = TrialId("a"), TrialId("b")
OURS = "Slurm job 7 ends at 12:00:00"
SLOW = """
import os
import time
from pathlib import Path

import numpy as np
import torch

import shoal

steps = 0


class Slow(shoal.Recipe):
    '''Two visits of a step an epoch. With the first real one the job's end comes near.'''

    search_space = {"lr": shoal.grid([0.1, 0.01])}
    metric, mode, max_epochs, batch_size = "loss", "min", 16, 8

    def data(self):
        x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
        return shoal.Data.arrays(x, x[:, :1], shards=2, validation=0.2)

    def configure_model(self, config):
        return torch.nn.Linear(3, 1)

    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        global steps
        steps += 1
        if steps > 8 and "TEST_VISIT" in os.environ:  # the first ones are a rehearsal
            near = Path(os.environ["TEST_LEFT"] + ".near")
            near.write_text(os.environ["TEST_NEAR"])
            near.replace(os.environ["TEST_LEFT"])
            time.sleep(float(os.environ["TEST_VISIT"]))
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    def validation_step(self, model, batch):
        return {"loss": ((model(batch[0]) - batch[1]) ** 2).mean(1)}
"""
# Seconds that the job has at each look until a trial has begun, and seconds before its end at which
# a run stops: the first looks come soon, and nothing depends on how soon a trial begins.
FAR, STOP = 612, 600
Lab = Callable[..., None]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Makes this process one of batch job 7, which ends in so many seconds, on these nodes."""

    def begin(seconds: float, nodes: str = "n1", **record: str) -> None:
        programs = tmp_path / "programs"
        programs.mkdir(exist_ok=True)
        fields = {"JobState": "RUNNING", "BatchFlag": "1", "NodeAddr": "127.0.0.1"} | record
        said = " ".join(f"{name}={value}" for name, value in fields.items())
        left = programs / "left"
        left.write_text(str(seconds))
        program = programs / "scontrol"
        program.write_text(
            f'#!/bin/bash\necho "$*" >> {programs}/asked\n'
            f'end=$(date -d "+$(cat {left}) seconds" +%FT%T)\n'
            f'[ $1 = -o ] && echo "{said} EndTime=$end"\nexit 0\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("TEST_LEFT", str(left))
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURMD_NODENAME", "n1")
        monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
        monkeypatch.delenv("SLURM_JOB_CPUS_PER_NODE", raising=False)
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")

    return begin


def asked_of_slurm(tmp_path: Path) -> list[str]:
    return (tmp_path / "programs" / "asked").read_text().splitlines()


def typed(folder: Path, *words: str) -> Any:
    """`shoal run` of the slow recipe, in this process."""
    file = folder / "slow.py"
    file.write_text(SLOW)
    given = ("run", str(file), "--storage", str(folder / "study"), "--policy", "fifo")
    return CliRunner().invoke(app, [*given, *words])


def weights(folder: Path) -> Any:
    study = shoal.load_study(folder)
    return {
        each.id: study.load_model(each).state_dict()["weight"].tolist() for each in study.trials
    }


# -- the end


@pytest.mark.slow
def test_a_run_stops_before_the_end(job: Lab, tmp_path: Path, blobs: Any) -> None:
    class Trained(blobs):
        def validation_step(self, model: Any, batch: Any) -> Any:
            near = tmp_path / "programs" / "near"
            near.write_text(str(STOP - 1))
            near.replace(tmp_path / "programs" / "left")
            return super().validation_step(model, batch)

    job(FAR)
    study = shoal.create_study(Trained(), storage=tmp_path / "study")
    study.optimize(progress=False, policy="fifo", max_epochs=100_000, stop_before=STOP)
    assert study.state.stopped.startswith("Slurm job 7 ends at ")
    assert study.state.trials and study.state.kept, "what was trained is durable"
    assert "Slurm job 7: 1 node, 2 CPUs" in (tmp_path / "study" / "log.txt").read_text()


@pytest.mark.slow
def test_a_run_stops_before_the_end_and_its_job_starts_again(
    job: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as slow:
        job(FAR)
        slow.setenv("TEST_NEAR", str(STOP - 1))
        slow.setenv("TEST_VISIT", "1")
        first = typed(tmp_path, "--stop-before", str(STOP), "--requeue")
    assert first.exit_code == 3, first.output  # work is left
    study = shoal.load_study(tmp_path / "study")
    assert study.state.stopped.startswith("Slurm job 7 ends at ")
    assert study.state.trials and study.state.kept
    assert "Slurm job 7: 1 node, 2 CPUs, ends at " in first.output
    assert "the job is submitted again" in first.stderr
    assert "requeue 7" in asked_of_slurm(tmp_path)
    (tmp_path / "programs" / "asked").unlink()

    job(600)
    second = typed(tmp_path, "--requeue")
    assert second.exit_code == 0, second.output
    assert "not submitted again: the study is done" in second.stderr
    assert "requeue 7" not in asked_of_slurm(tmp_path)

    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    assert typed(undisturbed).exit_code == 0
    assert weights(tmp_path / "study") == weights(undisturbed / "study")


@pytest.mark.slow
def test_visits_that_take_too_long_are_given_up(
    job: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(FAR)
    monkeypatch.setenv("TEST_NEAR", "3")
    monkeypatch.setenv("TEST_VISIT", "250")
    done = typed(tmp_path, "--stop-before", str(STOP))
    assert done.exit_code == 3, done.output
    study = shoal.load_study(tmp_path / "study")
    assert study.state.stopped.startswith("Slurm job 7 ends at ")


def test_a_limit_that_was_moved_is_the_new_one(job: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    job(600)
    told: list[Commanded] = []
    before = Allocation("7", ("n1",), (1,), 0, "n1", end=time.time() + 1.5)
    with TimeLimit(before, 1.0, State(), told.append):
        time.sleep(2)
    assert told == []


def test_without_an_end_nothing_happens() -> None:
    told: list[Commanded] = []
    with TimeLimit(None, None, State(), told.append) as limit:
        assert limit.margin() > 0
    with TimeLimit(Allocation("7", (), (), 0, None), 1.0, State(), told.append):
        time.sleep(1.2)
    assert told == []


def test_slurms_warning_stops_a_run(job: Lab, tmp_path: Path, blobs: Any) -> None:
    job(3600)

    def warn(study: shoal.Study, trial: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)

    study = shoal.create_study(blobs(), storage=tmp_path / "study")
    study.optimize(progress=False, callbacks=[warn], policy="fifo")
    assert study.state.stopped == "SIGUSR1"
    assert why_not_requeued(study.lines()) is None


# -- how long before


def gang(*trials: TrialId, quota: float | None = None) -> Gang:
    lanes = tuple(Lane(trial, (SlotId(f"s{trial}"),)) for trial in trials)
    return Gang(lanes, quota=quota)


def test_the_longest_visit_counts() -> None:
    visits = LongestVisit()
    alone, whole = gang(A), gang(B, quota=100.0)
    visits(10.0, [Planned((), (alone, whole))], State())
    made = ((0, "s0", 0),)
    visits(30.0, [Advanced({A: 1.0, B: 1.0}, visits={A: made, B: made})], State())
    assert visits.seconds == 20
    visits(31.0, [Advanced({A: 1.0}, visits={A: ()})], State())
    visits(40.0, [Advanced({A: 1.0}, visits={A: made})], State())
    assert visits.seconds == 20
    visits(45.0, [Ended(whole)], State())  # a gang with a quota ends by itself
    assert visits.seconds == 35
    visits(99.0, [Ended(alone)], State())
    assert visits.seconds == 35


@pytest.mark.parametrize(
    ("left", "longest", "margin"),
    [(7200, 0, 60), (7200, 20, 60), (7200, 100, 150), (7200, 6000, 3600), (60, 0, 30)],
)
def test_a_run_stops_earlier_where_visits_are_long(left, longest, margin, monkeypatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    found = Allocation("7", ("n1",), (1,), 0, "n1", end=now + left)
    limit = TimeLimit(found, None, State(), lambda event: None)
    made = ((0, "s0", 0),)
    limit(0.0, (Planned((), (gang(A),)),), State())
    limit(float(longest), (Advanced({A: 1.0}, visits={A: made}),), State())
    assert limit.margin() == pytest.approx(margin, abs=1)


# -- again


def run_of(*entries: Any) -> list[Line]:
    return [Line(0.0, entry) for entry in (Opened(1, {}), *entries)]


BARE = run_of(Commanded("stop", OURS))
KEPT = run_of(Kept(A, 1, 1.0, "a-1"), Commanded("stop", OURS))


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "the study is done"),
        (run_of(Finished(A)), "the study is done"),
        (run_of(Commanded("stop", "SIGINT")), "the run was stopped: SIGINT"),
        (run_of(Commanded("stop", "SIGTERM")), "the run was stopped: SIGTERM"),
        (run_of(Commanded("stop", "timeout")), "the run was stopped: timeout"),
        (run_of(Commanded("stop", "asked for")), "the run was stopped: asked for"),
        (run_of(Commanded("stop", "SIGINT"), Commanded("stop", OURS)), "SIGINT"),
        (KEPT, None),
        (BARE, None),
        (run_of(Commanded("stop", "SIGUSR1")), None),
        (KEPT + BARE, None),
        (BARE + KEPT, None),
        (BARE + run_of(Commanded("stop", "SIGINT")) + BARE, None),
        (BARE + run_of(Failed(A, "x"), Commanded("stop", OURS)), None),
    ],
)
def test_when_a_job_starts_again(lines: list[Line], why: str | None) -> None:
    found = why_not_requeued(lines)
    assert found == why or (why and why in found)


def test_runs_without_progress_end_the_loop() -> None:
    with pytest.raises(StudyError, match="the last 2 runs were stopped by the time"):
        why_not_requeued(KEPT + BARE + BARE)


def test_requeue_is_for_batch_jobs(job: Lab, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    words = ["run", str(tmp_path / "slow.py"), "--storage", str(tmp_path / "s")]
    words.append("--requeue")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and "SLURM_JOB_ID is not set" in done.output
    job(600, BatchFlag="0")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and "submit the command with sbatch" in done.output
    job(600, JobState="COMPLETED")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and "Slurm job 7 is COMPLETED" in done.output
    assert not (tmp_path / "s" / "journal.jsonl").exists()


# -- the place


def test_a_module_named_ray_of_the_users_own_is_no_matter(
    job: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(600)
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # of a ray tracer
    assert run_place(Options(), Path()).allocation is not None


def test_an_allocation_that_is_over(job: Lab) -> None:
    job(600, JobState="CANCELLED")
    with pytest.raises(StudyError, match=r"SLURM_JOB_ID is set.*CANCELLED: leave the sh"):
        run_place(Options(backend="ray"), Path())
    assert run_place(Options(), Path()) == RunPlace()
    assert run_place(Options(backend="ray", address="1.2.3.4:5"), Path()) == RunPlace()


def test_a_margin_that_leaves_nothing(job: Lab, tmp_path: Path, blobs: Any) -> None:
    job(30)
    study = shoal.create_study(blobs(), storage=tmp_path / "study")
    with pytest.raises(StudyError, match="stop_before=60 leaves no time of Slurm job 7"):
        study.optimize(progress=False, stop_before=60)
    assert not (tmp_path / "study" / "journal.jsonl").exists()
    with pytest.raises(StudyError, match="stop_before must be seconds >= 0"):
        study.optimize(progress=False, stop_before=-1)


def test_slots_of_the_allocation(job: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    job(600, nodes="n[1-3]")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "64(x3)")
    place = run_place(Options(backend="ray", threads=2), Path())
    assert place.room(2) == 96 and place.room(1) == 192
    assert place.with_room(Options(backend="ray", threads=2)).slots == 96
    assert place.with_room(Options(backend="ray", slots=3)).slots == 3
    assert run_place(Options(), Path()).room(1) is None
    check_slots(Options(backend="ray", slots=768), 192)
    with pytest.raises(StudyError, match=r"of the allocation \(768\)"):
        check_slots(Options(backend="ray", slots=769), 192)


@pytest.mark.parametrize(
    ("cpus", "gpus", "slots", "threads", "shares"),
    [
        ((8, 8), 0, None, 1, {"cpus_per_slot": 1}),
        ((8, 8), 0, None, 4, {"cpus_per_slot": 4}),
        ((8, 8), 0, 3, 4, {"cpus_per_slot": 4}),
        ((8, 8), 0, 16, 4, {"cpus_per_slot": 1}),
        ((2, 2), 0, None, 4, {"cpus_per_slot": 4 / 2}),
        ((2, 2), 4, None, 4, {"cpus_per_slot": 0, "gpus_per_slot": 1}),
        ((2, 2), 4, 9, 4, {"cpus_per_slot": 0, "gpus_per_slot": 1 / 2}),
        ((2, 2), 4, 16, 4, {"cpus_per_slot": 0, "gpus_per_slot": 1 / 2}),
        ((), 0, 9, 4, {}),
        ((0, 0), 0, 9, 1, {"cpus_per_slot": 1 / 64}),
        ((2, 2), 1, 16, 4, {"cpus_per_slot": 0, "gpus_per_slot": 1 / 8}),
    ],
)
def test_what_a_slot_takes_of_a_node(cpus, gpus, slots, threads, shares) -> None:
    found = Allocation("7", ("a", "b"), cpus, gpus, "a")
    assert AllocatedNodes(found, Path("s")).shares(slots, threads) == shares


@pytest.mark.slow
def test_nodes_that_cannot_be_reached(job: Lab, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    job(600, nodes="n[1-2]")
    srun = tmp_path / "programs" / "srun"
    srun.write_text("#!/bin/bash\necho 'srun: error: node n2 is down' >&2; exit 1\n")
    srun.chmod(0o755)
    done = typed(tmp_path, "--backend", "ray")
    assert done.exit_code == 2, done.output
    assert "error: no node of Slurm job 7 joined Ray within" in done.stderr
    assert "srun: error: node n2 is down" in done.stderr
    assert not (tmp_path / "study" / "nodes").exists()


NOON = datetime(2026, 11, 25, 12).timestamp()


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Allocation("7", ("n1",), (8,), 0, "n1"), "Slurm job 7: 1 node, 8 CPUs"),
        (
            Allocation("7", ("a", "b"), (8, 8), 4, "a", NOON + 7500),
            "Slurm job 7: 2 nodes, 8 CPUs each, 4 GPUs each, ends at 14:05:00",
        ),
        (
            Allocation("7", ("a", "b"), (8, 1), 1, "a", NOON + 86400),
            "Slurm job 7: 2 nodes, 9 CPUs, 1 GPU each, ends at 2026-11-26 12:00:00",
        ),
    ],
)
def test_what_is_said_of_it(found: Allocation, text: str) -> None:
    assert allocation_text(found, NOON) == text
