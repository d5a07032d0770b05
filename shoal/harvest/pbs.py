"""PBS Professional and OpenPBS: pbsnodes and qstat show what there is; qsub and qdel do the rest.

Both print JSON (`-F json`, from version 13 on). Torque, an older relative, has no such option.
"""

import getpass
import json
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.utils import parsedate
from math import inf
from typing import Any

from shoal.core.trial import Seconds
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
JOB = re.compile(r"\d+(\[\d*\])?(\.\S+)?")  # its id, as 1234.server
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
        self._has: dict[str, str] = {}  # what the job of a whole node asks for, by node
        check_commands("PBS", COMMANDS)

    def check(self) -> None:
        """See `Scheduler`."""
        queues = _read("qstat", "-Q", "-f", *JSON).get("Queue", {})
        check_partitions(self.site, queues, "PBS")
        found = queues[self.site.partition]
        for switch in ("enabled", "started"):
            if str(found.get(switch, "True")) != "True":
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
        ours = {id_: job for id_, job in jobs.items() if self._is_ours(job)}
        others = {id_: job for id_, job in jobs.items() if id_ not in ours}
        return Sighting(
            now,
            self._idle(nodes, _windows(others, now)),
            tuple(self._pilot(id_, job) for id_, job in ours.items()),
            tuple(self._waiting(others)),
        )

    def submit(self, node: str, minutes: int, command: Sequence[str]) -> str:
        """See `Scheduler`."""
        options = [
            *("-N", self.names.job),
            *("-q", self.site.partition),
            *("-l", f"select=1:{self._has.get(node, f'host={node}')}"),
            *("-l", "place=exclhost"),
            *("-l", f"walltime={minutes // 60:02d}:{minutes % 60:02d}:00"),
            *("-j", "oe"),
            *("-o", self.names.log(node)),
            *("-r", "n"),
            "-V",
            *self.site.options,
        ]
        script = pilot_script(command, minutes, {NODE: shlex.quote(node)})
        said = _run("qsub", *options, given=script).strip()
        if JOB.fullmatch(said) is None:
            raise SchedulerError(f"qsub did not print a job's id but {said[:200]!r}")
        return said

    def cancel(self, pilots: Iterable[str]) -> None:
        """See `Scheduler`."""
        for pilot in pilots:  # of several, qdel stops at the first that has ended
            try:
                _run("qdel", pilot)
            except SchedulerError as error:
                if GONE.search(str(error)) is None:
                    raise

    # -- what is printed -----------------------------------------------------------------------

    def _is_ours(self, job: Mapping[str, Any]) -> bool:
        """Whether the job is a pilot of this study, from this harvest or a former one."""
        owner = _text(job, "Job_Owner").partition("@")[0]
        name = _text(job, "Job_Name")
        return owner == getpass.getuser() and name.startswith(self.names.family)

    def _pilot(self, id_: str, job: Mapping[str, Any]) -> Pilot:
        """A pilot that was suspended holds a node that somebody else computes on: it is stale."""
        nodes = list(_nodes(_text(job, "exec_vnode")))
        asked = HOST.search(_text(_part(job, "Resource_List"), "select"))
        if not nodes and asked is not None:
            nodes = [asked[1]]
        state = _text(job, "job_state")
        return Pilot(
            id_,
            next(iter(nodes), ""),
            running=state in BEGUN,
            minutes=_minutes(_text(_part(job, "Resource_List"), "walltime")),
            stale=_text(job, "Job_Name") != self.names.job or state in SUSPENDED,
        )

    def _idle(
        self, vnodes: Mapping[str, Any], windows: Mapping[str, Seconds]
    ) -> Mapping[str, IdleNode]:
        """The idle nodes with enough CPUs, by name. A node may have several vnodes."""
        hosts: dict[str, list[Mapping[str, Any]]] = {}
        for name, vnode in vnodes.items():
            host = _text(_part(vnode, "resources_available"), "host")
            hosts.setdefault(host or name, []).append(vnode)
        found = {}
        for name, parts in hosts.items():
            cpus = sum(_count(part, "ncpus") for part in parts)
            gpus = sum(_count(part, "ngpus") for part in parts)
            self._has[name] = f"host={name}:ncpus={max(1, cpus)}"
            if gpus:
                self._has[name] += f":ngpus={gpus}"
            usable = cpus >= self.site.least_cpus and (gpus or not self.site.gpus)
            if usable and all(map(self._is_idle, parts)):
                found[name] = IdleNode(name, windows.get(name, inf))
        return found

    def _is_idle(self, vnode: Mapping[str, Any]) -> bool:
        """Whether nothing runs there or has it reserved, and our queue may use it."""
        queue = vnode.get("queue", self.site.partition)
        taken = vnode.get("jobs") or vnode.get("resv")
        return vnode.get("state") == IDLE and not taken and queue == self.site.partition

    def _waiting(self, others: Mapping[str, Any]) -> Iterator[Waiting]:
        """The jobs that wait for nodes: those of higher priority first, then the longest there."""
        queued = [
            (id_, job)
            for id_, job in others.items()
            if job.get("job_state") == QUEUED
            and self.site.matters(_text(job, "queue"))
            and LIMITS.search(_text(job, "comment")) is None
            and not _text(job, "Job_Name").startswith(PREFIX)
        ]
        queued.sort(key=lambda each: -_number(each[1].get("Priority")))
        for id_, job in queued:
            asked = _part(job, "Resource_List")
            count = int(_number(asked.get("nodect"))) or 1
            planned = frozenset(_nodes(_text(_part(job, "estimated"), "exec_vnode")))
            named = frozenset(HOST.findall(_text(asked, "select")))
            yield Waiting(id_, count, planned or named)


