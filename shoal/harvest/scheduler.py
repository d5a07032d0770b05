"""What harvesting needs of a batch system: three calls.

They are in one file for each system: `shoal.harvest.slurm`, `shoal.harvest.pbs`,
`shoal.harvest.lsf`. Nothing else knows which one it is.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Protocol

from shoal.core.trial import Seconds

# Words of a pilot's command that the batch system's script replaces, where the pilot runs.
NODE = "{node}"  # the node's name
UNTIL = "{until}"  # when the job's time limit ends it, in seconds since 1970

PREFIX = "shoal-"  # of the names of all pilots' jobs
PATIENCE: Seconds = 60.0  # for one of a batch system's commands


class SchedulerError(Exception):
    """The batch system did not answer, or refused; the message says what it said."""


@dataclass(frozen=True, slots=True)
class IdleNode:
    """A node on which nothing runs, and that takes pilots.

    `window`: seconds until a job of somebody else is planned to begin there; a hint, as plans move
    when jobs end early. `longest`: minutes that the batch system lets a pilot run at most.
    """

    name: str
    window: Seconds = inf
    longest: float = inf


@dataclass(frozen=True, slots=True)
class Pilot:
    """A pilot of ours that the batch system knows.

    `node`: where it runs, or is to run. `running`: it has begun, and perhaps is about to end.
    `minutes`: its time limit. `stale`: a former harvest of the same study left it behind.
    """

    id: str
    node: str
    running: bool = True
    minutes: float = inf
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job of somebody else that waits for nodes. `planned`: the nodes that the batch system has
    chosen for it, none while it has not chosen.
    """

    id: str
    nodes: int
    planned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one look at the batch system showed. `now`: when, in seconds since 1970. `waiting`:
    jobs that wait for nodes, those first that are to begin first.
    """

    now: Seconds
    idle: Mapping[str, IdleNode] = field(default_factory=dict)
    pilots: tuple[Pilot, ...] = ()
    waiting: tuple[Waiting, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """Where pilots go, and how they are asked for.

    `partition`: of the pilots; PBS and LSF call it a queue. `watched`: those whose waiting jobs
    matter; all, if none is named. `options`: more for the command that submits, as "--account=x".
    `least_cpus`: nodes with fewer are left alone. `gpus`: nodes without a GPU are left alone.
    """

    partition: str
    watched: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    least_cpus: int = 1
    gpus: bool = False

    def matters(self, partition: str) -> bool:
        """Whether jobs that wait in this partition matter."""
        return not self.watched or partition in (self.partition, *self.watched)


@dataclass(frozen=True, slots=True)
class PilotNames:
    """What the jobs of a study's pilots are called, and where they write.

    `study`: so that those of a former harvest are known. `session`: tells this harvest from former
    ones. `logs`: the folder for what pilots print.
    """

    study: str
    session: str
    logs: Path

    @property
    def family(self) -> str:
        """What all names begin with, those of former harvests, too."""
        return f"{PREFIX}{self.study}-"

    @property
    def job(self) -> str:
        """The name of this harvest's jobs."""
        return self.family + self.session

    def log(self, node: str) -> str:
        """The file for what the pilot on this node prints."""
        return str(self.logs / f"pilot-{node}.log")


class Scheduler(Protocol):
    """A batch system, as harvesting sees it.

    Raises:
        SchedulerError: each of the calls, when the batch system does not do it.
    """

    def check(self) -> None:
        """Raise SchedulerError unless the batch system answers and has the partitions."""
        ...

    def look(self) -> Sighting:
        """Which nodes are idle, which pilots of this study there are, and who waits."""
        ...

    def submit(self, node: str, minutes: int, command: Sequence[str]) -> str:
        """Submit a pilot for this node with this time limit, and return its id.

        In the command, `NODE` and `UNTIL` stand for what is known only when the pilot begins.
        """
        ...

    def cancel(self, pilots: Iterable[str]) -> None:
        """End these pilots at once; those that have ended already are no error."""
        ...


