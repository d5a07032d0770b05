"""Slurm: one squeue and one sinfo show what there is; sbatch and scancel do the rest.

The formats are explicit, with one field a line's column. Slurm's JSON differs between versions,
and that of 22.05 lacks the nodes that are planned for a waiting job.
"""

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from shoal.core.trial import Seconds
from shoal.harvest.hosts import hosts
from shoal.harvest.scheduler import (
    NODE,
    PREFIX,
    IdleNode,
    Pilot,
    PilotNames,
    SchedulerError,
    Sighting,
    Site,
    Waiting,
    check_commands,
    check_partitions,
    pilot_script,
    run_command,
)

COMMANDS = ("squeue", "sinfo", "sbatch", "scancel")
NONE = ("", "(null)", "N/A", "None", "n/a")
# A job's name may hold anything, so that it comes last.
JOBS = "%A|%P|%T|%N|%n|%S|%Y|%D|%l|%Q|%r|%U|%j"
NODES = "%N|%T|%c|%G|%l"
# States in which a node runs nothing and waits for work. Others that begin alike, as "idle*" (it
# does not answer) and "idle~" (it is switched off), are no idle nodes.
IDLE = ("idle", "planned")
# Jobs with these reasons wait for nodes; others wait for their user, a date or another job.
FOR_NODES = ("Resources", "Priority", "None")
BEGUN = ("RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING")
# What sbatch says of options that are wrong at any time.
WRONG = re.compile(r"invalid|unrecognized|unknown|not permitted|ambiguous", re.I)
# Of a job that this process may be in: a new job takes them for its own.
OF_A_JOB = ("SLURM_", "SLURMD_", "PMI_", "PMIX_")


class Slurm:
    """The batch system Slurm, by its commands.

    Raises:
        SchedulerError: a command of Slurm is not installed here.
    """

    def __init__(self, site: Site, names: PilotNames) -> None:
        self.site = site
        self.names = names
        check_commands("Slurm", COMMANDS)

    def check(self) -> None:
        """Raise SchedulerError unless Slurm answers, the partitions exist and sbatch understands
        the options.
        """
        there = _run("sinfo", "-h", "-a", "-o", "%R").split()
        check_partitions(self.site, there, "Slurm", "partition")
        try:
            _run("sbatch", "--test-only", *self._options(1), given=script(["true"], 1))
        except SchedulerError as error:
            if WRONG.search(str(error)):
                raise SchedulerError(
                    f"pilots cannot be submitted ({' '.join(self._options(1))}): {error}"
                ) from error
            # Such as: all nodes are down just now.

    # -- the three calls -----------------------------------------------------------------------

    def look(self) -> Sighting:
        """See `Scheduler`."""
        # The nodes first: a pilot that begins meanwhile is then seen to run.
        nodes = _run("sinfo", "-h", "-N", "-p", self.site.partition, "-o", NODES)
        watched: tuple[str, ...] = ()
        if self.site.watched:
            watched = ("-p", ",".join((self.site.partition, *self.site.watched)))
        jobs = _jobs(_run("squeue", "-h", "-a", *watched, "-o", JOBS))
        now = time.time()
        others = [job for job in jobs if not self._is_ours(job)]
        return Sighting(
            now,
            self._idle(nodes, _windows(others, now)),
            tuple(self._pilot(job) for job in jobs if self._is_ours(job)),
            tuple(_waiting(others)),
        )

    def submit(self, node: str, minutes: int, command: Sequence[str]) -> str:
        """See `Scheduler`."""
        options = [
            "--parsable",
            f"--nodelist={node}",
            f"--output={self.names.log(node)}",
            *self._options(minutes),
        ]
        said = _run("sbatch", *options, given=script(command, minutes))
        number = said.strip().split(";")[0]
        if not number.isdecimal():
            raise SchedulerError(f"sbatch did not print a job's number but {said[:200]!r}")
        return number

    def cancel(self, pilots: Iterable[str]) -> None:
        """See `Scheduler`."""
        numbers = list(pilots)
        if numbers:
            _run("scancel", "--quiet", *numbers)

    # -- what the lines say --------------------------------------------------------------------

    def _options(self, minutes: int) -> list[str]:
        """What sbatch is told of each pilot; the user's options come last, and so prevail."""
        return [
            f"--job-name={self.names.job}",
            f"--partition={self.site.partition}",
            f"--time={minutes}",
            "--nodes=1",
            "--ntasks=1",
            "--exclusive",  # all of its CPUs and GPUs, and the next line all of its memory
            "--mem=0",
            "--no-requeue",
            *self.site.options,
        ]

    def _is_ours(self, job: "_Job") -> bool:
        """Whether the job is a pilot of this study, from this harvest or a former one."""
        return job.user == str(os.getuid()) and job.name.startswith(self.names.family)

    def _pilot(self, job: "_Job") -> Pilot:
        node = next(iter(job.nodes or job.asked), "")
        return Pilot(
            job.id,
            node,
            running=job.state in BEGUN,
            minutes=job.minutes,
            stale=job.name != self.names.job,
        )

    def _idle(self, text: str, windows: Mapping[str, Seconds]) -> Mapping[str, IdleNode]:
        """The idle nodes with enough CPUs, by name."""
        found = {}
        for row in _rows(text, NODES):
            name, state, cpus, gres, limit = row
            if state.lower() not in IDLE or not cpus.isdecimal():
                continue
            if int(cpus) < self.site.least_cpus or (self.site.gpus and not gpus(gres)):
                continue
            # A planned node whose job nobody shows us may be wanted at any time.
            unknown = 0.0 if state.lower() == "planned" else inf
            window = windows.get(name, unknown)
            found[name] = IdleNode(name, window, minutes_of(limit))
        return found


