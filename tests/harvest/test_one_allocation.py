"""A study inside one allocation of a real Slurm."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_kit import SlurmLab, wait_for

import shoal
from shoal.core.event import Commanded, Joined, Opened, Planned
from shoal.engine.process import lives
from shoal.tools.arguments import recipe_of

pytestmark = pytest.mark.slurm
SHOAL = (sys.executable, "-m", "shoal.cli")
ROOT = Path(__file__).resolve().parents[2]
# Steps take a second in a job that was not requeued yet.
RECIPE = """
import os
import time

import numpy as np
import torch

import shoal


class Slow(shoal.Recipe):
    search_space = {"lr": shoal.grid([0.1, 0.05, 0.02, 0.01])}
    metric, mode, max_epochs, batch_size = "loss", "min", 10, 5

    def data(self):
        x = np.random.default_rng(0).normal(size=(25, 3)).astype("float32")
        return shoal.Data.arrays(x, x[:, :1], shards=4, validation=0.2)

    def configure_model(self, config):
        return torch.nn.Linear(3, 1)

    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        if "SLURM_JOB_ID" in os.environ and "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(1.0)
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    def validation_step(self, model, batch):
        return {"loss": ((model(batch[0]) - batch[1]) ** 2).mean(1)}
"""
# Slurm's limits are in minutes. At each look this job has ten more; once the study has made a visit
# it ends soon. So nothing depends on how soon Ray has started, and nobody waits for minutes.
SCONTROL = """#!/bin/bash
left=606
if [ -z "$SLURM_RESTART_COUNT" ] && grep -qs '"Advanced"' {folder}/study/journal.jsonl; then
  left=598
fi
end=$(date -d "+$left seconds" +%FT%T)
{scontrol} "$@" | sed "s/ EndTime=[^ ]*/ EndTime=$end/"
exit ${{PIPESTATUS[0]}}
"""
OVER = """
set -o pipefail
{shoal} doctor | grep '^slurm' || exit 1
{shoal} run {file} --storage {folder}/s --requeue
echo "$SLURM_JOB_ID" > {folder}/job
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "slow.py"
    path.write_text(RECIPE)
    return path


def weights(study: shoal.Study) -> dict[str, object]:
    return {
        each.id: study.load_model(each).state_dict()["weight"].tolist() for each in study.trials
    }


def orphans() -> set[Path]:
    """The folders of Ray nodes whose process has ended. Others at work have such folders, too."""
    found = Path("/tmp").glob("shoal-node-*")
    return {each for each in found if lives(int(each.name.split("-")[2])) is False}


def typed(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*SHOAL, *words], capture_output=True, text=True, check=False, timeout=240
    )


@pytest.mark.timeout(900)
def test_a_study_is_stopped_by_the_time_limit_requeued_and_ends_equal(
    start_slurm: Callable[..., SlurmLab], file: Path, tmp_path: Path
) -> None:
    undisturbed = shoal.create_study(recipe_of(str(file)), storage=tmp_path / "undisturbed")
    undisturbed.optimize(policy="fifo", progress=False)
    slurm = start_slurm(nodes=2, requeue_after=5)
    daemons, before = set(slurm.processes()), orphans()
    program = tmp_path / "programs" / "scontrol"
    program.parent.mkdir()
    program.write_text(SCONTROL.format(folder=tmp_path, scontrol=shutil.which("scontrol")))
    program.chmod(0o755)
    made = typed(
        *("slurm", "script", str(file), "--storage", str(tmp_path / "study")),
        *("--policy", "fifo", "--nodes", "2", "--time", "10", "--stop-before", "600"),
        *("--requeue", "--output", str(tmp_path / "out.txt")),
        *("--before", f"export PYTHONPATH={ROOT} PATH={program.parent}:$PATH"),
    )
    assert made.returncode == 0, made.stderr
    script = tmp_path / "job.sbatch"
    script.write_text(made.stdout)

    job = slurm.run("sbatch", "--parsable", str(script))
    wait_for(
        "the study",
        lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"),
        patience=800,
    )

    printed = (tmp_path / "out.txt").read_text()
    assert slurm.state(job) == "COMPLETED", printed
    assert int(slurm.times(job)["Restarts"]) >= 1, printed
    assert f"Slurm job {job}: 2 nodes, 1 CPU each, ends at " in printed
    assert "not submitted again: the study is done" in printed
    study = shoal.load_study(tmp_path / "study")
    assert all(trial.status == "finished" for trial in study.trials), printed
    assert weights(study) == weights(undisturbed)
    entries = [line.entry for line in study.lines()]
    runs = sum(isinstance(each, Opened) for each in entries)
    stops = [each.why for each in entries if isinstance(each, Commanded)]
    assert len(stops) == runs - 1 and runs >= 2
    assert all(why.startswith(f"Slurm job {job} ends at ") for why in stops)
    slots = [s for each in entries if isinstance(each, Joined) for s in each.slots]
    assert {slot.node for slot in slots} == {"n1", "n2"}
    began = [g for each in entries if isinstance(each, Planned) for g in each.start]
    assert {slot for gang in began for slot in gang.slots} == {s.id for s in slots}
    wait_for("the end of all", lambda: set(slurm.processes()) <= daemons)
    wait_for("the end of their folders", lambda: orphans() <= before)
    assert not (tmp_path / "study" / "nodes").exists()


def test_in_a_shell_of_salloc_and_after_it(
    start_slurm: Callable[..., SlurmLab],
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = start_slurm(nodes=2)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    text = OVER.format(shoal=" ".join(SHOAL), file=file, folder=tmp_path)

    done = subprocess.run(
        ["salloc", "-N2", "-t", "5", "bash", "-c", text],
        capture_output=True,
        text=True,
        check=False,
    )

    job = (tmp_path / "job").read_text().strip()
    assert f"Slurm job {job}: 2 nodes, 1 CPU each, ends at " in done.stdout
    assert "--requeue is for a batch job of Slurm; job" in done.stderr
    assert not (tmp_path / "s" / "journal.jsonl").exists()
    wait_for("the end of the job", lambda: slurm.state(job) == "COMPLETED")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    after = typed("run", str(file), "--storage", str(tmp_path / "s"), "--backend", "ray")
    assert after.returncode == 2
    assert f"Slurm job {job} is COMPLETED: leave the shell" in after.stderr
    assert not os.path.exists(tmp_path / "s" / "journal.jsonl")
