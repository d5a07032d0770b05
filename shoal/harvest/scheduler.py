"""What harvesting needs of a batch system: three calls. Slurm's are in `shoal.harvest.slurm`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from shoal.core.trial import Seconds

# Words of a pilot's command that the batch system's script replaces, where the pilot runs.
NODE = "{node}"  # the node's name
UNTIL = "{until}"  # when the job's time limit ends it, in seconds since 1970


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


class Scheduler(Protocol):
    """A batch system, as harvesting sees it.

    Raises:
        SchedulerError: each of the calls, when the batch system does not do it.
    """

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
