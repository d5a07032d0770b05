"""Slurm: one squeue and one sinfo show what there is; sbatch and scancel do the rest.

The formats are explicit, with one field a line's column. Slurm's JSON differs between versions,
and that of 22.05 lacks the nodes that are planned for a waiting job.
"""

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from shoal.core.trial import Seconds
from shoal.harvest.hosts import hosts
from shoal.harvest.scheduler import (
    NODE,
    IdleNode,
    Job,
    PilotNames,
    SchedulerError,
    Sighting,
    Site,
    check_commands,
    check_partitions,
    pilot_script,
    pilots_and_others,
    run_command,
    waiting_among,
    windows_before,
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
        partitions = _run("sinfo", "-h", "-a", "-o", "%R").split()
        check_partitions(self.site, partitions, "Slurm", "partition")
        try:
            _run("sbatch", "--test-only", *self._options(1), stdin=script(["true"], 1))
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
        pilots, others = pilots_and_others(jobs, self.names)
        idle = self._idle(nodes, windows_before(others, now))
        return Sighting(now, idle, pilots, waiting_among(others))

    def submit(self, node: str, minutes: int, command: Sequence[str]) -> str:
        """See `Scheduler`."""
        options = [
            "--parsable",
            f"--nodelist={node}",
            f"--output={self.names.log(node)}",
            *self._options(minutes),
        ]
        answer = _run("sbatch", *options, stdin=script(command, minutes))
        number = answer.strip().split(";")[0]
        if not number.isdecimal():
            raise SchedulerError(f"sbatch did not print a job's number but {answer[:200]!r}")
        return number

    def cancel(self, pilots: Iterable[str]) -> None:
        """See `Scheduler`."""
        numbers = list(pilots)
        if numbers:
            _run("scancel", "--quiet", *numbers)

    def _options(self, minutes: int) -> list[str]:
        """The options of sbatch for each pilot; the user's come last, and so prevail."""
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

    def _idle(self, text: str, windows: Mapping[str, Seconds]) -> Mapping[str, IdleNode]:
        """The idle nodes with enough CPUs, by name."""
        idle = {}
        for name, state, cpus, gres, limit in _rows(text, NODES):
            if state.lower() not in IDLE or not cpus.isdecimal():
                continue
            if int(cpus) < self.site.least_cpus or (self.site.gpus and not gpus(gres)):
                continue
            # A planned node whose job nobody shows us may be wanted at any time.
            unknown = 0.0 if state.lower() == "planned" else inf
            idle[name] = IdleNode(name, windows.get(name, unknown), minutes_of(limit))
        return idle


def _jobs(text: str) -> list[Job]:
    """The jobs that squeue printed."""
    jobs = []
    for row in _rows(text, JOBS):
        number, _, state, nodes, requested, start, planned, count = row[:8]
        limit, priority, reason, user, name = row[8:]
        pending = state == "PENDING"
        jobs.append(
            Job(
                id=number,
                name=name,
                mine=user == str(os.getuid()),
                minutes=minutes_of(limit),
                running=state in BEGUN,
                waits=pending and reason in FOR_NODES,
                nodes=_hosts(nodes),
                requested=_hosts(requested),
                planned=frozenset(_hosts(planned)),
                start=_number(start) if pending else None,
                count=int(_number(count) or 1),
                rank=(-(_number(priority) or 0.0), _number(number) or inf),
            )
        )
    return jobs


def _rows(text: str, form: str) -> list[list[str]]:
    """The lines with their columns.

    Raises:
        SchedulerError: a line has too few; what Slurm printed was cut off, or is something else.
    """
    columns = form.count("|") + 1
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|", columns - 1)]
        if len(cells) != columns:
            raise SchedulerError(
                f"Slurm printed {line[:200]!r}, where {columns} columns with | between them were "
                f"asked for ({form})"
            )
        rows.append(cells)
    return rows


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


def _run(*command: str, stdin: str | None = None) -> str:
    """Run one of Slurm's commands; see `run_command`.

    Variables that change the form of Slurm's answers are left out; times are printed in seconds
    since 1970.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SQUEUE_", "SINFO_", "SCANCEL_", *OF_A_JOB))
    }
    environment = inherited | {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}
    return run_command("Slurm", *command, stdin=stdin, environment=environment)
