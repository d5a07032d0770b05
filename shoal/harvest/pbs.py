"""PBS Professional and OpenPBS: pbsnodes and qstat show what there is; qsub and qdel do the rest.

Both print JSON (`-F json`, from version 13 on). Torque, an older relative, has no such option.
"""

import getpass
import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate
from itertools import starmap
from math import inf
from typing import Any

from shoal.core.trial import Seconds
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

COMMANDS = ("pbsnodes", "qstat", "qsub", "qdel")
JSON = ("-F", "json")
# A node of several vnodes is idle if all of them are. Others, as "free,resv-exclusive", are not.
IDLE = "free"
# Running, exiting, suspended by the server or by the node's user.
BEGUN = ("R", "E", "S", "U")
SUSPENDED = ("S", "U")
QUEUED = "Q"
# What a queued job's comment says if it waits for something else than nodes.
LIMITS = re.compile(r"limit|exceed|not started|not enabled|permission", re.I)
CHUNK = re.compile(r"\(?([^:()+\s]+)(?::[^()+]*)?\)?")  # of exec_vnode: (node:ncpus=4)
HOST = re.compile(r"(?:^|:)host=([^:+]+)")  # in a job's select
JOB_ID = re.compile(r"\d+(\[\d*\])?(\.\S+)?")  # its id, as 1234.server
# What qdel says of each job that has ended already.
GONE = re.compile(r"Unknown Job Id|Job has finished|Request invalid for state")


class Pbs:
    """The batch system PBS, by its commands.

    Raises:
        SchedulerError: a command of PBS is not installed here.
    """

    def __init__(self, site: Site, names: PilotNames) -> None:
        self.site = site
        self.names = names
        self._selections: dict[str, str] = {}  # what the job of a whole node asks for, by node
        check_commands("PBS", COMMANDS)

    def check(self) -> None:
        """See `Scheduler`."""
        queues = _read("qstat", "-Q", "-f", *JSON).get("Queue", {})
        check_partitions(self.site, queues, "PBS")
        queue = queues[self.site.partition]
        for switch in ("enabled", "started"):
            if str(queue.get(switch, "True")) != "True":
                raise SchedulerError(
                    f"PBS's queue {self.site.partition} is not {switch}, so that no pilot would "
                    "run: name another one with --partition"
                )

    # -- the three calls -----------------------------------------------------------------------

    def look(self) -> Sighting:
        """See `Scheduler`."""
        # The nodes first: a pilot that begins meanwhile is then seen to run.
        nodes = _read("pbsnodes", "-a", *JSON).get("nodes", {})
        jobs = _read("qstat", "-f", *JSON).get("Jobs", {})
        now = time.time()
        pilots, others = pilots_and_others(starmap(self._job, jobs.items()), self.names)
        idle = self._idle(nodes, windows_before(others, now))
        return Sighting(now, idle, pilots, waiting_among(others))

    def submit(self, node: str, minutes: int, command: Sequence[str]) -> str:
        """See `Scheduler`."""
        options = [
            *("-N", self.names.job),
            *("-q", self.site.partition),
            *("-l", f"select=1:{self._selections.get(node, f'host={node}')}"),
            *("-l", "place=exclhost"),
            *("-l", f"walltime={minutes // 60:02d}:{minutes % 60:02d}:00"),
            *("-j", "oe"),
            *("-o", self.names.log(node)),
            *("-r", "n"),
            "-V",
            *self.site.options,
        ]
        script = pilot_script(command, minutes, {NODE: shlex.quote(node)})
        answer = _run("qsub", *options, stdin=script).strip()
        if JOB_ID.fullmatch(answer) is None:
            raise SchedulerError(f"qsub did not print a job's id but {answer[:200]!r}")
        return answer

    def cancel(self, pilots: Iterable[str]) -> None:
        """See `Scheduler`."""
        for pilot in pilots:  # of several, qdel stops at the first that has ended
            try:
                _run("qdel", pilot)
            except SchedulerError as error:
                if GONE.search(str(error)) is None:
                    raise

    # -- what is printed -----------------------------------------------------------------------

    def _job(self, id_: str, record: Mapping[str, Any]) -> Job:
        """The job of this id, from what qstat printed of it.

        PBS estimates the start of as many jobs as the site has it do (`est_start_time_freq`,
        `backfill_depth`).
        """
        resources, plan = _part(record, "Resource_List"), _part(record, "estimated")
        state = _text(record, "job_state")
        queued = state == QUEUED
        limited = LIMITS.search(_text(record, "comment")) is not None
        return Job(
            id=id_,
            name=_text(record, "Job_Name"),
            mine=_text(record, "Job_Owner").partition("@")[0] == getpass.getuser(),
            minutes=_minutes(_text(resources, "walltime")),
            running=state in BEGUN,
            suspended=state in SUSPENDED,
            waits=queued and not limited and self.site.matters(_text(record, "queue")),
            nodes=_nodes(_text(record, "exec_vnode")),
            requested=HOST.findall(_text(resources, "select")),
            planned=frozenset(_nodes(_text(plan, "exec_vnode"))),
            start=_time(_text(plan, "start_time")) if queued else None,
            count=int(_number(resources.get("nodect"))) or 1,
            rank=(-_number(record.get("Priority")),),
        )

    def _idle(
        self, vnodes: Mapping[str, Any], windows: Mapping[str, Seconds]
    ) -> Mapping[str, IdleNode]:
        """The idle nodes with enough CPUs, by name. A node may have several vnodes."""
        hosts: dict[str, list[Mapping[str, Any]]] = {}
        for name, vnode in vnodes.items():
            host = _text(_part(vnode, "resources_available"), "host")
            hosts.setdefault(host or name, []).append(vnode)
        idle = {}
        for name, parts in hosts.items():
            cpus = sum(_count(part, "ncpus") for part in parts)
            gpus = sum(_count(part, "ngpus") for part in parts)
            self._selections[name] = f"host={name}:ncpus={max(1, cpus)}"
            if gpus:
                self._selections[name] += f":ngpus={gpus}"
            usable = cpus >= self.site.least_cpus and (gpus or not self.site.gpus)
            if usable and all(map(self._is_idle, parts)):
                idle[name] = IdleNode(name, windows.get(name, inf))
        return idle

    def _is_idle(self, vnode: Mapping[str, Any]) -> bool:
        """Whether nothing runs there or has it reserved, and our queue may use it."""
        queue = vnode.get("queue", self.site.partition)
        taken = vnode.get("jobs") or vnode.get("resv")
        return vnode.get("state") == IDLE and not taken and queue == self.site.partition


