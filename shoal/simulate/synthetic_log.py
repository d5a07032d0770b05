"""Made-up idle-node logs that behave like real ones.

As measured on Summit: young nodes leave soonest, and nodes of near racks leave together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf

import numpy as np

from shoal.core.trial import Seconds
from shoal.simulate.idle_log import Fragment, IdleLog, Ids


@dataclass(frozen=True)
class Machine:
    """Racks in one row, with `per_rack` nodes each, of which the part `idle` is idle on average.

    `hazard`: departures per node and hour from each age on, as (seconds, rate) rising in age. A
    node that leaves takes along an idle node d racks away with the probability
    `chance` * exp(-d / `reach`). Nodes become idle in blocks of `block` on average. `tick`: seconds
    between two looks at the machine.

    Raises:
        ValueError: a number is out of range.
    """

    racks: int = 32
    per_rack: int = 18
    idle: float = 0.09
    hazard: Sequence[tuple[float, float]] = (
        (0, 9.0),
        (60, 11.0),
        (180, 4.5),
        (900, 2.4),
        (2700, 1.5),
    )
    chance: float = 0.6
    reach: float = 6.0
    block: float = 12.0
    tick: Seconds = 10.0

    def __post_init__(self) -> None:
        nodes = self.racks >= 1 and self.per_rack >= 1
        parts = 0 < self.idle < 1 and 0 <= self.chance < 1
        if not nodes or not parts:
            needs = "racks, nodes, 0 < idle < 1 and 0 <= chance < 1"
            raise ValueError(f"a machine needs {needs}; got {self!r}")

        lengths = self.reach > 0 and self.block >= 1 and self.tick > 0
        if not lengths or self.hazard[0][0] != 0:
            needs = "reach > 0, block >= 1, tick > 0 and a hazard from age 0 on"
            raise ValueError(f"a machine needs {needs}; got {self!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes' names, a01n01, a01n02, …: rack and node."""
        return tuple(
            f"a{rack:02d}n{node:02d}"
            for rack in range(1, self.racks + 1)
            for node in range(1, self.per_rack + 1)
        )


def synthetic(machine: Machine, hours: float, seed: int = 0) -> IdleLog:
    """A made-up log of so many hours, a function of its arguments alone."""
    nodes = _Nodes(machine, seed)
    ticks = int(hours * 3600 / machine.tick)
    fragments: list[Fragment] = []
    for number in range(ticks):
        now = number * machine.tick
        fragments += nodes.leave(now)
        if number == 0:
            nodes.fill(now)
        else:
            nodes.release(now)
    fragments += nodes.still_idle()

    log = IdleLog.of(fragments, ticks * machine.tick)
    return replace(log, begin=0.0, machine=machine.racks * machine.per_rack)


class _Nodes:
    """The nodes of a machine in virtual time: since when each is idle, -1 if it is busy."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self._machine = machine
        self._names = machine.names
        self._rng = np.random.default_rng(seed)
        self._rack = np.arange(len(self._names)) // machine.per_rack
        self._since = np.full(len(self._names), -1.0)
        self._wanted = machine.idle * len(self._names)  # idle nodes on average
        self._ages, self._rates = np.array(machine.hazard, float).T

        distance = np.abs(self._rack[:, None] - self._rack)
        self._together = machine.chance * np.exp(-distance / machine.reach)
        # About how many nodes leave at a time: each takes some of the idle ones along.
        self._company = 1.0 + machine.idle * float(self._together.sum(1).mean())

    # -- nodes leave -------------------------------------------------------------------------------

    def leave(self, now: Seconds) -> list[Fragment]:
        """Have some idle nodes leave. Returns the intervals that end with that."""
        idle = self._idle()
        first = self._first(idle, now)
        if not len(first):
            return []
        gone = np.union1d(first, self._along(idle, first))
        fragments = [(name, start, now) for name, start, _ in map(self._fragment, gone)]
        self._since[gone] = -1.0
        return [fragment for fragment in fragments if now > fragment[1]]

    def _first(self, idle: Ids, now: Seconds) -> Ids:
        """Nodes that leave by themselves, the younger the sooner."""
        if not len(idle):
            return idle
        age = now - self._since[idle]
        band = np.searchsorted(self._ages, age, side="right") - 1
        departures = self._rates[band] * self._machine.tick / 3600.0 / self._company
        leaves = self._rng.random(len(idle)) < 1.0 - np.exp(-departures)
        first: Ids = idle[leaves]
        return first

    def _along(self, idle: Ids, first: Ids) -> Ids:
        """Idle nodes that the `first` ones take along, the nearer the likelier."""
        chance = self._together[first][:, idle]
        taken = self._rng.random((len(first), len(idle))) < chance
        along: Ids = idle[taken.any(0)]
        return along

    # -- nodes become idle -------------------------------------------------------------------------

    def fill(self, now: Seconds) -> None:
        """Make as many nodes idle at once as are so on average."""
        self._release(now, int(self._wanted))

    def release(self, now: Seconds) -> None:
        """A block of busy nodes may become idle, the sooner the fewer are."""
        short = self._wanted - len(self._idle())
        expected = max(0.0, 0.2 + short / self._wanted) * self._machine.tick / 60.0
        if self._rng.random() < 1.0 - exp(-expected):
            self._release(now, int(self._rng.geometric(1.0 / self._machine.block)))

    def _release(self, now: Seconds, count: int) -> None:
        """So many busy nodes around some rack become idle, one at least."""
        busy = np.flatnonzero(self._since < 0)
        centre = self._rng.integers(self._machine.racks)
        distance = np.abs(self._rack[busy] - centre)
        order = np.lexsort((self._rng.random(len(busy)), distance))
        nearest = order[: max(1, count)]
        self._since[busy[nearest]] = now

    # -- idle nodes --------------------------------------------------------------------------------

    def _idle(self) -> Ids:
        """The numbers of the nodes that are idle."""
        return np.flatnonzero(self._since >= 0)

    def still_idle(self) -> list[Fragment]:
        """The intervals that have not ended."""
        return [self._fragment(node) for node in self._idle()]

    def _fragment(self, node: int) -> Fragment:
        """The interval of an idle node, which has no end yet."""
        return self._names[node], float(self._since[node]), inf
