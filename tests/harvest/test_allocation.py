"""What Slurm's variables and records say of an allocation."""

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.harvest import allocation as tested
from shoal.harvest.allocation import (
    Allocation,
    AllocationOver,
    SlurmRefused,
    allocation_in,
    allocation_now,
    completed,
    requeue,
)

JOB = {
    "SLURM_JOB_ID": "123",
    "SLURM_JOB_NODELIST": "n[1-2],gpu7",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2),8",
    "SLURMD_NODENAME": "n1",
}
# As Slurm 22.05 prints it, shortened.
RECORD = (
    "JobId=123 JobName=a b JobState=RUNNING Reason=None Requeue=1 Restarts=0 BatchFlag=1 "
    "StartTime=2026-11-25T20:39:02 EndTime=2026-11-25T20:40:02 Deadline=N/A NodeList=n[1-2] "
    "TRES=cpu=4,mem=2000M,node=2,billing=4 Command=/tmp/env.sh"
)
# A program in the place of scontrol: it notes what it is asked, and does as a file says.
SCONTROL = """#!/bin/bash
echo "$*" >> {folder}/asked
. {folder}/answer
"""


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a program in scontrol's place; returns the file with what it was asked."""

    def put(answer: str) -> Path:
        program = tmp_path / "scontrol"
        program.write_text(SCONTROL.format(folder=tmp_path))
        program.chmod(0o755)
        (tmp_path / "answer").write_text(answer)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "asked"

    return put


# -- the variables


def test_no_variables_are_no_allocation():
    assert allocation_in({}) is None
    assert allocation_in({"SLURM_JOB_ID": "", "SLURM_CONF": "/etc/slurm.conf"}) is None


def test_nodes_and_cpus():
    found = allocation_in(JOB)
    assert found == Allocation("123", ("n1", "n2", "gpu7"), (4, 4, 8), 0, "n1")
    assert not found.alone
    assert [found.slots(threads) for threads in (1, 3, 8, 9)] == [16, 4, 1, 1]


def test_one_node_is_this_machine_only_where_slurm_started_the_process():
    one = {**JOB, "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_CPUS_PER_NODE": "4"}
    assert allocation_in(one).alone
    del one["SLURMD_NODENAME"]  # a shell of salloc, at the machine that it was typed at
    assert not allocation_in(one).alone


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({}, 0),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_GPUS_ON_NODE": "2"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,3", "SLURM_GPUS_ON_NODE": "4"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1a,MIG-2b,MIG-3c"}, 3),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1"}, 3),
        ({"SLURM_GPUS_PER_NODE": "a100"}, 0),
    ],
    ids=str,
)
def test_gpus(variables, gpus):
    found = allocation_in(JOB | variables)
    assert found.gpus == gpus
    assert found.slots(1) == (3 * gpus or 16)


def test_the_gpus_of_another_machine_do_not_count():
    outside = {**JOB, "CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_PER_NODE": "2"}
    del outside["SLURMD_NODENAME"]
    assert allocation_in(outside).gpus == 2


@given(st.lists(st.tuples(st.integers(1, 256), st.integers(1, 9)), min_size=1, max_size=9))
def test_each_node_has_its_cpus(runs):
    each = [cpus for cpus, times in runs for _ in range(times)]
    listed = ",".join(f"{cpus}(x{times})" for cpus, times in runs)
    nodes = f"n[1-{len(each)}]" if len(each) > 1 else "n1"
    environ = {**JOB, "SLURM_JOB_CPUS_PER_NODE": listed, "SLURM_JOB_NODELIST": nodes}
    found = allocation_in(environ)
    assert found.cpus == tuple(each) and len(found.nodes) == len(each)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"SLURM_JOB_NODELIST": "n[1-"}, "SLURM_JOB_NODELIST: not a host list"),
        ({"SLURM_JOB_CPUS_PER_NODE": "4x2"}, "SLURM_JOB_CPUS_PER_NODE: not a list"),
        ({"SLURM_JOB_CPUS_PER_NODE": "4"}, "1 counts, and SLURM_JOB_NODELIST 3 nodes"),
    ],
    ids=str,
)
def test_wrong_variables_are_one_error(variables, said):
    with pytest.raises(ValueError, match=said):
        allocation_in(JOB | variables)


# -- the record


def test_the_record_has_the_end():
    found = completed(allocation_in(JOB), RECORD)
    assert found.end == datetime(2026, 11, 25, 20, 40, 2).timestamp()
    assert found.batch
    assert not completed(found, RECORD.replace("BatchFlag=1", "BatchFlag=0")).batch


def test_without_a_limit_there_is_no_end():
    endless = RECORD.replace("EndTime=2026-11-25T20:40:02", "EndTime=Unknown")
    assert completed(allocation_in(JOB), endless).end is None


@pytest.mark.parametrize("state", ["COMPLETED", "TIMEOUT", "CANCELLED", "PENDING"])
def test_a_job_that_has_ended_has_no_nodes(state):
    with pytest.raises(AllocationOver, match=f"job 123 is {state}"):
        completed(allocation_in(JOB), RECORD.replace("RUNNING", state))


@given(st.text())
def test_any_record_is_read(text):
    try:
        completed(Allocation("1", ("n1",), (1,), 0, None), text)
    except AllocationOver:
        assert "JobState=" in text


# -- scontrol


def test_slurm_is_asked_once(scontrol):
    asked = scontrol(f"echo '{RECORD}'")
    assert allocation_now(JOB).batch
    assert asked.read_text() == "-o show job 123\n"


def test_a_job_that_slurm_has_forgotten_is_over(scontrol):
    scontrol("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(AllocationOver, match="knows no job 123"):
        allocation_now(JOB)


def test_where_slurm_cannot_be_asked_the_variables_are_all(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no scontrol
    end = int(time.time()) + 600
    found = allocation_now(JOB | {"SLURM_JOB_END_TIME": str(end)})
    assert (found.end, found.batch) == (end, False)
    assert allocation_now(JOB).end is None


def test_a_controller_that_does_not_answer_is_not_waited_for(scontrol, monkeypatch):
    monkeypatch.setattr(tested, "PATIENCE", 0.2)
    scontrol("exec sleep 60")
    assert allocation_now(JOB) == allocation_in(JOB)


def test_a_job_that_may_not_be_requeued_is_allowed_to_first(scontrol, tmp_path):
    # What Slurm 22.05 answers to a job of --no-requeue, until its owner changes that.
    asked = scontrol(
        f"if [ $1 = update ]; then touch {tmp_path}/allowed; exit 0; fi\n"
        f"[ -e {tmp_path}/allowed ] && exit 0\n"
        "echo 'Requested operation is presently disabled for job 7' >&2; exit 1"
    )
    requeue("7")
    assert asked.read_text().splitlines() == ["requeue 7", "update JobId=7 Requeue=1", "requeue 7"]


def test_what_slurm_says_of_a_refusal_is_told(scontrol):
    scontrol("echo 'Only batch jobs are accepted or processed for job 7' >&2; exit 1")
    with pytest.raises(SlurmRefused, match="scontrol requeue 7: Only batch jobs"):
        requeue("7")
