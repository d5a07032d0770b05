"""IBM Spectrum LSF: bhosts, bslots and bjobs show what there is; bsub and bkill do the rest.

bhosts and bslots are read as they print for people, in columns that are the same from LSF 7 on;
bjobs in an explicit format (`-o`, from LSF 9 on), with a sign between columns that no name has.
"""

import getpass
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

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
)

COMMANDS = ("bhosts", "bslots", "bjobs", "bqueues", "bsub", "bkill")
BETWEEN = "^"
FIELDS = ("jobid", "stat", "queue", "user", "exec_host", "nreq_slot", "runtimelimit")
# A job's name may hold anything, so that it comes last.
JOBS = f"{' '.join(FIELDS)} pend_reason job_name delimiter='{BETWEEN}'"
HOSTS = ("HOST_NAME", "STATUS", "JL/U", "MAX", "NJOBS", "RUN", "SSUSP", "USUSP", "RSV")
BEGUN = ("RUN", "USUSP", "SSUSP", "UNKWN", "ZOMBI")
SUSPENDED = ("USUSP", "SSUSP")
SUBMITTED = re.compile(r"Job <(\d+)> is submitted")
HOST = re.compile(r"(?:\d+\*)?([^\s:*]+)")  # of exec_host: 4*host1:host2
# Of a queue's HOSTS: host1 group1/ host2+3.
OF_QUEUE = re.compile(r"([^\s/+]+)/?(?:\+\d+)?")
SPAN = re.compile(r"(\d+)\s+(day|hour|minute|second)s?")
SECONDS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
# Reasons of jobs that wait for something else than hosts.
NOT_FOR_HOSTS = re.compile(r"limit|dependency|suspended|start time|dispatch window", re.I)
# What commands say where there is nothing to show or to end.
NO_JOB = "No unfinished job found"
NO_HOST = "No hosts"
ENDED = re.compile(r"already finished|No matching job|is not found")


