"""What Slurm's commands print, read; with commands of our own in their place."""

import os
import time
from math import inf
from pathlib import Path

import pytest
from answers_kit import calls, has, recorded

from shoal.harvest.scheduler import (
    NODE,
    UNTIL,
    IdleNode,
    Pilot,
    PilotNames,
    SchedulerError,
    Site,
    Waiting,
)
from shoal.harvest.slurm import COMMANDS, Slurm, gpus, minutes_of, script

ME = os.getuid()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = recorded(tmp_path / "bin", COMMANDS)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def slurm(folder: Path, **site: object) -> Slurm:
    return Slurm(Site("scavenger", **site), PilotNames("digits", "b2", folder / "logs"))  # type: ignore[arg-type]


def test_a_look(commands: Path) -> None:
    soon = int(time.time()) + 600
    (commands / "sinfo.prints").write_text(
        "n1|idle|8|(null)|infinite\n"
        "n2|idle*|8|(null)|infinite\n"
        "n3|draining|8|(null)|infinite\n"
        "n4|drained|8|(null)|infinite\n"
        "n5|down|8|(null)|infinite\n"
        "n6|reserved|8|(null)|infinite\n"
        "n7|planned|8|(null)|1-00:00:00\n"
        "n8|planned|8|(null)|30:00\n"
        "n9|mixed|8|(null)|infinite\n"
        "n10|idle|1|(null)|infinite\n"
        "n11|idle~|8|(null)|infinite\n"
    )
    (commands / "squeue.prints").write_text(
        # partition, state, nodes, asked for, start, planned, count, limit, priority, reason, uid
        f"1|main|PENDING|||{soon}|n[7,12-13]|3|1:00:00|5|Resources|77|a job | of theirs\n"
        "2|main|PENDING|||N/A|(null)|2|1:00:00|9|Priority|77|first\n"
        "3|main|PENDING|||N/A|(null)|1|1:00:00|99|Dependency|77|later\n"
        "4|main|RUNNING|n9||1795639433|(null)|1|1:00:00|9|None|77|busy\n"
        f"5|scavenger|RUNNING|n20|n20|1795639433|(null)|1|5:00|1|None|{ME}|shoal-digits-b2\n"
        f"6|scavenger|PENDING||n21|N/A|(null)|1|1:00:00|1|Resources|{ME}|shoal-digits-b2\n"
        f"7|scavenger|RUNNING|n22|n22|1795639433|(null)|1|5:00|1|None|{ME}|shoal-digits-a1\n"
        "8|scavenger|PENDING||n23|N/A|(null)|1|5:00|1|Resources|77|shoal-other-a1\n"
    )

    seen = slurm(commands, least_cpus=2).look()

    assert seen.idle["n1"] == IdleNode("n1")
    assert sorted(seen.idle) == ["n1", "n7", "n8"]
    assert 500 < seen.idle["n7"].window <= 600
    assert seen.idle["n7"].longest == 1440
    # Somebody wants it whom nobody shows us.
    assert seen.idle["n8"] == IdleNode("n8", 0.0, 30.0)
    assert seen.pilots == (
        Pilot("5", "n20", minutes=5),
        Pilot("6", "n21", running=False, minutes=60),
        Pilot("7", "n22", minutes=5, stale=True),
    )
    assert seen.waiting == (Waiting("2", 2), Waiting("1", 3, frozenset(("n7", "n12", "n13"))))
    assert len(calls(commands, "squeue")) == len(calls(commands, "sinfo")) == 1


def test_the_form_of_answers_is_not_the_users(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_FORMAT", "SINFO_STATES", "SLURM_TIME_FORMAT", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "relative")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")

    slurm(commands).look()

    names = dict(
        line.partition("=")[::2] for line in (commands / "squeue.env").read_text().splitlines()
    )
    assert names["SLURM_TIME_FORMAT"] == "%s"
    assert names["SLURM_CONF"] == "/etc/slurm/slurm.conf"
    assert names["SBATCH_ACCOUNT"] == "mine"
    assert not names.keys() & {"SQUEUE_FORMAT", "SINFO_STATES", "SLURM_JOB_ID"}


def test_only_the_partitions_that_matter_are_asked_for(commands: Path) -> None:
    slurm(commands, watched=("main", "gpu")).look()
    (given,) = calls(commands, "squeue")
    assert has(given, ["-p", "scavenger,main,gpu"])


