"""The nodes of the allocation that a run is in, as a Ray cluster."""

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core.trial import Seconds
from shoal.harvest.allocation import Allocation
from shoal.reporting.format import plural
from shoal.study.folder import StudyError

# Seconds that the nodes may take to start Ray; then the run begins with those that did.
PATIENCE: Seconds = 180.0
LOOK: Seconds = 0.5
SMALLEST = 1 / 64  # share of a CPU
FOLDER = "nodes"  # in the study's folder, which all nodes see


class LentNodes:
    """The nodes of an allocation. Ray starts on them when they are first asked for.

    `folder`: the study's. `tell`: told what is waited for.
    """

    def __init__(self, found: Allocation, folder: Path) -> None:
        self._found = found
        self._folder = folder / FOLDER
        self._runner: Any = None
        self.tell: Callable[[str], None] = lambda text: None
        # Seconds that the start of Ray took.
        self.took: Seconds = 0.0

    def address(self) -> str:
        """Where Ray is on the nodes; this process has joined it.

        Raises:
            StudyError: Ray did not start on any of them.
        """
        if self._runner is None:
            self._start()
        address: str = self._runner.address
        return address

    def shares(self, slots: int | None, threads: int) -> dict[str, float]:
        """What of a node each slot takes, by name of `RaySetup`, if there are to be so many slots.

        More slots than GPUs, or than CPUs by threads, have a part of one each.
        """
        found = self._found
        if not found.cpus and not found.gpus:  # Slurm does not say what there is
            return {}
        wanted = slots or found.slots(threads)
        if found.gpus:
            there = found.gpus * len(found.nodes)
            return {"cpus_per_slot": 0.0, "gpus_per_slot": 1 / -(-wanted // there)}
        each = float(threads)
        while each > SMALLEST and sum(cpus // each for cpus in found.cpus) < wanted:
            each /= 2
        return {"cpus_per_slot": each}

    def close(self) -> None:
        """Leave the cluster, and end it."""
        if self._runner is None:
            return
        import_module("shoal.backend.ray.cluster").leave(own=False, joined=True)
        self._runner.close()

    def _start(self) -> None:
        """Start Ray on the nodes, and join it.

        Raises:
            StudyError: it starts at none of them.
        """
        began = time.monotonic()
        nodes = plural(len(self._found.nodes), "node")
        self.tell(f"Starting Ray on {nodes} of Slurm job {self._found.job} …")
        ray = import_module("shoal.harvest.nodes")
        try:
            self._runner = ray.NodesRunner(self._found, self._folder)
        except (RuntimeError, OSError) as error:
            raise StudyError(
                f"Ray does not start on {nodes} of Slurm job {self._found.job}: {error}"
            ) from error
        there = self._awaited(began)
        self.took = time.monotonic() - began
        self.tell(f"{there} of {nodes} there after {self.took:.1f} s")

    def _awaited(self, began: float) -> int:
        """Join Ray, and wait for the nodes; returns how many are there.

        Raises:
            StudyError: none is.
        """
        cluster = import_module("shoal.backend.ray.cluster")
        cluster.use_token(self._runner.token)
        cluster.join(self._runner.address, None, 1, 0.0)
        there = 0
        while there < len(self._found.nodes):
            there = sum(node.room > 0 for node in cluster.live_nodes(cluster.ONE_CPU))
            late = time.monotonic() - began > PATIENCE
            if late or self._runner.over:
                break
            time.sleep(LOOK)
        if there:
            return there
        raise StudyError(
            f"no node of Slurm job {self._found.job} joined Ray within "
            f"{time.monotonic() - began:.0f} s: {self._runner.said() or 'srun says nothing'}"
        )