class Lsf:
    """The batch system LSF, by its commands.

    Raises:
        SchedulerError: a command of LSF is not installed here.
    """

    def __init__(self, site: Site, names: PilotNames) -> None:
        self.site = site
        self.names = names
        self._of_queue: tuple[str, ...] = ()  # hosts and groups; empty: all
        self._slots: dict[str, int] = {}  # of each host
        self._requested: dict[str, list[str]] = {}  # the host that each pilot was submitted for
        check_commands("LSF", COMMANDS)

    def check(self) -> None:
        """See `Scheduler`."""
        queues = _columns(_run("bqueues", "-w"), "QUEUE_NAME")
        check_partitions(self.site, (row[0] for row in queues), "LSF")
        self._of_queue = _hosts_of(_run("bqueues", "-l", self.site.partition))

    # -- the three calls -----------------------------------------------------------------------

    def look(self) -> Sighting:
        """See `Scheduler`."""
        # The hosts first: a pilot that begins meanwhile is then seen to run.
        with_gpus = ["-R", "select[ngpus>0]"] if self.site.gpus else []
        text = _run("bhosts", "-w", *with_gpus, *self._of_queue, harmless=NO_HOST)
        hosts = list(_columns(text, HOSTS[0]))
        text = _run("bjobs", "-u", "all", "-noheader", "-o", JOBS, harmless=NO_JOB)
        # A host's slots that are reserved for a waiting job are lent to who ends before it begins.
        windows: Mapping[str, Seconds] = {}
        if any(row[HOSTS.index("RSV")] not in ("0", "-") for row in hosts):
            windows = _windows(_run("bslots", "-l"))
        idle = self._idle(hosts, windows)  # notes the slots, by which jobs are counted
        pilots, others = pilots_and_others(self._jobs(text), self.names)
        return Sighting(time.time(), idle, pilots, waiting_among(others))

    def submit(self, node: str, minutes: int, command: Sequence[str]) -> str:
        """See `Scheduler`."""
        options = [
            *("-J", self.names.job),
            *("-q", self.site.partition),
            *("-m", node),
            *("-n", str(self._slots.get(node, 1))),
            *("-R", "span[hosts=1]"),
            *("-W", str(minutes)),
            *("-o", self.names.log(node)),
            "-rn",
            *self.site.options,
        ]
        script = pilot_script(command, minutes, {NODE: shlex.quote(node)})
        answer = _run("bsub", *options, stdin=script)
        job = SUBMITTED.search(answer)
        if job is None:
            raise SchedulerError(f"bsub did not print a job's number but {answer[:200]!r}")
        self._requested[job[1]] = [node]
        return job[1]

    def cancel(self, pilots: Iterable[str]) -> None:
        """See `Scheduler`."""
        for pilot in pilots:
            try:
                _run("bkill", pilot)
            except SchedulerError as error:
                if ENDED.search(str(error)) is None:
                    raise

    # -- what is printed -----------------------------------------------------------------------

    def _idle(
        self, hosts: Iterable[Sequence[str]], windows: Mapping[str, Seconds]
    ) -> Mapping[str, IdleNode]:
        """The hosts that are ok and run nothing, with enough slots, by name."""
        idle = {}
        for row in hosts:
            host = dict(zip(HOSTS, row, strict=False))
            name = host["HOST_NAME"]
            if not host["MAX"].isdecimal():
                continue  # without a limit nobody can ask for the whole host
            self._slots[name] = int(host["MAX"])
            busy = any(host[column] != "0" for column in ("RUN", "SSUSP", "USUSP"))
            # One that is full though nothing runs has all slots reserved, and lends them.
            opened = host["STATUS"] in ("ok", "closed_Full")
            if opened and not busy and self._slots[name] >= self.site.least_cpus:
                window = inf if host["RSV"] == "0" else windows.get(name, 0.0)
                idle[name] = IdleNode(name, window)
        return idle

    def _jobs(self, text: str) -> Iterator[Job]:
        """The jobs that bjobs printed, in its order: that in which they are to begin.

        They ask for slots: how many hosts that is, is told from the slots of the largest.

        Raises:
            SchedulerError: a line has too few columns; bjobs was cut off, or is an older one.
        """
        columns = len(FIELDS) + 2
        me = getpass.getuser()
        largest = max([1, *self._slots.values()])
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.split(BETWEEN, columns - 1)]
            if len(cells) != columns:
                raise SchedulerError(
                    f"bjobs printed {line[:200]!r}, where {columns} columns with {BETWEEN} between "
                    "them were asked for; LSF of version 9 or later prints them"
                )
            number, state, queue, user, hosts, slots, limit, reason, name = cells
            for_hosts = NOT_FOR_HOSTS.search(reason) is None
            yield Job(
                id=number,
                name=name,
                mine=user == me,
                minutes=minutes_of(limit),
                running=state in BEGUN,
                suspended=state in SUSPENDED,
                waits=state == "PEND" and for_hosts and self.site.matters(queue),
                nodes=[] if hosts == "-" else HOST.findall(hosts),
                requested=self._requested.get(number, ()),
                count=max(1, -(-int(slots) // largest)) if slots.isdecimal() else 1,
            )


def _columns(text: str, head: str) -> Iterator[list[str]]:
    """The rows of a table below the line that begins with this head.

    Raises:
        SchedulerError: there are lines, and none begins so.
    """
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(head)]
    if lines and not starts:
        raise SchedulerError(
            f"LSF printed {lines[0][:200]!r}, where a table with {head} was asked for"
        )
    for line in lines[starts[0] + 1 :] if starts else ():
        if line.strip():
            yield line.split()


def _hosts_of(queue: str) -> tuple[str, ...]:
    """The hosts and host groups of a queue, from `bqueues -l`; none where it may use all."""
    for line in queue.splitlines():
        name, colon, listed = line.partition(":")
        if colon and name.strip() == "HOSTS":
            words = listed.split()
            if any("~" in word or word in ("all", "none", "others") for word in words):
                return ()
            return tuple(OF_QUEUE.sub(r"\1", word) for word in words)
    return ()


def _windows(text: str) -> dict[str, Seconds]:
    """For how long slots of hosts that are reserved can be lent, from `bslots -l`; the longest.

    Its entries are "SLOTS: 16", "RUNTIME: 1 hour 30 minutes" and "HOSTS: 16*n1 8*n2 …".
    """
    windows: dict[str, Seconds] = {}
    seconds: Seconds = 0.0
    at_hosts = False
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() == "RUNTIME":
            seconds = span_of(rest)
        at_hosts = name.strip() == "HOSTS" if colon else at_hosts
        if at_hosts:
            for host in HOST.findall(rest if colon else line):
                windows[host] = max(seconds, windows.get(host, 0.0))
    return windows


def span_of(text: str) -> Seconds:
    """The seconds of a text as "1 hour 30 minutes"; inf of UNLIMITED."""
    if "UNLIMITED" in text.upper():
        return inf
    return float(sum(int(n) * SECONDS[unit] for n, unit in SPAN.findall(text)))


def minutes_of(text: str) -> float:
    """Minutes of a run limit: "60.0 min of n1", "01:30" or "60/n1"; without one inf."""
    clock = re.match(r"(\d+):(\d+)", text)
    if clock is not None:
        return 60.0 * int(clock[1]) + int(clock[2])
    number = re.match(r"\d+(\.\d+)?", text)
    return inf if number is None else float(number[0])


def _run(*command: str, stdin: str | None = None, harmless: str = "") -> str:
    """Run one of LSF's commands; see `run_command`."""
    return run_command("LSF", *command, stdin=stdin, harmless=harmless)
