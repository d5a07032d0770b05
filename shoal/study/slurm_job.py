"""The Slurm job that a run is in: its nodes, its time limit, and whether it is submitted again."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import import_module
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shoal.core.errors import StudyError
from shoal.core.event import (
    Advanced,
    Commanded,
    Ended,
    Entry,
    Failed,
    Finished,
    Kept,
    Opened,
    Planned,
    Retired,
)
from shoal.core.fold import step
from shoal.core.state import State
from shoal.core.trial import Seconds, TrialId
from shoal.engine.journal import Journal, Line
from shoal.harvest.allocation import (
    Allocation,
    AllocationOver,
    SlurmRefused,
    allocation_now,
    requeue,
)
from shoal.reporting.format import plural
from shoal.study.inbox import WARNING

if TYPE_CHECKING:
    from shoal.options import Options

LEAVE = "leave the shell that belonged to it, or unset SLURM_JOB_ID"


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where a run is started. `allocation`: of Slurm; None: it is in none.

    `uses_nodes`: the run is to have the allocation's nodes. `nodes`: they are others than this
    machine alone; Ray starts on them.
    """

    allocation: Allocation | None = None
    uses_nodes: bool = False
    nodes: "AllocatedNodes | None" = None

    def room(self, threads: int) -> int | None:
        """Slots that the run's allocation has room for; None: it has none of an allocation."""
        if self.allocation is None or not self.uses_nodes:
            return None
        return self.allocation.slots(threads)

    def cpus(self) -> int | None:
        """CPUs of the allocation on this machine, for Ray to lend; None: they are not limited."""
        if self.allocation is None or not self.uses_nodes or not self.allocation.cpus:
            return None
        return self.allocation.cpus[0]

    def with_room(self, options: "Options") -> "Options":
        """The options, with the slots that there is room for if no number was given."""
        room = self.room(options.threads)
        if room is None or options.slots is not None:
            return options
        return replace(options, slots=room)

    def close(self) -> None:
        """Let go of the nodes."""
        if self.nodes is not None:
            self.nodes.close()

    def text(self) -> str:
        """The allocation for people; empty if there is none."""
        if self.allocation is None:
            return ""
        return allocation_text(self.allocation, time.time())


def run_place(
    options: "Options", folder: Path, environ: Mapping[str, str] = os.environ
) -> RunPlace:
    """Where a run with these options is started. `folder`: the study's.

    Raises:
        StudyError: Slurm's variables are wrong, they name an allocation that is over although the
            run is to have its nodes, or the run would have to stop before it begins.
    """
    ray = sys.modules.get("ray")
    uses_nodes = options.backend == "ray" and options.address is None
    uses_nodes = uses_nodes and not (ray is not None and ray.is_initialized())
    try:
        allocation = allocation_now(environ)
    except ValueError as error:
        raise StudyError(f"{error}: set it as Slurm does, or {LEAVE}") from error
    except AllocationOver as error:
        if uses_nodes:
            raise StudyError(f"SLURM_JOB_ID is set, and {error}: {LEAVE}") from error
        return RunPlace()
    if allocation is None:
        return RunPlace()
    margin = options.stop_before
    if allocation.end is not None and margin is not None:
        left = allocation.end - time.time()
        if left <= margin:
            raise StudyError(
                f"stop_before={margin:g} leaves no time of Slurm job {allocation.job}, which ends "
                f"in {max(0.0, left):.0f} s: give fewer seconds, or ask Slurm for more time"
            )
    nodes = None
    if uses_nodes and not allocation.alone:
        nodes = AllocatedNodes(allocation, folder)
    return RunPlace(allocation, uses_nodes, nodes)


def allocation_text(allocation: Allocation, now: Seconds) -> str:
    """The allocation for people: "Slurm job 123: 2 nodes, 8 CPUs each, ends at 14:05:00"."""
    parts = [plural(len(allocation.nodes), "node")]
    each = " each" if len(allocation.nodes) > 1 else ""
    if len(set(allocation.cpus)) == 1:
        parts.append(f"{plural(allocation.cpus[0], 'CPU')}{each}")
    elif allocation.cpus:
        parts.append(plural(sum(allocation.cpus), "CPU"))
    if allocation.gpus:
        parts.append(f"{plural(allocation.gpus, 'GPU')}{each}")
    if allocation.end is not None:
        parts.append(f"ends at {clock(allocation.end, now)}")
    return f"Slurm job {allocation.job}: {', '.join(parts)}"


