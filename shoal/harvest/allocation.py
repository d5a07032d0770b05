"""The allocation of Slurm that this process runs in: its nodes, CPUs, GPUs and end.

What sbatch and salloc set in the environment says most of it. But it does not say when the time is
up (Slurm 22.05), and it stays in a shell whose allocation is over. So Slurm is asked, once.
"""

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from shoal.core.trial import Seconds
from shoal.harvest.hosts import counts, hosts

T = TypeVar("T")

# Seconds that one of Slurm's commands may take. A busy controller answers within some.
PATIENCE: Seconds = 60.0
# States of a job that has its nodes.
ALIVE = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED"})
NO_GPUS = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES
FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")  # of `scontrol -o show job`
FORGOTTEN = "Invalid job id"  # what scontrol says of a job that ended some time ago
DISABLED = "disabled"  # what it says of a job that may not be requeued


class AllocationOver(RuntimeError):  # noqa: N818 - a state of the allocation
    """The variables name an allocation that has ended."""


class SlurmRefused(RuntimeError):  # noqa: N818 - what Slurm did
    """One of Slurm's commands failed; the message has what it said."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Nodes that a job of Slurm has."""

    job: str  # its id
    nodes: tuple[str, ...]
    cpus: tuple[int, ...]  # of the job, at each node
    gpus: int  # of the job, at each node
    here: str | None  # the node of this process; None: it is outside, as in salloc's shell
    end: Seconds | None = None  # when its time is up, since 1970; None: never, or unknown
    batch: bool = False  # sbatch's, which Slurm can start again

    @property
    def alone(self) -> bool:
        """Whether it has no nodes but this process's machine."""
        return self.here is not None and len(self.nodes) <= 1

    def slots(self, threads: int) -> int:
        """How many slots it has room for: its GPUs, else its CPUs by so many threads."""
        room = self.gpus * len(self.nodes) or sum(cpus // threads for cpus in self.cpus)
        return max(1, room)


# -- what the environment says -------------------------------------------------------------------


def allocation_in(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation that Slurm's variables name; None: there is none.

    Raises:
        ValueError: a variable is not as Slurm sets it.
    """
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return None
    here = environ.get("SLURMD_NODENAME") or None
    nodes = _list(environ, "SLURM_JOB_NODELIST", hosts)
    if not nodes and here is not None:
        nodes = [here]
    cpus = _list(environ, "SLURM_JOB_CPUS_PER_NODE", counts)
    if not cpus:
        cpus = _list(environ, "SLURM_CPUS_ON_NODE", counts)[:1] * len(nodes)
    if cpus and len(cpus) != len(nodes):
        raise ValueError(
            f"SLURM_JOB_CPUS_PER_NODE has {len(cpus)} counts, and SLURM_JOB_NODELIST "
            f"{len(nodes)} nodes"
        )
    end = environ.get("SLURM_JOB_END_TIME", "")
    return Allocation(
        job,
        tuple(nodes),
        tuple(cpus),
        _gpus(environ, here is not None),
        here,
        float(end) if end.isdecimal() else None,
    )


def _list(environ: Mapping[str, str], name: str, read: Callable[[str], list[T]]) -> list[T]:
    """The list in a variable; an empty one if it is not set."""
    text = environ.get(name)
    if not text:
        return []
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _gpus(environ: Mapping[str, str], here: bool) -> int:
    """GPUs of the job at each node. `here`: this process is at one of them."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if here and visible is not None:
        if visible in NO_GPUS:
            return 0
        return len([gpu for gpu in visible.split(",") if gpu])
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        text = environ.get(name)
        if text:
            return _gpu_count(text)
    return 0


def _gpu_count(text: str) -> int:
    """The number of "4", "a100:4", or "a100:2,v100:2"; 0 where it is something else."""
    number = 0
    for part in text.split(","):
        count = part.rpartition(":")[2]
        if count.isascii() and count.isdecimal():
            number += int(count)
    return number


# -- what Slurm says -----------------------------------------------------------------------------


def allocation_now(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation that the variables name, as Slurm says it is now; None: there is none.

    Where Slurm cannot be asked, as in a container without its commands, the variables are all.

    Raises:
        ValueError: a variable is not as Slurm sets it.
        AllocationOver: the job has ended, or Slurm does not know it.
    """
    allocation = allocation_in(environ)
    if allocation is None:
        return None
    try:
        record = scontrol("-o", "show", "job", allocation.job)
    except SlurmRefused as error:
        if FORGOTTEN in str(error):
            raise AllocationOver(f"Slurm knows no job {allocation.job}") from error
        return allocation
    return completed(allocation, record)


def completed(allocation: Allocation, record: str) -> Allocation:
    """The allocation with its end, from what `scontrol -o show job` prints.

    Raises:
        AllocationOver: the job has ended.
    """
    fields = dict(FIELD.findall(record))
    state = fields.get("JobState", "RUNNING")
    if state not in ALIVE:
        raise AllocationOver(f"Slurm job {allocation.job} is {state}")
    end = allocation.end
    if "EndTime" in fields:
        end = _moment(fields["EndTime"])
    return replace(allocation, end=end, batch=fields.get("BatchFlag") == "1")


def _moment(text: str) -> Seconds | None:
    """A time as Slurm prints it, in this machine's zone; None: Unknown, there is no limit."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def requeue(job: str) -> None:
    """Have Slurm end the job now, and start its script again when there are nodes.

    Slurm refuses a job that was submitted with --no-requeue, or at a site with JobRequeue=0. Its
    owner may allow it (Slurm 22.05), so that is done first.

    Raises:
        SlurmRefused: it is none of sbatch's jobs, or may not be requeued.
    """
    try:
        scontrol("requeue", job)
    except SlurmRefused as error:
        if DISABLED not in str(error):
            raise
        scontrol("update", f"JobId={job}", "Requeue=1")
        scontrol("requeue", job)


def scontrol(*words: str) -> str:
    """The output of this command of scontrol.

    Raises:
        SlurmRefused: it failed, is not here, or took longer than `PATIENCE`.
    """
    command = ("scontrol", *words)
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmRefused(f"{' '.join(command)}: {error}") from error
    if process.returncode != 0:
        message = (process.stderr or process.stdout).strip()
        raise SlurmRefused(f"{' '.join(command)}: {message}")
    return process.stdout