@dataclass(frozen=True, slots=True)
class _Job:
    """A line of squeue."""

    id: str
    state: str
    nodes: tuple[str, ...]  # on which it runs
    asked: tuple[str, ...]  # which it asked for by name
    start: Seconds | None  # when it began, or is planned to
    planned: frozenset[str]  # the nodes planned for it
    count: int  # of its nodes
    minutes: float  # its time limit
    priority: float
    reason: str
    user: str  # a number
    name: str


def _jobs(text: str) -> list[_Job]:
    """The jobs that squeue printed."""
    found = []
    for row in _rows(text, JOBS):
        number, _, state, nodes, asked, start, planned, count = row[:8]
        limit, priority, reason, user, name = row[8:]
        found.append(
            _Job(
                number,
                state,
                _hosts(nodes),
                _hosts(asked),
                _number(start),
                frozenset(_hosts(planned)),
                int(_number(count) or 1),
                minutes_of(limit),
                _number(priority) or 0.0,
                reason,
                user,
                name,
            )
        )
    return found


def _rows(text: str, form: str) -> list[list[str]]:
    """The lines with their columns.

    Raises:
        SchedulerError: a line has too few; what Slurm printed was cut off, or is something else.
    """
    columns = form.count("|") + 1
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|", columns - 1)]
        if len(cells) != columns:
            raise SchedulerError(
                f"Slurm printed {line[:200]!r}, where {columns} columns with | between them were "
                f"asked for ({form})"
            )
        found.append(cells)
    return found


def _hosts(listed: str) -> tuple[str, ...]:
    """The nodes of a host list.

    Raises:
        SchedulerError: it is none.
    """
    if listed in NONE:
        return ()
    try:
        return tuple(hosts(listed))
    except ValueError as error:
        raise SchedulerError(f"Slurm printed {error}") from error


def _number(text: str) -> float | None:
    """A number; None if there is none, as of a job that has no planned start."""
    try:
        return float(text)
    except ValueError:
        return None


def minutes_of(text: str) -> float:
    """Minutes of a time limit: "30:00", "2:00:00", "1-00:00:00"; without a limit inf.

    Raises:
        SchedulerError: it is none of these.
    """
    if text.upper() in ("INFINITE", "UNLIMITED", "NOT_SET", "PARTITION_LIMIT", "N/A"):
        return inf
    days, _, clock = text.rpartition("-")
    parts = ["0", "0", *clock.split(":")][-3:]
    if not all(part.isdecimal() for part in (days or "0", *parts)):
        raise SchedulerError(f"Slurm printed a time limit as {text[:50]!r}")
    hours, minutes, seconds = (int(part) for part in parts)
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60


def gpus(gres: str) -> int:
    """How many GPUs a node's generic resources name: "gpu:a100:4(S:0-1),nvme:1" has 4."""
    total = 0
    for part in re.sub(r"\([^()]*\)", "", gres).split(","):
        words = part.split(":")
        if words[0] == "gpu" and words[-1].isdecimal():
            total += int(words[-1])
    return total


def _windows(others: Sequence[_Job], now: Seconds) -> dict[str, Seconds]:
    """Seconds until a waiting job is planned to begin, of each node that is planned for one."""
    found: dict[str, Seconds] = {}
    for job in others:
        if job.state == "PENDING" and job.start is not None:
            for node in job.planned:
                left = max(0.0, job.start - now)
                found[node] = min(left, found.get(node, inf))
    return found


def _waiting(others: Sequence[_Job]) -> list[Waiting]:
    """The jobs that wait for nodes, in the order of their priority."""
    jobs = [
        job
        for job in others
        if job.state == "PENDING"
        and job.reason in FOR_NODES
        and not job.name.startswith(PREFIX)  # another study's pilots give way as well
    ]
    jobs.sort(key=lambda job: (-job.priority, _number(job.id) or inf))
    return [Waiting(job.id, job.count, job.planned or frozenset(job.asked)) for job in jobs]


# -- what is run --------------------------------------------------------------------------------


def script(command: Sequence[str], minutes: int) -> str:
    """A pilot's batch script.

    The command runs by srun: when Slurm preempts a job with a grace time, only what srun has
    started is told. It may use all CPUs of the node, though it is one task.
    """
    return pilot_script(
        command,
        minutes,
        {NODE: '"$SLURMD_NODENAME"'},
        "srun --ntasks=1 --cpu-bind=none --export=ALL ",
    )


def _run(*command: str, given: str | None = None) -> str:
    """Run one of Slurm's commands; see `run_command`.

    What changes the form of Slurm's answers does not count; times are printed in seconds since
    1970.
    """
    left = {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SQUEUE_", "SINFO_", "SCANCEL_", *OF_A_JOB))
    }
    environment = left | {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}
    return run_command("Slurm", *command, given=given, environment=environment)