def clock(at: Seconds, now: Seconds) -> str:
    """The time of day here; with its date if that is another one than that of `now`."""
    when = datetime.fromtimestamp(at)
    if when.date() == datetime.fromtimestamp(now).date():
        return f"{when:%H:%M:%S}"
    return f"{when:%Y-%m-%d %H:%M:%S}"


# Seconds that the nodes may take to start Ray; then the run begins with those that did.
PATIENCE: Seconds = 180.0
LOOK: Seconds = 0.5
SMALLEST = 1 / 64  # share of a CPU
FOLDER = "nodes"  # in the study's folder, which all nodes see


class AllocatedNodes:
    """The nodes of an allocation. Ray starts on them when they are first asked for.

    `folder`: the study's. `tell`: told what is waited for.
    """

    def __init__(self, allocation: Allocation, folder: Path) -> None:
        self._allocation = allocation
        self._folder = folder / FOLDER
        self._runner: Any = None
        self.tell: Callable[[str], None] = lambda text: None
        # Seconds that the start of Ray took.
        self.took: Seconds = 0.0

    def address(self) -> str:
        """The address of Ray on the nodes; this process has joined it.

        Raises:
            StudyError: Ray did not start on any of them.
        """
        if self._runner is None:
            self._start()
        address: str = self._runner.address
        return address

    def shares(self, slots: int | None, threads: int) -> dict[str, float]:
        """The parts of a node that a slot takes, as arguments of `RaySetup`, for so many slots.

        More slots than GPUs, or than CPUs by threads, have a part of one each.
        """
        allocation = self._allocation
        if not allocation.cpus and not allocation.gpus:  # Slurm does not say what there is
            return {}
        wanted = slots or allocation.slots(threads)
        if allocation.gpus:
            gpus = allocation.gpus * len(allocation.nodes)
            return {"cpus_per_slot": 0.0, "gpus_per_slot": 1 / -(-wanted // gpus)}
        share = float(threads)
        while share > SMALLEST and sum(cpus // share for cpus in allocation.cpus) < wanted:
            share /= 2
        return {"cpus_per_slot": share}

    def close(self) -> None:
        """Leave the cluster, and end it."""
        if self._runner is None:
            return
        import_module("shoal.backend.ray.cluster").leave(started_here=False, joined=True)
        self._runner.close()

    def _start(self) -> None:
        """Start Ray on the nodes, and join it.

        Raises:
            StudyError: it starts at none of them.
        """
        began = time.monotonic()
        nodes = plural(len(self._allocation.nodes), "node")
        self.tell(f"Starting Ray on {nodes} of Slurm job {self._allocation.job} …")
        harvest_nodes = import_module("shoal.harvest.nodes")
        try:
            self._runner = harvest_nodes.NodesRunner(self._allocation, self._folder)
        except (RuntimeError, OSError) as error:
            raise StudyError(
                f"Ray does not start on {nodes} of Slurm job {self._allocation.job}: {error}"
            ) from error
        joined = self._join(began)
        self.took = time.monotonic() - began
        self.tell(f"{joined} of {nodes} there after {self.took:.1f} s")

    def _join(self, began: float) -> int:
        """Join Ray, and wait for the nodes; returns how many are there.

        Raises:
            StudyError: none is.
        """
        cluster = import_module("shoal.backend.ray.cluster")
        cluster.use_token(self._runner.token)
        cluster.join(self._runner.address, None, 1, 0.0)
        joined = 0
        while joined < len(self._allocation.nodes):
            joined = sum(node.room > 0 for node in cluster.live_nodes(cluster.ONE_CPU))
            late = time.monotonic() - began > PATIENCE
            if late or self._runner.over:
                break
            time.sleep(LOOK)
        if joined:
            return joined
        raise StudyError(
            f"no node of Slurm job {self._allocation.job} joined Ray within "
            f"{time.monotonic() - began:.0f} s: {self._runner.said() or 'srun says nothing'}"
        )


# Between two looks at the clock.
EVERY: Seconds = 0.5
# A stop comes so long before the end at least.
LEAST: Seconds = 60.0
# What is added to the time of a visit, which may take so much longer than the longest so far.
CLOSING: Seconds = 30.0
LONGER = 1.2
# So long before the end the visits under way are given up, in order to end in good order.
LAST: Seconds = 15.0
# Between two interrupts of a run that does not end.
AGAIN: Seconds = 3.0
# How the reason of such a stop begins, in the journal.
OF_SLURM = "Slurm job"


class LongestVisit:
    """The longest visit, or gang with a quota, so far: a stop may have to wait so long."""

    def __init__(self) -> None:
        self.seconds: Seconds = 0.0
        self._since: dict[TrialId, Seconds] = {}
        self._whole: set[TrialId] = set()  # in gangs with a quota, which end by themselves

    def __call__(self, now: Seconds, entries: Iterable[Entry], state: State) -> None:
        for entry in entries:
            match entry:
                case Planned(start=gangs):
                    for gang in gangs:
                        self._since |= dict.fromkeys(gang.trials, now)
                        self._whole.difference_update(gang.trials)
                        if gang.quota is not None:
                            self._whole.update(gang.trials)
                case Advanced(visits=visits):
                    trials = {trial for trial, made in visits.items() if made}
                    self._note(now, trials - self._whole)
                case Ended(gang=gang):
                    self._note(now, self._whole.intersection(gang.trials))

    def _note(self, now: Seconds, trials: Iterable[TrialId]) -> None:
        for trial in trials:
            self.seconds = max(self.seconds, now - self._since.get(trial, now))
            self._since[trial] = now


class TimeLimit:
    """Stops the run before its allocation ends, while this context is open.

    The stop lets the visits under way end. Those that take too long are given up `LAST` seconds
    before the end: the run is interrupted, as by a second Ctrl-C, and the context swallows that.

    As a watcher of the run it follows the state and how long visits take.

    `allocation`: None, or one without an end: there is no limit. `margin`: how many
    seconds before the end to stop; None: a minute, or more where visits take long, but at most half
    of what was left at the start. `tell`: tells the run's backend.
    """

    def __init__(
        self,
        allocation: Allocation | None,
        margin: Seconds | None,
        state: State,
        tell: Callable[[Commanded], None],
    ) -> None:
        self.state = state
        self._allocation = allocation
        self._end = inf
        if allocation is not None and allocation.end is not None:
            self._end = allocation.end
        self._margin = margin
        self._tell = tell
        self._largest_margin = max(0.0, self._left()) / 2
        self._visits = LongestVisit()
        self._stopped: Commanded | None = None
        self._interrupted = False
        self._run_thread = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shoal-time-limit", daemon=True)

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        self.state = state
        self._visits(now, entries, state)

    def __enter__(self) -> "TimeLimit":
        self._run_thread = threading.get_ident()
        if self._end < inf:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._over.set()
        try:
            if self._thread.ident is not None:
                self._thread.join()
        except KeyboardInterrupt:  # one that was sent when the run had just ended
            if not self._interrupted:
                raise
        return self._interrupted and kind is KeyboardInterrupt

    def ended(self, journal: Journal, now: Seconds) -> State:
        """The last state of a run that was interrupted; the journal says why it stopped.

        `now`: the time of the study.
        """
        if self._stopped is not None and self.state.stopped is None:
            journal.append(now, self._stopped)
            journal.sync()
            self.state = step(self.state, self._stopped)
        return self.state

    def margin(self) -> Seconds:
        """How many seconds before the end the run is to stop."""
        if self._margin is not None:
            return self._margin
        return min(self._largest_margin, max(LEAST, LONGER * self._visits.seconds + CLOSING))

    def _left(self) -> Seconds:
        return self._end - time.time()

    def _watch(self) -> None:
        while not self._over.wait(EVERY):
            if self._stopped is None:
                if self._left() <= self.margin():
                    self._stop()
            elif self._left() <= min(LAST, self.margin() / 2):
                # The run may take the first signal as another request to stop. In another thread
                # than the main one it cannot be interrupted.
                main = threading.main_thread().ident
                if main is not None and main == self._run_thread:
                    self._interrupted = True
                    signal.pthread_kill(main, signal.SIGINT)
                self._over.wait(AGAIN)

    def _stop(self) -> None:
        """Stop the run, unless somebody has given its job more time meanwhile."""
        allocation = self._allocation
        with suppress(AllocationOver, ValueError):
            allocation = allocation_now(os.environ)
        if allocation is None or allocation.end is None:
            self._end = inf
            return
        self._end = allocation.end
        if self._left() <= self.margin():
            at = clock(self._end, time.time())
            self._stopped = Commanded("stop", f"{OF_SLURM} {allocation.job} ends at {at}")
            self._tell(self._stopped)


# Runs in a row, stopped by the time limit, that may end without progress.
FRUITLESS = 2


@dataclass(slots=True)
class _Ending:
    """How a run ended. `why`: it was stopped; None: it was not. `further`: it made progress."""

    why: str | None = None
    further: bool = False

    @property
    def by_limit(self) -> bool:
        """Whether Slurm's time limit stopped it, or Slurm's warning of that."""
        why = self.why or ""
        return why == WARNING or why.startswith(OF_SLURM)


def check_requeue(environ: Mapping[str, str] = os.environ) -> None:
    """Raise StudyError unless this is a batch job, which Slurm can start again."""
    rule = "--requeue is for a batch job of Slurm"
    try:
        allocation = allocation_now(environ)
    except (AllocationOver, ValueError) as error:
        raise StudyError(f"{rule}: {error}") from error
    if allocation is None:
        raise StudyError(
            f"{rule}, and SLURM_JOB_ID is not set: submit the command with sbatch "
            "(`shoal slurm script` writes the file), or leave --requeue out"
        )
    if not allocation.batch:
        raise StudyError(
            f"{rule}; job {allocation.job} is none that scontrol knows as such: submit the command "
            "with sbatch, or leave --requeue out"
        )


def why_not_requeued(lines: Iterable[Line]) -> str | None:
    """Why the job is not to start again after the last run in the journal; None: it is to.

    Raises:
        StudyError: it made no progress time and again.
    """
    endings = list(_endings(lines))
    if not endings or endings[-1].why is None:
        return "the study is done"
    if not endings[-1].by_limit:
        return f"the run was stopped: {endings[-1].why}"
    last = endings[-FRUITLESS:]
    fruitless = [each for each in last if each.by_limit and not each.further]
    if len(fruitless) == FRUITLESS:
        raise StudyError(
            f"not submitted again: the last {FRUITLESS} runs were stopped by the time limit before "
            "anything new was durable. Ask Slurm for more time, or make passes shorter, by more "
            "shards"
        )
    return None


def _endings(lines: Iterable[Line]) -> Iterator[_Ending]:
    """How each run of the study ended, in order."""
    ending: _Ending | None = None
    for line in lines:
        match line.entry:
            case Opened():
                if ending is not None:
                    yield ending
                ending = _Ending()
            case Commanded("stop", why) if ending is not None:
                ending.why = ending.why or why or "as asked"
            case Kept() | Finished() | Failed() | Retired() if ending is not None:
                ending.further = True
    if ending is not None:
        yield ending


def requeue_job(environ: Mapping[str, str] = os.environ) -> None:
    """Have Slurm start the job's script again. That ends this process, so it is the last thing.

    Raises:
        StudyError: Slurm refuses it.
    """
    job = environ["SLURM_JOB_ID"]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm ends the job's processes so
    try:
        requeue(job)
    except SlurmRefused as error:
        raise StudyError(
            f"Slurm does not start job {job} again ({error}): submit its script by hand; "
            "nothing is lost"
        ) from error
