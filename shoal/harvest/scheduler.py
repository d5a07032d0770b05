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
        """Whether jobs that wait there matter."""
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
    there = dict.fromkeys(names)
    for name in (site.partition, *site.watched):
        if name not in there:
            raise SchedulerError(
                f"{system} has no {noun} {name!r}: there are {', '.join(there) or 'none'}"
            )


def run_command(
    system: str,
    *command: str,
    given: str | None = None,
    environment: Mapping[str, str] | None = None,
    harmless: str = "",
) -> str:
    """Run one of a batch system's commands, and return what it printed.

    `given`: what it reads. `environment`: None: this process's, with texts in English.
    `harmless`: a failure is none if each line of what it says of it has this text.

    Raises:
        SchedulerError: it failed, or took longer than a minute.
    """
    if environment is None:
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            command,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
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
    if done.returncode:
        lines = done.stderr.splitlines()
        if harmless and lines and all(harmless in line for line in lines):
            return done.stdout
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise SchedulerError(f"{command[0]} failed: {said[:500]}")
    return done.stdout


def pilot_script(
    command: Sequence[str], minutes: int, words: Mapping[str, str], before: str = ""
) -> str:
    """A pilot's batch script. Signals reach the command itself, as it takes the shell's place.

    `words`: what stands in the shell for `NODE`. `before`: what starts the command.
    """
    words = {**words, UNTIL: '"$until"'}
    typed = " ".join(words.get(word) or shlex.quote(word) for word in command)
    return f"#!/bin/sh\nuntil=$(( $(date +%s) + {minutes * 60} ))\nexec {before}{typed}\n"