def _nodes(listed: str) -> list[str]:
    """The nodes of an exec_vnode: "(n1:ncpus=4)+(n2[0]:ncpus=2+n2[1]:ncpus=2)" has n1 and n2."""
    chunks = [CHUNK.fullmatch(chunk.strip()) for chunk in listed.split("+")]
    return list(dict.fromkeys(chunk[1].partition("[")[0] for chunk in chunks if chunk is not None))


def _time(text: str) -> Seconds | None:
    """Seconds since 1970 of "Wed Oct 12 14:48:45 2022" in this machine's zone; None: no time."""
    parts = parsedate(text)
    try:
        return None if parts is None else time.mktime(parts)
    except (ValueError, OverflowError):
        return None


def _minutes(text: str) -> float:
    """Minutes of "HH:MM:SS" or of seconds; without a limit inf."""
    parts = text.split(":")
    if not text or not all(part.isdecimal() for part in parts):
        return inf
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return seconds / 60


def _part(job: Any, name: str) -> Mapping[str, Any]:
    """The table under the name; an empty one if there is none."""
    part = job.get(name)
    return part if isinstance(part, dict) else {}


def _text(job: Mapping[str, Any], name: str) -> str:
    """The value as text: PBS's JSON has numbers where a name looks like one."""
    return str(job.get(name, ""))


def _count(vnode: Mapping[str, Any], name: str) -> int:
    """How many of this resource the vnode has."""
    return int(_number(_part(vnode, "resources_available").get(name)))


def _number(value: Any) -> float:
    """The value as a number; 0 if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def _read(*command: str) -> dict[str, Any]:
    """The object that a command prints as JSON.

    Raises:
        SchedulerError: it fails, or prints something else.
    """
    text = _run(*command)
    try:
        data = json.loads(text, strict=False)
    except ValueError as error:
        raise SchedulerError(
            f"{' '.join(command)} printed no JSON ({error}); PBS of version 13 or later does. It "
            f"began with {text[:100]!r}"
        ) from error
    if not isinstance(data, dict):
        raise SchedulerError(f"{' '.join(command)} printed {text[:100]!r}")
    return data


def _run(*command: str, stdin: str | None = None) -> str:
    """Run one of PBS's commands; see `run_command`."""
    return run_command("PBS", *command, stdin=stdin)
