"""Idle-node logs of a site with Slurm: from its accounting, or from `sinfo` as time goes by."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from shoal.core.trial import Seconds
from shoal.harvest.hosts import hosts
from shoal.simulate.idle_log import IdleLog, TraceError
from shoal.simulate.log_files import HEAD, TraceSource, event_line, read_log, read_sacct

COLUMNS = "NodeList,Start,End,Partition"
BY_HAND = f"TZ=UTC sacct -P -a -X -T -S now-7days -o {COLUMNS}"
STATES = ("sinfo", "-h", "-N", "-o", "%N %T")
SINCE = re.compile(r"\d+(minutes|hours|days|weeks)|\d{4}-\d\d-\d\d(T[\d:]+)?")
LONGEST = 600.0  # seconds that a command may take
# What Slurm adds to a state: not answering, powered down, about to boot, and so on.
MARKS = "*~#!%$@+^-"
# A pilot could start there. `planned`: idle until a job that waits begins.
IDLE = frozenset({"idle", "planned"})
# Nodes that ran nothing, as nothing could run there.
AWAY = frozenset(
    {
        "down",
        "drained",
        "draining",
        "fail",
        "failing",
        "maint",
        "reserved",
        "unknown",
        "future",
        "inval",
        "error",
        "perfctrs",
        "reboot_issued",
        "reboot_requested",
        "powered_down",
        "powering_down",
    }
)


# -- what Slurm is asked ---------------------------------------------------------------------------


def accounting(since: str) -> str:
    """What `sacct` says of all allocations since then, in UTC.

    `since`: as "7days", or a date.

    Raises:
        TraceError: there is no such command, or no accounting; it says what to do instead.
    """
    if SINCE.fullmatch(since) is None:
        rule = f'it must be a time such as 7days, 12hours or 2026-01-31; got "{since}"'
        raise TraceError("--since", None, rule)
    begin = f"now-{since}" if since[-1] == "s" else since
    command = ("sacct", "-P", "-a", "-X", "-T", "-S", begin, "-o", COLUMNS)
    return _output_of(
        command,
        f"run `{BY_HAND} > jobs.txt` where it works, and give --sacct jobs.txt; "
        "where Slurm keeps no accounts, record idle nodes from now on with --watch",
    )


def states(partition: str | None) -> str:
    """What `sinfo` says of the nodes: a line for each, with its state.

    Raises:
        TraceError: there is no such command, or Slurm does not answer.
    """
    command = STATES if partition is None else (*STATES, "-p", partition)
    by_hand = " ".join(STATES[:-1])
    return _output_of(
        command, f"run `{by_hand} '%N %T' > nodes.txt` where it works, and give --nodes nodes.txt"
    )


def _output_of(command: Sequence[str], remedy: str) -> str:
    """What the command prints.

    Raises:
        TraceError: it cannot be run, fails or takes too long; `remedy` says what to do instead.
    """
    name = command[0]
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            env={**os.environ, "TZ": "UTC"},
            check=False,
        )
    except FileNotFoundError:
        rule = f"there is no such command on this machine: {remedy}"
        raise TraceError(name, None, rule) from None
    except subprocess.TimeoutExpired:
        rule = f"it gave no answer within {LONGEST:g} s: {remedy}"
        raise TraceError(name, None, rule) from None
    if process.returncode != 0:
        words = (process.stderr.strip() or process.stdout.strip()).partition("\n")[0]
        why = words or f"it ended with {process.returncode}"
        raise TraceError(name, None, f"{why}: {remedy}")
    return process.stdout


# -- what that means -------------------------------------------------------------------------------


def nodes_in(text: str) -> list[str]:
    """The nodes that `sinfo` names and that could run something, each once, in its order.

    A line may also be a name alone.
    """
    away = set()
    nodes = []
    for node, state in _lines(text):
        nodes.append(node)
        if state in AWAY:
            away.add(node)
    return [node for node in dict.fromkeys(nodes) if node not in away]


def idle_in(text: str) -> frozenset[str]:
    """The nodes that `sinfo` says are idle.

    Not those that are powered down, do not answer, or wait for a reboot or a reservation.
    """
    return frozenset(node for node, state in _lines(text, marks="+-") if state in IDLE)


def _lines(text: str, marks: str = MARKS) -> Iterator[tuple[str, str]]:
    """Each node with its state. `marks`: what is cut off the state's end."""
    for line in text.splitlines():
        node, _, state = line.strip().partition(" ")
        if node:
            yield node, state.strip().lower().rstrip(marks)