# -- what the jobs of a batch system are to a harvest ---------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the batch system shows it, whosever it is.

    `mine`: this user's. `nodes`: on which it runs. `requested`: those that it asked for by name.
    `planned`: those that the batch system has chosen for it, from `start` on, in seconds since
    1970. `count`: how many it needs. `minutes`: its time limit. `waits`: for nodes. `rank`: of two
    that wait, the one of lower rank begins first.
    """

    id: str
    name: str
    mine: bool
    minutes: float = inf
    running: bool = False
    suspended: bool = False
    waits: bool = False
    nodes: Sequence[str] = ()
    requested: Sequence[str] = ()
    planned: frozenset[str] = frozenset()
    start: Seconds | None = None
    count: int = 1
    rank: tuple[float, ...] = ()


def pilots_and_others(
    jobs: Iterable[Job], names: PilotNames
) -> tuple[tuple[Pilot, ...], list[Job]]:
    """The pilots of this study, from this harvest or a former one, and all other jobs.

    A suspended pilot holds a node that somebody else computes on: it is stale. Slurm's jobs are
    never told to be suspended.
    """
    pilots: list[Pilot] = []
    others: list[Job] = []
    for job in jobs:
        if not (job.mine and job.name.startswith(names.family)):
            others.append(job)
            continue
        node = next(iter(job.nodes or job.requested), "")
        stale = job.name != names.job or job.suspended
        pilots.append(Pilot(job.id, node, job.running, job.minutes, stale))
    return tuple(pilots), others


def windows_before(others: Iterable[Job], now: Seconds) -> dict[str, Seconds]:
    """Seconds until a job is planned to begin, of each node that is planned for one."""
    windows: dict[str, Seconds] = {}
    for job in others:
        if job.start is not None:
            left = max(0.0, job.start - now)
            windows |= {node: min(left, windows.get(node, inf)) for node in job.planned}
    return windows


def waiting_among(others: Iterable[Job]) -> tuple[Waiting, ...]:
    """The jobs that wait for nodes, by rank. Another study's pilots give way as well."""
    queue = [job for job in others if job.waits and not job.name.startswith(PREFIX)]
    queue.sort(key=lambda job: job.rank)
    return tuple(
        Waiting(job.id, job.count, job.planned or frozenset(job.requested)) for job in queue
    )


# -- the commands of a batch system ---------------------------------------------------------------


def check_commands(system: str, names: Iterable[str]) -> None:
    """Raise SchedulerError unless these commands of the batch system are installed here."""
    lacking = [name for name in names if shutil.which(name) is None]
    if lacking:
        raise SchedulerError(
            f"{system}'s {', '.join(lacking)} cannot be found: run this where {system}'s commands "
            "are installed, such as a login node, and see that PATH has them"
        )


def check_partitions(site: Site, names: Iterable[str], system: str, noun: str = "queue") -> None:
    """Raise SchedulerError unless the site's partitions are among these names."""
    known = dict.fromkeys(names)
    for name in (site.partition, *site.watched):
        if name not in known:
            raise SchedulerError(
                f"{system} has no {noun} {name!r}: there are {', '.join(known) or 'none'}"
            )


def run_command(
    system: str,
    *command: str,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    harmless: str = "",
) -> str:
    """Run one of a batch system's commands, and return what it printed.

    `stdin`: what it reads. `environment`: None: this process's, with texts in English.
    `harmless`: a failure is none if each line of what it says of it has this text.

    Raises:
        SchedulerError: it failed, or took longer than a minute.
    """
    if environment is None:
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        process = subprocess.run(
            command,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(
            f"{command[0]} took longer than {PATIENCE:.0f} s: {system} does not answer"
        ) from error
    except OSError as error:
        raise SchedulerError(f"{command[0]} cannot be run: {error}") from error
    if process.returncode:
        lines = process.stderr.splitlines()
        if harmless and lines and all(harmless in line for line in lines):
            return process.stdout
        message = " ".join(process.stderr.split()) or f"exit status {process.returncode}"
        raise SchedulerError(f"{command[0]} failed: {message[:500]}")
    return process.stdout


def pilot_script(
    command: Sequence[str], minutes: int, words: Mapping[str, str], before: str = ""
) -> str:
    """A pilot's batch script. Signals reach the command itself, as it takes the shell's place.

    `words`: what stands in the shell for `NODE`. `before`: what starts the command.
    """
    words = {**words, UNTIL: '"$until"'}
    line = " ".join(words.get(word) or shlex.quote(word) for word in command)
    return f"#!/bin/sh\nuntil=$(( $(date +%s) + {minutes * 60} ))\nexec {before}{line}\n"