def test_only_nodes_with_gpus(commands: Path) -> None:
    (commands / "sinfo.prints").write_text(
        "n1|idle|8|(null)|infinite\nn2|idle|8|gpu:a100:4(S:0-1)|infinite\n"
    )
    assert sorted(slurm(commands, gpus=True).look().idle) == ["n2"]
    assert sorted(slurm(commands).look().idle) == ["n1", "n2"]


def test_a_pilot_is_submitted(commands: Path) -> None:
    (commands / "sbatch.prints").write_text("123;cluster\n")
    site = slurm(commands, options=("--account=x", "--comment=a b"))

    assert site.submit("n7", 12, ["python", "it's", NODE, UNTIL]) == "123"

    (given,) = calls(commands, "sbatch")
    assert "--nodelist=n7" in given
    assert "--time=12" in given
    assert given[-2:] == ["--account=x", "--comment=a b"]
    ran = (commands / "sbatch.read").read_text()
    assert "until=$(( $(date +%s) + 720 ))" in ran
    assert ran.endswith("""python 'it'"'"'s' "$SLURMD_NODENAME" "$until"\n""")


def test_pilots_are_cancelled_in_one_call(commands: Path) -> None:
    site = slurm(commands)
    site.cancel([])
    assert not calls(commands, "scancel")
    site.cancel(["5", "6"])
    assert calls(commands, "scancel") == [["--quiet", "5", "6"]]


@pytest.mark.parametrize(
    ("name", "printed", "said"),
    [
        ("squeue", "1|main|PENDING", "columns"),
        ("squeue", "1|main|PENDING|n[1-|||n1|1|1:00|5|None|7|x", "host list"),
        ("squeue", "1|main|PENDING||||n1|1|soon|5|None|7|x", "time limit"),
        ("sinfo", "no such thing", "columns"),
        ("sbatch", "well done", "job's number"),
    ],
)
def test_other_answers_are_errors(commands: Path, name: str, printed: str, said: str) -> None:
    (commands / f"{name}.prints").write_text(printed + "\n")
    site = slurm(commands)
    with pytest.raises(SchedulerError, match=said):
        site.submit("n1", 5, ["true"]) if name == "sbatch" else site.look()


def test_what_a_command_complains_of_is_said(commands: Path) -> None:
    (commands / "squeue.error").write_text("slurm_load_jobs error: Unable to contact\n")
    with pytest.raises(SchedulerError, match="squeue failed: slurm_load_jobs error"):
        slurm(commands).look()


def test_a_wrong_partition_or_option_is_found_before_anything_starts(commands: Path) -> None:
    (commands / "sinfo.prints").write_text("main\n")
    with pytest.raises(SchedulerError, match="no partition 'scavenger': there are main"):
        slurm(commands).check()
    (commands / "sinfo.prints").write_text("main\nscavenger\n")
    slurm(commands).check()
    (commands / "sbatch.error").write_text("allocation failure: nodes are busy\n")
    slurm(commands).check()  # they may come
    (commands / "sbatch.error").write_text("sbatch: error: Invalid account\n")
    with pytest.raises(SchedulerError, match="cannot be submitted .*Invalid account"):
        slurm(commands).check()


def test_without_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SchedulerError, match="squeue, sinfo, sbatch, scancel"):
        slurm(tmp_path)


@pytest.mark.parametrize(
    ("text", "minutes"), [("2:30", 2.5), ("1:00:00", 60), ("2-01:00:00", 2940), ("infinite", inf)]
)
def test_time_limits(text: str, minutes: float) -> None:
    assert minutes_of(text) == minutes


def test_gpus_of_a_node() -> None:
    assert gpus("gpu:a100:4(S:0-1),nvme:1,gpu:t4:2") == 6
    assert gpus("gpu:2") == 2
    assert gpus("(null)") == 0


def test_the_script_is_one_that_a_shell_takes(tmp_path: Path) -> None:
    text = script(["echo", "a b;c"], 1).replace("exec srun", "exec ./srun")
    (tmp_path / "srun").write_text('#!/bin/sh\nshift 3\nexec "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "script").write_text(text)
    said = os.popen(f"cd {tmp_path} && sh script").read()
    assert said == "a b;c\n"