def log_of(place: Path, text: str, nodes: Sequence[str] | None, ignored: str | None) -> IdleLog:
    """The log of what `sacct` said. `place`: where it is from, for errors.

    `nodes`: those that count; None: all that ran something. `ignored`: a partition whose
    allocations do not count, because they are pilots.

    Raises:
        TraceError: it is not what `sacct -P` prints, or nothing of these nodes is in it.
    """
    heads = [head.strip() for head in text.partition("\n")[0].split("|")]
    source = TraceSource(place, nodes)
    needed = ["NodeList", "Start", "End"]
    if ignored is not None:
        needed.append("Partition")
    source.require([head for head in heads if head], needed)
    counted = _counted_lines(source, text.splitlines(), heads, ignored)
    return read_sacct(source, "\n".join(counted))


def _counted_lines(
    source: TraceSource, lines: Sequence[str], heads: Sequence[str], ignored: str | None
) -> Iterable[str]:
    """The lines, with what does not count left empty, so that errors name the right ones."""
    wanted = set(source.nodes or ())
    column = heads.index("NodeList")
    yield lines[0]
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("|")
        if len(cells) != len(heads):
            yield line  # which the reader refuses, unless it is empty
            continue
        if ignored is not None and cells[heads.index("Partition")].strip() == ignored:
            yield ""
            continue
        listed = cells[column].strip()
        if source.nodes is not None and listed not in ("", "None assigned"):
            try:
                nodes = hosts(listed)
            except ValueError as error:
                raise source.wrong(number, str(error)) from None
            cells[column] = ",".join(node for node in nodes if node in wanted)
        yield "|".join(cells)


# A line that says that nothing changed: if the recorder is killed, the log ends there.
AT_LEAST_EVERY: Seconds = 600.0
Ask = Callable[[], str]  # what `sinfo` says; raises TraceError if Slurm does not answer
Say = Callable[[str], None]


class IdleRecorder:
    """Writes the events of an idle-node log, in seconds since 1970, as they happen.

    A file that is there is continued: what was idle at its end counts as busy until now, as nobody
    looked. A tick at which Slurm does not answer changes nothing.

    Raises:
        TraceError: the file is no log of events.
    """

    def __init__(self, path: Path, ask: Ask, say: Say) -> None:
        self._ask = ask
        self._say = say
        self._last: Seconds = 0.0
        self._idle: frozenset[str] = frozenset()
        self.joins = 0
        begun = path.exists() and path.stat().st_size > 0
        idle_before = frozenset[str]()
        if begun:
            self._last, idle_before = _end_of(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8")
        if not begun:
            self._file.write(HEAD)
        if idle_before:
            self._write(self._last, frozenset(), idle_before)

    def tick(self, now: Seconds) -> None:
        """Look at the nodes, and write what changed."""
        now = max(now, self._last)  # the clock may be set back
        try:
            idle = idle_in(self._ask())
        except TraceError as error:
            self._say(f"warning: {error}")
            return
        came, went = idle - self._idle, self._idle - idle
        if came or went or now - self._last >= AT_LEAST_EVERY:
            self._write(now, came, went)
        self.joins += len(came)
        self._idle = idle

    def close(self, now: Seconds) -> None:
        """End the log at this time."""
        self._write(max(now, self._last), frozenset(), frozenset())
        self._file.close()

    def _write(self, at: Seconds, came: frozenset[str], went: frozenset[str]) -> None:
        self._file.write(event_line(round(at, 1), sorted(came), sorted(went)))
        self._file.flush()
        self._last = round(at, 1)


def _end_of(path: Path) -> tuple[Seconds, frozenset[str]]:
    """When the log ends, and what is idle then."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if lines[:1] != [HEAD.strip()]:
        rule = "it is there, and no log that --watch wrote: give another --out"
        raise TraceError(path, 1, rule)
    if len(lines) == 1:
        return 0.0, frozenset()
    log = read_log(path)
    idle = log.node[log.end == float("inf")]
    return log.finish, frozenset(log.nodes[node] for node in idle)


def record(
    path: Path,
    ask: Ask,
    every: Seconds,
    hours: float | None,
    say: Say,
    clock: Callable[[], Seconds] = time.time,
    wait: Callable[[Seconds], None] = time.sleep,
) -> int:
    """Record until Ctrl-C, or for so many hours. Returns how often nodes became idle.

    Raises:
        TraceError: as `IdleRecorder`; or Slurm does not answer the first time.
    """
    idle_in(ask())
    recorder = IdleRecorder(path, ask, say)
    begin = clock()
    try:
        while True:
            recorder.tick(clock())
            if hours is not None and clock() - begin >= hours * 3600.0:
                break
            wait(every)
    except KeyboardInterrupt:
        say("stopped")
    finally:
        recorder.close(clock())
    return recorder.joins