def _windows(others: Mapping[str, Any], now: Seconds) -> dict[str, Seconds]:
    """Seconds until a queued job is estimated to begin, of each node that is planned for one.

    PBS estimates for as many jobs as the site has it do (`est_start_time_freq`, `backfill_depth`).
    """
    found: dict[str, Seconds] = {}
    for job in others.values():
        plan = _part(job, "estimated")
        start = _time(_text(plan, "start_time"))
        if job.get("job_state") == QUEUED and start is not None:
            for node in _nodes(_text(plan, "exec_vnode")):
                found[node] = min(max(0.0, start - now), found.get(node, inf))
    return found


def _nodes(listed: str) -> Iterator[str]:
    """The nodes of an exec_vnode: "(n1:ncpus=4)+(n2[0]:ncpus=2+n2[1]:ncpus=2)" has n1 and n2."""
    seen = set()
    for chunk in listed.split("+"):
        match = CHUNK.fullmatch(chunk.strip())
        if match is not None:
            node = match[1].partition("[")[0]
            if node not in seen:
                seen.add(node)
                yield node


def _time(text: str) -> Seconds | None:
    """Seconds since 1970 of "Wed Oct 12 14:48:45 2022", in this machine's zone; None of others."""
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
    """What is listed under the name; nothing if there is no such list."""
    found = job.get(name)
    return found if isinstance(found, dict) else {}


def _text(job: Mapping[str, Any], name: str) -> str:
    """The value as text: PBS's JSON has numbers where a name looks like one."""
    return str(job.get(name, ""))


def _count(vnode: Mapping[str, Any], name: str) -> int:
    return int(_number(_part(vnode, "resources_available").get(name)))


def _number(value: Any) -> float:
    """A number; 0 of what is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def _read(*command: str) -> dict[str, Any]:
    """What a command prints as JSON.

    Raises:
        SchedulerError: it fails, or prints something else.
    """
    said = _run(*command)
    try:
        found = json.loads(said, strict=False)
    except ValueError as error:
        raise SchedulerError(
            f"{' '.join(command)} printed no JSON ({error}); PBS of version 13 or later does. It "
            f"began with {said[:100]!r}"
        ) from error
    if not isinstance(found, dict):
        raise SchedulerError(f"{' '.join(command)} printed {said[:100]!r}")
    return found


def _run(*command: str, given: str | None = None) -> str:
    """Run one of PBS's commands; see `run_command`."""
    return run_command("PBS", *command, given=given)
