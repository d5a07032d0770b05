"""Made-up idle-node logs that behave like real ones.

As measured on Summit: young nodes leave soonest, and nodes of near racks leave together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf

import numpy as np

from shoal.core.trial import Seconds
from shoal.simulate.trace import IdleLog


@dataclass(frozen=True)
class Machine:
    """Racks in one row, of so many nodes each, of which `idle` are idle on average.

    `hazard`: departures per node and hour from each age on, as (seconds, rate) rising in age; what leaves takes along idle
    nodes d racks away with the chance `chance` * exp(-d / `reach`). Nodes become idle in blocks of `block` on average.

    Raises:
        ValueError: a number out of range.
    """

    racks: int = 32
    per_rack: int = 18
    idle: float = 0.09
    hazard: Sequence[tuple[float, float]] = ((0, 9.0), (60, 11.0), (180, 4.5), (900, 2.4), (2700, 1.5))
    chance: float = 0.6
    reach: float = 6.0
    block: float = 12.0
    tick: Seconds = 10.0

    def __post_init__(self) -> None:
        if min(self.racks, self.per_rack) < 1 or not 0 < self.idle < 1 or not 0 <= self.chance < 1:
            raise ValueError(f"a machine needs racks, nodes, 0 < idle < 1 and 0 <= chance < 1; got {self!r}")
        if not (self.reach > 0 and self.block >= 1 and self.tick > 0) or self.hazard[0][0] != 0:
            raise ValueError(f"a machine needs reach > 0, block >= 1, tick > 0 and a hazard from age 0 on; got {self!r}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"a{rack + 1:02d}n{node + 1:02d}" for rack in range(self.racks) for node in range(self.per_rack))


def synthetic(machine: Machine, hours: float, seed: int = 0) -> IdleLog:
    """A log of so many hours, a function of its arguments alone."""
    rng = np.random.default_rng(seed)
    count = machine.racks * machine.per_rack
    rack = np.arange(count) // machine.per_rack
    since = np.full(count, -1.0)  # idle since; below 0: busy
    ages, rates = (np.array(column, float) for column in zip(*machine.hazard, strict=True))
    near = machine.chance * np.exp(-np.abs(rack[:, None] - rack) / machine.reach)
    company = 1.0 + machine.idle * float(near.sum(1).mean())  # how many leave at a time, about
    fragments = []
    ticks = int(hours * 3600 / machine.tick)
    for k in range(ticks):
        now = k * machine.tick
        idle = np.flatnonzero(since >= 0)
        if len(idle):
            rate = rates[np.searchsorted(ages, now - since[idle], side="right") - 1]
            first = idle[rng.random(len(idle)) < 1.0 - np.exp(-rate * machine.tick / 3600.0 / company)]
            if len(first):
                along = rng.random((len(first), len(idle))) < near[first][:, idle]
                gone = np.union1d(first, idle[along.any(0)])
                fragments += [(n, since[n], now) for n in gone if now > since[n]]
                since[gone] = -1.0
        _release(machine, rng, since, rack, now, k == 0)
    fragments += [(n, since[n], inf) for n in np.flatnonzero(since >= 0)]
    names = machine.names
    log = IdleLog.of([(names[n], float(a), float(b)) for n, a, b in fragments], ticks * machine.tick)
    return IdleLog(log.nodes, log.node, log.start, log.end, 0.0, log.finish, machine=count)


def _release(machine: Machine, rng: np.random.Generator, since: np.ndarray, rack: np.ndarray, now: Seconds, full: bool) -> None:
    """A block of busy nodes around some rack becomes idle, the sooner the fewer are."""
    wanted = machine.idle * len(since)
    short = wanted - float((since >= 0).sum())
    chance = 1.0 - exp(-max(0.0, 0.2 + short / wanted) * machine.tick / 60.0)
    if not full and rng.random() >= chance:
        return
    busy = np.flatnonzero(since < 0)
    size = int(wanted) if full else min(len(busy), int(rng.geometric(1.0 / machine.block)))
    centre = rng.integers(machine.racks)
    order = np.lexsort((rng.random(len(busy)), np.abs(rack[busy] - centre)))
    since[busy[order[: max(1, size)]]] = now
