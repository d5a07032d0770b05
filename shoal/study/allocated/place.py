"""The allocation that a run is started in, if any, and what the run has of it."""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.trial import Seconds
from shoal.harvest.allocation import Allocation, AllocationOver, allocation_now
from shoal.reporting.format import plural
from shoal.study.allocated.nodes import LentNodes
from shoal.study.folder import StudyError

if TYPE_CHECKING:  # what tells of an allocation needs no torch
    from shoal.options import Options

LEAVE = "leave the shell that belonged to it, or unset SLURM_JOB_ID"


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where a run is started. `found`: the allocation of Slurm; None: it is in none.

    `uses_nodes`: the run is to have the allocation's nodes. `nodes`: they are others than this
    machine alone; Ray starts on them.
    """

    found: Allocation | None = None
    uses_nodes: bool = False
    nodes: LentNodes | None = None

    def room(self, threads: int) -> int | None:
        """Slots that the run's allocation has room for; None: it has none of an allocation."""
        if self.found is None or not self.uses_nodes:
            return None
        return self.found.slots(threads)

    def cpus(self) -> int | None:
        """CPUs of the allocation on this machine, for Ray to lend; None: they are not limited."""
        if self.found is None or not self.uses_nodes or not self.found.cpus:
            return None
        return self.found.cpus[0]

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
        if self.found is None:
            return ""
        return described(self.found, time.time())


def place_of(options: "Options", folder: Path, environ: Mapping[str, str] = os.environ) -> RunPlace:
    """Where a run with these options is started. `folder`: the study's.

    Raises:
        StudyError: Slurm's variables are wrong, they name an allocation that is over although the
            run is to have its nodes, or the run would have to stop before it begins.
    """
    uses = options.backend == "ray" and options.address is None and not _has_ray()
    try:
        found = allocation_now(environ)
    except ValueError as error:
        raise StudyError(f"{error}: set it as Slurm does, or {LEAVE}") from error
    except AllocationOver as error:
        if uses:
            raise StudyError(f"SLURM_JOB_ID is set, and {error}: {LEAVE}") from error
        return RunPlace()
    if found is None:
        return RunPlace()
    _check_time(found, options.stop_before, time.time())
    nodes = None
    if uses and not found.alone:
        nodes = LentNodes(found, folder)
    return RunPlace(found, uses, nodes)


def _has_ray() -> bool:
    """Whether this process has joined a cluster of Ray already."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _check_time(found: Allocation, margin: Seconds | None, now: Seconds) -> None:
    """Raise StudyError if the run would have to stop before it begins."""
    if found.end is None or margin is None:
        return
    left = found.end - now
    if left <= margin:
        raise StudyError(
            f"stop_before={margin:g} leaves no time of Slurm job {found.job}, which ends in "
            f"{max(0.0, left):.0f} s: give fewer seconds, or ask Slurm for more time"
        )


def described(found: Allocation, now: Seconds) -> str:
    """The allocation for people: "Slurm job 123: 2 nodes, 8 CPUs each, ends at 14:05:00"."""
    parts = [plural(len(found.nodes), "node")]
    each = " each" if len(found.nodes) > 1 else ""
    if len(set(found.cpus)) == 1:
        parts.append(f"{plural(found.cpus[0], 'CPU')}{each}")
    elif found.cpus:
        parts.append(plural(sum(found.cpus), "CPU"))
    if found.gpus:
        parts.append(f"{plural(found.gpus, 'GPU')}{each}")
    if found.end is not None:
        parts.append(f"ends at {clock(found.end, now)}")
    return f"Slurm job {found.job}: {', '.join(parts)}"


def clock(at: Seconds, now: Seconds) -> str:
    """The time of day here; with its date if that is another one than that of `now`."""
    when = datetime.fromtimestamp(at)
    if when.date() == datetime.fromtimestamp(now).date():
        return f"{when:%H:%M:%S}"
    return f"{when:%Y-%m-%d %H:%M:%S}"
