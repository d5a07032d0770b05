"""The cluster that the other tests of Slurm stand on."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_kit import SlurmLab, marked, missing, wait_for

pytestmark = pytest.mark.slurm
HERE = Path(__file__).parent

AS_USER = """
import sys
sys.path.insert(0, sys.argv[1])
from slurm_kit import SlurmLab, SlurmSetup
with SlurmLab(SlurmSetup(nodes=2)) as lab:
    print(*lab.idle(), lab.run("srun", "-N2", "id", "-un"))
"""


def test_it_starts_and_leaves_nothing(slurm: SlurmLab) -> None:
    assert slurm.idle() == ["n1", "n2", "n3", "n4"]
    folder, mark = slurm.folder, f"SLURM_CONF={slurm.folder}/slurm.conf"
    job = slurm.submit("-N4", "--exclusive", command=["sleep", "600"])
    wait_for("the job", lambda: slurm.state(job) == "RUNNING")
    # A process that leaves its job: the cluster's end is its end, too.
    slurm.run("srun", "-p", "main", "--overlap", f"--jobid={job}", "-N1", "-n1",
              "bash", "-c", "setsid sleep 601 >/dev/null 2>&1 & exit 0")  # fmt: skip
    assert len(marked(mark)) > 6

    slurm.stop()

    assert marked(mark) == []
    assert not folder.exists()
    assert "SLURM_CONF" not in os.environ


def test_a_main_job_preempts(slurm: SlurmLab) -> None:
    pilots = [
        slurm.submit("-p", "scavenger", "-N1", "--no-requeue", command=["sleep", "600"])
        for _ in range(4)
    ]
    wait_for("the pilots", lambda: not slurm.idle())

    slurm.run("srun", "-N4", "true")

    wait_for("preemption", lambda: {slurm.state(job) for job in pilots} == {"PREEMPTED"})


def test_a_site_without_preemption(start_slurm: Callable[..., SlurmLab]) -> None:
    slurm = start_slurm(nodes=1, preempt="OFF")
    held = slurm.submit("-p", "scavenger", "-N1", command=["sleep", "600"])
    wait_for("the pilot", lambda: slurm.state(held) == "RUNNING")
    main = slurm.submit("-N1", command=["true"])
    wait_for("a look at it", lambda: slurm.times(main)["Reason"] in ("Resources", "Priority"))
    assert slurm.state(held) == "RUNNING"

    slurm.run("scancel", held)

    wait_for("the main job", lambda: slurm.state(main) == "COMPLETED")


def test_as_another_user() -> None:
    if missing():
        pytest.skip(f"Slurm is not installed here: no {', '.join(missing())}")
    python = shutil.which("python3", path="/usr/bin")
    if os.getuid() != 0 or python is None:
        pytest.skip("only root can become another user, who needs a Python of the system")
    nobody = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        # This checkout may be where others cannot read.
        Path(folder).chmod(0o755)
        shutil.copy(HERE / "slurm_kit.py", folder)
        done = subprocess.run(
            [python, "-B", "-c", AS_USER, folder],
            user=nobody.pw_uid,
            group=nobody.pw_gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["n1", "n2", "nobody", "nobody"]
